package filestream

import (
	"errors"
	"io"
	"net"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Client reads and writes a file. Safe for concurrent use; one call at a time uses the stream.
type Client struct {
	mu      sync.Mutex
	conn    net.Conn  // mu; nil = broken
	pending []pending // mu; whose answers were not taken yet, oldest first: of reads, or of writes
	next    int64     // mu; where the last read ended
	missed  int       // mu; how many times what was asked ahead could not be used
	spoilt  error     // mu; why a write was not made for which nobody waited
}

// pending is a request that was sent.
type pending struct {
	request
	head *answer // nil = it was not received yet; what follows it was not in any case
}

const (
	// missedMax is when nothing is asked ahead any more: somebody writes the file all the time.
	missedMax = 3
	// behindMax bounds the writes that were sent and not answered: 8 MiB, what 10 Gbit/s carry in 7
	// ms.
	behindMax = 32
)

// New makes the Client of a stream, which it owns.
func New(conn net.Conn) *Client { return &Client{conn: conn, next: -1} }

// Close ends the stream.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breakLocked()
}

func (c *Client) breakLocked() {
	if c.conn != nil {
		c.conn.Close()
	}
	c.conn, c.pending = nil, nil
}

// failedLocked makes of an error what is told of it: an answer of the server's as it is; else the
// stream is broken.
func (c *Client) failedLocked(err error) error {
	if e := (*sigma.Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	if len(c.pending) > 0 && c.pending[0].op == opWrite && c.spoilt == nil {
		c.spoilt = &sigma.Error{Op: "filestream.WriteAt", Kind: sigma.KindLost,
			Msg: "the connection to the server is lost", Err: err}
	}
	c.breakLocked()
	return ErrBroken
}

// ReadAt reads len(p) bytes, fewer only with an error, which is io.EOF at the end of the file.
//
// Who reads on where the last read ended is sent the next piece before it asks. That it is what the
// file has now tells the answer to the request for the piece after it, which is made when this one
// is wanted: it has the same version.
func (c *Client) ReadAt(p []byte, off int64) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return 0, ErrBroken
	}
	if len(c.pending) > 0 && c.pending[0].op == opWrite {
		if err := c.settleLocked(); err != nil {
			return 0, err
		}
	}
	for n < len(p) {
		upto := min(len(p), n+PieceMax)
		then := min(len(p)-upto, PieceMax)
		if then == 0 { // most likely the next read is like this one
			then = min(len(p), PieceMax)
		}
		got, end, err := c.pieceLocked(p[n:upto], off+int64(n), uint32(then))
		n += got
		if err != nil {
			return n, c.failedLocked(err)
		}
		if end {
			return n, io.EOF
		}
	}
	return n, nil
}

// pieceLocked reads all of p, which is not empty, unless the file ends there. After it, that many
// bytes are most likely to be wanted.
func (c *Client) pieceLocked(p []byte, off int64, then uint32) (n int, end bool, err error) {
	if q := c.pending; len(q) > 0 && (int64(q[0].offset) != off || int(q[0].count) != len(p)) {
		if err := c.dropLocked(); err != nil {
			return 0, false, err
		}
	}
	var asked []byte
	ask := func(count uint32, off int64) {
		r := request{opRead, count, uint64(off)}
		asked = r.append(asked)
		c.pending = append(c.pending, pending{request: r})
	}
	fresh := len(c.pending) == 0
	if fresh {
		ask(uint32(len(p)), off)
	}
	count := c.pending[0].count
	if !fresh || off == c.next && c.missed < missedMax {
		ask(then, off+int64(count))
	}
	if _, err := c.conn.Write(asked); err != nil {
		return 0, false, err
	}
	head, err := c.headLocked()
	if err != nil {
		return 0, false, err
	}
	c.pending = c.pending[1:]
	if head.count > count {
		return 0, false, errForged
	}
	if _, err := io.ReadFull(c.conn, p[:head.count]); err != nil {
		return 0, false, err
	}
	if !fresh {
		now, err := c.headLocked()
		if e := (*sigma.Error)(nil); err != nil && !errors.As(err, &e) {
			return 0, false, err
		}
		if err != nil || now.version != head.version { // the file has changed since this was sent
			c.missed++
			c.next = -1
			if err := c.dropLocked(); err != nil {
				return 0, false, err
			}
			return c.pieceLocked(p, off, then)
		}
	}
	c.next = off + int64(head.count)
	return int(head.count), head.count < count, nil
}

// headLocked receives the beginning of the oldest answer. If that is an error, it is returned, and
// nothing of it is left.
func (c *Client) headLocked() (*answer, error) {
	q := &c.pending[0]
	if q.head != nil {
		return q.head, nil
	}
	var b [headSize]byte
	if _, err := io.ReadFull(c.conn, b[:]); err != nil {
		return nil, err
	}
	a := parseAnswer(b[:])
	if a.status == 0 {
		q.head = &a
		return q.head, nil
	}
	if a.count > sigmap.MessageMax {
		return nil, errForged
	}
	text := make([]byte, a.count)
	if _, err := io.ReadFull(c.conn, text); err != nil {
		return nil, err
	}
	c.pending = c.pending[1:]
	_, m, err := sigmap.Decode(text)
	if err == nil {
		err = sigmap.Err(m)
	}
	if e := (*sigma.Error)(nil); !errors.As(err, &e) {
		return nil, errForged
	}
	return nil, err
}

// errForged breaks the stream.
var errForged = errors.New("the server answers what cannot be")

// dropLocked receives what was asked for and is not wanted.
func (c *Client) dropLocked() error {
	for len(c.pending) > 0 {
		head, err := c.headLocked()
		if e := (*sigma.Error)(nil); errors.As(err, &e) {
			continue
		}
		if err != nil {
			return err
		}
		if head.count > c.pending[0].count {
			return errForged
		}
		if _, err := io.CopyN(io.Discard, c.conn, int64(head.count)); err != nil {
			return err
		}
		c.pending = c.pending[1:]
	}
	return nil
}

// WriteAt writes p. If it may be behind it returns before the server has written all, and Settle
// tells whether it did.
func (c *Client) WriteAt(p []byte, off int64, behind bool) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spoilt != nil {
		return 0, c.spoilt
	}
	if c.conn == nil {
		return 0, ErrBroken
	}
	if len(c.pending) > 0 && c.pending[0].op == opRead { // who does not read is not read
		if err := c.dropLocked(); err != nil {
			return 0, c.failedLocked(err)
		}
	}
	for sent := 0; sent < len(p) || len(c.pending) > 0 && !behind; {
		answers := sent == len(p) ||
			len(c.pending) >= behindMax // some at a time, so that who writes is not woken for each
		for answers && len(c.pending) > 0 && (sent == len(p) || len(c.pending) > behindMax/2) {
			done := int(c.pending[0].count)
			if err := c.writtenLocked(); err != nil {
				return n, c.afterLocked(err, behind)
			}
			if !behind {
				n += done
			}
		}
		if sent == len(p) {
			break
		}
		piece := p[sent:min(len(p), sent+writePiece)]
		r := request{opWrite, uint32(len(piece)), uint64(off) + uint64(sent)}
		c.pending = append(c.pending, pending{request: r})
		if _, err := (&net.Buffers{r.append(nil), piece}).WriteTo(c.conn); err != nil {
			return n, c.failedLocked(err)
		}
		sent += len(piece)
	}
	if behind {
		n = len(p)
	}
	return n, nil
}

// afterLocked is what there is to do when a write has failed: those after it were sent.
func (c *Client) afterLocked(err error, behind bool) error {
	if behind {
		c.spoilt = c.failedLocked(err)
		return c.spoilt
	}
	for len(c.pending) > 0 {
		if e := (*sigma.Error)(nil); !errors.As(err, &e) {
			break
		}
		if e := c.writtenLocked(); e != nil {
			if _, ok := e.(*sigma.Error); !ok {
				err = e
			}
		}
	}
	return c.failedLocked(err)
}

// writtenLocked takes the oldest answer, of a write.
func (c *Client) writtenLocked() error {
	head, err := c.headLocked()
	if err != nil {
		return err
	}
	if head.count != c.pending[0].count {
		return errForged
	}
	c.pending = c.pending[1:]
	return nil
}

// Settle waits until all writes are made, and tells why one was not.
func (c *Client) Settle() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settleLocked()
}

func (c *Client) settleLocked() error {
	for c.conn != nil && c.spoilt == nil && len(c.pending) > 0 && c.pending[0].op == opWrite {
		if err := c.writtenLocked(); err != nil {
			err = c.failedLocked(err)
			if c.spoilt == nil {
				c.spoilt = err
			}
		}
	}
	return c.spoilt
}
