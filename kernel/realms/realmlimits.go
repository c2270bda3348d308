package realms

import (
	"context"

	"sigmaos.dev/kernel/limits"
	"sigmaos.dev/sigma"
)

// What realms may have of processors and memory (docs/reference/limits.md): maxima at each machine,
// minima for reservations, and how much can be reserved. named keeps them; the launcher's groups,
// schedd and lcsched see to them.

// canLimit says what of a realm's limits of processors and memory cannot hold, or nil.
func (x *Realms) canLimit(ctx context.Context, id sigma.RealmID, set sigma.RealmLimits) error {
	if err := set.Check(); err != nil {
		return err
	}
	if _, changes := limits.Overlay(sigma.RealmLimits{}, set); !changes {
		return nil
	}
	if id == sigma.SystemRealm {
		return sigma.Errorf("kernel.realms", sigma.KindPermission,
			"the realm system is the provider's and has no limits of processors and memory")
	}
	all, err := x.cfg.Reach.Realms(ctx)
	if err != nil {
		return err
	}
	var ms []sigma.MachineInfo
	for _, m := range x.cfg.Roster() {
		if m.ID == x.cfg.Machine {
			m.CPU, m.Memory = x.cfg.CPU, x.cfg.Memory
		}
		if m.State != sigma.MachineLost {
			ms = append(ms, m)
		}
	}
	return limits.Check(all, ms, id, set)
}
