package proclog

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/poller"
	"sigmaos.dev/wire/rawio"
)

// Collector reads the pipes that procs write to. A pipe holds 64 KiB, so that of a proc that ends
// soon is read once, at its end. One of a proc that has lived for youngAge, or whose log somebody
// opens, is waited for.
type Collector struct {
	set *poller.Set

	mu    sync.Mutex
	newer []*Stream   // mu; oldest first; those that have ended too
	timer *time.Timer // mu; nil = not set
}

// youngAge is how long a pipe is left alone: longer than short procs live, and shorter than people
// notice.
const youngAge = 50 * time.Millisecond

// NewCollector makes one that waits for pipes with set.
func NewCollector(set *poller.Set) *Collector { return &Collector{set: set} }

// Stream is our end of the pipe of one log. Safe for concurrent use.
type Stream struct {
	c      *Collector
	log    *Log
	opened time.Time

	mu    sync.Mutex    // held while reading
	fd    int           // mu; -1 once over
	watch *poller.Watch // mu; nil while young
}

// Open makes a pipe that ends in the log, and returns the file descriptor to write to it, which is
// the caller's.
func (c *Collector) Open(l *Log) (s *Stream, theirs int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, sigma.Wrap("proclog.Open", "", os.NewSyscallError("pipe2", err))
	}
	if err := rawio.SetNonblock(p[0]); err != nil { // theirs blocks, as programs expect
		rawio.Close(p[0])
		rawio.Close(p[1])
		return nil, -1, sigma.Wrap("proclog.Open", "", os.NewSyscallError("fcntl", err))
	}
	return &Stream{c: c, log: l, fd: p[0], opened: time.Now()}, p[1], nil
}

// Adopt takes over our end of a pipe that another Collector made.
func (c *Collector) Adopt(l *Log, fd int) *Stream {
	return &Stream{c: c, log: l, fd: fd, opened: time.Now()}
}

// Lend gives use the file descriptor, which stays open meanwhile; -1 once over.
func (s *Stream) Lend(use func(fd int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	use(s.fd)
}

// Begin says that somebody writes from now on.
func (c *Collector) Begin(ss ...*Stream) {
	for _, s := range ss {
		s.log.mu.Lock()
		s.log.attend = s.attend
		s.log.mu.Unlock()
	}
	c.wait(ss...)
}

// wait has grow look at streams when they are old enough.
func (c *Collector) wait(ss ...*Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newer = append(c.newer, ss...)
	if c.timer == nil {
		c.timer = time.AfterFunc(youngAge, c.grow)
	}
}

// grow has the pipes waited for that are not young any more.
func (c *Collector) grow() {
	c.mu.Lock()
	limit, n := time.Now().Add(-youngAge), 0
	for n < len(c.newer) && !c.newer[n].opened.After(limit) {
		n++
	}
	old := c.newer[:n:n]
	c.newer = c.newer[n:]
	if len(c.newer) > 0 {
		c.timer.Reset(c.newer[0].opened.Sub(limit))
	} else {
		c.newer, c.timer = nil, nil
	}
	c.mu.Unlock()
	for _, s := range old {
		s.log.Settle()
		s.attend()
	}
}

// attend has the pipe waited for, if it is not yet.
func (s *Stream) attend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 && s.watch == nil {
		w, err := s.c.set.Add(s.fd, func() { go s.ready() })
		if err != nil { // of memory for that there may be enough again soon
			s.opened = time.Now()
			s.c.wait(s)
			return
		}
		s.watch = w
	}
}

// ready reads what there is. It runs in a goroutine, because a file may have to be written.
func (s *Stream) ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 && s.readLocked() != 0 {
		s.watch.Again()
	}
}

// pieceMax bytes are read at a time: what a pipe holds.
const pieceMax = 64 << 10

// buffers are for reading; no stream needs one for longer than a read.
var buffers = sync.Pool{New: func() any { return new([pieceMax]byte) }}

// readLocked reads a piece into the log and returns how much it was: 0 at the end, less when there
// is nothing now.
func (s *Stream) readLocked() int {
	buf := buffers.Get().(*[pieceMax]byte)
	defer buffers.Put(buf)
	n, err := rawio.Read(s.fd, buf[:])
	if err == unix.EAGAIN {
		return -1
	}
	if n > 0 {
		s.log.write(buf[:n])
	}
	return n
}

// smallMax is how much is read at once from the pipe of a proc that has ended: if there is less,
// there is no more.
const smallMax = memoryMax

// End reads what is left, when nobody can write any more, and marks the end of the log. If it
// returns false it has not done so because that may take long; the caller then calls Drain where it
// may.
func (s *Stream) End() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	if s.fd < 0 {
		return true
	}
	buf := buffers.Get().(*[pieceMax]byte)
	defer buffers.Put(buf)
	n, _ := rawio.Read(s.fd, buf[:smallMax])
	if n > 0 {
		s.log.write(buf[:n])
	}
	if n == smallMax {
		return false
	}
	s.overLocked()
	return true
}

// Drain is End that may take long.
func (s *Stream) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return
	}
	for s.readLocked() > 0 {
	}
	s.overLocked()
}

func (s *Stream) overLocked() {
	if s.watch != nil {
		s.watch.Remove()
	}
	rawio.Close(s.fd)
	s.fd = -1
	s.log.mu.Lock()
	s.log.attend = nil
	s.log.mu.Unlock()
	s.log.End()
}

// Of what a proc writes to a stream its first Head bytes and its last Tail bytes are kept. What is
// read then is the first, a mark of MarkLen bytes, and the last: LogMax together.
const (
	LogMax  = 16 << 20
	Tail    = 8 << 20
	Head    = LogMax - Tail - MarkLen
	MarkLen = 82
)

const markBegins, markEnds = "\n--- ", " bytes are missing here "

// Mark is what stands between the first and the last bytes when n are missing: a line of its own,
// of MarkLen bytes.
func Mark(n uint64) string {
	m := fmt.Sprint(markBegins, n, markEnds)
	return m + strings.Repeat("-", MarkLen-1-len(m)) + "\n"
}

// Missing is how many bytes a mark says are missing; false if b is no mark.
func Missing(b []byte) (n uint64, ok bool) {
	if _, err := fmt.Sscanf(string(b), markBegins+"%d", &n); err != nil {
		return 0, false
	}
	return n, string(b) == Mark(n)
}

// place is where byte at of a stream is in the log's file: behind the first bytes there is a ring
// of the last ones, behind which the size of the whole is noted.
func place(at uint64) int64 {
	if at < Head {
		return int64(at)
	}
	return int64(Head + (at-Head)%Tail)
}

// run is how many of n bytes from at on are beside each other in the file.
func run(at uint64, n int) int {
	if at < Head {
		return int(min(uint64(n), Head-at))
	}
	return int(min(uint64(n), Tail-(at-Head)%Tail))
}

// kept is how much of a stream of size bytes is kept.
func kept(size uint64) uint64 { return min(size, Head+Tail) }

// writeFile stores p as the bytes from at on, and returns how much of it was stored.
func writeFile(f *os.File, p []byte, at uint64) (n int) {
	for n < len(p) {
		m, err := f.WriteAt(p[n:n+run(at+uint64(n), len(p)-n)], place(at+uint64(n)))
		n += m
		if err != nil {
			break
		}
	}
	if end := at + uint64(n); end > Head+Tail {
		f.WriteAt(binary.BigEndian.AppendUint64(nil, end), LogMax)
	}
	return n
}

// readFile reads what writeFile stored.
func readFile(f *os.File, p []byte, at uint64) (n int, err error) {
	for n < len(p) {
		m, err := f.ReadAt(p[n:n+run(at+uint64(n), len(p)-n)], place(at+uint64(n)))
		n += m
		if err != nil && err != io.EOF || m == 0 {
			return n, err
		}
	}
	return n, nil
}

// sizeOf is how much was written to the stream that a log's file is of.
func sizeOf(f *os.File, length int64) uint64 {
	var b [8]byte
	if length > LogMax {
		if _, err := f.ReadAt(b[:], LogMax); err == nil {
			return max(binary.BigEndian.Uint64(b[:]), Head+Tail)
		}
	}
	return min(uint64(length), Head+Tail)
}

// Resume takes up what another process kept in the log's file, if there is one. It is called before
// anything is written.
func (l *Log) Resume() error {
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return sigma.Wrap("proclog.Resume", l.path, err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return sigma.Wrap("proclog.Resume", l.path, err)
	}
	l.bump(func() {
		l.file, l.created, l.size = f, true, sizeOf(f, st.Size())
		l.written.Store(l.size)
		l.budget.used.Add(int64(kept(l.size)))
		l.noteLocked(0, st.ModTime())
	})
	return nil
}

// Settle has the log outlive this process: what is kept is in its file from now on.
func (l *Log) Settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled = true
	if len(l.memory) > 0 && !l.ended {
		l.makeFileLocked()
	}
}

// Stamp says that what begins at a byte of the stream, of all that was written to it, came at a
// time.
type Stamp struct {
	At   uint64
	Time time.Time
}

// Times of a log are at most stampsMax, and at first stampGap apart; where there are more, every
// second one is forgotten.
const (
	stampsMax  = 512
	stampGap   = 10 * time.Millisecond
	stampBytes = 32
)

// noteLocked notes that what is written at a byte came now.
func (l *Log) noteLocked(at uint64, now time.Time) {
	n := len(l.stamps)
	if n > 0 && now.Sub(l.stamps[n-1].Time) < max(l.gap, stampGap) || n > 0 &&
		l.budget.memory.Load() >= realmMemoryMax {
		return
	}
	if n == stampsMax {
		for i := range n / 2 {
			l.stamps[i] = l.stamps[2*i]
		}
		l.stamps = l.stamps[:n/2]
		l.budget.memory.Add(-stampBytes * int64(n/2))
		l.gap = 2 * max(l.gap, stampGap)
	}
	l.stamps = append(l.stamps, Stamp{at, now})
	l.budget.memory.Add(stampBytes)
}

// Stamps are when bytes came, the oldest first.
func (l *Log) Stamps() []Stamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Stamp(nil), l.stamps...)
}
