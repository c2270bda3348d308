package sim

import (
	"time"

	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sched/schedd"
)

// detect is how long it takes until a machine is known to be lost
// (docs/adr/0007-several-machines.md).
const detect = 1750 * time.Millisecond

// calm is after the last arrival: nothing breaks any more, so that all must come to an end.
const calm = time.Second

// breakSomething breaks one thing that may break, and comes again.
func (s *Sim) breakSomething() {
	if s.now > s.last+calm && s.spawned == s.report.Procs {
		s.faulty, s.loss = false, 0
		for _, m := range s.machines {
			if !m.up {
				m.begin()
			}
		}
		return
	}
	s.after(time.Duration(s.r.Int64N(int64(200*time.Millisecond))), s.breakSomething)
	s.report.Faults++
	if s.initd != nil && s.r.IntN(20) == 0 { // it stands still, or is cut off, and another is elected
		s.initd.elect()
		return
	}
	m := s.machines[s.r.IntN(len(s.machines))]
	switch n := s.r.IntN(10); {
	case !m.up:
		m.begin()
	case n < 3:
		m.restart()
	case n < 5:
		m.dies()
	case n < 6: // it is taken for lost
		s.publish(m.name, m.life.Incarnation+1)
	case n < 8:
		sh := s.shards[s.r.IntN(len(s.shards))]
		sh.restart()
		for _, m := range s.machines {
			if m.up {
				m.later(rpcRetry, m.attend)
			}
		}
	default:
		s.lc.dies()
	}
}

// dies ends a machine, which is found out later.
func (m *machine) dies() {
	s, life := m.s, m.life
	m.up = false
	m.halt()
	s.after(detect, func() {
		for _, sh := range s.shards {
			sh.gone(m, life)
		}
		s.lc.step(lcsched.Left{Life: life})
		s.publish(m.name, life.Incarnation+1)
		for _, other := range s.machines {
			if other.up {
				other.later(s.delay(), other.hear)
			}
		}
	})
}

// dies ends the leader; another is elected when its lease is over.
func (l *leader) dies() {
	l.leads = false
	l.term++
	l.s.after(time.Duration(l.s.r.Int64N(int64(3*time.Second))), func() {
		if !l.leads {
			l.elected()
			for _, m := range l.s.machines {
				if m.up {
					m.later(l.s.delay(), m.attendLC)
				}
			}
		}
	})
}

// requeueEvery is kernel's.
const requeueEvery = 5 * time.Second

// watch looks each second at what must go on.
func (s *Sim) watch() {
	s.after(time.Second, s.watch)
	second := int(s.now / time.Second)
	if s.cfg.Faults && second%5 == 0 {
		for _, m := range s.machines {
			if m.up {
				m.step(schedd.Requeue{Before: m.clock().Add(-requeueEvery)})
				m.attend()
			}
		}
	}
	s.window()
	defer s.initd.check()
	if s.faulty {
		s.broken = s.now
		return
	}
	slots := 16 * float64(s.memory) / float64(s.least)
	bound := 30*time.Second + time.Duration(float64(20*s.cfg.Run)*(2+float64(len(s.order))/slots))
	for _, r := range s.order {
		if since := max(r.progress, s.broken); r.waiting > 0 && s.now-since > bound {
			s.fail("realm %s has %d procs that wait, and none was placed for %v", r.id, r.waiting, s.now-since)
		}
	}
	if m := s.machines[second%len(s.machines)]; !s.cfg.Faults {
		for id := range m.homes {
			if s.procs[id] != nil && m.core.Find(id) == nil {
				s.fail("proc %s is not answered, and machine %s, its home, does not know it", id, m.name)
			}
		}
	}
}

// settled checks what must be when nothing is to come.
func (s *Sim) settled() {
	if n := len(s.procs); n > 0 {
		s.fail("%d procs are not answered, and nothing is to happen any more", n)
	}
	for _, m := range s.machines {
		if c := m.core; c.Free() != c.Capacity() || c.Running() != 0 || c.ReservedCPU() != 0 ||
			len(c.Reservations()) != 0 || m.used != 0 || c.Queued() != 0 || c.QueuedLC() != 0 {
			s.fail("machine %s: %v of %v are free, %d procs run, %d are queued, %v are reserved when all has ended",
				m.name, c.Free(), c.Capacity(), c.Running(), c.Queued()+c.QueuedLC(), c.ReservedMemory())
		}
	}
	for _, sh := range s.shards {
		if n := sh.core.Waiting(); n > 0 {
			s.fail("%d jobs wait at besched when all has ended", n)
		}
	}
}
