package kernel

import (
	"strings"
	"testing"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// Goal: limits that cannot hold together, or beside those of other realms, or on the machines that
// there are, are refused, and what is wrong is said.
func TestCheckLimits(t *testing.T) {
	ms := []sigma.MachineInfo{{ID: "m1", CPU: 4000, Memory: 8 * sigma.GiB},
		{ID: "m2", CPU: 2000, Memory: 4 * sigma.GiB}}
	all := []sigma.RealmInfo{{ID: "a"}, {ID: "b", Limits: sigma.RealmLimits{MinCPU: 3000, MinMemory: 4 * sigma.GiB}}}
	for _, c := range []struct {
		set sigma.RealmLimits
		why string // "" = it holds
	}{
		{sigma.RealmLimits{MinCPU: 3000, MinMemory: 8 * sigma.GiB, MaxCPU: 2000, MaxMemory: 6 * sigma.GiB,
			ReserveCPU: 3000}, ""},
		{sigma.RealmLimits{MinCPU: 3001},
			"3.001 cores cannot be kept for the realm: the machines have 6, of which 3 are kept for others"},
		{sigma.RealmLimits{MinMemory: 9 * sigma.GiB}, "9GiB of memory cannot be kept"},
		{sigma.RealmLimits{MinCPU: 2000, ReserveCPU: 1000}, "may reserve 1"},
		{sigma.RealmLimits{MinMemory: sigma.GiB, ReserveMemory: sigma.MiB}, "may reserve 1MiB"},
		{sigma.RealmLimits{MinCPU: 3000, MaxCPU: 1000}, "at most 1 cores at each machine"},
		{sigma.RealmLimits{MinMemory: 3 * sigma.GiB, MaxMemory: sigma.GiB}, "at most 1GiB at each machine"},
	} {
		err := checkLimits(all, ms, "a", c.set)
		if c.why == "" && err != nil || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why) ||
			sigma.HintOf(err) == "" || sigma.KindOf(err) != sigma.KindInvalid) {
			t.Errorf("%+v: %v", c.set, err)
		}
	}
	if err := checkLimits(all, append(ms, sigma.MachineInfo{ID: "new"}), "a",
		sigma.RealmLimits{MinCPU: 9000}); err != nil {
		t.Errorf("beside a machine of which nothing is known: %v", err)
	}
	var many []sigma.RealmInfo // whose sum is 1<<32
	for _, min := range []sigma.MilliCPU{sigma.LimitCPUMax, sigma.LimitCPUMax, sigma.LimitCPUMax, sigma.LimitCPUMax,
		294_967_296} {
		many = append(many, sigma.RealmInfo{ID: sigma.RealmID('c' + rune(len(many))),
			Limits: sigma.RealmLimits{MinCPU: min}})
	}
	if err := checkLimits(many, ms, "a", sigma.RealmLimits{MinCPU: 1000}); sigma.KindOf(err) != sigma.KindInvalid ||
		err == nil {
		t.Errorf("beside realms for which more is kept than a number of cores can say: %v", err)
	}
	for _, l := range []sigma.RealmLimits{{MaxCPU: 1}, {MaxMemory: 1}, {MinCPU: sigma.LimitCPUMax + 1},
		{MinMemory: sigma.LimitMemoryMax + 1}} {
		if sigma.KindOf(l.Check()) != sigma.KindInvalid {
			t.Errorf("%+v passes", l)
		}
	}
}

// quota is what sigmad has told the launcher last of how much a group may use.
func (m *machine) quota(group string) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.quotas[group]
}

// Goal: a realm's maximum reaches the launcher and schedd: its group has a quota, what is too much
// waits, what never fits is refused, and more goes on when there is room; without it all is as
// before; another realm notices nothing. It is listed.
func TestMaximumOfRealm(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	admin := m.connect(sigma.SystemRealm)
	for _, id := range []sigma.RealmID{"a", "b"} {
		if err := admin.Realms().Create(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Realms().SetLimits(ctx, "a", sigma.RealmLimits{MaxCPU: 500,
		MaxMemory: 40 * sigma.MiB}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "schedd knows it", func() bool {
		var most sigma.Bytes
		m.k.procs.With(func(v procs.View) { most, _ = v.Most("a") })
		return most == 40*sigma.MiB
	})
	a, b := m.connect("a"), m.connect("b")
	m.spawn(a, sigma.Descriptor{Memory: 30 * sigma.MiB})
	first := <-m.procs
	if q := m.quota(shares.GroupBE + "/a"); q != 500 {
		t.Errorf("its quota is %d", q)
	}
	waits := m.spawn(a, sigma.Descriptor{Memory: 30 * sigma.MiB})
	if _, err := a.Spawn(ctx, sigma.Descriptor{Program: "/bin/x",
		Memory: 41 * sigma.MiB}); sigma.KindOf(err) != sigma.KindInvalid || !strings.Contains(sigma.HintOf(err),
		"--max-memory") {
		t.Errorf("more than it may ever have: %v", err)
	}
	m.spawn(b, sigma.Descriptor{Memory: 64 * sigma.MiB})
	<-m.procs
	if q := m.quota(shares.GroupBE + "/b"); q != 0 {
		t.Errorf("the other realm's quota is %d", q)
	}
	eventually(t, "it is kept back", func() bool {
		back := 0
		m.k.procs.With(func(v procs.View) { back = v.KeptBack("a") })
		return back == 1
	})
	seen := false
	for _, l := range objects[state.Limit](t, a, "/sys/limits") {
		seen = seen || l.Limit == "max_memory_bytes" && l.Max == uint64(40*sigma.MiB) && l.Used != nil &&
			*l.Used == uint64(30*sigma.MiB)
	}
	if !seen {
		t.Error("the limit is not listed")
	}
	first.exit(0)
	<-m.procs
	if err := a.WaitStart(ctx, waits); err != nil {
		t.Error(err)
	}
	if err := admin.Realms().SetLimits(ctx, "a", sigma.RealmLimits{MaxCPU: sigma.LimitCPUDefault,
		MaxMemory: sigma.LimitDefault}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has none any more", func() bool { return m.quota(shares.GroupBE+"/a") == 0 })
	m.spawn(a, sigma.Descriptor{Memory: 64 * sigma.MiB})
	<-m.procs
}
