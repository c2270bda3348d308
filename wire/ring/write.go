package ring

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"sigmaos.dev/wire/rawio"
)

// writer is the half of a Conn that writes.
type writer struct {
	mu      sync.Mutex
	to      producer
	phase   uint32
	sent    uint64 // bytes of the socket, doorbells among them
	entered uint64 // writes there had been when the ring was entered last
	spin    spinner
	shut    bool // nothing may be written any more
	// the next write rings in any case: the reader is still to be told that an odd phase has begun,
	// or the socket has ended
	entering   bool
	once       bool // what cannot be written at once is not waited for
	stay, next int  // writes to come that stay on the socket; as many after the next time that the ring is full
	idle, held bool // nothing was written since the last round; pages of the ring are in use

	from   []byte // of the call under way; what is left of it
	failed error  // in it

	batch   batch
	pace    pace
	inRing  atomic.Bool
	counter counter
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	n, err := c.hold(p)
	if n > 0 || err == nil {
		c.count(&c.out.counter, n, false)
	}
	if err != nil {
		return n, c.fail("write", err)
	}
	return n, nil
}

// put writes all of p.
func (c *Conn) put(p []byte) (n int, err error) {
	out := &c.out
	if err := c.mayWrite(); err != nil {
		return 0, err
	}
	out.idle = false
	m := c.mem.Load()
	if m == nil {
		if c.warrants(&out.pace) {
			c.claim()
			m = c.mem.Load() // if it was at hand
		}
	}
	if m == nil {
		return c.send(p)
	}
	if out.to.direction == nil {
		out.to = producer{direction: &m.directions[c.side], data: m.bytes(c.side)}
	}
	out.to.writes++
	for {
		if m.revoked.Load() != 0 {
			return n, net.ErrClosed
		}
		if out.to.gone.Load() != 0 {
			return n, syscall.EPIPE
		}
		if out.phase%2 == 0 && !c.toRing() {
			out.to.messages.Store(out.to.writes)
			k, err := c.send(p[n:])
			return n + k, err
		}
		k, err := out.to.put(p[n:])
		if n += k; err != nil {
			return n, err
		}
		if k > 0 {
			if err := c.wake(); err != nil {
				return n, err
			}
		}
		if n == len(p) {
			return n, nil
		}
		if !c.spinWrite(m) {
			c.toSocket()
			c.stayOnSocket()
		}
	}
}

const (
	// Writes that stay on the socket after the ring was full while both sides were on one
	// processor; twice as many each time that it is full again before stayLasts writes.
	stayFirst = 16
	stayMost  = 1024
	stayLasts = 64
)

// stayOnSocket is called when the ring was full. Where both sides share a processor, the reader
// does nothing before the writer sleeps: the socket, which holds more and lets it sleep, is better
// for a stream then, as nothing is gained by going back and forth.
func (c *Conn) stayOnSocket() {
	out := &c.out
	if there := out.to.processor.Load(); !out.spin.able || there == 0 || there != processor()+1 {
		return
	}
	if out.next = min(2*out.next, stayMost); out.next == 0 || out.to.writes-out.entered >= stayLasts {
		out.next = stayFirst
	}
	out.stay = out.next
}

// toRing begins an odd phase if the peer follows and nobody wants the socket.
func (c *Conn) toRing() bool {
	out, d := &c.out, c.out.to.direction
	if d.ready.Load() == 0 || d.reached.Load() != out.phase || Transport(c.wanted.Load()) == Socket {
		return false
	}
	if out.stay > 0 {
		out.stay--
		return false
	}
	out.entered = out.to.writes
	d.toRing.Store(out.sent)
	out.phase++
	d.phase.Store(out.phase)
	c.promotions.Add(1)
	out.entering, out.held = true, true
	out.inRing.Store(true)
	return true
}

// toSocket begins an even phase. The reader need not be woken: what is written next, or the end of
// the socket, will.
func (c *Conn) toSocket() {
	out := &c.out
	out.to.toSocket.Store(out.sent)
	out.phase++
	out.to.direction.phase.Store(out.phase)
	out.inRing.Store(false)
	c.demotions.Add(1)
}

// wake puts a byte on the socket if the reader sleeps, or may wait there for the bytes of the phase
// before.
func (c *Conn) wake() error {
	out := &c.out
	asleep := out.to.waits.Load() != 0 && out.to.waits.CompareAndSwap(1, 0)
	if !asleep && !out.entering {
		return nil
	}
	out.entering = false
	if err := c.raw.Control(c.bell); err != nil {
		return err
	}
	if out.failed == nil ||
		out.failed == syscall.EAGAIN { // if the socket is full, the reader will not sleep before it has looked
		return nil
	}
	out.entering = true // the next write hears of the end, too
	if out.to.direction.head.Load() == out.to.tail {
		// the peer has read all, perhaps answered, and ended since: nothing is lost
		return nil
	}
	return out.failed
}

// ringBell is called with the socket's descriptor.
func (c *Conn) ringBell(fd uintptr) {
	var n int
	n, c.out.failed = rawio.Write(int(fd), []byte{0})
	c.out.sent += uint64(n)
}

// send writes to the socket.
func (c *Conn) send(p []byte) (int, error) {
	out := &c.out
	out.from, out.failed = p, nil
	var err error
	if out.once {
		err = c.raw.Control(c.writableOnce)
	} else {
		err = c.raw.Write(c.writable)
	}
	n := len(p) - len(out.from)
	out.from = nil
	if err == nil {
		err = out.failed
	}
	return n, err
}

// onWritable is called with the socket's descriptor, first and whenever it has room. It reports
// whether it is done.
func (c *Conn) onWritable(fd uintptr) bool {
	out := &c.out
	for len(out.from) > 0 {
		n, err := rawio.Write(int(fd), out.from)
		if err == syscall.EAGAIN {
			return false
		}
		if err != nil {
			out.failed = os.NewSyscallError("write", err)
			return true
		}
		out.sent += uint64(n)
		out.from = out.from[n:]
	}
	return true
}

// writableOnce is onWritable that is called once.
func (c *Conn) writableOnce(fd uintptr) { c.onWritable(fd) }

// spinWrite waits a little while for room in the ring.
func (c *Conn) spinWrite(m *memory) bool {
	out := &c.out
	var found bool
	mine, peer := &m.directions[1-c.side].processor, &out.to.processor
	spent := out.spin.spin(mine, peer, func() bool {
		found = out.to.direction.head.Load() != out.to.head
		return found
	})
	c.spun.Add(int64(spent))
	out.counter.tally().spun.Add(uint64(spent))
	return found
}

// rest is called now and then: a direction that has been silent for a while goes back to the
// socket, and its pages to the machine; memory that was at hand for a while and not needed is given
// back.
func (c *Conn) rest() {
	c.mu.Lock()
	f := c.given
	if f != nil && !c.spared {
		c.spared, f = true, nil
	} else if f != nil {
		c.given, c.asked = nil, false // it can be asked for once more
	}
	c.mu.Unlock()
	if f != nil {
		c.set.spare(c, f)
		return
	}
	out := &c.out
	if !out.mu.TryLock() {
		return // it is being used
	}
	defer out.mu.Unlock()
	m := c.mem.Load()
	idle := out.idle
	out.idle = true
	if m == nil || !idle || out.to.direction == nil || Transport(c.wanted.Load()) == Shared {
		return
	}
	if out.phase%2 == 1 {
		c.toSocket()
	}
	if out.held && out.to.direction.head.Load() == out.to.tail {
		m.release(c.side)
		out.held = false
	}
}
