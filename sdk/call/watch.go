package call

import (
	"time"

	"sigmaos.dev/sigma"
)

const (
	tickMost = time.Second
	// pingAfter is how long a server that owes answers may say nothing before it is asked for a
	// sign of life, and silentMost how long before it is given up: a machine that is lost is known
	// sooner, so this is for servers that stand still.
	pingAfter  = 20 * time.Second
	silentMost = time.Minute
)

// watch looks after a connection that calls, while it is in use: a write that takes long goes on
// elsewhere, an idle connection is read so that its end is noticed, and a server that says nothing
// is asked for a sign of life. So calls need no timers of their own.
type watch struct {
	timer   *time.Timer
	period  time.Duration // 0: it rests
	heard   uint64        // conn.heard when it looked last
	since   time.Time     // when heard was found to have changed
	started uint64        // conn.queued when it looked last
	writes  uint64        // conn.writes when it looked last, if a write was under way
	pinged  bool
}

// watchLocked has the connection looked after soon.
func (c *clientConn) watchLocked() {
	w := &c.watch
	if w.period == tickLeast || c.err != nil {
		return
	}
	if w.period == 0 {
		w.since, w.pinged = time.Now(), false
	}
	w.period = tickLeast
	if w.timer == nil {
		w.timer = time.AfterFunc(tickLeast, c.tick)
	} else {
		w.timer.Reset(tickLeast)
	}
}

func (c *clientConn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.watch
	if c.err != nil {
		return
	}
	changed := c.heard != w.heard || c.queued != w.started
	if c.heard != w.heard || c.active == 0 {
		w.since, w.pinged = time.Now(), false
	}
	w.heard, w.started = c.heard, c.queued
	if c.writing && c.writes == w.writes && !c.kicked {
		c.kicked = true
		c.nc.SetWriteDeadline(time.Unix(1, 0)) // resumeLocked
	}
	w.writes = c.writes
	if !c.reading && !changed {
		c.reading = true
		c.tasks.Go(c.readAlone)
	}
	if silent := time.Since(w.since); silent > silentMost {
		c.failLocked(&sigma.Error{Op: "call.conn", Kind: sigma.KindLost,
			Msg: "the server says nothing for " + silentMost.String()})
		return
	} else if silent > pingAfter && !w.pinged {
		w.pinged = true
		c.queueLocked(frame{kind: framePing})
		c.flushLocked()
	}
	switch {
	case changed:
		w.period = tickLeast
	case c.active == 0 && !c.writing:
		w.period = 0
		return
	default:
		w.period = min(2*w.period, tickMost)
	}
	w.timer.Reset(w.period)
}

// readAlone reads a connection on which nobody waits awake, until something came: then there is
// traffic again, and who waits reads.
func (c *clientConn) readAlone() {
	heard := false
	for !heard {
		over, err := c.readOnce(true)
		c.mu.Lock()
		if err != nil {
			c.failLocked(lost(err))
		}
		if heard = over || c.err != nil || c.heard != c.watch.heard; heard {
			c.reading = false
			c.passLocked()
			c.watchLocked()
		}
		c.mu.Unlock()
	}
}
