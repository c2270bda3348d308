package testenv

import (
	"testing"
	"time"
)

// A stall counts as far as it is within the time that is asked for; being a little late is none.
func TestStalls(t *testing.T) {
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	s := &Stalls{}
	s.look(at(0), at(60))
	s.look(at(60), at(1070)) // from 70
	s.look(at(1070), at(1080))
	s.look(at(2000), at(2210)) // from 2010
	for _, c := range []struct{ from, to, want int }{{0, 60, 0}, {0, 3000, 1200}, {500, 700, 200}, {1070, 2010, 0},
		{1000, 2100, 160}, {2500, 2600, 0}} {
		if got := s.Between(at(c.from), at(c.to)); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("%d to %d: %v, want %d ms", c.from, c.to, got, c.want)
		}
	}
}
