package kernel

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// Goal: sigmad's processor time is divided by the realms' requests, once; the system's part is nobody's; a realm without sessions is forgotten when all of it is told.
func TestTally(t *testing.T) {
	s := newTally()
	a, endA := s.begin("a")
	b, _ := s.begin("b")
	own, _ := s.begin(sigma.SystemRealm)
	a.Add(3)
	b.Add(1)
	own.Add(4)
	endA()
	got := map[sigma.RealmID]time.Duration{}
	tell := func(realm sigma.RealmID, requests uint64, cpu time.Duration) {
		got[realm] += cpu + time.Duration(requests)
	}
	s.divide(8*time.Second, tell)
	s.divide(10*time.Second, tell)
	b.Add(1)
	s.divide(11*time.Second, tell)
	if len(got) != 2 || got["a"] != 3*time.Second+3 || got["b"] != 2*time.Second+2 {
		t.Errorf("told are %v", got)
	}
	if s.of["a"] != nil || s.of["b"] == nil {
		t.Error("the wrong realm is forgotten")
	}
}

// Goal: what sigmad answers procs of a realm is in the realm's usage.
func TestServedIsTold(t *testing.T) {
	m := boot(t)
	worker := m.worker(m.connect(sigma.DefaultRealm))
	for range 50 {
		if _, err := worker.Stat(t.Context(), "/bin"); err != nil {
			t.Fatal(err)
		}
	}
	m.k.countServed(time.Now())
	us := objects[state.RealmUsage](t, worker, "/sys/usage")
	if len(us) != 1 || us[0].Requests < 50 || us[0].Served <= 0 {
		t.Errorf("the usage is %+v", us)
	}
}
