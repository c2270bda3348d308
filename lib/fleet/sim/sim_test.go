package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"sigmaos.dev/lib/fleet"
)

func spec(least, most int) fleet.Spec {
	return fleet.Spec{Name: "web", Program: "/bin/web", Least: least, Most: most}
}

// check fails the test unless so many serve and none is left over.
func check(t *testing.T, w *World, what string, ready int) {
	t.Helper()
	s := w.Status()
	if s.Ready != ready || s.Starting != 0 || s.Draining != 0 || len(w.procs) != ready {
		for _, n := range w.Notes {
			t.Logf("%v %s: %s %v", n.Time.Sub(time.Unix(1000, 0)), n.Reason, n.Why, n.Numbers)
		}
		t.Fatalf("%s: %d ready, %d starting, %d draining, %d procs, want %d: phase %s", what, s.Ready, s.Starting,
			s.Draining, len(w.procs), ready, s.Phase)
	}
}

func reasons(w *World, reason string) (n int) {
	for _, d := range w.Notes {
		if d.Reason == reason {
			n++
		}
	}
	return n
}

func TestSizeFollowsLoad(t *testing.T) {
	w := New(1, spec(1, 8), 1)
	w.Run(time.Second)
	check(t, w, "at first", 1)
	w.Load = 2.8
	w.Run(time.Second)
	missed := w.Missed
	w.Run(4 * time.Second)
	if w.Missed != missed {
		t.Errorf("a second after the load rose %v of it was not served", w.Missed-missed)
	}
	if s := w.Status(); s.Ready < 4 || s.Ready > 5 {
		t.Errorf("%d members for a load of 2.8 at 0.7", s.Ready)
	}
	w.Load = 0.2
	w.Run(10 * time.Second)
	check(t, w, "in the lull", 1)
	if g, s := reasons(w, fleet.ReasonGrow), reasons(w, fleet.ReasonShrink); g > 4 || s > 2 {
		t.Errorf("it grew %d times and shrank %d times", g, s)
	}
}

func TestSteadyLoadDoesNotFlap(t *testing.T) {
	for load := 0.1; load < 6; load += 0.23 {
		w := New(1, spec(1, 10), 1)
		w.Load = load
		w.Run(10 * time.Second)
		before := len(w.Notes)
		w.Run(60 * time.Second)
		if n := len(w.Notes) - before; n > 0 {
			t.Errorf("a load of %.2f: %d decisions in a minute, the last %v", load, n, w.Notes[len(w.Notes)-1])
		}
	}
}

// Goal: a fleet that a bottleneck holds settles within one member of the smallest size that serves
// as much as any (002 F12).
func TestGrowthWithoutGainIsTakenBack(t *testing.T) {
	for best := 1; best <= 12; best++ {
		w := New(1, spec(1, 32), 1)
		w.Behave[1] = Behaviour{Capped: best}
		w.Load = 40
		w.Run(20 * time.Second)
		if s := w.Status(); s.Ready < best || s.Ready > best+1 || reasons(w, fleet.ReasonBack) == 0 {
			t.Errorf("%d members, of which %d are of use", s.Ready, best)
			for _, n := range w.Notes {
				t.Logf("%v %s: %s %v", n.Time.Sub(time.Unix(1000, 0)), n.Reason, n.Why, n.Numbers)
			}
		}
	}
}

func TestZeroAndBack(t *testing.T) {
	s := spec(0, 4)
	s.Idle = fleet.Duration(5 * time.Second)
	w := New(1, s, 1)
	w.Run(time.Second)
	check(t, w, "at first", 0)
	w.Dial()
	w.Run(50 * time.Millisecond)
	check(t, w, "after a dial", 1)
	w.Load = 0.001
	w.Run(30 * time.Second)
	check(t, w, "while it is hardly used", 1)
	w.Load = 0
	w.Run(10 * time.Second)
	check(t, w, "when it is idle", 0)
}

func TestRoll(t *testing.T) {
	for name, u := range map[string]fleet.Update{"by default": {}, "surge": {Surge: 3}, "unavailable": {Unavailable: 2},
		"both": {Surge: 2, Unavailable: 1}, "canary": {Canary: 0.2}} {
		t.Run(name, func(t *testing.T) {
			s := spec(5, 5)
			s.Update = u
			w := New(1, s, 1)
			w.Run(time.Second)
			check(t, w, "at first", 5)
			s.Args = []string{"new"}
			w.Apply(s)
			most, least := 0, 5
			for range 2000 {
				w.Run(step)
				st := w.Status()
				least, most = min(least, st.Ready), max(most, st.Ready+st.Starting)
			}
			check(t, w, "after", 5)
			if w.Status().Revision != 2 || w.record.Stable != nil {
				t.Errorf("revision %d, stable %v", w.Status().Revision, w.record.Stable)
			}
			surge := u.Surge
			if u.Surge+u.Unavailable == 0 || u.Canary > 0 {
				surge++
			}
			if least < 5-u.Unavailable || most > 5+surge {
				t.Errorf("%d served at least, %d were there at most", least, most)
			}
		})
	}
}

func TestBadRevisionIsUndone(t *testing.T) {
	for name, b := range map[string]Behaviour{"crashes": {Crash: true}, "never healthy": {Sick: true},
		"fails requests": {Errors: 0.5}} {
		t.Run(name, func(t *testing.T) {
			s := spec(4, 4)
			s.Health = fleet.Health{Kind: "http"}
			s.Update = fleet.Update{Canary: 0.25, Within: fleet.Duration(3 * time.Second)}
			w := New(1, s, 1)
			w.Load = 2
			w.Behave[2] = b
			w.Run(3 * time.Second)
			s.Args = []string{"bad"}
			w.Apply(s)
			w.Run(5 * time.Second)
			check(t, w, "after", 4)
			if r := w.c.Record(); r.Revision != 1 || r.Undone != 2 || len(r.Spec.Args) != 0 {
				t.Errorf("the record is %+v", r)
			}
			if reasons(w, fleet.ReasonUndone) != 1 {
				t.Error("it was not undone once")
			}
		})
	}
}

func TestCrashLoopIsSlow(t *testing.T) {
	w := New(1, spec(3, 3), 1)
	w.Behave[1] = Behaviour{Crash: true}
	w.Run(time.Minute)
	if w.drawn > 25 {
		t.Errorf("%d were started in a minute", w.drawn)
	}
	w.Behave[1] = Behaviour{}
	w.Run(15 * time.Second)
	check(t, w, "when the program is good again", 3)
}

// Goal: a member that is published before the answer of Spawn is here counts as one that serves.
// Method: members that serve at once, which the core is told of a moment later.
func TestPublishedBeforeKnown(t *testing.T) {
	w := New(1, spec(3, 3), 1)
	w.Behave[1] = Behaviour{Start: 1, Plain: true}
	w.Restart()
	for range 3 {
		w.Kill(0)
		w.Run(time.Second)
		check(t, w, "after", 3)
	}
}

func TestLostMachineIsReplacedAtOnce(t *testing.T) {
	w := New(1, spec(20, 20), 2)
	w.Run(time.Second)
	w.Lose(0)
	w.Run(100 * time.Millisecond)
	check(t, w, "after", 20)
	for _, p := range w.sorted() {
		w.end(p, "lost", true)
	}
	w.Run(100 * time.Millisecond)
	check(t, w, "after all were lost", 20)
}

func TestRemove(t *testing.T) {
	w := New(1, spec(3, 3), 1)
	w.Behave[1] = Behaviour{Stay: true}
	w.Run(time.Second)
	w.Remove()
	w.Run(5 * time.Second)
	if w.Gone() {
		t.Error("it was forgotten while members run")
	}
	w.Run(6 * time.Second)
	if !w.Gone() || len(w.procs) > 0 {
		t.Error("it is not gone")
	}
}

func TestLiarIsBounded(t *testing.T) {
	w := New(1, spec(1, 6), 1)
	w.Behave[1] = Behaviour{Capture: true}
	w.Run(time.Minute)
	if w.MostEver > 6 {
		t.Errorf("there were %d members", w.MostEver)
	}
}

// Goal: whatever is killed at whatever moment, the fleet comes to rest with the right size, and
// never has more members than it may. Method: seeded rounds of random acts at up to a thousand
// members, then a quiet time. SIGMA_TEST_ROUNDS=200 is the whole of it.
func TestFaults(t *testing.T) {
	rounds, err := strconv.ParseUint(cmp.Or(os.Getenv("SIGMA_TEST_ROUNDS"), "20"), 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			size := 1 + r.IntN(30)
			if seed%20 == 0 {
				size = 1000
			}
			s := spec(size, size)
			s.Update = fleet.Update{Surge: 1 + r.IntN(size), Unavailable: r.IntN(size),
				Canary: []float64{0, 0.3}[r.IntN(2)], Hold: fleet.Duration(500 * time.Millisecond)}
			w := New(seed, s, 5)
			for range 30 {
				act(w, r, &s)
				w.Run(time.Duration(r.IntN(300)) * time.Millisecond)
			}
			w.Run(60 * time.Second)
			check(t, w, "at rest", size)
			if most := size + max(s.Update.Surge, 1+int(s.Update.Canary*float64(size))); w.MostEver > most {
				t.Errorf("there were %d members, of %d", w.MostEver, most)
			}
		})
	}
}

func act(w *World, r *rand.Rand, s *fleet.Spec) {
	switch r.IntN(7) {
	case 0, 1:
		w.Kill(r.IntN(1000))
	case 2:
		w.Lose(r.IntN(w.Machines))
	case 3, 4:
		w.Restart()
	case 5:
		s.Args = []string{fmt.Sprint(r.Uint32())}
		if revision := w.c.Record().Highest + 1; r.IntN(3) == 0 {
			w.Behave[revision] = Behaviour{Crash: true}
			defer func() { s.Args = w.c.Record().Spec.Args }()
		}
		w.Apply(*s)
	case 6:
		w.Roll()
	}
}
