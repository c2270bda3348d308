package ring

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/wire/session"
)

// metered makes a connection whose dialling side counts in a meter of the Set.
func metered(t testing.TB, set *Set) (a *Conn, b Stream) {
	t.Helper()
	x, y, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	if a, err = set.New(FileStream(x), Dialled, nil, nil); err != nil {
		t.Fatal(err)
	}
	b = FileStream(y)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func newMeter(t testing.TB) *os.File {
	t.Helper()
	f, err := NewMeter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func say(t testing.TB, w io.Writer, r io.Reader, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, len(text))); err != nil {
		t.Fatal(err)
	}
}

// What a connection carries is counted before the meter comes, with it, after the connection has
// ended, and if there is no room in it.
func TestMeter(t *testing.T) {
	f := newMeter(t)
	come := make(chan struct{})
	set := NewSet(Config{Meter: func(context.Context) (*os.File, error) { <-come; return dup(t, f), nil }})
	t.Cleanup(set.Close)
	check := func(when string, want Carried, n int) map[uint64]Carried {
		t.Helper()
		all, open, err := ReadMeter(f)
		if err != nil || all != want || len(open) != n {
			t.Errorf("%s: %+v, %d open, %v, want %+v, %d", when, all, len(open), err, want, n)
		}
		return open
	}
	over, peer := metered(t, set)
	say(t, over, peer, "abc")
	over.Close()
	a, b := metered(t, set)
	say(t, a, b, "hello")
	check("without a meter", Carried{}, 0)
	close(come)
	set.tasks.Wait()
	check("with it", Carried{Sent: 8, Writes: 2}, 1)
	say(t, b, a, "answers") // io.ReadFull reads once
	say(t, a, b, "again")
	open := check("after a round trip", Carried{Sent: 13, Writes: 3, Received: 7, Reads: 1, Turns: 1}, 1)
	if one := open[a.inode()]; one != (Carried{Sent: 10, Writes: 2, Received: 7, Reads: 1, Turns: 1}) {
		t.Errorf("by the socket's number: %+v", open)
	}
	a.Close()
	if st := a.Stats(); st.BytesWritten != 10 || st.BytesRead != 7 || st.Turns != 1 {
		t.Errorf("its own account after the end: %+v", st)
	}
	check("after its end", Carried{Sent: 13, Writes: 3, Received: 7, Reads: 1, Turns: 1}, 0)

	m := set.meter.Load()
	for range meterSlots {
		if s, _ := m.take(1); s == nil {
			t.Fatal("a meter has less room than it says")
		}
	}
	late, other := metered(t, set)
	say(t, late, other, "unseen")
	check("without room", Carried{Sent: 13, Writes: 3, Received: 7, Reads: 1, Turns: 1}, 1)
	late.Close()
	check("at last", Carried{Sent: 19, Writes: 4, Received: 7, Reads: 1, Turns: 1}, 1)
}

// Who reads a meter while connections come and go never sees more than there was, and at last all
// of it.
func TestMeterRead(t *testing.T) {
	f := newMeter(t)
	m, err := mapMeter(f)
	if err != nil {
		t.Fatal(err)
	}
	const each, rounds = 1000, 2000
	var begun, ended atomic.Uint64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range uint64(rounds) {
				s, _ := m.take(i + 1)
				begun.Add(each)
				for range each / 100 {
					s.out.bytes.Add(100)
				}
				m.end(s, Carried{Sent: each})
				ended.Add(each)
			}
		})
	}
	go func() { all.Wait(); begun.Add(1) }()
	for begun.Load()%each == 0 {
		got, _, err := ReadMeter(f)
		if most := begun.Load(); err != nil || got.Sent > most {
			t.Fatalf("%d of at most %d bytes, %v", got.Sent, most, err)
		}
	}
	if got, open, err := ReadMeter(f); err != nil || got.Sent != 4*each*rounds || len(open) != 0 {
		t.Errorf("at last %+v, %v, %v", got, open, err)
	}
	// A program that is killed while it adds the connection to the total.
	s, _ := m.take(7)
	s.out.bytes.Add(5)
	g := m.head.generation.Load()
	now, next := &m.head.totals[g%2], &m.head.totals[(g+1)%2]
	for i, step := range []func(){
		func() { next.sent.Store(now.sent.Load() + 5) },
		func() { next.absorbed.Store(s.serial.Load()) },
		func() { m.head.generation.Store(g + 1) },
		func() { s.serial.Store(0) },
	} {
		step()
		if got, _, _ := ReadMeter(f); got.Sent != 4*each*rounds+5 {
			t.Errorf("killed after step %d: %d", i, got.Sent)
		}
	}
}

// Whatever is in a meter, it is read.
func FuzzReadMeter(f *testing.F) {
	f.Add([]byte{1}, uint16(3))
	f.Fuzz(func(t *testing.T, text []byte, top uint16) {
		b := make([]byte, MeterBytes)
		for i := range b {
			if len(text) > 0 {
				b[i] = text[i%len(text)]
			}
		}
		all, open := parseMeter(b, int(min(top, meterSlots)))
		for _, c := range open {
			if c.Sent > all.Sent || c.Received > all.Received {
				t.Errorf("one is more than all: %+v, %+v", c, all)
			}
		}
	})
}

// After a machine has begun anew its meter is another: what connections carry that are made from
// then on is there, also of those that end before it comes; older ones go on in theirs, and end
// there.
func TestMeterRenewed(t *testing.T) {
	first, second := newMeter(t), newMeter(t)
	files := make(chan *os.File, 2)
	files <- first
	set := NewSet(Config{Meter: func(context.Context) (*os.File, error) { return dup(t, <-files), nil }})
	t.Cleanup(set.Close)
	old, peer := metered(t, set)
	set.tasks.Wait()
	say(t, old, peer, "before")
	set.Renew()
	set.Renew() // it is being asked for
	if n := mappings(t, first); n != 1 {
		t.Errorf("the one before, in which a connection counts, is mapped %d times", n)
	}
	short, other := metered(t, set)
	say(t, short, other, "abc")
	short.Close()
	newer, its := metered(t, set)
	say(t, newer, its, "after")
	files <- second
	set.tasks.Wait()
	say(t, old, peer, "later")
	old.Close()
	if n := mappings(t, first); n != 0 {
		t.Errorf("the one before, which nobody uses, is mapped %d times", n)
	}
	say(t, newer, its, "again")
	for _, c := range []struct {
		f    *os.File
		want Carried
		open int
	}{{first, Carried{Sent: 11, Writes: 2}, 0}, {second, Carried{Sent: 13, Writes: 3}, 1}} {
		if all, open, err := ReadMeter(c.f); err != nil || all != c.want || len(open) != c.open {
			t.Errorf("got %+v, %d open, %v, want %+v, %d", all, len(open), err, c.want, c.open)
		}
	}
}

// mappings is how often the program has a file mapped.
func mappings(t *testing.T, f *os.File) (n int) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev))
	for line := range strings.Lines(string(maps)) {
		if words := strings.Fields(line); len(words) > 4 && words[3] == device && words[4] == fmt.Sprint(st.Ino) {
			n++
		}
	}
	return n
}

// TestMeterRenewedBusy: whatever connections do while the machine begins anew, and anew, nobody
// uses a meter that is gone, only the last one stays mapped, and all that was carried is in one of
// them.
func TestMeterRenewedBusy(t *testing.T) {
	const rounds = 20
	var meters []*os.File
	for range rounds + 1 {
		meters = append(meters, newMeter(t))
	}
	next := atomic.Int32{}
	set := NewSet(Config{Meter: func(context.Context) (*os.File, error) {
		return dup(t, meters[min(int(next.Add(1))-1, rounds)]), nil
	}})
	t.Cleanup(set.Close)
	var all sync.WaitGroup
	over := make(chan struct{})
	var written atomic.Uint64
	for range 3 {
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				x, y, err := session.FilePair(syscall.SOCK_STREAM)
				if err != nil {
					t.Error(err)
					return
				}
				a, err := set.New(FileStream(x), Dialled, nil, nil)
				if err != nil {
					t.Error(err)
					return
				}
				var watched sync.WaitGroup
				watched.Go(func() {
					for range 50 {
						a.Stats()
					}
				})
				for range 10 {
					n, _ := a.Write([]byte("x"))
					written.Add(uint64(n))
				}
				a.Close()
				watched.Wait()
				y.Close()
			}
		})
	}
	for range rounds {
		for set.meter.Load() == nil {
			runtime.Gosched()
		}
		set.Renew()
	}
	close(over)
	all.Wait()
	set.tasks.Wait()
	var sum Carried
	for i, f := range meters {
		got, open, err := ReadMeter(f)
		if err != nil || len(open) != 0 {
			t.Errorf("meter %d: %d are open, %v", i, len(open), err)
		}
		sum.add(got)
		if n := mappings(t, f); n != 0 && (i != int(next.Load())-1 || n != 1) {
			t.Errorf("meter %d of %d is mapped %d times", i, next.Load(), n)
		}
	}
	if n := written.Load(); sum != (Carried{Sent: n, Writes: n}) {
		t.Errorf("%d bytes were written, each by a call; counted are %+v", n, sum)
	}
}
