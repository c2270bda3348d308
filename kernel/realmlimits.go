package kernel

import (
	"context"

	"sigmaos.dev/kernel/limits"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// What realms may have of processors and memory (docs/reference/limits.md): maxima at each machine,
// minima for reservations, and how much can be reserved. named keeps them; the launcher's groups,
// schedd and lcsched see to them.

// canLimit says what of a realm's limits of processors and memory cannot hold, or nil.
func (k *Kernel) canLimit(ctx context.Context, id sigma.RealmID, set sigma.RealmLimits) error {
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
	all, err := k.reach.Realms(ctx)
	if err != nil {
		return err
	}
	var ms []sigma.MachineInfo
	for _, m := range k.rosterInfos() {
		if m.ID == k.cfg.Machine {
			m.CPU, m.Memory = k.cfg.CPU, k.cfg.Memory
		}
		if m.State != sigma.MachineLost {
			ms = append(ms, m)
		}
	}
	return limits.Check(all, ms, id, set)
}

// computeLimits lists those limits of processors and memory that a realm has, with what is used of
// them at this machine.
func (k *Kernel) computeLimits(i *sigma.RealmInfo) (out []state.Limit) {
	var held sigma.Bytes
	k.procs.With(func(v procs.View) { _, held = v.Most(i.ID) })
	l, memory := i.Limits, uint64(held)
	for _, x := range []struct {
		limit string
		most  uint64
		used  *uint64
	}{
		{"max_cpu_millis", uint64(l.MaxCPU), nil},
		{"max_memory_bytes", uint64(l.MaxMemory), &memory},
		{"min_cpu_millis", uint64(l.MinCPU), nil},
		{"min_memory_bytes", uint64(l.MinMemory), nil},
		{"reserve_cpu_millis", uint64(l.ReserveCPU), nil},
		{"reserve_memory_bytes", uint64(l.ReserveMemory), nil},
	} {
		if x.most > 0 {
			out = append(out, state.Limit{Realm: string(i.ID), Limit: x.limit, Max: x.most, Used: x.used})
		}
	}
	return out
}
