package ring

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
)

const (
	// switchesMax is how many phases one look may go through without a byte. A writer begins an odd
	// phase only to write, so that two follow each other without bytes, but three do not.
	switchesMax = 4
	// drainBytes are read from a doorbell at a time. Seldom there is more than one.
	drainBytes = 64
)

// reader is the half of a Conn that reads.
type reader struct {
	mu    sync.Mutex
	from  consumer
	phase uint32
	taken uint64 // bytes of the socket that have been used, doorbells among them
	begin uint64 // where on the socket this even phase began; what is before and not taken yet are doorbells
	rest  []byte // of the socket, received and not taken yet
	ended bool   // the socket has nothing more
	err   error  // that ended it, if it was not its end
	spin  spinner
	delay delay

	into []byte // of the call under way
	n    int    // what it gave

	pace    pace
	inRing  atomic.Bool
	counter counter
	asked   uint64 // writes of this side that there were when the last turn was counted
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	n, err := c.take(p)
	if most := time.Duration(c.in.delay.most.Load()); n > 0 && most > 0 {
		n = c.gather(p, n, most)
	}
	if n > 0 {
		asked := c.out.counter.tally().messages.Load()
		c.count(&c.in.counter, n, asked != c.in.asked)
		c.in.asked = asked
		return n, nil
	}
	return 0, c.fail("read", err)
}

// take waits for bytes.
func (c *Conn) take(p []byte) (int, error) {
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	if err := c.late(); err != nil {
		return 0, err
	}
	for {
		ended := c.in.ended
		n, err := c.look(p)
		if n > 0 || err != nil {
			return n, err
		}
		if ended { // and after that nothing was found
			if c.in.err != nil {
				return 0, c.in.err
			}
			return 0, io.EOF
		}
		if c.spinRead() {
			continue
		}
		c.flushBeforeWait()
		c.in.into, c.in.n = p, 0
		err = c.raw.Read(c.readable)
		c.in.into = nil
		if err != nil {
			return 0, err
		}
		if c.in.n > 0 {
			if c.warrants(&c.in.pace) {
				c.claim()
			}
			return c.in.n, nil
		}
		if c.in.err != nil && sigma.KindOf(c.in.err) == sigma.KindInvalid {
			return 0, c.in.err
		}
	}
}

// look reads from the ring, and enters the next phase where the writer has.
func (c *Conn) look(p []byte) (int, error) {
	m, in := c.mem.Load(), &c.in
	if m == nil {
		return 0, nil
	}
	if in.from.direction == nil {
		in.from = consumer{direction: &m.directions[1-c.side], data: m.bytes(1 - c.side)}
	}
	for range switchesMax {
		if m.revoked.Load() != 0 {
			return 0, net.ErrClosed
		}
		phase :=
			in.from.direction.phase.Load() // before the bytes, so that there are none behind the last that are seen
		if in.phase%2 == 1 {
			if n, err := in.from.get(p); n > 0 || err != nil {
				return n, err
			}
			switch phase - in.phase {
			case 0:
				return 0, nil
			case 1:
			default:
				return 0, errCorrupt("phases were skipped")
			}
			if in.begin = in.from.toSocket.Load(); in.begin < in.taken {
				return 0, errCorrupt("the socket goes on before what was read of it")
			}
		} else {
			switch phase - in.phase {
			case 0:
				return 0, nil
			case 1, 2:
			default:
				return 0, errCorrupt("phases were skipped")
			}
			at := in.from.toRing.Load()
			if at < in.taken || at < in.begin {
				return 0, errCorrupt("the ring begins before what was read of the socket")
			}
			if at > in.taken {
				return 0, nil // first what is left on the socket
			}
		}
		in.phase++
		in.inRing.Store(in.phase%2 == 1)
		in.from.reached.Store(in.phase)
	}
	return 0, errCorrupt("it switches without writing")
}

// onReadable is called with the socket's descriptor, first and whenever something has come. It
// reports whether there is anything to look at.
func (c *Conn) onReadable(fd uintptr) bool {
	if c.in.phase%2 == 1 {
		return c.awaitRing(int(fd))
	}
	for range switchesMax {
		into, doorbells := c.in.into, c.in.begin-c.in.taken
		if c.in.begin <= c.in.taken {
			doorbells = 0
		} else {
			into = c.scratch[:min(doorbells, drainBytes)]
		}
		n, err := c.receive(int(fd), into)
		if err == syscall.EAGAIN {
			return false
		}
		if n == 0 || err != nil {
			c.finish(err)
			return true
		}
		if doorbells > 0 {
			c.in.taken += uint64(n)
			continue
		}
		if n = c.cut(into[:n], false); n > 0 {
			c.in.n = n
		}
		return true
	}
	return true
}

// awaitRing reports whether the ring is worth a look; if not, the next byte on the socket says that
// it is.
func (c *Conn) awaitRing(fd int) bool {
	d := c.in.from.direction
	for range 2 { // the second time only to see whether the socket has ended behind the doorbells
		d.waits.Store(
			// each time: a writer that is late can have rung for what was read already, and set it
			// to 0, since the last
			1)
		if !c.in.from.empty() || d.phase.Load() != c.in.phase || c.mem.Load().revoked.Load() != 0 {
			break
		}
		n, err := c.receive(fd, c.scratch[:])
		if err == syscall.EAGAIN {
			return false
		}
		if n == 0 || err != nil {
			c.finish(err)
			break
		}
		c.cut(c.scratch[:n], true)
	}
	d.waits.Store(0)
	return true
}

// receive takes what has come on the socket.
func (c *Conn) receive(fd int, p []byte) (int, error) {
	if len(c.in.rest) > 0 {
		n := copy(p, c.in.rest)
		c.in.rest = c.in.rest[n:]
		return n, nil
	}
	return rawio.Read(fd, p)
}

// cut takes of p, which has just been received, what belongs to this phase, and keeps the rest for
// the next one. Whatever the writer puts on the socket in a phase it puts there after it has said
// where the phase begins.
func (c *Conn) cut(p []byte, inRing bool) int {
	m, in := c.mem.Load(), &c.in
	n := uint64(len(p))
	if m != nil {
		d := &m.directions[1-c.side]
		if d.phase.Load() != in.phase {
			at := d.toRing.Load()
			if inRing {
				at = d.toSocket.Load()
			}
			if at < in.taken {
				in.ended, in.err = true, errCorrupt("a phase begins before what was read of the one before")
				return 0
			}
			n = min(n, at-in.taken)
		}
	}
	in.taken += n
	if n < uint64(len(p)) {
		in.rest = append(slices.Clone(p[n:]), in.rest...)
	}
	return int(n)
}

// finish notes that nothing more comes on the socket. A peer that closes with doorbells that it did
// not hear resets the socket, but has said that it closes.
func (c *Conn) finish(err error) {
	c.in.ended = true
	if err == nil {
		return
	}
	m := c.mem.Load()
	if errors.Is(err, syscall.ECONNRESET) && m != nil && m.directions[1-c.side].left.Load() != 0 {
		return
	}
	c.in.err = os.NewSyscallError("read", err)
}

// spinRead asks the ring over and over for a little while, if that is likely to be shorter than to
// sleep and be woken.
func (c *Conn) spinRead() bool {
	in := &c.in
	if in.phase%2 == 0 {
		return false
	}
	d, peer := in.from.direction, &c.mem.Load().directions[c.side]
	var found bool
	spent := in.spin.spin(&d.processor, &peer.processor, func() bool {
		found = !in.from.empty() || d.phase.Load() != in.phase
		return found
	})
	if spent > 0 {
		c.spun.Add(int64(spent))
		in.counter.tally().spun.Add(uint64(spent))
		d.spun.Store(uint64(c.spun.Load()))
	}
	return found
}
