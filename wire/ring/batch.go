package ring

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// batchBytes are held back, or kept from a Read, at most. Larger writes are not held at all.
	batchBytes = 16 << 10
	// batchMost is the longest that anything is held back.
	batchMost = time.Second
	// batchClose is how long Close may take to write what is held, if the peer does not read.
	batchClose = time.Second
)

// batch is what a Conn holds back (003 §3.6).
type batch struct {
	most   atomic.Int64 // nanoseconds that bytes are held at most; 0 = not at all
	count  atomic.Int64 // bytes in held
	held   []byte       // writer.mu
	failed error        // writer.mu; of a write that nobody waited for, for who writes next
	timer  *time.Timer  // writer.mu; nil before the first bytes are held
	armed  bool         // writer.mu; it is to flush when it goes off
}

// delay is how long Read waits for more when it has something.
type delay struct {
	most atomic.Int64 // nanoseconds

	mu    sync.Mutex // SetReadDeadline against Read
	until time.Time  // mu; zero: nothing is being kept
}

// Batch says how long small writes may be held back, to go together with those that follow, and how
// long Read may keep bytes that have come, to give them together; each for a second at most. 0, the
// default, is not at all. It can be changed at any time; what is held is written then.
//
// What is held is written when the time of its first byte is over, when it is 16 KiB, before a Read
// of this side waits, and by Flush, CloseWrite and Close. An error of a write that was held comes
// with the next call. Read gives what it has when the time of the first byte is over, when it has
// 16 KiB or as much as was asked for, and when nothing more can come. Safe for concurrent use;
// waits for a Write that is under way.
func (c *Conn) Batch(write, read time.Duration) {
	c.in.delay.most.Store(int64(min(max(read, 0), batchMost)))
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.batch.most.Store(int64(min(max(write, 0), batchMost)))
	c.flushLocked()
}

// Flush writes what is held back, and gives the error of an earlier such write.
func (c *Conn) Flush() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if err := c.flushLocked(); err != nil {
		return c.fail("write", err)
	}
	return nil
}

// hold writes p, now or soon.
func (c *Conn) hold(p []byte) (int, error) {
	b := &c.out.batch
	most := time.Duration(b.most.Load())
	if most == 0 && len(b.held) == 0 && b.failed == nil {
		return c.put(p)
	}
	if err := c.mayWrite(); err != nil {
		return 0, err
	}
	if most == 0 || b.failed != nil || len(b.held)+len(p) > batchBytes {
		if err := c.flushLocked(); err != nil {
			return 0, err
		}
		if most == 0 || len(p) >= batchBytes {
			return c.put(p)
		}
	}
	b.held = append(b.held, p...)
	b.count.Store(int64(len(b.held)))
	switch {
	case len(b.held) == batchBytes:
		if err := c.flushLocked(); err != nil {
			return len(p), err
		}
	case !b.armed:
		c.arm(most)
	}
	return len(p), nil
}

// mayWrite gives the error of a write that comes too late.
func (c *Conn) mayWrite() error {
	if err := c.writeBy.passed(); err != nil {
		return err
	}
	if c.closed.Load() {
		return net.ErrClosed
	}
	if c.out.shut {
		return syscall.EPIPE
	}
	return nil
}

// arm has what is held be written after a while.
func (c *Conn) arm(after time.Duration) {
	b := &c.out.batch
	if b.armed = true; b.timer == nil {
		b.timer = time.AfterFunc(after, c.due)
	} else {
		b.timer.Reset(after)
	}
}

// due is called when it is time.
func (c *Conn) due() {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.out.batch.armed {
		c.flushLocked()
	}
}

// flushLocked writes what is held. What a deadline kept back stays.
func (c *Conn) flushLocked() error {
	b := &c.out.batch
	if b.armed {
		b.armed = false
		b.timer.Stop()
	}
	if b.failed != nil || len(b.held) == 0 {
		return b.failed
	}
	n, err := c.put(b.held)
	b.held = b.held[:copy(b.held, b.held[n:])]
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		b.failed, b.held = err, nil
	}
	b.count.Store(int64(len(b.held)))
	return err
}

// flushBeforeWait writes what is held, as this side is going to wait for an answer. It must not
// wait itself: the peer may be waiting for this side to read. What does not go now goes soon.
func (c *Conn) flushBeforeWait() {
	if c.out.batch.count.Load() == 0 || !c.out.mu.TryLock() {
		return
	}
	defer c.out.mu.Unlock()
	c.out.once = true
	c.flushLocked()
	c.out.once = false
	if len(c.out.batch.held) > 0 {
		c.arm(0)
	}
}

// gather adds to the n bytes of p that Read has what comes within its delay.
func (c *Conn) gather(p []byte, n int, most time.Duration) int {
	c.delayUntil(time.Now().Add(most))
	defer c.delayUntil(time.Time{})
	for n < min(len(p), batchBytes) {
		k, err := c.take(p[n:])
		if n += k; err != nil {
			break // it comes again, if it is not the time that is over
		}
	}
	return n
}

// delayUntil sets the time when Read gives what it has.
func (c *Conn) delayUntil(t time.Time) {
	d := &c.in.delay
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until = t
	c.readDeadlineLocked()
}

// readDeadlineLocked sets that of the socket. delay.mu is held.
func (c *Conn) readDeadlineLocked() error {
	until := c.in.delay.until
	if at := c.readBy.Load(); at != 0 && (until.IsZero() || at < until.UnixNano()) {
		until = time.Unix(0, at)
	}
	return c.sock.SetReadDeadline(until)
}

// late says that Read has kept bytes for long enough, or that its deadline has passed.
func (c *Conn) late() error {
	if err := c.readBy.passed(); err != nil {
		return err
	}
	if until := c.in.delay.until; !until.IsZero() && !time.Now().Before(until) { // only Read changes it
		return os.ErrDeadlineExceeded
	}
	return nil
}
