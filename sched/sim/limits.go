package sim

import (
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// sureWithin is how long a proc waits for a reservation within its realm's minimum at most: until
// best-effort procs have given way, and some messages.
const sureWithin = schedd.GraceDefault + time.Second

// maxima is what schedd is told.
func (s *Sim) maxima() map[sigma.RealmID]sigma.Bytes {
	of := map[sigma.RealmID]sigma.Bytes{}
	for id, l := range s.cfg.Limits {
		if l.MaxMemory > 0 {
			of[id] = l.MaxMemory
		}
	}
	return of
}

// reservable is what lcsched is told.
func (s *Sim) reservable() (of []lcsched.Limits) {
	for _, id := range slices.Sorted(maps.Keys(s.cfg.Limits)) {
		l := s.cfg.Limits[id]
		of = append(of, lcsched.Limits{Realm: id, Max: lcsched.Amount{CPU: l.MaxCPU, Memory: l.MaxMemory},
			Min:        lcsched.Amount{CPU: l.MinCPU, Memory: l.MinMemory},
			Reservable: lcsched.Amount{CPU: l.ReserveCPU, Memory: l.ReserveMemory}})
	}
	return of
}

// within checks, when a proc begins to run, that its realm has no more than it may. A new leader
// may not have heard yet what a former one granted, so what realms reserve is looked at without
// faults only.
func (m *machine) within(info sigma.ProcInfo) {
	s := m.s
	l, limited := s.cfg.Limits[info.Realm]
	if !limited {
		return
	}
	var memory sigma.Bytes
	var cpu sigma.MilliCPU
	for _, p := range m.running {
		if p.info.Realm == info.Realm {
			memory += p.info.Memory
			cpu += p.info.CPU
		}
	}
	r := s.realms[info.Realm].reserved
	switch {
	case l.MaxMemory > 0 && memory > l.MaxMemory:
		s.fail("realm %s has %v of memory at machine %s, and may have %v", info.Realm, memory, m.name, l.MaxMemory)
	case s.cfg.Faults:
	case l.MaxCPU > 0 && cpu > l.MaxCPU:
		s.fail("realm %s has reserved %d thousandths of a core at machine %s, and may have %d", info.Realm, cpu, m.name,
			l.MaxCPU)
	case l.ReserveCPU > 0 && r.CPU > l.ReserveCPU, l.ReserveMemory > 0 && r.Memory > l.ReserveMemory:
		s.fail("realm %s has reserved %d thousandths of a core and %v, and may reserve %d and %v", info.Realm, r.CPU,
			r.Memory, l.ReserveCPU, l.ReserveMemory)
	}
}
