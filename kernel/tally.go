package kernel

import (
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// tally counts what sigmad answers for each realm. Nobody can say what one request cost in a program that works on many at once, so its processor time is divided among the realms by their requests, each time that the
// ledger is looked after.
type tally struct {
	mu  sync.Mutex
	of  map[sigma.RealmID]*served // mu
	cpu time.Duration             // mu; sigmad's, that was divided
}

// served is one realm's.
type served struct {
	requests atomic.Uint64
	counted  uint64 // tally.mu
	sessions int    // tally.mu
}

func newTally() *tally { return &tally{of: map[sigma.RealmID]*served{}} }

// begin gives where the requests of a session of a realm are counted; end is called when it is over.
func (s *tally) begin(realm sigma.RealmID) (count *atomic.Uint64, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.of[realm]
	if v == nil {
		v = &served{}
		s.of[realm] = v
	}
	v.sessions++
	return &v.requests, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		v.sessions--
	}
}

// divide tells what is new of each realm: requests, and its part of what sigmad has used, cpu being all that since its start. The system's own part is nobody's.
func (s *tally) divide(cpu time.Duration, tell func(realm sigma.RealmID, requests uint64, cpu time.Duration)) {
	s.mu.Lock()
	used := max(0, cpu-s.cpu)
	s.cpu = max(s.cpu, cpu)
	fresh, all := map[sigma.RealmID]uint64{}, uint64(0)
	for realm, v := range s.of {
		n := v.requests.Load()
		fresh[realm] = n - v.counted
		all += n - v.counted
		if v.counted = n; v.sessions == 0 {
			delete(s.of, realm)
		}
	}
	s.mu.Unlock()
	for realm, n := range fresh {
		if n > 0 && realm != sigma.SystemRealm {
			tell(realm, n, time.Duration(float64(used)*float64(n)/float64(all)))
		}
	}
}
