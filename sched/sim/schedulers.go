package sim

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sched/schedd"
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

	relenting bool // Relent will be called
}

func newShard(s *Sim, index int) *shard {
	sh := &shard{s: s, index: index}
	sh.restart()
	return sh
}

// restart begins a new life with empty queues.
func (sh *shard) restart() {
	sh.term++
	sh.core, sh.lives, sh.relenting = besched.NewCore(), map[sigma.MachineID]sigma.Life{}, false
	sh.s.tellShares(sh)
	sh.parked, sh.leased, sh.arriving = map[besched.Ticket]*machine{}, map[besched.Ticket]*machine{},
		map[sigma.MachineID]time.Duration{}
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
	for i, sh := range m.s.shards {
		st := &m.stands[i]
		if st.term == sh.term {
			continue
		}
		m.parts(sh)
		if old, attends := sh.lives[m.name]; attends {
			sh.gone(m, old)
		}
		*st = stand{term: sh.term}
		sh.lives[m.name] = m.life
		sh.recalled(sh.core.Attend(m.life, m.cores(), m.size.Memory))
		sh.core.Charge(m.name, m.held())
		m.offers.Attend(sh.name())
		m.step(schedd.ShardFound{Shard: sh.name()})
	}
	m.leased()
	m.plan()
}

// held is what procs of the machine hold that took turns.
func (m *machine) held() (out []besched.Charge) {
	of := map[sigma.RealmID]int64{}
	for id := range m.running {
		if p := m.s.procs[id]; p != nil && p.given == m {
			of[p.Realm] += int64(p.Memory)
		}
	}
	for _, realm := range slices.Sorted(maps.Keys(of)) {
		out = append(out, besched.Charge{Realm: realm, Held: of[realm]})
	}
	return out
}

// ungive tells all shards that a proc holds nothing any more where it was granted.
func (s *Sim) ungive(p *proc) {
	if p.given == nil {
		return
	}
	for _, sh := range s.shards {
		sh.core.Charge(p.given.name, []besched.Charge{{Realm: p.Realm, Held: -int64(p.Memory)}})
	}
	p.given = nil
}

// parts ends what the machine has at a shard, whose session is lost.
func (m *machine) parts(sh *shard) {
	m.stands[sh.index] = stand{}
	m.offers.Leave(sh.name())
	m.step(schedd.ShardLost{Shard: sh.name()})
	m.leased()
}

func (sh *shard) name() besched.Shard { return besched.Shard(strconv.Itoa(sh.index)) }

// leased tells the core whether the machine may place by itself.
func (m *machine) leased() {
	all, shared := m.offers.Leased()
	if all == m.lent {
		return
	}
	m.lent = all
	e := schedd.Leased{On: all}
	if shared {
		e.Limit = max(1, int(m.cores()/1000))
	}
	m.step(e)
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
		m.tellLC(lcsched.Enqueued{Jobs: []lcsched.Job{{ID: p.ID, Realm: p.Realm, Name: p.Name, CPU: p.CPU,
			Memory: p.Memory, Near: p.Near, Home: m.life}}})
		return
	}
	if p.Shard == "" {
		return // until one is attended
	}
	i, _ := strconv.Atoi(string(p.Shard))
	sh := m.s.shards[i]
	j := besched.Job{ID: p.ID, Realm: p.Realm, Memory: p.Memory, Near: p.Near, Home: m.life}
	m.send(sh, func() {
		sh.done(sh.core.Enqueue([]besched.Job{j}))
		if term := sh.term; j.Near != "" && sh.core.Expecting(j.ID) {
			m.s.after(sigma.NearWait, func() {
				if sh.term == term {
					sh.done(sh.core.Hurry(j.ID))
				}
			})
		}
	})
}

// dequeue takes back a proc that waits.
func (m *machine) dequeue(f schedd.Dequeue) {
	switch {
	case f.Class == sigma.LatencyCritical:
		m.tellLC(lcsched.Canceled{Home: m.life, ID: f.ID})
	case f.Shard != "":
		i, _ := strconv.Atoi(string(f.Shard))
		sh := m.s.shards[i]
		m.send(sh, func() { sh.done(sh.core.Cancel(f.ID), nil) })
	}
}

// plan parks credits and takes them back.
func (m *machine) plan() {
	moves, again := m.offers.Plan(start.Add(m.s.now), m.core.Free(), uint32(m.core.Running()))
	for _, v := range moves {
		i, _ := strconv.Atoi(string(v.Shard))
		m.move(m.s.shards[i], v)
	}
	if at := again.Sub(start); !again.IsZero() && (m.plans <= m.s.now || at < m.plans) {
		m.plans = at
		m.later(at-m.s.now, m.plan)
	}
}

func (m *machine) move(sh *shard, v besched.Move) {
	st := &m.stands[sh.index]
	if t := st.ticket; v.Back {
		m.send(sh, func() {
			if !sh.core.Leave(t) {
				return // the grant is under way
			}
			delete(sh.parked, t)
			m.later(m.s.delay(), func() {
				if st := &m.stands[sh.index]; st.ticket == t {
					st.ticket = 0
					m.offers.Returned(v.Shard)
					m.plan()
				}
			})
		})
		return
	}
	sh.ticket++
	t := sh.ticket
	st.ticket = t
	m.send(sh, func() {
		sh.parked[t] = m
		sh.done(sh.core.Park(t, m.name, v.Offer), nil)
	})
}

func (sh *shard) done(gs []besched.Grant, recalled []besched.Ticket) {
	for _, g := range gs {
		sh.grant(g)
	}
	sh.recalled(recalled)
	if !sh.relenting && sh.core.Sparing() {
		sh.relenting = true
		term := sh.term
		sh.s.after(besched.AwayFor, func() {
			if sh.term == term {
				sh.relenting = false
				sh.done(sh.core.Relent(), nil)
			}
		})
	}
}

func (sh *shard) recalled(ts []besched.Ticket) {
	for _, t := range ts {
		m := sh.leased[t]
		delete(sh.leased, t)
		if m == nil {
			continue
		}
		m.later(sh.s.delay(), func() {
			if st := &m.stands[sh.index]; st.lease == t {
				st.lease = 0
				m.offers.Recalled(sh.name())
				m.leased()
				m.plan()
			}
		})
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
		st := &m.stands[sh.index]
		if st.term != term || st.ticket != g.Ticket {
			return
		}
		st.ticket = 0
		if s.lost() { // and the session with it
			m.parts(sh)
			m.later(s.delay(), m.attend)
			return
		}
		if g.Lease != besched.NoLease && sh.leased[g.Ticket] == m { // else it was recalled already
			st.lease = g.Ticket
		} else {
			g.Lease = besched.NoLease
		}
		m.offers.Granted(sh.name(), len(g.Jobs), g.Lease, g.Kept)
		m.leased()
		for _, j := range g.Jobs {
			if p := s.procs[j.ID]; p != nil {
				s.ungive(p)
				for _, other := range s.shards { // what was granted before, and declined, is paid back
					ch := besched.Charge{Realm: p.Realm, Used: j.Prepaid, Prepaid: p.prepaid, Held: int64(j.Memory)}
					if other == sh {
						ch.Used, ch.Held = 0, 0
					}
					other.core.Charge(m.name, []besched.Charge{ch})
				}
				p.prepaid, p.shard, p.given = j.Prepaid, sh, m
			}
			if j.Home.Machine == m.name {
				m.step(schedd.Assigned{ID: j.ID})
			} else {
				m.step(schedd.Offered{ID: j.ID, Realm: j.Realm, Memory: j.Memory, Home: j.Home})
			}
		}
		m.plan()
	})
}

// charge tells all shards what a proc used, and what was charged for it when it was granted.
func (m *machine) charge(id sigma.ProcID, p *process) {
	s := m.s
	sp := s.procs[id]
	if sp == nil || p.info.Class == sigma.LatencyCritical || m.lent && sp.shard == nil {
		return
	}
	if sp.given == m {
		s.ungive(sp)
	}
	cost := besched.Cost(0, p.info.Memory, sp.Run, m.cores(), m.size.Memory)
	for _, sh := range s.shards {
		sh.core.Charge(m.name, []besched.Charge{{Realm: sp.Realm, Used: cost, Prepaid: sp.prepaid, Ended: 1,
			Whole: cost}})
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
		h.Realm, h.CPU, h.Memory = m.core.Reservation(id)
		if p := m.core.Find(id); p != nil {
			h.Name = p.Name
		}
		e.Held = append(e.Held, h)
	}
	m.tellLC(e)
	if len(m.s.cfg.Limits) > 0 {
		m.tellLC(lcsched.Limited{Limits: m.s.reservable()})
	}
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
					m.step(schedd.Offered{ID: j.ID, Realm: j.Realm, Class: sigma.LatencyCritical, CPU: j.CPU,
						Memory: j.Memory, Home: j.Home})
				}
			})
		case lcsched.Refuse:
			l.tell(f.Job.Home, func(m *machine) { m.step(schedd.Refused{ID: f.Job.ID, Why: f.Why}) })
		}
	}
	for id := range l.sessions {
		cpu, memory := l.core.Held(id)
		if size := s.byName[id].size; cpu > size.CPU || memory > size.Memory {
			s.fail("lcsched has given away %d of %d thousandths of a core and %v of %v of machine %s", cpu, size.CPU,
				memory, size.Memory, id)
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
