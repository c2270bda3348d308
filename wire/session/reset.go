package session

import (
	"context"
	"math"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A proc's connection to sigmad outlives sigmad: another takes it over, and tells so by Rreset. A
// program outside has a connection that ends with sigmad; the session makes another to the next
// sigmad (DialLasting). Then nothing of before holds: requests in flight get KindLost, since what
// became of them is unknown, and so does every later use of a file. The session begins anew, roots
// are attached again under their old fids, and goes on.

// anyEpoch is the epoch of what goes on in a session that began anew: roots.
const anyEpoch = math.MaxUint32

// resets is what a Client knows of them.
type resets struct {
	epoch    uint32            // Client.mu; counts them; changes only while gate is held exclusively
	attached map[uint32]string // Client.mu; roots by fid, and the names they were attached by
	waits    int               // Client.mu; replies to come before the session can be used
	usable   chan struct{}     // Client.mu; closed when it can
	isUsable bool              // Client.mu
	lost     chan struct{}     // Client.mu; closed with the epoch

	life context.Context // ends with the session
	end  context.CancelFunc
}

func newResets() resets {
	r := resets{attached: map[uint32]string{}, usable: make(chan struct{}), isUsable: true, lost: make(chan struct{})}
	r.life, r.end = context.WithCancel(context.Background())
	close(r.usable)
	return r
}

// DialSystem is Dial for a proc's connection to sigmad.
func DialSystem(ctx context.Context, conn Conn) (*Client, error) { return dial(ctx, conn, true, nil) }

// Redial makes a connection in place of one that has ended. It is called again when that one has
// ended, or the server did not let the session go on by it, so it waits a moment first. Its error
// ends the session.
type Redial func(ctx context.Context) (Conn, error)

// DialLasting is Dial for a session that goes on by another connection when one has ended.
func DialLasting(ctx context.Context, conn Conn, redial Redial) (*Client, error) {
	return dial(ctx, conn, false, redial)
}

// lasts says that the session goes on with another server.
func (c *Client) lasts() bool { return c.resettable || c.redial != nil }

// Lost is closed when the server that the client speaks to now is gone, and what was opened with
// it; the client may go on with another (Epoch).
func (c *Client) Lost() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

func errReset() *sigma.Error {
	return &sigma.Error{Op: "session.Client", Kind: sigma.KindLost,
		Msg: "sigmad died; whether the request took effect is not known", Hint: "open files again"}
}

func (c *Client) attachedAs(fid uint32, name string) {
	if c.lasts() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.attached[fid] = name
	}
}

func (c *Client) detached(fid uint32) {
	if c.lasts() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.attached, fid)
	}
}

// reset begins anew with another server on the same connection. It is called by the reader.
func (c *Client) reset(nonce uint64) error {
	c.forget()
	return c.resume(sigmap.ResetVersion(c.version, nonce))
}

// reconnect begins anew with another server on another connection, if the session may; it returns
// that. Otherwise its error is why the session ends. It is called by the reader, whose connection
// has ended because of err.
func (c *Client) reconnect(err error) (Conn, error) {
	if c.redial == nil || !c.begun.Load() || sigma.KindOf(err) == sigma.KindNotFound ||
		sigma.KindOf(err) == sigma.KindPermission {
		return nil, err
	}
	c.forget()
	for c.life.Err() == nil {
		conn, rerr := c.redial(c.life)
		if rerr != nil {
			return nil, rerr
		}
		c.gate.Lock()
		c.mu.Lock()
		c.conn = conn
		c.mu.Unlock()
		c.gate.Unlock()
		c.out.renew(conn)
		if c.life.Err() == nil && c.resume(c.version) == nil { // Close may have closed the one before
			return conn, nil
		}
		conn.Close()
	}
	return nil, err
}

// forget ends what was under way with a server that is gone. Nothing is put in line until another
// has let the session begin.
func (c *Client) forget() {
	c.gate.Lock() // nobody is sending by himself now
	defer c.gate.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.drop()
	c.epoch++
	close(c.lost)
	c.lost = make(chan struct{})
	first := c.pending[sigmap.NoTag] // of Dial, which is not over; or of a reset before this one
	delete(c.pending, sigmap.NoTag)
	for _, w := range c.pending {
		if w.ch != nil {
			close(w.ch)
		}
	}
	if c.isUsable {
		c.usable, c.isUsable = make(chan struct{}), false
	}
	c.pending = map[uint16]*waiter{}
	if first != nil {
		c.pending[sigmap.NoTag] = first
	}
	c.freeFid = nil
}

// resume sends the requests by which a session begins: a version, and the roots.
func (c *Client) resume(version string) error {
	records, err := c.beginning(version)
	if err != nil {
		return err
	}
	return c.out.Alone(func() (err error) {
		for i := 0; i < len(records) && err == nil; i++ {
			err = sendIn(c.out.conn, records[i], nil, sendMax)
		}
		return err
	})
}

// beginning makes the requests by which a session begins.
func (c *Client) beginning(version string) (records [][]byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.pending[sigmap.NoTag]
	if first == nil {
		first = &waiter{}
	}
	first.resumes = true
	c.pending = map[uint16]*waiter{sigmap.NoTag: first} // without those of a beginning that came to nothing
	c.waits = 1 + len(c.attached)
	add := func(tag uint16, m sigmap.Message) {
		var buf []byte
		if buf, err = sigmap.Encode(nil, tag, m); err == nil {
			records = append(records, buf)
		}
	}
	add(sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: version})
	for fid, name := range c.attached {
		if err == nil {
			tag := c.newTagLocked()
			c.pending[tag] = &waiter{resumes: true}
			add(tag, &sigmap.Tattach{Fid: fid, Afid: sigmap.NoFid, Aname: name, NUname: sigmap.NoFid})
		}
	}
	return records, err
}

// resumedLocked counts the replies by which a session begins anew. A root that cannot be attached
// again fails when it is used, or ends a connection that the session made itself.
func (c *Client) resumedLocked(m sigmap.Message) error {
	if v, ok := m.(*sigmap.Rversion); ok && v.Version != c.version {
		return unexpected(m)
	}
	if err := sigmap.Err(m); err != nil && c.redial != nil {
		return err
	}
	if c.waits--; c.waits == 0 {
		c.usableLocked()
	}
	return nil
}

func (c *Client) usableLocked() {
	if !c.isUsable {
		c.isUsable = true
		close(c.usable)
	}
}
