package session

import (
	"context"
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
	c.gate.Lock() // nobody is sending by himself now
	defer c.gate.Unlock()
	records, err := c.anew(nonce)
	if err != nil {
		return err
	}
	return c.out.Alone(func() (err error) {
		for i := 0; i < len(records) && err == nil; i++ {
			err = sendIn(c.conn, records[i], nil, sendMax)
		}
		return err
	})
}

// anew forgets what was under way and returns the requests by which a session begins. Nothing is put in line before they are answered.
func (c *Client) anew(nonce uint64) (records [][]byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.drop()
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
	add := func(tag uint16, m sigmap.Message) {
		var buf []byte
		if buf, err = sigmap.Encode(nil, tag, m); err == nil {
			records = append(records, buf)
		}
	}
	add(sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.ResetVersion(c.version, nonce)})
	for fid, name := range c.attached {
		if err == nil {
			tag := c.newTagLocked()
			c.pending[tag] = &waiter{resumes: true}
			add(tag, &sigmap.Tattach{Fid: fid, Afid: sigmap.NoFid, Aname: name, NUname: sigmap.NoFid})
		}
	}
	return records, err
}

// resumedLocked counts the replies by which a session begins anew. A root that cannot be attached again fails when it is used.
func (c *Client) resumedLocked(m sigmap.Message) error {
	if v, ok := m.(*sigmap.Rversion); ok && v.Version != c.version {
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

// lockUsable takes mu, for a request about a handle of an epoch, when the session has begun.
func (c *Client) lockUsable(ctx context.Context, epoch uint32) error {
	for {
		c.mu.Lock()
		if err := c.currentLocked(epoch); err != nil {
			c.mu.Unlock()
			return err
		}
		if c.isUsable {
			return nil
		}
		usable := c.usable
		c.mu.Unlock()
		select {
		case <-usable: // also when the session ends
		case <-ctx.Done():
			return sigma.Wrap("session.call", "", ctx.Err())
		}
	}
}

func (c *Client) currentLocked(epoch uint32) error {
	if epoch != anyEpoch && epoch != c.epoch {
		return errReset()
	}
	return nil
}
