package kernel

import (
	"context"
	"testing"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// Goal: what procs of a class used is told, also of those that ended, once; a realm's line has what
// it reserved and runs; tenants are refused.
func TestLoad(t *testing.T) {
	m := boot(t)
	m.connect(sigma.DefaultRealm)
	now := time.Now()
	m.k.meters.ledger.Started(now, sigma.DefaultRealm, "be", "", 1, sigma.BestEffort)
	m.k.meters.ledger.Started(now, sigma.DefaultRealm, "gone", "", 1, sigma.BestEffort)
	m.k.meters.ledger.Started(now, sigma.DefaultRealm, "lc", "", 1, sigma.LatencyCritical)
	m.k.meters.ledger.Uses(now, "be", 2*time.Second, false)
	m.k.meters.ledger.Uses(now, "be", 3*time.Second, false)
	m.k.meters.ledger.Uses(now, "gone", 4*time.Second, true)
	m.k.meters.ledger.Uses(now, "lc", time.Second, false)
	all := objects[report.Load](t, m.connect(sigma.SystemRealm), "/sys/load")
	if len(all) != 2 || all[0].Machine != string(m.k.cfg.Machine) || all[0].BE != 7 || all[0].LC != 1 ||
		all[0].Cores <= 0 || all[0].At <= 0 || all[0].Memory == 0 || all[0].MemoryFree != all[0].Memory {
		t.Fatalf("got %+v", all)
	}
	if r := all[1]; r.Realm != string(sigma.DefaultRealm) || r.BE != 7 || r.LC != 1 || r.Running != 1 || r.Shares != 1 {
		t.Errorf("the realm has %+v", r)
	}
	if _, _, err := m.worker(m.connect(sigma.DefaultRealm)).Get(t.Context(),
		"/sys/load"); sigma.KindOf(err) != sigma.KindPermission && sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a tenant reads it: %v", err)
	}
}

// Goal: each machine tells of itself wherever it is read; one that is away has a line that says so,
// and the others are told.
func TestLoadOfMachines(t *testing.T) {
	x := newThree(t)
	read := func(at sigma.MachineID) map[string]string {
		seen := map[string]string{}
		for _, l := range objects[report.Load](t, x.m[at].connect(sigma.SystemRealm), "/sys/load") {
			if l.Realm == "" {
				seen[l.Machine] = l.Missing
			}
		}
		return seen
	}
	for at := range x.m {
		if seen := read(at); len(seen) != 3 || seen["m1"]+seen["m2"]+seen["m3"] != "" {
			t.Errorf("%s tells %v", at, seen)
		}
	}
	x.lose("m3")
	eventually(t, "the loss is told", func() bool {
		seen := read("m1")
		return len(seen) == 3 && seen["m3"] != "" && seen["m1"]+seen["m2"] == ""
	})
}

// Goal: a service that cannot be measured in time keeps what it was measured to use, so that nobody
// takes all that it ever used for new; another incarnation begins anew.
func TestLoadKeepsServices(t *testing.T) {
	m := boot(t)
	measured := m.k.accounts.ServicesUsage(t.Context())
	late, cancel := context.WithCancel(t.Context())
	cancel()
	kept := m.k.accounts.ServicesUsage(late)
	for i, p := range m.k.cfg.Programs {
		if u := kept[i]; u.UserTime == 0 || u != measured[i] {
			t.Errorf("%s used %+v, and then %+v", p.Name, measured[i], u)
		}
	}
	name := m.k.cfg.Programs[0].Name
	s := m.k.services.Local(name)
	launched := s.Launch()
	m.kill(name)
	eventually(t, "another incarnation is there", func() bool { n := s.Launch(); return n != 0 && n != launched })
	if u := m.k.accounts.ServicesUsage(late)[0]; u != (sigma.Usage{}) {
		t.Errorf("another incarnation used %+v", u)
	}
}
