package kernel

import (
	"testing"

	"sigmaos.dev/sigma"
)

// weight is what sigmad has told the launcher last of a group.
func (m *machine) weight(group string) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shares[group]
}

// Goal: latency-critical procs weigh what they have reserved, all of them more than the daemons, and best-effort procs least of all; of these each realm weighs its shares, also when they change; another launcher is told the same.
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
		return m.weight(groupLC) == lcShares && m.weight(groupBE) == beShares && m.weight(groupServices) == daemonShares && m.weight(groupSigmad) == daemonShares
	}
	eventually(t, "classes and realms have their weights", func() bool {
		return classes() && m.weight("be/one") == realmShares && m.weight("be/four") == 4*realmShares
	})
	if err := admin.Realms().SetShares(ctx, "one", 7); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a change holds", func() bool { return m.weight("be/one") == 7*realmShares })
	m.mu.Lock()
	clear(m.shares)
	m.mu.Unlock()
	m.die()
	m.launcher()
	eventually(t, "another launcher is told of the classes", classes)
	m.spawn(m.connect("four"), sigma.Descriptor{})
	m.spawn(m.connect("one"), sigma.Descriptor{})
	eventually(t, "and of the realms", func() bool { return m.weight("be/one") == 7*realmShares && m.weight("be/four") == 4*realmShares })
	if shares, slice := weightOf(sigma.LatencyCritical, 1500); shares != 1536 || slice != lcSlice {
		t.Errorf("a reservation of a core and a half weighs %d, with slices of %v", shares, slice)
	}
	if shares, slice := weightOf(sigma.BestEffort, 0); shares != coreShares || slice != 0 {
		t.Errorf("a best-effort proc weighs %d, with slices of %v", shares, slice)
	}
	if a, b := groupOf("r", sigma.LatencyCritical), groupOf("r", sigma.BestEffort); a != "lc" || b != "be/r" {
		t.Errorf("the groups are %s and %s", a, b)
	}
}
