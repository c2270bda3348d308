package machines

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: when the judge's machine dies, both heirs see it within the time that any loss takes, one
// of them takes over, the other and the old judge cannot, and the new judge declares the old one's
// machine lost. An heir that is alone never takes over.
func TestSuccession(t *testing.T) {
	ctx, ns, timing := t.Context(), space(t), DefaultTiming()
	old, state, err := TakeOver(ctx, ns, "/machines", "m1", "")
	if err != nil {
		t.Fatal(err)
	}
	state = State{Epoch: 5}
	effects := []Effect{SaveEpoch{5}}
	for i, id := range []sigma.MachineID{"m1", "m2", "m3", "m4"} {
		m := Member{ID: id, Incarnation: sigma.Incarnation(i + 2), Control: i < 3, Address: "a:1"}
		state.Members, effects = append(state.Members, m), append(effects, SaveMember{m})
	}
	if err := old.Save(ctx, effects); err != nil {
		t.Fatal(err)
	}
	heirs, now := map[sigma.MachineID]*Heir{}, began
	for _, id := range []sigma.MachineID{"m2", "m3"} {
		if heirs[id], err = NewHeir(now, Config{Self: id, State: state}, "m1"); err != nil {
			t.Fatal(err)
		}
	}
	var died time.Time
	// pass lets the observers report what they hear: all machines, but the judge's only until it
	// died.
	pass := func(d time.Duration, reporters ...sigma.MachineID) (ready map[sigma.MachineID]bool) {
		ready = map[sigma.MachineID]bool{}
		for end := now.Add(d); now.Before(end); {
			now = now.Add(timing.Tick)
			for _, by := range reporters {
				r := Report{By: by, Beat: []Evidence{{"m2", 3, 0}, {"m3", 4, 0}, {"m4", 5, 0}}}
				if died.IsZero() {
					r.Beat = append(r.Beat, Evidence{"m1", 2, 0})
				}
				for _, h := range heirs {
					h.Report(now, r)
				}
			}
			for id, h := range heirs {
				ready[id] = ready[id] || h.Tick(now)
			}
		}
		return ready
	}
	if r := pass(10*time.Second, "m1", "m2", "m3"); r["m2"] || r["m3"] {
		t.Fatalf("with a judge that lives: %v", r)
	}
	died = now
	if r := pass(10*time.Second, "m2"); r["m2"] || r["m3"] {
		t.Fatalf("with one observer of three: %v", r)
	}
	if r := pass(timing.Suspect+2*timing.Tick, "m2", "m3"); !r["m2"] || !r["m3"] {
		t.Fatalf("with two of three: %v", r)
	}
	store, st, err := TakeOver(ctx, ns, "/machines", "m3", "m1")
	if err != nil || len(st.Members) != 4 {
		t.Fatal(st, err)
	}
	if _, _, err := TakeOver(ctx, ns, "/machines", "m2", "m1"); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("the other heir takes over too: %v", err)
	}
	if err := old.Save(ctx, []Effect{SaveEpoch{6}}); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("the old judge saves: %v", err)
	}
	if _, judge, err := Look(ctx, ns, "/machines"); judge != "m3" || err != nil {
		t.Errorf("the judge is %v, %v", judge, err)
	}
	c, err := New(now, Config{Self: "m3", Remote: true, State: st, Heard: map[sigma.MachineID]time.Time{"m1": died,
		"m2": now, "m4": now}})
	if err != nil {
		t.Fatal(err)
	}
	took := now
	for lost := false; !lost; {
		if now = now.Add(timing.Tick); now.Sub(took) > time.Second {
			t.Fatal("the new judge does not declare the old one lost")
		}
		for _, by := range []sigma.MachineID{"m2", "m3"} {
			c.Step(now, Report{By: by, Beat: []Evidence{{"m2", 3, 0}, {"m3", 4, 0}, {"m4", 5, 0}}})
		}
		effects, _ := c.Step(now, Tick{})
		for _, f := range effects {
			if l, ok := f.(Lost); ok {
				lost = true
				if err := store.Save(ctx, effects); err != nil || l.ID != "m1" {
					t.Errorf("lost is %s, %v", l.ID, err)
				}
			}
		}
	}
}

// A judge whose machine reports lives, although its beats are heard by nobody: one of two observers
// that are left of three must not take over with the other's report.
func TestReporterLives(t *testing.T) {
	var state State
	for i, id := range []sigma.MachineID{"m1", "m2", "m3"} {
		state.Members = append(state.Members, Member{ID: id, Incarnation: sigma.Incarnation(i + 2), Control: true,
			Address: "a:1"})
	}
	h, err := NewHeir(began, Config{Self: "m2", State: state}, "m1")
	if err != nil {
		t.Fatal(err)
	}
	for at := time.Duration(0); at < 10*time.Second; at += DefaultTiming().Tick {
		for _, by := range []sigma.MachineID{"m1", "m2"} {
			h.Report(began.Add(at), Report{By: by, Beat: []Evidence{{"m2", 3, 0}}})
		}
		if h.Tick(began.Add(at)) {
			t.Fatalf("the heir takes over after %v, while the judge's machine reports", at)
		}
	}
}
