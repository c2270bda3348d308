package ring

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
)

// A meter is memory in which one program counts what its connections carry, on sockets and in
// rings, and which its machine reads (docs/reference/ring.md, Meters). No peer of the program has
// it. What was counted there is known when the program is killed.

const (
	// MeterBytes is the size of a meter.
	MeterBytes = 128 << 10
	slotBytes  = 128
	// meterSlots connections have a place of their own at a time; others are counted when they end.
	// It is about as many as a proc has descriptors.
	meterSlots = MeterBytes/slotBytes - 1
)

// Carried is what connections carried, as one of their ends has counted it.
type Carried struct {
	Sent, Received uint64 // bytes
	Writes, Reads  uint64 // calls that carried something
	Turns          uint64 // reads that brought something after a further write: round trips, of who asks and waits
	Spun           uint64 // nanoseconds
}

// tally is what one half of a connection counts.
type tally struct {
	bytes, messages, turns, spun atomic.Uint64
}

// meterHead is the first slot. Of the two totals the one of the generation's parity counts.
type meterHead struct {
	generation atomic.Uint64
	totals     [2]meterTotal
	top        atomic.Uint64 // slots that were ever used
}

// meterTotal is what ended connections carried.
type meterTotal struct {
	sent, received, writes, reads, turns, spun atomic.Uint64

	absorbed atomic.Uint64 // serial of the connection that was added last: it does not count in its slot any more
}

// slot holds the counters of one connection. Writer and reader have a cache line each.
type slot struct {
	serial atomic.Uint64 // never used twice; 0: none
	inode  atomic.Uint64 // of its socket
	out    tally
	_      [16]byte
	in     tally
	_      [32]byte
}

// NewMeter makes the file of a meter, for the machine. Nobody pays for a page until it is written.
func NewMeter() (*os.File, error) { return newMemory("meter", MeterBytes) }

// meter is a mapped one.
type meter struct {
	mu     sync.Mutex
	mapped []byte     // mu; nil when it is over
	head   *meterHead // mu
	slots  []slot     // mu; one that was taken is its connection's
	free   []*slot    // mu
	used   int        // mu; slots that were ever used
	serial uint64     // mu
	old    bool       // mu; nobody reads it any more, and no connection takes a slot
}

// mapMeter maps a file of NewMeter, which stays the caller's, until it is old and no connection has
// a slot of it.
func mapMeter(f *os.File) (*meter, error) {
	b, err := mapSealed(f, MeterBytes)
	if err != nil {
		return nil, err
	}
	// SAFETY: b begins at a page, is as long as the slots, and they are made of integers only; the
	// compiler cannot know that mapped memory has this shape.
	all := unsafe.Slice((*slot)(unsafe.Pointer(unsafe.SliceData(b))), MeterBytes/slotBytes)
	// SAFETY: as above; the head is no longer than a slot.
	return &meter{mapped: b, head: (*meterHead)(unsafe.Pointer(&all[0])), slots: all[1:]}, nil
}

// retire notes that there is a newer one.
func (m *meter) retire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.old = true
	m.unmapLocked()
}

// unmapLocked ends what nobody uses.
func (m *meter) unmapLocked() {
	if m.old && m.mapped != nil && len(m.free) == m.used {
		unix.Munmap(m.mapped)
		m.mapped, m.head, m.slots, m.free = nil, nil, nil, nil
	}
}

// take gives a connection a slot; nil if there is none. over: there is a newer meter, or will be.
func (m *meter) take(inode uint64) (s *slot, over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.old {
		return nil, true
	} else if n := len(m.free); n > 0 {
		s, m.free = m.free[n-1], m.free[:n-1]
	} else if m.used < len(m.slots) {
		s = &m.slots[m.used]
		m.used++
		m.head.top.Store(uint64(m.used))
	} else {
		return nil, false
	}
	m.serial++
	s.inode.Store(inode)
	s.out.copy(&tally{})
	s.in.copy(&tally{})
	s.serial.Store(m.serial) // at last
	return s, false
}

// end adds what a connection carried to the total, and frees its slot, if it has one. Whoever reads
// meanwhile, or finds what a killed program left, counts it once.
func (m *meter) end(s *slot, c Carried) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mapped == nil { // without a slot, and too late
		return
	}
	g := m.head.generation.Load()
	now, next := &m.head.totals[g%2], &m.head.totals[(g+1)%2]
	next.sent.Store(now.sent.Load() + c.Sent)
	next.received.Store(now.received.Load() + c.Received)
	next.writes.Store(now.writes.Load() + c.Writes)
	next.reads.Store(now.reads.Load() + c.Reads)
	next.turns.Store(now.turns.Load() + c.Turns)
	next.spun.Store(now.spun.Load() + c.Spun)
	absorbed := uint64(0)
	if s != nil {
		absorbed = s.serial.Load()
	}
	next.absorbed.Store(absorbed)
	m.head.generation.Store(g + 1)
	if s != nil {
		s.serial.Store(0)
		m.free = append(m.free, s)
		m.unmapLocked()
	}
}

// counter is where one half of a connection counts: first in itself, then in the program's meter.
type counter struct {
	own tally
	at  atomic.Pointer[tally] // nil: own
	// it stays where it is, until the connection is closed; before, Conn.mu is held to count
	settled atomic.Bool
}

func (k *counter) tally() *tally {
	if t := k.at.Load(); t != nil {
		return t
	}
	return &k.own
}

// count adds a call that carried n bytes. The half's lock is held.
func (c *Conn) count(k *counter, n int, turn bool) {
	if !k.settled.Load() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settleLocked()
	}
	t := k.tally()
	t.bytes.Add(uint64(n))
	t.messages.Add(1)
	if turn {
		t.turns.Add(1)
	}
}

// settleLocked has a connection count in the meter, if that has come.
func (c *Conn) settleLocked() {
	m := c.set.meter.Load()
	if m == nil && !c.set.meterless.Load() || c.in.counter.settled.Load() {
		return
	}
	if m != nil && !c.placed {
		s, over := m.take(c.inode())
		if over { // the next call settles it
			return
		}
		c.place, c.meter = s, m
	}
	c.placed = true
	if s := c.place; s != nil {
		c.out.counter.move(&s.out)
		c.in.counter.move(&s.in)
	}
	c.out.counter.settled.Store(true)
	c.in.counter.settled.Store(true)
}

// move goes on counting at t.
func (k *counter) move(t *tally) {
	t.copy(k.tally())
	k.at.Store(t)
}

func (t *tally) copy(from *tally) {
	t.bytes.Store(from.bytes.Load())
	t.messages.Store(from.messages.Load())
	t.turns.Store(from.turns.Load())
	t.spun.Store(from.spun.Load())
}

// unmeter ends the counting of a connection that is closed. Both locks are held.
func (c *Conn) unmeter() {
	c.mu.Lock()
	all := c.carried()
	s, m := c.place, c.meter
	c.placed, c.place = true, nil
	for _, k := range []*counter{&c.out.counter, &c.in.counter} {
		if t := k.at.Load(); t != nil {
			k.own.copy(t)
			k.at.Store(nil)
		}
		k.settled.Store(true)
	}
	c.mu.Unlock()
	c.set.ended(c, m, s, all)
}

// carried is what a connection has carried until now.
func (c *Conn) carried() Carried {
	out, in := c.out.counter.tally(), c.in.counter.tally()
	return Carried{out.bytes.Load(), in.bytes.Load(), out.messages.Load(), in.messages.Load(), in.turns.Load(),
		out.spun.Load() + in.spun.Load()}
}

// inode is the number of the socket; 0 if that cannot be told.
func (c *Conn) inode() uint64 {
	var n uint64
	c.raw.Control(func(fd uintptr) { n = rawio.Inode(int(fd)) }) // of one that is closed it stays 0
	return n
}

// ended counts a connection that is over, which has a slot of its meter own if at is not nil.
func (s *Set) ended(conn *Conn, own *meter, at *slot, c Carried) {
	if at != nil { // perhaps not the one of now (Renew)
		own.end(at, c)
		c = Carried{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.meter.Load(); m == nil && !s.meterless.Load() {
		s.early.add(c) // the meter is still on its way
	} else if m != nil && c != (Carried{}) {
		m.end(nil, c) // mu is held, so that it is not retired meanwhile
	}
	delete(s.unmetered, conn)
}

// Renew has a new meter asked for, of a machine that has begun anew and knows nothing of the one
// before. Connections that count there go on doing so, and with the last of them it goes; of those
// to come, and of those that have no place yet, the machine hears again.
func (s *Set) Renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.over:
		return
	default:
	}
	if s.meter.Load() == nil && !s.meterless.Load() || s.cfg.Meter == nil { // none was there yet
		return
	}
	if m := s.meter.Swap(nil); m != nil {
		m.retire()
	}
	s.meterless.Store(false)
	s.tasks.Go(s.askMeter)
}

// wantMeter has a new connection counted in the meter, which is asked for in the background, once.
func (s *Set) wantMeter(c *Conn) {
	if s.cfg.Meter == nil {
		s.meterless.Store(true)
		return
	}
	s.meterOnce.Do(func() { s.tasks.Go(s.askMeter) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meter.Load() == nil && !s.meterless.Load() {
		s.unmetered[c] = true
	}
}

// askMeter asks for the meter and has all connections count there. Without one the machine does not
// count.
func (s *Set) askMeter() {
	ctx, cancel := context.WithTimeout(context.Background(), claimMost)
	defer cancel()
	var m *meter
	f, err := s.cfg.Meter(ctx)
	if err == nil {
		defer f.Close()
		m, err = mapMeter(f)
	}
	s.mu.Lock()
	if err == nil {
		s.meter.Store(m)
		if s.early != (Carried{}) {
			m.end(nil, s.early)
		}
	} else {
		s.meterless.Store(true)
	}
	waiting := s.unmetered
	s.unmetered, s.early = map[*Conn]bool{}, Carried{}
	s.mu.Unlock()
	for c := range waiting { // also of those that sleep
		c.mu.Lock()
		c.settleLocked()
		c.mu.Unlock()
	}
}

// add adds, and stops at the end of what a number can say: figures come from programs.
func (c *Carried) add(o Carried) {
	for _, f := range [][2]*uint64{{&c.Sent, &o.Sent}, {&c.Received, &o.Received}, {&c.Writes, &o.Writes},
		{&c.Reads, &o.Reads}, {&c.Turns, &o.Turns}, {&c.Spun, &o.Spun}} {
		if *f[0] > math.MaxUint64-*f[1] {
			*f[0] = math.MaxUint64
		} else {
			*f[0] += *f[1]
		}
	}
}

// ReadMeter tells what a program has counted: of all its connections, also those that are over, and
// of each that is open, by the number of its socket. All of it is the program's word. It is never
// more than that: where connections end meanwhile something may be missing, which is there the next
// time.
func ReadMeter(f *os.File) (all Carried, open map[uint64]Carried, err error) {
	const op = "ring.ReadMeter"
	b := make([]byte, 4096)
	word := func(offset uintptr) uint64 { return binary.NativeEndian.Uint64(b[offset:]) }
	top := uint64(0)
	for range readTries {
		if _, err := f.ReadAt(b[:4096], 0); err != nil {
			return all, nil, sigma.Wrap(op, "", err)
		}
		generation := word(unsafe.Offsetof(meterHead{}.generation))
		top = min(word(unsafe.Offsetof(meterHead{}.top)), meterSlots)
		if need := int(top+1) * slotBytes; need > 4096 {
			b = slices.Grow(b[:4096], need-4096)[:need]
			if _, err := f.ReadAt(b[4096:], 4096); err != nil {
				return all, nil, sigma.Wrap(op, "", err)
			}
		}
		var again [8]byte
		if _, err := f.ReadAt(again[:], int64(unsafe.Offsetof(meterHead{}.generation))); err != nil {
			return all, nil, sigma.Wrap(op, "", err)
		}
		if binary.NativeEndian.Uint64(again[:]) == generation {
			all, open = parseMeter(b, int(top))
			return all, open, nil
		}
	}
	all, _ = parseMeter(b, 0) // a connection that is being added to the total could be counted twice
	return all, nil, nil
}

// readTries is how often a meter is read that changes meanwhile.
const readTries = 4

// parseMeter reads the head and top slots of a meter.
func parseMeter(b []byte, top int) (all Carried, open map[uint64]Carried) {
	word := func(at, offset uintptr) uint64 { return binary.NativeEndian.Uint64(b[at+offset:]) }
	half := func(at uintptr) (bytes, messages, turns, spun uint64) {
		return word(at, unsafe.Offsetof(tally{}.bytes)), word(at, unsafe.Offsetof(tally{}.messages)),
			word(at, unsafe.Offsetof(tally{}.turns)), word(at, unsafe.Offsetof(tally{}.spun))
	}
	total := unsafe.Offsetof(meterHead{}.totals) + uintptr(word(0,
		unsafe.Offsetof(meterHead{}.generation))%2)*unsafe.Sizeof(meterTotal{})
	all = Carried{word(total, unsafe.Offsetof(meterTotal{}.sent)), word(total, unsafe.Offsetof(meterTotal{}.received)),
		word(total, unsafe.Offsetof(meterTotal{}.writes)),
		word(total, unsafe.Offsetof(meterTotal{}.reads)), word(total, unsafe.Offsetof(meterTotal{}.turns)),
		word(total, unsafe.Offsetof(meterTotal{}.spun))}
	absorbed := word(total, unsafe.Offsetof(meterTotal{}.absorbed))
	open = map[uint64]Carried{}
	for i := range top {
		at := uintptr(i+1) * slotBytes
		serial := word(at, unsafe.Offsetof(slot{}.serial))
		if serial == 0 || serial == absorbed {
			continue
		}
		var c Carried
		c.Sent, c.Writes, _, c.Spun = half(at + unsafe.Offsetof(slot{}.out))
		in := Carried{}
		in.Received, in.Reads, in.Turns, in.Spun = half(at + unsafe.Offsetof(slot{}.in))
		c.add(in)
		all.add(c)
		open[word(at, unsafe.Offsetof(slot{}.inode))] = c
	}
	return all, open
}
