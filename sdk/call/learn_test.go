package call

import (
	"testing"
	"time"
)

// Goal: calls get goroutines when their handler takes long by habit, not when one took long by
// chance, as where the processor was taken away in the middle of it.
func TestSlowByHabit(t *testing.T) {
	for _, c := range []struct {
		name        string
		quick, long int // calls, by turns
		slow        bool
	}{
		{"all are quick", 1, 0, false},
		{"one of a hundred is long", 99, 1, false},
		{"one of eight is long", 7, 1, false},
		{"one of four is long", 3, 1, true},
		{"all are long", 0, 1, true},
	} {
		m := &method{}
		m.score.Store(slowFrom) // as register does
		slow := 0
		for round := range 100 {
			for range c.quick {
				m.learn(time.Microsecond)
			}
			for range c.long {
				m.learn(10 * inlineMost)
			}
			if round >= 50 && m.slow() {
				slow++
			}
		}
		if (slow > 0) != c.slow {
			t.Errorf("%s: slow after %d of 50 rounds", c.name, slow)
		}
	}
	m := &method{}
	m.score.Store(slowMost) // of a handler that was stuck
	for range slowMost - slowFrom + 1 {
		if !m.slow() {
			t.Error("the calls after a stuck one get no goroutines")
		}
		m.learn(time.Microsecond)
	}
	if m.slow() {
		t.Error("quick calls get goroutines for ever")
	}
}
