package kernel

import (
	"strings"
	"testing"

	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/sigma"
)

// weight is what sigmad has told the launcher last of a group.
func (m *machine) weight(group string) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shares[group]
}

// Goal: latency-critical procs weigh what they have reserved, all of them more than the daemons,
// and best-effort procs least of all; of these each realm weighs its shares, also when they change;
// another launcher is told the same.
func TestGroupShares(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	admin := m.connect(sigma.SystemRealm)
	for id, n := range map[sigma.RealmID]uint32{"one": 1, "four": 4} {
		if err := admin.Realms().Create(ctx, id); err != nil {
			t.Fatal(err)
		}
		if err := admin.Realms().SetShares(ctx, id, n); err != nil {
			t.Fatal(err)
		}
		m.spawn(m.connect(id), sigma.Descriptor{})
		<-m.procs
	}
	classes := func() bool {
		m.mu.Lock()
		yields := m.yields
		m.mu.Unlock()
		return yields == "lc rest/be" && m.weight(shares.GroupRest) == shares.RestShares &&
			m.weight(shares.GroupLC) == shares.LCShares &&
			m.weight(shares.GroupBE) == shares.WeightBE(m.k.cfg.CPU) &&
			m.weight(shares.GroupServices) == shares.DaemonShares &&
			m.weight(shares.GroupSigmad) == shares.DaemonShares
	}
	eventually(t, "classes and realms have their weights", func() bool {
		return classes() && m.weight(shares.GroupBE+"/one") == shares.RealmShares &&
			m.weight(shares.GroupBE+"/four") == 4*shares.RealmShares
	})
	if err := admin.Realms().SetShares(ctx, "one", 7); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a change holds", func() bool { return m.weight(shares.GroupBE+"/one") == 7*shares.RealmShares })
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
		return m.weight(shares.GroupBE+"/one") == 7*shares.RealmShares &&
			m.weight(shares.GroupBE+"/four") == 4*shares.RealmShares
	})
	if w := shares.WeightOf(sigma.LatencyCritical, 1500); w != 1536 {
		t.Errorf("a reservation of a core and a half weighs %d", w)
	}
	if w := shares.WeightOf(sigma.BestEffort, 0); w != shares.CoreShares {
		t.Errorf("a best-effort proc weighs %d", w)
	}
	if a, b := shares.GroupOf("r", sigma.LatencyCritical), shares.GroupOf("r", sigma.BestEffort); a != "lc" ||
		b != "rest/be/r" {
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
