package session

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

const (
	// pendingMax bounds requests in flight on one session; it is far above what a program needs (a coordinator waits for each of its procs).
	pendingMax = 16384
	// flushWait is how long a caller that gave up waits for the server to say what became of its request. A server that lives says so at once.
	flushWait = time.Second
)

// Client is the asking side of one session. Safe for concurrent use.
type Client struct {
	conn       Conn
	done       chan struct{} // closed when the reader has ended
	resettable bool          // the server may be replaced by another (DialSystem)

	gate sync.RWMutex // held by who sends a request; exclusively while the session begins anew

	mu      sync.Mutex
	pending map[uint16]*waiter // mu; by tag
	nextTag uint16             // mu
	nextFid uint32             // mu
	freeFid []uint32           // mu
	broken  error              // mu; why no more requests can be made
	resets                     // reset.go
}

// waiter is a request whose reply has not come.
type waiter struct {
	ch       chan reply // with room for one; nil if nobody waits
	into     []byte     // where the data of an Rread is wanted; nil = in the message
	clunks   uint32     // the fid that is free when the reply comes; 0 = none
	flushes  *uint16    // the tag that is free when the reply comes, if this is a Tflush
	epoch    uint32     // of the handle it is about; anyEpoch
	resumes  bool       // it is one of those by which a session begins anew
	flushed  bool       // a Tflush for it is under way: the tag stays taken until that is answered (9P flush(5))
	answered bool       // and the reply has come
}

type reply struct {
	msg   sigmap.Message
	files []*os.File
}

// errAbandoned marks the error of a request whose fate the server did not tell in time.
var errAbandoned = errors.New("the server did not confirm the cancellation")

// Abandoned reports whether err is that of a request whose caller gave up and whose fate the server did not tell in time: it may have taken effect.
func Abandoned(err error) bool { return errors.Is(err, errAbandoned) }

// Dial negotiates the version over conn and starts the session. It owns conn from now on.
func Dial(ctx context.Context, conn Conn) (*Client, error) { return dial(ctx, conn, false) }

func dial(ctx context.Context, conn Conn, resettable bool) (*Client, error) {
	c := &Client{conn: conn, done: make(chan struct{}), pending: map[uint16]*waiter{}, resettable: resettable, resets: newResets()}
	go c.read()
	r, _, err := c.call(ctx, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma}, nil, true, anyEpoch)
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
	r := &remote{c: c, fid: c.newFid(), epoch: c.Epoch()}
	if c.resettable {
		r.epoch = anyEpoch
	}
	m, err := ask[*sigmap.Rattach](ctx, r, &sigmap.Tattach{Fid: r.fid, Afid: sigmap.NoFid, Aname: name, NUname: sigmap.NoFid})
	if err != nil {
		c.unmade(r.fid, err)
		return nil, err
	}
	r.id = m.ID
	c.attachedAs(r.fid, name)
	return r, nil
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
	c.conn.Close()
	c.mu.Lock()
	c.broken = &sigma.Error{Op: "session.Client", Kind: sigma.KindLost, Msg: "the connection to the server is lost", Err: err}
	for _, w := range c.pending {
		if w.ch != nil {
			close(w.ch)
		}
	}
	c.pending = nil
	c.usableLocked()
	c.mu.Unlock()
	close(c.done)
}

func (c *Client) dispatch(buf []byte, files []*os.File) error {
	tag, m, err := sigmap.Decode(buf)
	if err != nil {
		CloseFiles(files)
		return err
	}
	if r, ok := m.(*sigmap.Rreset); ok && c.resettable && tag == sigmap.NoTag {
		CloseFiles(files)
		return c.reset(r.Nonce)
	}
	c.mu.Lock()
	w := c.pending[tag]
	if w != nil && w.answered {
		w = nil
	}
	if w != nil && w.flushed {
		w.answered = true
	} else {
		delete(c.pending, tag)
	}
	if w != nil && w.flushes != nil {
		delete(c.pending, *w.flushes) // no reply to it will follow
	}
	if w != nil && w.clunks != 0 {
		c.freeFid = append(c.freeFid, w.clunks)
	}
	if w != nil && w.ch != nil {
		if r, ok := m.(*sigmap.Rread); ok && w.into != nil && len(r.Data) <= len(w.into) { // here, where it is known that somebody waits
			r.Data = w.into[:copy(w.into, r.Data)]
			recycle(buf)
		}
		w.ch <- reply{m, files} // has room for the one
		files = nil
	}
	if w != nil && w.resumes {
		err = c.resumedLocked(m)
	}
	c.mu.Unlock()
	CloseFiles(files)
	if err != nil {
		return err
	}
	if w == nil {
		return sigma.Errorf("session.Client", sigma.KindInvalid, "the server answered a request that was not made")
	}
	return nil
}

// call sends m and waits for its reply. Passed files of the reply belong to the caller.
func (c *Client) call(ctx context.Context, m sigmap.Message, files []*os.File, version bool, epoch uint32) (sigmap.Message, []*os.File, error) {
	return c.callInto(ctx, m, nil, files, version, epoch)
}

// callInto is call that has the data of an Rread put where it is wanted. Nothing is written there after it has returned.
func (c *Client) callInto(ctx context.Context, m sigmap.Message, into []byte, files []*os.File, version bool, epoch uint32) (sigmap.Message, []*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, sigma.Wrap("session.call", "", err)
	}
	if err := c.awaitUsable(ctx); err != nil {
		return nil, nil, err
	}
	w := &waiter{ch: make(chan reply, 1), into: into, epoch: epoch}
	if !version {
		m = sigmap.With(ctx, m)
	}
	tag, err := c.send(w, m, files, version)
	if err != nil {
		return nil, nil, err
	}
	select {
	case r, ok := <-w.ch:
		return c.received(r, ok)
	case <-ctx.Done():
	}
	if version {
		return nil, nil, sigma.Wrap("session.call", "", ctx.Err())
	}
	return c.flush(ctx, tag, w)
}

func (c *Client) received(r reply, ok bool) (sigmap.Message, []*os.File, error) {
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.broken == nil {
			return nil, nil, errReset()
		}
		return nil, nil, c.broken
	}
	if err := sigmap.Err(r.msg); err != nil {
		CloseFiles(r.files)
		return nil, nil, err
	}
	return r.msg, r.files, nil
}

// flush takes back the request tag. A reply that comes before the flush's own is used after all: the request took effect. A server that answers neither is
// waited for only a little.
func (c *Client) flush(ctx context.Context, tag uint16, w *waiter) (sigmap.Message, []*os.File, error) {
	canceled := &sigma.Error{Op: "session.call", Kind: sigma.KindOf(ctx.Err()), Err: ctx.Err()}
	c.mu.Lock()
	w.flushed = c.pending[tag] == w
	c.mu.Unlock()
	if !w.flushed { // its reply came just now, or the session has ended
		r, ok := <-w.ch
		return c.taken(r, ok, canceled)
	}
	fw := &waiter{ch: make(chan reply, 1), flushes: &tag, epoch: w.epoch}
	if _, err := c.send(fw, &sigmap.Tflush{OldTag: tag}, nil, false); err != nil {
		c.abandon(w)
		c.unflush(tag, w)
		canceled.Err = errors.Join(ctx.Err(), errAbandoned)
		return nil, nil, canceled
	}
	patience := time.NewTimer(flushWait)
	defer patience.Stop()
	select {
	case r, ok := <-w.ch:
		c.abandon(fw)
		return c.taken(r, ok, canceled)
	case <-fw.ch:
		select {
		case r, ok := <-w.ch: // both were there
			return c.taken(r, ok, canceled)
		default:
			return nil, nil, canceled
		}
	case <-patience.C:
		c.abandon(w)
		c.abandon(fw)
		canceled.Err = errors.Join(ctx.Err(), errAbandoned)
		return nil, nil, canceled
	}
}

// taken is received for a request that was taken back: if the server says so too, the caller's own reason is the better one.
func (c *Client) taken(r reply, ok bool, canceled error) (sigmap.Message, []*os.File, error) {
	m, files, err := c.received(r, ok)
	if sigma.KindOf(err) == sigma.KindCanceled {
		err = canceled
	}
	return m, files, err
}

// unflush notes that w is not being flushed after all.
func (c *Client) unflush(tag uint16, w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.flushed = false
	if w.answered {
		delete(c.pending, tag)
	}
}

// abandon leaves the reply of w to the reader.
func (c *Client) abandon(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case r := <-w.ch: // it came just now, or the session has ended
		CloseFiles(r.files)
	default:
		w.ch = nil
	}
}

func (c *Client) send(w *waiter, m sigmap.Message, files []*os.File, version bool) (uint16, error) {
	if err := c.enter(w.epoch); err != nil {
		return 0, err
	}
	defer c.gate.RUnlock()
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return 0, c.broken
	}
	if len(c.pending) >= pendingMax {
		c.mu.Unlock()
		return 0, sigma.Errorf("session.send", sigma.KindBusy, "%d requests are in flight on one session", pendingMax)
	}
	tag := uint16(sigmap.NoTag)
	if !version {
		tag = c.newTagLocked()
	}
	c.pending[tag] = w
	c.mu.Unlock()

	err := c.write(tag, m, files)
	if err == nil {
		return tag, nil
	}
	c.mu.Lock()
	delete(c.pending, tag)
	c.mu.Unlock()
	return 0, err
}

func (c *Client) newTagLocked() uint16 {
	tag := c.nextTag
	for ; tag == sigmap.NoTag || c.pending[tag] != nil; tag++ {
	}
	c.nextTag = tag + 1
	return tag
}

func (c *Client) write(tag uint16, m sigmap.Message, files []*os.File) error {
	buf, err := sigmap.Encode(make([]byte, 0, 128), tag, m)
	if err == nil {
		err = sendIn(c.conn, buf, files, sendMax)
	}
	if _, ok := err.(*sigma.Error); err != nil && !ok { // the socket's: part of the message may have gone
		c.conn.Close()
		err = &sigma.Error{Op: "session.send", Kind: sigma.KindLost, Msg: "the connection to the server is lost", Err: err}
	}
	return err
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

// unmade gives back the number of a fid that the server did not make because of err. If the server may still make it, the number is not used again.
func (c *Client) unmade(fid uint32, err error) {
	if errors.Is(err, errAbandoned) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeFid = append(c.freeFid, fid)
}

// unexpected is the error for a reply of another type than the request's.
func unexpected(m sigmap.Message) error {
	return sigma.Errorf("session.Client", sigma.KindInvalid, "the server answered with an unexpected %s", m.Type())
}
