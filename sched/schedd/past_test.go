package schedd

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: the next sigmad's state has the procs that had ended as the first had them, in order of
// Spawn, forgets them at the same age, and counts them among no others; homes are told of guests'
// ends.
func TestRemembered(t *testing.T) {
	now := time.Unix(1e6, 0)
	by := sigma.Principal{Realm: "a"}
	c := NewCore("m", sigma.GiB)
	c.Step(now, Spawned{By: by, IDs: []sigma.ProcID{"p1", "p2", "p3"}, Ds: make([]sigma.Descriptor, 3)})
	c.Step(now.Add(time.Second), Killed{"p2"})
	c.Step(now.Add(2*time.Second), Killed{"p1"})
	if _, ok := c.Past("p3"); ok {
		t.Error("one that has not ended is past")
	}
	var all []Past
	for _, id := range []sigma.ProcID{"p2", "p1"} { // in order of their ends
		p, ok := c.Past(id)
		if !ok {
			t.Fatal(id)
		}
		all = append(all, p)
	}
	guest := all[0]
	guest.Info.ID, guest.Home = "g", sigma.Life{Machine: "far", Incarnation: 7}
	next := NewCore("m", sigma.GiB)
	fs := next.Step(now.Add(time.Minute), Remembered{append(all, guest)})
	if len(fs) != 1 || fs[0] != (Owed{"g", guest.Home}) {
		t.Errorf("it has done %v", fs)
	}
	if list := next.List("a", true, 0, 9); len(list) != 2 || list[0].ID == list[1].ID || next.Live("a") != 0 {
		t.Errorf("%d live, all are %v", next.Live("a"), list)
	}
	if p := next.Proc("a", "p1"); !p.Ended() || p.Status.Code != sigma.StatusEvicted ||
		!p.Times.Ended.Equal(now.Add(2*time.Second)) {
		t.Errorf("p1 is %+v", p)
	}
	if fs := next.Step(now.Add(time.Minute), Remembered{all}); len(fs) != 0 || len(next.List("a", true, 0, 9)) != 2 {
		t.Errorf("known ones were entered again: %v", fs)
	}
	next.Step(now, Told{ID: "g", Ended: true})
	fs = next.Step(now.Add(time.Second+EndedAge), Spawned{By: by, IDs: []sigma.ProcID{"p4"},
		Ds: make([]sigma.Descriptor, 1)})
	forgotten := map[sigma.ProcID]bool{}
	for _, f := range fs {
		if f, ok := f.(Forget); ok {
			forgotten[f.ID] = true
		}
	}
	if !forgotten["p2"] || !forgotten["g"] || forgotten["p1"] {
		t.Errorf("after an hour %v are forgotten", forgotten)
	}
}
