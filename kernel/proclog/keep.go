package proclog

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

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
		l.file, l.made, l.size = f, true, sizeOf(f, st.Size())
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
