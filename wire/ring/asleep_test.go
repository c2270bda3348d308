package ring

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A reader that sleeps has said so, also when the writer was late to ring for what was read
// already: it takes such a doorbell, and is told of the next message.
func TestAsleep(t *testing.T) {
	x, y := pair(t, Shared, Shared)
	say(t, x, y, "begin")
	waits := &y.in.from.waits
	unread := func() (n int) {
		y.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		return n
	}
	for i := range 5000 {
		rung := make(chan bool)
		go func() { // a writer whose message was read before it came to this
			defer close(rung)
			for !waits.CompareAndSwap(1, 0) {
				runtime.Gosched()
			}
			x.raw.Control(x.bell)
		}()
		for over := false; !over; {
			asleep := false
			y.raw.Control(func(fd uintptr) { asleep = !y.awaitRing(int(fd)) })
			for asleep && unread() == 0 && !over { // as the poller would
				select {
				case <-rung:
					over = unread() == 0
				default:
					runtime.Gosched()
				}
			}
		}
		if waits.Load() != 1 {
			t.Fatalf("round %d: the reader sleeps and nobody knows", i)
		}
	}
}
