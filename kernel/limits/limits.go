// Package limits says which limits of processors and memory a realm can have beside those of
// others. Users: kernel.
package limits

import (
	"cmp"
	"fmt"

	"sigmaos.dev/sigma"
)

// Check compares the limits that a realm is to have with each other, with the minima of other
// realms, and with machines, of which those count as large enough that nothing is known of.
func Check(all []sigma.RealmInfo, ms []sigma.MachineInfo, id sigma.RealmID, set sigma.RealmLimits) error {
	refuse := func(hint, format string, args ...any) error {
		return &sigma.Error{Op: "kernel.realms", Realm: id, Kind: sigma.KindInvalid, Msg: fmt.Sprintf(format, args...),
			Hint: hint}
	}
	var now sigma.RealmLimits
	var othersCPU uint64 // sums of thousandths of a core may be more than a sigma.MilliCPU
	var othersMemory sigma.Bytes
	for _, r := range all {
		if r.ID == id {
			now = r.Limits.With(set)
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
