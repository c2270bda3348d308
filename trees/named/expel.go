package named

import (
	"context"
	"slices"

	"sigmaos.dev/sigma"
)

// EndLeases ends the leases that a machine's programs have in all realms, and returns after all
// changes that were under way are decided.
func (s *Server) EndLeases(ctx context.Context, machine sigma.MachineID) error {
	s.mu.Lock()
	slots := make([]*slot, 0, len(s.realms))
	for _, at := range s.realms {
		slots = append(slots, at)
	}
	s.mu.Unlock()
	for _, at := range slots {
		if l := at.current.Load(); l == nil && !s.hasLeases(ctx, at.id, machine) {
			continue
		}
		l, err := at.leader(ctx)
		switch {
		case sigma.KindOf(err) == sigma.KindStale && err != nil:
			continue
		case err != nil:
			return err
		}
		ids := []sigma.LeaseID{}
		l.read(func(t *tree) error {
			for id, x := range t.leases {
				if x.machine == machine {
					ids = append(ids, id)
				}
			}
			return nil
		})
		slices.Sort(ids)
		if rep := l.do(ctx, barrierOp{}); rep.err != nil && sigma.KindOf(rep.err) != sigma.KindUnavailable {
			return rep.err
		}
		for _, id := range ids {
			if rep := l.do(ctx, endOp{id: id}); rep.err != nil && sigma.KindOf(rep.err) != sigma.KindNotFound {
				return rep.err
			}
		}
	}
	return nil
}

// hasLeases looks for leases of a machine in a realm that is not loaded.
func (s *Server) hasLeases(ctx context.Context, realm sigma.RealmID, machine sigma.MachineID) (found bool) {
	err := s.store.Scan(ctx, leasePrefix(realm), func(_ string, value []byte) error {
		r, err := decodeLease(value)
		found = found || err == nil && r.machine == machine
		return nil
	})
	return found || err != nil
}
