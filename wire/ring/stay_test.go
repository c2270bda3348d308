package ring

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// alone has this goroutine run on one processor for the rest of the test, and gives it as a
// direction tells it.
func alone(t *testing.T) uint32 {
	t.Helper()
	if !knowsProcessor() {
		t.Skip("SKIPPED: this processor does not say which one it is, so no ring knows whether both sides share one")
	}
	runtime.LockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for i := 0; one.Count() == 0; i++ {
		if all.IsSet(i) {
			one.Set(i)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.SchedSetaffinity(0, &all)
		runtime.UnlockOSThread()
	})
	return processor() + 1
}

// When the ring is full and both sides are on one processor, writes stay on the socket: stayFirst
// after the reader has followed, twice as many each time that the ring is full again before
// stayLasts writes, stayMost at most, and as few as at first once it has lasted longer. Where the
// reader is elsewhere, or it is not known where, none do. Nothing is lost or out of order
// meanwhile.
func TestStay(t *testing.T) {
	here := alone(t)
	x, y := pair(t, Shared, Shared)
	var written, read byte // the next ones
	write := func(n int) {
		t.Helper()
		p := make([]byte, n)
		for i := range p {
			p[i] = written
			written++
		}
		if k, err := x.Write(p); k != n || err != nil {
			t.Fatalf("%d of %d written, %v", k, n, err)
		}
	}
	drain := func(n int) {
		t.Helper()
		p := make([]byte, n)
		if _, err := io.ReadFull(y, p); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, n)
		for i := range want {
			want[i] = read
			read++
		}
		if !bytes.Equal(p, want) {
			t.Fatal("what is read is not what was written")
		}
	}
	inRing := func() bool { return x.Stats().Writing == Shared }
	// fill writes to the ring until it is full, and has the reader take all.
	fill := func() (writes int) {
		t.Helper()
		const piece = Bytes / 8
		for inRing() {
			write(piece)
			writes++
		}
		drain(writes * piece)
		return writes
	}
	// stays counts the writes until one goes to the ring.
	stays := func() (n int) {
		t.Helper()
		for {
			write(1)
			drain(1)
			if inRing() {
				return n
			}
			n++
		}
	}
	if n := stays(); n != 0 {
		t.Fatalf("%d writes before the ring", n)
	}
	reader := &x.out.to.direction.processor
	reader.Store(here)
	for _, want := range []int{16, 32, 64, 128, 256, 512, 1024, 1024} {
		if writes := fill(); writes >= stayLasts {
			t.Fatalf("%d writes fill the ring", writes)
		}
		if n := stays(); n != want {
			t.Errorf("%d writes stayed on the socket, want %d", n, want)
		}
	}
	for range stayLasts {
		write(1)
		drain(1)
	}
	fill()
	if n := stays(); n != stayFirst {
		t.Errorf("%d writes stayed on the socket after the ring had served for a while, want %d", n, stayFirst)
	}
	for what, there := range map[string]uint32{"elsewhere": here + 1, "nobody knows where": 0} {
		reader.Store(there)
		fill()
		if n := stays(); n != 0 {
			t.Errorf("%d writes stayed on the socket with the reader %s", n, what)
		}
	}
}
