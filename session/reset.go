package session

import (
	"context"
	"maps"
	"math"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// A proc's connection to sigmad outlives sigmad: another takes it over, and tells so by Rreset. Then nothing of before holds: requests in flight get KindLost, since what became
// of them is unknown, and so does every later use of a file. The session begins anew, roots are attached again under their old fids, and goes on.

// anyEpoch is the epoch of what goes on in a session that began anew: roots.
const anyEpoch = math.MaxUint32

// resets is what a Client knows of them.
type resets struct {
	epoch    uint32            // Client.mu; counts them; changes only while gate is held exclusively
	attached map[uint32]string // Client.mu; roots by fid, and the names they were attached by
	waits    int               // Client.mu; replies to come before the session can be used
	usable   chan struct{}     // Client.mu; closed when it can
	isUsable bool              // Client.mu
}

func newResets() resets {
	r := resets{attached: map[uint32]string{}, usable: make(chan struct{}), isUsable: true}
	close(r.usable)
	return r
}

// DialSystem is Dial for a proc's connection to sigmad.
func DialSystem(ctx context.Context, conn Conn) (*Client, error) { return dial(ctx, conn, true) }

// Epoch changes whenever the session has begun anew; files of another epoch cannot be used any more.
func (c *Client) Epoch() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

func errReset() error {
	return &sigma.Error{Op: "session.Client", Kind: sigma.KindLost, Msg: "sigmad died and was started again; whether the request took effect is not known", Hint: "open files and listeners again"}
}

func (c *Client) attachedAs(fid uint32, name string) {
	if c.resettable {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.attached[fid] = name
	}
}

func (c *Client) detached(fid uint32) {
	if c.resettable {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.attached, fid)
	}
}

// reset begins anew with another server. It is called by the reader.
func (c *Client) reset(nonce uint64) error {
	c.gate.Lock() // nobody is sending now
	defer c.gate.Unlock()
	c.mu.Lock()
	c.epoch++
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
	if first == nil {
		first = &waiter{}
	}
	first.resumes = true
	c.pending = map[uint16]*waiter{sigmap.NoTag: first}
	c.freeFid = nil
	c.waits = 1 + len(c.attached)
	attached := maps.Clone(c.attached)
	tags := map[uint32]uint16{}
	for fid := range attached {
		tag := c.newTagLocked()
		c.pending[tag] = &waiter{resumes: true}
		tags[fid] = tag
	}
	c.mu.Unlock()
	if err := c.write(sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.ResetVersion(nonce)}, nil); err != nil {
		return err
	}
	for fid, name := range attached {
		if err := c.write(tags[fid], &sigmap.Tattach{Fid: fid, Afid: sigmap.NoFid, Aname: name, NUname: sigmap.NoFid}, nil); err != nil {
			return err
		}
	}
	return nil
}

// resumedLocked counts the replies by which a session begins anew. A root that cannot be attached again fails when it is used.
func (c *Client) resumedLocked(m sigmap.Message) error {
	if v, ok := m.(*sigmap.Rversion); ok && v.Version != sigmap.VersionSigma {
		return unexpected(m)
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

// awaitUsable waits while the session begins anew.
func (c *Client) awaitUsable(ctx context.Context) error {
	c.mu.Lock()
	usable, is := c.usable, c.isUsable
	c.mu.Unlock()
	if is {
		return nil
	}
	select {
	case <-usable:
		return nil
	case <-ctx.Done():
		return sigma.Wrap("session.call", "", ctx.Err())
	}
}

// enter takes the gate for a request about a handle of an epoch.
func (c *Client) enter(epoch uint32) error {
	for {
		c.gate.RLock()
		c.mu.Lock()
		usable, is, now := c.usable, c.isUsable, c.epoch
		c.mu.Unlock()
		switch {
		case epoch != anyEpoch && epoch != now:
			c.gate.RUnlock()
			return errReset()
		case is:
			return nil
		}
		c.gate.RUnlock()
		<-usable // also when the session ends
	}
}
