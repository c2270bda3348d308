package sim

import (
	"testing"
	"time"

	"sigmaos.dev/lib/fleet"
)

// Goal: members are where their traffic is, in proportion to it; a fleet that all machines use
// alike is everywhere; a machine without room, or with little traffic, gets nobody because of it;
// who says where members go has the last word. Method: ten members are replaced after the traffic
// is known.
func TestMembersAreNearTheirTraffic(t *testing.T) {
	even := map[int]float64{0: 1e7, 1: 1e7, 2: 1e7, 3: 1e7, 4: 1e7}
	for name, c := range map[string]struct {
		talk  map[int]float64
		full  bool // machine 2 is
		set   func(*fleet.Spec)
		want  map[int]int
		noted bool
	}{
		"one machine":    {talk: map[int]float64{2: 5e7}, want: map[int]int{2: 10}, noted: true},
		"two machines":   {talk: map[int]float64{0: 7e7, 1: 3e7}, want: map[int]int{0: 7, 1: 3}, noted: true},
		"all alike":      {talk: even, want: map[int]int{0: 2, 1: 2, 2: 2, 3: 2, 4: 2}, noted: true},
		"it has no room": {talk: map[int]float64{2: 5e7}, full: true, want: map[int]int{2: 0}, noted: true},
		"too little":     {talk: map[int]float64{2: 9e5}},
		"near is set":    {talk: map[int]float64{2: 5e7}, set: func(s *fleet.Spec) { s.Near = "m0" }},
		"spread is set":  {talk: map[int]float64{2: 5e7}, set: func(s *fleet.Spec) { s.Spread = "zone" }},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(10, 10)
			if c.set != nil {
				c.set(&s)
			}
			w := New(1, s, 5)
			w.Run(time.Second)
			w.Talk, w.Full[2] = c.talk, c.full
			w.Run(time.Second)
			w.Roll()
			w.Run(3 * time.Second)
			check(t, w, "after", 10)
			for m, n := range c.want {
				if w.On(m) != n {
					t.Errorf("%d members are on machine %d, want %d", w.On(m), m, n)
				}
			}
			if noted := reasons(w, fleet.ReasonNear) > 0; noted != c.noted {
				t.Errorf("decisions about it: %v, want %v", noted, c.noted)
			}
		})
	}
}
