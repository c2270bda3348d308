package session

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// pendingMax bounds requests in flight on one session; it is far above what a program needs (a coordinator waits for each of its procs).
const pendingMax = 16384

// Client is the asking side of one session. Safe for concurrent use.
type Client struct {
	conn Conn
	done chan struct{} // closed when the reader has ended

	mu      sync.Mutex
	pending map[uint16]chan reply // mu
	nextTag uint16                // mu
	nextFid uint32                // mu
	freeFid []uint32              // mu
	broken  error                 // mu; why no more requests can be made
}

type reply struct {
	msg   sigmap.Message
	files []*os.File
}

// Dial negotiates the version over conn and starts the session. It owns conn from now on.
func Dial(ctx context.Context, conn Conn) (*Client, error) {
	c := &Client{conn: conn, done: make(chan struct{}), pending: map[uint16]chan reply{}}
	go c.read()
	r, _, err := c.call(ctx, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma}, nil, true)
	if err == nil {
		if v, ok := r.(*sigmap.Rversion); !ok || v.Version != sigmap.VersionSigma || v.Msize < sigmap.MessageMax {
			err = sigma.Errorf("session.Dial", sigma.KindUnsupported, "the server does not speak %s", sigmap.VersionSigma)
		}
	}
	if err != nil {
		c.Close()
		return nil, sigma.Wrap("session.Dial", "", err)
	}
	return c, nil
}

// Close ends the session and waits for its goroutine. Requests in flight get KindLost.
func (c *Client) Close() {
	c.conn.Close()
	<-c.done
}

// Done is closed when the session has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.done }

// Attach returns the root of the server's tree (name chooses among several, "" is the default).
func (c *Client) Attach(ctx context.Context, name string) (sigma.File, error) {
	fid := c.newFid()
	_, err := c.roundTrip(ctx, &sigmap.Tattach{Fid: fid, Afid: sigmap.NoFid, Aname: name, NUname: sigmap.NoFid})
	if err != nil {
		c.putFid(fid)
		return nil, err
	}
	return &remote{c: c, fid: fid}, nil
}

// read dispatches replies until the connection ends.
func (c *Client) read() {
	var err error
	for err == nil {
		var msg []byte
		var files []*os.File
		if msg, files, err = c.conn.Recv(); err == nil {
			err = c.dispatch(msg, files)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
		err = sigma.Errorf("session.Client", sigma.KindLost, "the session has ended")
	}
	c.conn.Close()
	c.mu.Lock()
	c.broken = &sigma.Error{Op: "session.Client", Kind: sigma.KindLost, Msg: "connection lost", Err: err}
	for _, ch := range c.pending {
		close(ch)
	}
	c.pending = nil
	c.mu.Unlock()
	close(c.done)
}

func (c *Client) dispatch(buf []byte, files []*os.File) error {
	tag, m, err := sigmap.Decode(buf)
	if err != nil {
		CloseFiles(files)
		return err
	}
	c.mu.Lock()
	ch := c.pending[tag]
	delete(c.pending, tag)
	c.mu.Unlock()
	if ch == nil {
		CloseFiles(files)
		return sigma.Errorf("session.Client", sigma.KindInvalid, "the server answered a request that was not made")
	}
	ch <- reply{m, files} // has room for one
	return nil
}

// call sends m and waits for its reply. Passed files of the reply belong to the caller.
func (c *Client) call(ctx context.Context, m sigmap.Message, files []*os.File, version bool) (sigmap.Message, []*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, sigma.Wrap("session.call", "", err)
	}
	tag, ch, err := c.send(m, files, version)
	if err != nil {
		return nil, nil, err
	}
	select {
	case r, ok := <-ch:
		return c.received(r, ok)
	case <-ctx.Done():
	}
	return c.flush(ctx, tag, ch)
}

func (c *Client) received(r reply, ok bool) (sigmap.Message, []*os.File, error) {
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, nil, c.broken
	}
	if err := sigmap.Err(r.msg); err != nil {
		CloseFiles(r.files)
		return nil, nil, err
	}
	return r.msg, r.files, nil
}

// flush takes back the request tag. A reply that comes before the flush's own is used after all: the request took effect.
func (c *Client) flush(ctx context.Context, tag uint16, ch chan reply) (sigmap.Message, []*os.File, error) {
	canceled := sigma.Wrap("session.call", "", ctx.Err())
	_, fch, err := c.send(&sigmap.Tflush{OldTag: tag}, nil, false)
	if err != nil {
		return nil, nil, canceled
	}
	select {
	case r, ok := <-ch:
		go func() { <-fch }() // its tag stays taken until the server has answered; ends with the session at the latest
		return c.received(r, ok)
	case <-fch:
		select {
		case r, ok := <-ch: // both were there
			return c.received(r, ok)
		default:
		}
		c.mu.Lock()
		delete(c.pending, tag)
		c.mu.Unlock()
		return nil, nil, canceled
	}
}

func (c *Client) send(m sigmap.Message, files []*os.File, version bool) (uint16, chan reply, error) {
	ch := make(chan reply, 1)
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return 0, nil, c.broken
	}
	if len(c.pending) >= pendingMax {
		c.mu.Unlock()
		return 0, nil, sigma.Errorf("session.send", sigma.KindBusy, "%d requests are in flight on one session", pendingMax)
	}
	tag := uint16(sigmap.NoTag)
	if !version {
		for tag = c.nextTag; tag == sigmap.NoTag || c.pending[tag] != nil; tag++ {
		}
		c.nextTag = tag + 1
	}
	c.pending[tag] = ch
	c.mu.Unlock()

	buf, err := sigmap.Encode(make([]byte, 0, 128), tag, m)
	if err == nil {
		if err = c.conn.Send(buf, files); err == nil {
			return tag, ch, nil
		}
		err = &sigma.Error{Op: "session.send", Kind: sigma.KindLost, Msg: "connection lost", Err: err}
	}
	c.mu.Lock()
	delete(c.pending, tag)
	c.mu.Unlock()
	return 0, nil, err
}

// roundTrip is call for requests whose replies carry no files.
func (c *Client) roundTrip(ctx context.Context, m sigmap.Message) (sigmap.Message, error) {
	r, files, err := c.call(ctx, m, nil, false)
	CloseFiles(files)
	return r, err
}

func (c *Client) newFid() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.freeFid); n > 0 {
		fid := c.freeFid[n-1]
		c.freeFid = c.freeFid[:n-1]
		return fid
	}
	c.nextFid++
	return c.nextFid
}

func (c *Client) putFid(fid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeFid = append(c.freeFid, fid)
}

// unexpected is the error for a reply of another type than the request's.
func unexpected(m sigmap.Message) error {
	return sigma.Errorf("session.Client", sigma.KindInvalid, "the server answered with an unexpected %s", m.Type())
}
