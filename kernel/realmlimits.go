package kernel

import (
	"cmp"
	"context"
	"fmt"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// What realms may have of processors and memory (docs/reference/limits.md): maxima at each machine,
// minima for reservations, and how much can be reserved. named keeps them; the launcher's groups,
// schedd and lcsched see to them.

// overlaid is what holds once limits were set over others, and whether any is of processors or
// memory.
func overlaid(was, set sigma.RealmLimits) (now sigma.RealmLimits, changes bool) {
	now = was
	for _, c := range []struct{ to, from *sigma.MilliCPU }{{&now.MaxCPU, &set.MaxCPU}, {&now.MinCPU, &set.MinCPU},
		{&now.ReserveCPU, &set.ReserveCPU}} {
		if *c.from != 0 {
			changes, *c.to = true, *c.from%sigma.LimitCPUDefault
		}
	}
	for _, c := range []struct{ to, from *sigma.Bytes }{{&now.MaxMemory, &set.MaxMemory},
		{&now.MinMemory, &set.MinMemory}, {&now.ReserveMemory, &set.ReserveMemory}} {
		if *c.from != 0 {
			changes, *c.to = true, *c.from%sigma.LimitDefault
		}
	}
	return now, changes
}

// canLimit says what of a realm's limits of processors and memory cannot hold, or nil.
func (k *Kernel) canLimit(ctx context.Context, id sigma.RealmID, set sigma.RealmLimits) error {
	if err := set.Check(); err != nil {
		return err
	}
	if _, changes := overlaid(sigma.RealmLimits{}, set); !changes {
		return nil
	}
	if id == sigma.SystemRealm {
		return sigma.Errorf("kernel.realms", sigma.KindPermission,
			"the realm system is the provider's and has no limits of processors and memory")
	}
	all, err := realms{k, nil}.list(ctx)
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
	return checkLimits(all, ms, id, set)
}

// checkLimits compares the limits that a realm is to have with each other, with the minima of other
// realms, and with machines, of which those count as large enough that nothing is known of.
func checkLimits(all []sigma.RealmInfo, ms []sigma.MachineInfo, id sigma.RealmID, set sigma.RealmLimits) error {
	refuse := func(hint, format string, args ...any) error {
		return &sigma.Error{Op: "kernel.realms", Realm: id, Kind: sigma.KindInvalid, Msg: fmt.Sprintf(format, args...),
			Hint: hint}
	}
	var now sigma.RealmLimits
	var othersCPU uint64 // sums of thousandths of a core may be more than a sigma.MilliCPU
	var othersMemory sigma.Bytes
	for _, r := range all {
		if r.ID == id {
			now, _ = overlaid(r.Limits, set)
		} else {
			othersCPU += uint64(r.Limits.MinCPU)
			othersMemory += r.Limits.MinMemory
		}
	}
	switch {
	case now.ReserveCPU > 0 && now.MinCPU > now.ReserveCPU:
		return refuse("raise --limit-reserve-cpu, or lower --min-cpu",
			"the realm could always reserve %v cores, but may reserve %v", cores(now.MinCPU), cores(now.ReserveCPU))
	case now.ReserveMemory > 0 && now.MinMemory > now.ReserveMemory:
		return refuse("raise --limit-reserve-memory, or lower --min-memory",
			"the realm could always reserve %v of memory, but may reserve %v", now.MinMemory, now.ReserveMemory)
	}
	var have, part uint64
	var memory, partMemory sigma.Bytes
	for _, m := range ms {
		if m.CPU == 0 { // not known
			return nil
		}
		have, memory = have+uint64(m.CPU), memory+m.Memory
		part += uint64(min(m.CPU, cmp.Or(now.MaxCPU, m.CPU)))
		partMemory += min(m.Memory, cmp.Or(now.MaxMemory, m.Memory))
	}
	fewer := "lower it, or add machines"
	switch {
	case uint64(now.MinCPU)+othersCPU > have:
		return refuse(fewer,
			"%v cores cannot be kept for the realm: the machines have %v, of which %v are kept for others",
			cores(now.MinCPU), cores(have), cores(othersCPU))
	case now.MinMemory+othersMemory > memory:
		return refuse(fewer,
			"%v of memory cannot be kept for the realm: the machines have %v, of which %v are kept for others",
			now.MinMemory, memory, othersMemory)
	case uint64(now.MinCPU) > part:
		return refuse("raise --max-cpu, or lower --min-cpu",
			"with at most %v cores at each machine the realm could never have the %v that are to be kept for it",
			cores(now.MaxCPU), cores(now.MinCPU))
	case now.MinMemory > partMemory:
		return refuse("raise --max-memory, or lower --min-memory",
			"with at most %v at each machine the realm could never have the %v that are to be kept for it",
			now.MaxMemory, now.MinMemory)
	}
	return nil
}

func cores[T sigma.MilliCPU | uint64](c T) string { return fmt.Sprintf("%.4g", float64(c)/1000) }

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
