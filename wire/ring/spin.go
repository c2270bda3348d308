package ring

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// spinMost is about what it costs to sleep and be woken: who spins that long in vain has lost
	// no more than the same again.
	spinMost = 20 * time.Microsecond
	// spinFirst is how many times the memory is looked at before the clock is looked at first, at
	// some spinLook each: an answer in memory comes sooner than the clock is read twice.
	spinFirst = 64
	spinLook  = 15 * time.Nanosecond
	// spinCheck is how many times the memory is looked at between two looks at the clock after
	// that, some 30 ns each.
	spinCheck = 16
	// yieldAfter is how long other goroutines of the program wait; after that they are asked each
	// time that the clock is.
	yieldAfter = 2 * time.Microsecond
	// After spinFails vain spins one after another, the next spinSkip waits sleep at once, and with
	// each further one twice as many, up to spinSkipMost.
	spinFails    = 2
	spinSkip     = 8
	spinSkipMost = 128
)

// spinner decides whether to spin by whether it helped before.
type spinner struct {
	able      bool // it knows its processor
	published uint32
	fails     int
	skip      int // waits to come that sleep at once
	next      int // value of skip after the next vain spin
}

// spin calls found until it is true, for spinMost at most, and returns about how long it took; 0 if
// it did not even begin: where both sides are on one processor, the peer cannot do anything
// meanwhile. It tells the peer the processor in mine.
func (s *spinner) spin(mine, peer *atomic.Uint32, found func() bool) time.Duration {
	if !s.able {
		return 0
	}
	here := processor() + 1
	if here != s.published {
		s.published = here
		mine.Store(here)
	}
	if there := peer.Load(); there == 0 || there == here {
		return 0
	}
	if s.skip > 0 {
		s.skip--
		return 0
	}
	for i := range spinFirst {
		if found() {
			s.fails, s.next = 0, spinSkip
			return time.Duration(i+1) * spinLook
		}
	}
	began := time.Now()
	for {
		for range spinCheck {
			if found() {
				s.fails, s.next = 0, spinSkip
				return spinFirst*spinLook + time.Since(began)
			}
			relax(1)
		}
		spent := spinFirst*spinLook + time.Since(began)
		if spent >= spinMost {
			s.failed()
			return spent
		}
		if spent >= yieldAfter {
			runtime.Gosched()
		}
	}
}

func (s *spinner) failed() {
	if s.fails++; s.fails >= spinFails {
		s.skip = max(s.next, spinSkip)
		s.next = min(2*s.skip, spinSkipMost)
	}
}
