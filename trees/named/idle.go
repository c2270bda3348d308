package named

import (
	"context"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// A realm that nobody uses costs its slot, some hundred bytes: its tree leaves memory, and is
// loaded again on use. Watches, leases, feeds and requests that wait are uses.

// tendRealms lets idle realms go.
func (s *Server) tendRealms(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Idle)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.UnloadIdle()
		}
	}
}

// UnloadIdle forgets the trees of realms that nobody has used since it was called last, and says of
// how many.
func (s *Server) UnloadIdle() (n int) {
	s.mu.Lock()
	slots := make([]*slot, 0, len(s.realms))
	for _, at := range s.realms {
		slots = append(slots, at)
	}
	s.mu.Unlock()
	for _, at := range slots {
		if !at.used.Swap(false) && at.unload() {
			n++
		}
	}
	return n
}

// unload ends the leader of a realm in which nothing goes on. Who has it still reads what was so
// when they asked, and changes nothing any more.
func (s *slot) unload() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.current.Load()
	if l == nil || s.loading != nil || s.removed || !isClosed(l.done) && !l.idle() {
		return false
	}
	s.current.Store(nil)
	s.stop()
	return true
}

func (l *leader) idle() bool {
	l.queueMu.Lock()
	waits := len(l.queue) + l.parking.count
	l.queueMu.Unlock()
	l.mu.RLock()
	defer l.mu.RUnlock()
	return waits == 0 && l.watching.Load() == 0 && !l.feed.kept && len(l.tree.leases) == 0
}

// loadLeased loads the realms that have leases, since a lease ends only in a realm that is loaded.
func (s *Server) loadLeased(ctx context.Context) {
	realms := map[sigma.RealmID]bool{}
	err := s.store.Scan(ctx, leasesPrefix, func(key string, _ []byte) error {
		id, _, _ := strings.Cut(strings.TrimPrefix(key, leasesPrefix), "/")
		realms[sigma.RealmID(id)] = true
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("realms with leases cannot be found; their leases begin when they are used", "err", err)
	}
	for id := range realms {
		s.mu.Lock()
		at := s.realms[id]
		s.mu.Unlock()
		if at != nil {
			at.leader(ctx) // what is wrong with it is in the log
		}
	}
}
