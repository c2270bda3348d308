package kernel

import (
	"strings"
	"testing"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/sigma"
)

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
	for _, l := range objects[report.Limit](t, a, "/sys/limits") {
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
