package testenv

import (
	"sync"
	"testing"
	"time"
)

// Of a Stalls: how often it looks, and what it takes for a stall: less is what any busy host does.
const (
	stallTick  = 10 * time.Millisecond
	stallLeast = 100 * time.Millisecond
)

// Stalls notices when the host stands still, as virtual machines do now and then: then nothing of
// the system runs either, and what it promises to do within a time has that much more. Safe for
// concurrent use.
type Stalls struct {
	mu  sync.Mutex
	all []stall // mu; in order
}

// stall is a time in which nothing was run.
type stall struct{ from, to time.Time }

// WatchStalls looks for stalls until the test ends.
func WatchStalls(tb testing.TB) *Stalls {
	s := &Stalls{}
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for last := time.Now(); ; {
			select {
			case <-over:
				return
			case <-time.After(stallTick):
			}
			now := time.Now()
			s.look(last, now)
			last = now
		}
	})
	tb.Cleanup(func() { close(over); watch.Wait() })
	return s
}

// look takes note of two looks after one another.
func (s *Stalls) look(last, now time.Time) {
	if now.Sub(last) < stallTick+stallLeast {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, stall{last.Add(stallTick), now})
}

// Between is for how long the host stood still in that time.
func (s *Stalls) Between(from, to time.Time) (sum time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		begin, end := x.from, x.to
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		sum += max(end.Sub(begin), 0)
	}
	return sum
}
