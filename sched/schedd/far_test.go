package schedd

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

var now = time.Unix(5, 0)

// queuedAt makes a home with one proc that is queued.
func queuedAt(t *testing.T) *Core {
	t.Helper()
	c := NewCore("home", sigma.GiB)
	c.Step(now, Members{map[sigma.MachineID]sigma.Incarnation{"home": 1, "r": 2, "q": 3}})
	c.Step(now, Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{"p"},
		Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
	return c
}

// TestGive: a proc is given once. The sigmad that it was given to may ask again until it has said
// that the proc runs; another machine, another life or another sigmad of the same machine may not.
func TestGive(t *testing.T) {
	r, q := sigma.Life{Machine: "r", Incarnation: 2}, sigma.Life{Machine: "q", Incarnation: 3}
	c := queuedAt(t)
	give := func(by sigma.Life, boot uint64, want bool) {
		t.Helper()
		if _, d, err := c.Give(now, "p", by, boot); (err == nil) != want || want && d.Program != "/bin/x" {
			t.Errorf("given to %v of boot %d: %v, want %v", by, boot, err, want)
		}
	}
	give(sigma.Life{Machine: "r", Incarnation: 1}, 9, false) // that life is over
	give(sigma.Life{Machine: "x", Incarnation: 9}, 9, false) // that is no member
	c.Step(now, Resynced{From: r, Boot: 6})
	give(r, 5, false) // that sigmad is dead
	give(r, 6, true)
	give(r, 6, true)
	give(q, 1, false)
	give(r, 7, false)
	if got := c.Step(now, Assigned{"p"}); got != nil {
		t.Errorf("it was started here too: %v", got)
	}
	p := c.Proc("a", "p").ProcInfo
	p.State = sigma.ProcRunning
	c.Step(now, Reported{From: q, Procs: []Report{{Info: p}}})
	if got := c.Proc("a", "p"); got.State != sigma.ProcStarting {
		t.Errorf("a machine that does not run it said so, and was believed: %v", got.State)
	}
	c.Step(now, Reported{From: r, Boot: 7, Procs: []Report{{Info: p}}})
	give(r, 7, false)
	c.Step(now, Members{map[sigma.MachineID]sigma.Incarnation{"home": 1, "r": 3, "q": 3}})
	if got := c.Proc("a", "p").Status; got.Code != sigma.StatusLost ||
		got.Msg != "machine r was lost, and the proc with it" {
		t.Errorf("got %+v", got)
	}
	give(q, 1, false)
	p.State, p.ID = sigma.ProcRunning, "unknown"
	c.Step(now, Reported{From: r, Boot: 7, Procs: []Report{{Info: p}}})
	if c.Proc("a", "unknown") != nil {
		t.Error("a report of a life that is over was believed")
	}
}

// TestGuest: a guest is charged from the offer on, its end is kept until the home has heard it, and
// when the home's life is over it is at home here, also if that is heard before it comes.
func TestGuest(t *testing.T) {
	home := sigma.Life{Machine: "home", Incarnation: 1}
	c := NewCore("r", 100*sigma.MiB)
	info := sigma.ProcInfo{ID: "p", Realm: "a", Memory: 64 * sigma.MiB}
	if got := c.Step(now, Offered{ID: "p", Realm: "a", Memory: info.Memory, Home: home}); len(got) != 1 ||
		c.Free() != 36*sigma.MiB || c.Running() != 1 {
		t.Fatalf("offered: %v, free %v", got, c.Free())
	}
	if got := c.Step(now, Offered{ID: "q", Realm: "a", Memory: info.Memory, Home: home}); len(got) != 1 ||
		got[0] != (Decline{"q", home}) {
		t.Errorf("what does not fit: %v", got)
	}
	c.Step(now, NotTaken{"q"})
	c.Step(now, NotTaken{"p"})
	if c.Free() != c.Capacity() || c.Running() != 0 {
		t.Errorf("free %v after nothing came", c.Free())
	}
	c.Step(now, Offered{ID: "p", Realm: "a", Memory: info.Memory, Home: home})
	if got := c.Step(now, Arrived{Info: info, Home: home}); len(got) != 1 || c.Free() != 36*sigma.MiB ||
		c.Live("a") != 0 || c.List("a", true, 0, 1) != nil {
		t.Fatalf("arrived: %v, free %v", got, c.Free())
	}
	if got := c.Step(now, Arrived{Info: info, Home: home}); got != nil {
		t.Errorf("the second time: %v", got)
	}
	if got := c.Step(now, Launched{ID: "p"}); len(got) != 2 || got[1] != (Owed{"p", home}) {
		t.Errorf("launched: %v", got)
	}
	c.Step(now, Gone{ID: "p"})
	for range EndedMax + 1 { // nothing that ends later drives it out
		id := sigma.NewProcID()
		c.Step(now, Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
		c.Step(now, Killed{id})
	}
	if _, to, ok := c.Report("p"); !ok || to != home {
		t.Error("the home can be told of its end no more")
	}
	c.Step(now, Told{ID: "p", Ended: true})
	c.Step(now.Add(2*EndedAge), Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{"z"},
		Ds: []sigma.Descriptor{{Program: "/bin/x"}}})
	if c.Proc("a", "p") != nil {
		t.Error("a guest whose home has been told is kept for ever")
	}
	c.Step(now, Members{map[sigma.MachineID]sigma.Incarnation{"home": 2, "r": 1}})
	c.expected["large"], c.expectedOf["large"] = 1, "a"
	c.used, c.running = c.used+1, c.running+1
	free := c.Free()
	if got := c.Step(now, Arrived{Info: sigma.ProcInfo{ID: "large", Realm: "a", Memory: 1 << 62},
		Home: home}); len(got) != 1 || c.Proc("a", "large") != nil || c.Free() != free+1 {
		t.Errorf("a proc that is larger than was said: %v, free %v", got, c.Free())
	}
	late := Arrived{Info: sigma.ProcInfo{ID: "late", Realm: "a", Memory: 1}, Home: home}
	if got := c.Step(now, late); got != nil {
		t.Errorf("a proc that was not expected: %v", got)
	}
	c.expected["late"], c.expectedOf["late"] = 1, "a"
	c.Step(now, late)
	if p := c.Proc("a", "late"); p.Guest() || c.Live("a") != 2 {
		t.Errorf("a proc whose home is lost: %+v, %d live", p, c.Live("a"))
	}
}

// TestGuestOfRemovedRealm: a realm that is removed here leaves a guest whose home has not heard of
// its end, or the home would wait for that for ever.
func TestGuestOfRemovedRealm(t *testing.T) {
	home := sigma.Life{Machine: "home", Incarnation: 1}
	c := NewCore("r", sigma.GiB)
	for _, id := range []sigma.ProcID{"told", "p"} {
		info := sigma.ProcInfo{ID: id, Realm: "a", Memory: sigma.MiB}
		c.Step(now, Offered{ID: id, Realm: "a", Memory: info.Memory, Home: home})
		c.Step(now, Arrived{Info: info, Home: home})
		c.Step(now, Launched{ID: id})
		c.Step(now, Gone{ID: id})
	}
	c.Step(now, Told{ID: "told", Ended: true})
	c.Step(now, RealmGone{"a"})
	if _, _, ok := c.Report("told"); ok {
		t.Error("a guest whose home knows all is still there")
	}
	if _, to, ok := c.Report("p"); !ok || to != home {
		t.Error("the home can be told of its end no more")
	}
	c.Step(now, Told{ID: "p", Ended: true})
	c.Step(now, RealmGone{"a"})
	if len(c.procs) > 0 || len(c.realms) > 0 {
		t.Errorf("%d procs and %d realms are left", len(c.procs), len(c.realms))
	}
}

// TestHostileReport: what no machine reports is not believed.
func TestHostileReport(t *testing.T) {
	from := sigma.Life{Machine: "r", Incarnation: 2}
	for _, info := range []sigma.ProcInfo{{ID: "x", Realm: "a", State: sigma.ProcEnded + 1},
		{ID: "x", Realm: "../a", State: sigma.ProcRunning}} {
		c := queuedAt(t)
		if got := c.Step(now, Reported{From: from, Boot: 1, Procs: []Report{{Info: info}}}); got != nil ||
			c.procs["x"] != nil {
			t.Errorf("%+v was believed", info)
		}
	}
}
