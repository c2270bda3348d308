package kernel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// three is a system of three machines, each with a client.
type three struct {
	*world
	m map[sigma.MachineID]*machine
	c map[sigma.MachineID]*sdk.Client
}

func newThree(t *testing.T) *three { return newThreeWith(t, nil) }

// newThreeWith is newThree; before is done to each machine before it runs.
func newThreeWith(t *testing.T, before func(*machine)) *three {
	first := control
	first.before = before
	w := newWorld(t, first, part{name: "m2", before: before}, part{name: "m3", before: before})
	x := &three{world: w, m: w.machines, c: map[sigma.MachineID]*sdk.Client{}}
	for name, m := range w.machines {
		x.c[name] = m.connect(sigma.DefaultRealm)
	}
	x.attending(3)
	return x
}

// attending waits until so many machines take part.
func (x *three) attending(n int) {
	eventually(x.t, fmt.Sprintf("%d machines take part", n), func() bool {
		return len(x.m["m1"].k.cluster.Others()) == n-1 && x.m["m1"].parked(n)
	})
}

// parked says whether besched of m knows so many machines, each with an offer.
func (m *machine) parked(n int) bool {
	m.mu.Lock()
	s := m.sched
	m.mu.Unlock()
	return s != nil && s.Offers() == n
}

// burst spawns n procs at a machine.
func (x *three) burst(at sigma.MachineID, n int) []sigma.ProcID {
	x.t.Helper()
	c := x.c[at]
	if _, err := c.Stat(x.t.Context(), "/bin/x"); err != nil {
		if _, err := c.Put(x.t.Context(), "/bin/x", program(), sigma.PutOptions{}); err != nil {
			x.t.Fatal(err)
		}
	}
	ds := make([]sigma.Descriptor, n)
	for i := range ds {
		ds[i] = sigma.Descriptor{Program: "/bin/x", Memory: 16 * sigma.MiB}
	}
	ids, err := c.Spawn(x.t.Context(), ds...)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, id := range ids {
		if err := c.WaitStart(x.t.Context(), id); err != nil {
			x.t.Fatal(err)
		}
	}
	return ids
}

// on groups what a machine lists by where it runs.
func (x *three) on(at sigma.MachineID) map[sigma.MachineID][]sigma.ProcID {
	x.t.Helper()
	infos, err := x.c[at].List(x.t.Context(), false)
	if err != nil {
		x.t.Fatal(err)
	}
	out := map[sigma.MachineID][]sigma.ProcID{}
	for _, p := range infos {
		out[p.Machine] = append(out[p.Machine], p.ID)
	}
	return out
}

func (x *three) exited(at sigma.MachineID, id sigma.ProcID) sigma.Status {
	return x.m[at].status(x.c[at], id)
}

// Goal: a burst is spread over all machines, and from each of them procs are listed, waited for,
// measured, frozen and killed wherever they run and wherever they are at home.
func TestFarProcs(t *testing.T) {
	x := newThree(t)
	ctx := t.Context()
	ids := x.burst("m2", 30)
	spread := x.on("m2")
	for name := range x.m {
		if got := x.on(name); len(got) != 3 || len(slices.Concat(got["m1"], got["m2"], got["m3"])) != 30 {
			t.Fatalf("%s lists %v", name, got)
		}
	}
	far := spread["m3"][0]
	if err := x.c["m1"].Freeze(ctx, far); err != nil {
		t.Errorf("freeze: %v", err)
	}
	eventually(t, "the home knows that it is frozen", func() bool {
		infos, _ := x.c["m2"].List(ctx, false)
		return slices.ContainsFunc(infos, func(p sigma.ProcInfo) bool { return p.ID == far && p.Frozen })
	})
	if err := x.c["m1"].Thaw(ctx, far); err != nil {
		t.Errorf("thaw: %v", err)
	}
	us, err := x.c["m1"].Usage(ctx, far, "unknown", spread["m1"][0])
	if err != nil || us[0].Tasks != 5 || us[1].Tasks != 0 || us[2].Tasks != 5 {
		t.Errorf("usage: %+v, %v", us, err)
	}
	if at, ok := x.m["m1"].k.remote.Find(ctx, sigma.DefaultRealm, far); !ok || at.Runs != "m3" {
		t.Errorf("%s runs at %q, %v", far, at.Runs, ok)
	}
	if err := x.c["m3"].WaitStart(ctx, spread["m1"][0]); err != nil {
		t.Errorf("wait for the start of another machine's proc: %v", err)
	}
	for _, c := range x.c {
		if _, err := c.WaitExit(ctx, "unknown"); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("waiting for nothing: %v", err)
		}
		if err := c.Kill(ctx, "unknown"); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("killing nothing: %v", err)
		}
	}
	killers := []sigma.MachineID{"m1", "m2", "m3"}
	for i, id := range ids {
		if err := x.c[killers[i%3]].Kill(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		if s := x.exited(killers[(i+1)%3], id); s.Code != sigma.StatusEvicted {
			t.Errorf("%s: %+v", id, s)
		}
	}
	for name, m := range x.m {
		eventually(t, "memory is free again", func() bool {
			capacity, free := m.k.procs.Memory()
			return free == capacity && m.k.procs.Running() == 0
		})
		if got := x.on(name); len(got) != 0 {
			t.Errorf("%s lists %v", name, got)
		}
		if err := x.c[name].Kill(ctx, ids[0]); err != nil {
			t.Errorf("killing what has ended: %v", err)
		}
	}
}

// Goal: when a machine is lost, those who wait for its procs hear so at once, wherever they wait,
// and what was at home there goes on elsewhere: others can wait for it and find it listed.
func TestFarLost(t *testing.T) {
	x := newThree(t)
	x.burst("m1", 12)
	home := x.on("m1")["m3"] // at home at m1, run by m3
	x.burst("m3", 12)
	type answer struct {
		at sigma.MachineID
		id sigma.ProcID
		s  sigma.Status
	}
	if len(home) == 0 {
		t.Fatal("m3 runs nothing of m1")
	}
	answers := make(chan answer)
	for _, at := range []sigma.MachineID{"m1", "m2"} {
		for _, id := range home {
			go func() {
				s, err := x.c[at].WaitExit(t.Context(), id)
				if err != nil {
					t.Errorf("%s waits for %s: %v", at, id, err)
				}
				answers <- answer{at, id, s}
			}()
		}
	}
	x.lose("m3")
	for range 2 * len(home) {
		if a := <-answers; a.s.Code != sigma.StatusLost || a.s.Msg != "machine m3 was lost, and the proc with it" {
			t.Errorf("%s waited for %s: %+v", a.at, a.id, a.s)
		}
	}
	var left []sigma.ProcID // at home at m3 before, and run by others
	eventually(t, "what was at home at m3 is so where it runs", func() bool {
		on := x.on("m2")
		left = slices.Concat(on["m1"], on["m2"])
		return len(on) == 2 && len(on["m1"]) >= 1 && len(left) == len(slices.Concat(x.on("m1")["m1"], x.on("m1")["m2"]))
	})
	for _, id := range left {
		if err := x.c["m2"].Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if s := x.exited("m1", id); s.Code != sigma.StatusEvicted {
			t.Errorf("%s: %+v", id, s)
		}
	}
}

// Goal: who waits for a proc that its home has forgotten is told so, though the machine that ran it
// remembers it.
func TestFarForgotten(t *testing.T) {
	x := newThreeWith(t, func(m *machine) { m.k.remote.ComeBack = reach.RetryMin })
	x.burst("m2", 12)
	id := x.on("m2")["m3"][0]
	if err := x.c["m2"].Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	x.exited("m2", id)
	x.m["m2"].k.procs.Step(schedd.RealmGone{Realm: sigma.DefaultRealm}) // it forgets what has ended
	for at, c := range x.c {
		if _, err := c.WaitExit(t.Context(), id); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("%s waits: %v", at, err)
		}
	}
}

// Goal: a listing of several pages from several machines has every proc once.
func TestFarPages(t *testing.T) {
	x := newThree(t)
	var ids []sigma.ProcID
	x.burst("m1", 2)
	for _, at := range []sigma.MachineID{"m2", "m1"} {
		ds := slices.Repeat([]sigma.Descriptor{{Program: "/bin/x", Args: []string{strings.Repeat("x", 800)},
			Memory: 128 * sigma.MiB}}, 50)
		for range 3 {
			got, err := x.c[at].Spawn(t.Context(), ds...) // most of them are queued
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, got...)
		}
	}
	infos, err := x.c["m3"].List(t.Context(), false)
	if err != nil || len(infos) != len(ids)+2 {
		t.Fatalf("%d procs are listed of %d, %v", len(infos), len(ids)+2, err)
	}
	for _, p := range infos {
		ids = slices.DeleteFunc(ids, func(id sigma.ProcID) bool { return id == p.ID })
	}
	if len(ids) > 0 {
		t.Errorf("%d procs are not listed", len(ids))
	}
}

// Goal: a realm that is removed at one machine leaves nothing at any.
func TestFarRemoveRealm(t *testing.T) {
	x := newThree(t)
	ctx := t.Context()
	if err := x.c["m2"].Realms().Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	admin := x.c["m1"]
	for name, m := range x.m {
		x.c[name] = m.connect("a")
	}
	for _, at := range []sigma.MachineID{"m1", "m2", "m3"} {
		x.burst(at, 6)
	}
	if err := admin.Realms().Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	for name, m := range x.m {
		m.k.procs.With(func(v procs.View) {
			if left := v.List("a", true, 0, 1); len(left) > 0 || v.Running() != 0 {
				t.Errorf("%s still has %v", name, left)
			}
		})
	}
}

// Goal: a session with a scheduler is for one life, so that none is begun between two: it would end
// as soon as the machine is registered, with what was asked of it.
func TestSessionsAreForALife(t *testing.T) {
	k := newThree(t).m["m1"].k
	over, cancel := context.WithCancel(t.Context())
	cancel()
	k.cluster.SetBetween(true)
	if k.cluster.AwaitLife(over) {
		t.Error("a machine between two lives begins a session")
	}
	k.cluster.SetBetween(false)
	if !k.cluster.AwaitLife(over) {
		t.Error("a machine that lives begins none")
	}
}
