package sim

import (
	"time"

	"sigmaos.dev/besched"
	"sigmaos.dev/lcsched"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// shard is one besched.
type shard struct {
	s        *Sim
	index    int
	term     int // of its life
	core     *besched.Core
	lives    map[sigma.MachineID]sigma.Life // that attend
	ticket   besched.Ticket
	parked   map[besched.Ticket]*machine
	leased   map[besched.Ticket]*machine
	arriving map[sigma.MachineID]time.Duration // when the last message of a machine comes
}

func newShard(s *Sim, index int) *shard {
	sh := &shard{s: s, index: index}
	sh.restart()
	return sh
}

// restart begins a new life with empty queues.
func (sh *shard) restart() {
	sh.term++
	sh.core, sh.lives = besched.NewCore(), map[sigma.MachineID]sigma.Life{}
	sh.s.tellShares(sh)
	sh.parked, sh.leased, sh.arriving = map[besched.Ticket]*machine{}, map[besched.Ticket]*machine{}, map[sigma.MachineID]time.Duration{}
}

// send has a machine's message come to a shard, after those that it sent before.
func (m *machine) send(sh *shard, do func()) {
	s, term, life, boot := m.s, sh.term, m.life, m.boot
	at := max(s.now+s.delay(), sh.arriving[m.name])
	sh.arriving[m.name] = at
	s.after(at-s.now, func() {
		if sh.term == term && m.life == life && m.boot == boot && sh.lives[m.name] == life {
			do()
		}
	})
}

// attend makes the machine known to the shards that do not know it.
func (m *machine) attend() {
	lost := false
	for i, sh := range m.s.shards {
		o := &m.offers[i]
		if o.term == sh.term {
			continue
		}
		if o.lease != 0 {
			m.unleased(o)
		}
		if old, attends := sh.lives[m.name]; attends {
			sh.gone(m, old)
		}
		*o = offer{term: sh.term}
		sh.lives[m.name] = m.life
		sh.recalled(sh.core.Attend(m.life, m.cores(), m.size.Memory))
		lost = true
	}
	if lost {
		m.step(schedd.SchedulerLost{})
		m.offer()
	}
}

// gone has a shard forget a machine.
func (sh *shard) gone(m *machine, life sigma.Life) {
	if sh.lives[m.name] != life {
		return
	}
	delete(sh.lives, m.name)
	for _, of := range []map[besched.Ticket]*machine{sh.parked, sh.leased} {
		for t, x := range of {
			if x == m {
				delete(of, t)
			}
		}
	}
	sh.done(sh.core.Gone(life))
}

func (m *machine) enqueue(p *schedd.Proc) {
	if p.Class == sigma.LatencyCritical {
		m.tellLC(lcsched.Enqueued{Jobs: []lcsched.Job{{ID: p.ID, Realm: p.Realm, Name: p.Name, CPU: p.CPU, Memory: p.Memory, Home: m.life}}})
		return
	}
	sh := m.s.shards[m.s.r.IntN(len(m.s.shards))]
	j := besched.Job{ID: p.ID, Realm: p.Realm, Memory: p.Memory, Home: m.life}
	m.send(sh, func() { sh.done(sh.core.Enqueue([]besched.Job{j})) })
}

// repark is how long a change of what is free is not told, so that many are told together.
const repark = 5 * time.Millisecond

// room has offers made anew, soon.
func (m *machine) room() {
	if !m.fresh {
		m.fresh = true
		m.later(repark, func() { m.fresh = false; m.offer() })
	}
}

// offer parks a credit at each shard, where none is that says the same.
func (m *machine) offer() {
	free := m.core.Free()
	for i, sh := range m.s.shards {
		o := &m.offers[i]
		if o.term != sh.term || free < sigma.MemoryLeast || o.ticket != 0 && free <= o.memory {
			continue
		}
		old := o.ticket
		sh.ticket++
		t, ask, load := sh.ticket, o.lease == 0, uint32(m.core.Running())
		o.ticket, o.memory = t, free
		m.send(sh, func() {
			if old != 0 && sh.parked[old] != nil {
				delete(sh.parked, old)
				sh.core.Leave(old)
			}
			sh.parked[t] = m
			sh.done(sh.core.Park(t, m.name, besched.Offer{Memory: free, Load: load, Ask: ask}), nil)
		})
	}
}

func (sh *shard) done(gs []besched.Grant, recalled []besched.Ticket) {
	for _, g := range gs {
		sh.grant(g)
	}
	sh.recalled(recalled)
}

func (sh *shard) recalled(ts []besched.Ticket) {
	for _, t := range ts {
		m := sh.leased[t]
		delete(sh.leased, t)
		if m == nil {
			continue
		}
		m.later(sh.s.delay(), func() {
			if o := &m.offers[sh.index]; o.lease == t {
				m.unleased(o)
				o.memory = 0 // it asks for another
				m.offer()
			}
		})
	}
}

func (m *machine) unleased(o *offer) {
	o.lease = 0
	if m.lease--; m.lease == len(m.s.shards)-1 {
		m.step(schedd.Leased{})
	}
}

// grant sends what a shard gives to a machine.
func (sh *shard) grant(g besched.Grant) {
	s, m := sh.s, sh.parked[g.Ticket]
	delete(sh.parked, g.Ticket)
	if g.Lease != besched.NoLease {
		sh.leased[g.Ticket] = m
	}
	term := sh.term
	m.later(s.delay(), func() {
		o := &m.offers[sh.index]
		if o.term != term {
			return
		}
		if o.ticket == g.Ticket {
			o.ticket = 0
		}
		switch {
		case s.lost(): // and the session with it
			o.term = 0
			if o.lease != 0 {
				m.unleased(o)
			}
			m.later(s.delay(), m.attend)
			return
		case g.Lease != besched.NoLease:
			o.lease = g.Ticket
			if m.lease++; m.lease == len(s.shards) {
				limit := 0
				if g.Lease == besched.LeaseShared {
					limit = max(1, int(m.cores()/1000))
				}
				m.step(schedd.Leased{On: true, Limit: limit})
			}
		}
		for _, j := range g.Jobs {
			if p := s.procs[j.ID]; p != nil {
				p.prepaid, p.shard = j.Prepaid, sh
			}
			if j.Home.Machine == m.name {
				m.step(schedd.Assigned{ID: j.ID})
			} else {
				m.step(schedd.Offered{ID: j.ID, Memory: j.Memory, Home: j.Home})
			}
		}
		m.offer()
	})
}

// charge tells all shards what a proc used; the one that granted it also what it had prepaid.
func (m *machine) charge(id sigma.ProcID, p *process) {
	s := m.s
	sp := s.procs[id]
	if sp == nil || p.info.Class == sigma.LatencyCritical || m.lease == len(s.shards) && sp.shard == nil {
		return
	}
	cost := besched.Cost(0, p.info.Memory, sp.Run, m.cores(), m.size.Memory)
	for _, sh := range s.shards {
		ch := besched.Charge{Realm: sp.Realm, Used: cost}
		if sp.shard == sh {
			ch.Prepaid, ch.Ended, ch.Whole = sp.prepaid, 1, cost
		}
		sh.core.Charge([]besched.Charge{ch})
	}
}

// leader is the lcsched that leads, or the time until there is another.
type leader struct {
	s        *Sim
	term     int
	leads    bool
	core     *lcsched.Core
	sessions map[sigma.MachineID]int // of machines that attend
	number   int
	arriving map[sigma.MachineID]time.Duration
	wakes    time.Duration // when a tick is due; 0 = none is
}

func newLeader(s *Sim) *leader {
	l := &leader{s: s}
	l.elected()
	return l
}

func (l *leader) elected() {
	l.term++
	l.leads, l.wakes = true, 0
	l.core, l.sessions, l.arriving = lcsched.NewCore(), map[sigma.MachineID]int{}, map[sigma.MachineID]time.Duration{}
}

// clock is the leader's.
func (l *leader) clock() time.Time { return start.Add(l.s.now) }

// attendLC begins a session with the leader, if there is one. What was sent before is forgotten.
func (m *machine) attendLC() {
	l := m.s.lc
	if !l.leads {
		m.lcTerm = 0
		m.later(rpcRetry, m.attendLC)
		return
	}
	l.number++
	number := l.number
	m.lcTerm = l.term
	l.sessions[m.name] = number
	e := lcsched.Attended{Life: m.life, CPU: m.cores(), Memory: m.size.Memory, Lent: m.core.Lent()}
	for _, id := range m.core.Reservations() {
		h := lcsched.Held{ID: id}
		h.CPU, h.Memory = m.core.Reservation(id)
		if p := m.core.Find(id); p != nil {
			h.Realm, h.Name = p.Realm, p.Name
		}
		e.Held = append(e.Held, h)
	}
	m.tellLC(e)
	m.step(schedd.LCSchedulerLost{})
}

// tellLC has a message come to the leader, after those that were sent before in the session.
func (m *machine) tellLC(e lcsched.Event) {
	s, l := m.s, m.s.lc
	if m.lcTerm != l.term || !l.leads {
		return
	}
	number := l.sessions[m.name]
	if s.lost() { // and the session with it
		m.lcTerm = 0
		delete(l.sessions, m.name)
		life := m.life
		s.after(s.delay(), func() { l.step(lcsched.Left{Life: life}) })
		m.later(rpcRetry, m.attendLC)
		return
	}
	at := max(s.now+s.delay(), l.arriving[m.name])
	l.arriving[m.name] = at
	term := l.term
	s.after(at-s.now, func() {
		if l.term == term && l.leads && l.sessions[m.name] == number {
			l.step(e)
		}
	})
}

func (l *leader) step(e lcsched.Event) {
	s := l.s
	for _, f := range l.core.Step(l.clock(), e) {
		switch f := f.(type) {
		case lcsched.Grant:
			l.tell(f.To, func(m *machine) {
				if j := f.Job; j.Home.Machine == m.name {
					m.step(schedd.Assigned{ID: j.ID})
				} else {
					m.step(schedd.Offered{ID: j.ID, Class: sigma.LatencyCritical, CPU: j.CPU, Memory: j.Memory, Home: j.Home})
				}
			})
		case lcsched.Refuse:
			l.tell(f.Job.Home, func(m *machine) { m.step(schedd.Refused{ID: f.Job.ID, Why: f.Why}) })
		}
	}
	for id := range l.sessions {
		cpu, memory := l.core.Held(id)
		if size := s.byName[id].size; cpu > size.CPU || memory > size.Memory {
			s.fail("lcsched has given away %d of %d thousandths of a core and %v of %v of machine %s", cpu, size.CPU, memory, size.Memory, id)
		}
		if len(l.sessions) > 100 {
			break // of so many the machines' own checks must do
		}
	}
	if at := l.core.Wakes(l.clock()); !at.IsZero() {
		due := s.now + at.Sub(l.clock())
		if l.wakes == 0 || due < l.wakes {
			l.wakes = due
			term := l.term
			s.after(due-s.now, func() {
				if l.term == term && l.leads && l.wakes == due {
					l.wakes = 0
					l.step(lcsched.Ticked{})
				}
			})
		}
	}
}

// tell has a decision come to a machine by its session.
func (l *leader) tell(life sigma.Life, do func(*machine)) {
	m := l.s.byName[life.Machine]
	number, term := l.sessions[m.name], l.term
	if m.life != life {
		return
	}
	m.later(l.s.delay(), func() {
		if m.lcTerm == term && l.term == term && l.sessions[m.name] == number {
			do(m)
		}
	})
}
