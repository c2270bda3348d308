package kernel

import (
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// weight is what sigmad has told the launcher last of a group.
func (m *machine) weight(group string) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shares[group]
}

// Goal: best-effort procs weigh half a core for each, and on no machine more than half of a group
// of daemons.
func TestBestEffortWeighsLessThanDaemons(t *testing.T) {
	for cpu, want := range map[sigma.MilliCPU]uint32{500: coreShares / 2, 1000: coreShares / 2, 2000: coreShares,
		8000: coreShares, 256000: coreShares} {
		if got := weightBE(cpu); got != want || got > daemonShares/2 {
			t.Errorf("on %d thousandths of a core they weigh %d of the daemons' %d, want %d", cpu, got, daemonShares,
				want)
		}
	}
}

// Goal: latency-critical procs weigh what they have reserved, all of them more than the daemons,
// and best-effort procs least of all; of these each realm weighs its shares, also when they change;
// another launcher is told the same.
func TestGroupShares(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	admin := m.connect(sigma.SystemRealm)
	for id, shares := range map[sigma.RealmID]uint32{"one": 1, "four": 4} {
		if err := admin.Realms().Create(ctx, id); err != nil {
			t.Fatal(err)
		}
		if err := admin.Realms().SetShares(ctx, id, shares); err != nil {
			t.Fatal(err)
		}
		m.spawn(m.connect(id), sigma.Descriptor{})
		<-m.procs
	}
	classes := func() bool {
		m.mu.Lock()
		yields := m.yields
		m.mu.Unlock()
		return yields == "lc rest/be" && m.weight(groupRest) == restShares && m.weight(groupLC) == lcShares &&
			m.weight(groupBE) == weightBE(m.k.cpu()) && m.weight(groupServices) == daemonShares &&
			m.weight(groupSigmad) == daemonShares
	}
	eventually(t, "classes and realms have their weights", func() bool {
		return classes() && m.weight(groupBE+"/one") == realmShares && m.weight(groupBE+"/four") == 4*realmShares
	})
	if err := admin.Realms().SetShares(ctx, "one", 7); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a change holds", func() bool { return m.weight(groupBE+"/one") == 7*realmShares })
	m.mu.Lock()
	clear(m.shares)
	m.yields = ""
	m.mu.Unlock()
	m.die()
	m.launcher()
	eventually(t, "another launcher is told of the classes", classes)
	m.spawn(m.connect("four"), sigma.Descriptor{})
	m.spawn(m.connect("one"), sigma.Descriptor{})
	eventually(t, "and of the realms", func() bool {
		return m.weight(groupBE+"/one") == 7*realmShares && m.weight(groupBE+"/four") == 4*realmShares
	})
	if shares := weightOf(sigma.LatencyCritical, 1500); shares != 1536 {
		t.Errorf("a reservation of a core and a half weighs %d", shares)
	}
	if shares := weightOf(sigma.BestEffort, 0); shares != coreShares {
		t.Errorf("a best-effort proc weighs %d", shares)
	}
	if a, b := groupOf("r", sigma.LatencyCritical), groupOf("r", sigma.BestEffort); a != "lc" || b != "rest/be/r" {
		t.Errorf("the groups are %s and %s", a, b)
	}
}

// Goal: what launchers tell of best-effort procs that stood aside is added up, also over a
// launcher's death, and is among the metrics.
func TestYieldMetrics(t *testing.T) {
	m := boot(t)
	admin := m.connect(sigma.SystemRealm)
	yielded := func(looks byte) {
		b := append([]byte{28, 0, 1, 0}, make([]byte, 8+4*8)...)
		b[12], b[20], b[28], b[36] = looks, 1, 100, 10
		m.send(b)
	}
	says := func(line string) {
		t.Helper()
		eventually(t, line, func() bool {
			text, _, err := admin.Get(t.Context(), "/sys/metrics")
			return err == nil && strings.Contains(string(text), "\n"+line+"\n")
		})
	}
	yielded(3)
	says("sigma_yield_looks_total 3")
	yielded(5)
	says("sigma_yield_looks_total 5")
	m.die()
	m.launcher()
	yielded(2)
	says("sigma_yield_looks_total 7")
	says("sigma_yield_pushes_total 2")
	says("sigma_yield_waited_seconds_total 2e-07")
}
