package schedd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// sim is a system of machines that spawn and run procs, one besched, and messages that are delayed,
// overtaken and lost. It breaks everything that may break: sigmads are restarted, machines are lost
// and come back, some are taken for lost that are not, besched forgets.
type sim struct {
	t        *testing.T
	r        *rand.Rand
	now      time.Time
	queue    *besched.Core
	term     int // of besched
	machines []*simMachine
	msgs     []func() // each is to be delivered, or is an attempt to be made
	loss     int      // of 10 messages
	lives    sigma.Incarnation
	roster   map[sigma.MachineID]sigma.Incarnation // the judge's: first life of each that is not over
	tickets  besched.Ticket
	credits  map[besched.Ticket]*simMachine
	procs    int
	starts   map[sigma.ProcID]int
}

// simMachine is a machine: what its sigmad knows, and what really runs.
type simMachine struct {
	s       *sim
	name    sigma.MachineID
	up      bool
	life    sigma.Life
	boot    uint64
	core    *Core
	running map[sigma.ProcID]*simProcess
	attends int // the term of besched it attends in
	parked  bool
	debts   map[sigma.Life][]sigma.ProcID
	paying  map[sigma.Life]bool
	synced  map[sigma.Life]bool
}

// simProcess is a process that runs; it outlives its sigmad if it is kept.
type simProcess struct {
	info sigma.ProcInfo
	home sigma.Life
	kept bool
}

const simMemory = 16 * sigma.MiB

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{t: t, r: rand.New(rand.NewPCG(seed, 3)), now: time.Unix(1000, 0), queue: besched.NewCore(), term: 1,
		loss: 2, roster: map[sigma.MachineID]sigma.Incarnation{},
		credits: map[besched.Ticket]*simMachine{}, starts: map[sigma.ProcID]int{}}
	for i := range 4 {
		m := &simMachine{s: s, name: sigma.MachineID(fmt.Sprint("m", i))}
		s.machines = append(s.machines, m)
		m.begin()
	}
	return s
}

// begin starts a machine in a new life.
func (m *simMachine) begin() {
	m.s.lives++
	m.life = sigma.Life{Machine: m.name, Incarnation: m.s.lives}
	m.running = map[sigma.ProcID]*simProcess{}
	m.s.publish(m.name, m.s.lives)
	m.restart()
}

// restart starts the machine's sigmad anew, in the same life.
func (m *simMachine) restart() {
	m.up, m.parked, m.attends = true, false, 0
	m.boot++
	m.core = NewCore(m.name, 8*simMemory)
	m.debts, m.paying, m.synced = map[sigma.Life][]sigma.ProcID{}, map[sigma.Life]bool{}, map[sigma.Life]bool{}
	for id, p := range m.running {
		if !p.kept {
			delete(m.running, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.running)) {
		p := m.running[id]
		m.step(Adopted{Info: p.info, Launch: 1, Home: p.home})
	}
	m.hear()
}

// publish has all machines hear of a life, some time.
func (s *sim) publish(name sigma.MachineID, least sigma.Incarnation) {
	s.roster[name] = max(s.roster[name], least)
	for _, m := range s.machines {
		s.msgs = append(s.msgs, m.hear)
	}
}

// hear is the roster as it is now.
func (m *simMachine) hear() {
	if !m.up {
		return
	}
	if m.s.roster[m.name] > m.life.Incarnation { // it was taken for lost
		m.step(Reborn{})
		m.begin()
		return
	}
	m.step(Members{Least: maps.Clone(m.s.roster)})
	for _, other := range m.s.machines {
		if l := other.life; other != m && l.Incarnation >= m.s.roster[l.Machine] && !m.synced[l] {
			m.synced[l] = true
			ids := m.core.Guests(l)
			m.report(l, ids, func() {
				from, boot := m.life, m.boot
				m.rpc(l, func(to *simMachine) func() {
					to.step(Resynced{From: from, Boot: boot})
					for _, id := range to.core.Guests(from) {
						to.owe(id, from)
					}
					return func() {}
				}, func() {})
			})
		}
	}
}

// rpc calls another machine until it answers or its life is over. do is done there and gives what
// is done here with the answer; lost is done instead if there will be none.
func (m *simMachine) rpc(to sigma.Life, do func(*simMachine) func(), lost func()) {
	life, boot := m.life, m.boot
	same := func() bool { return m.up && m.life == life && m.boot == boot }
	var try func()
	again := func() { m.s.msgs = append(m.s.msgs, try) }
	try = func() {
		if !same() {
			return
		}
		if m.core.Over(to) {
			lost()
			return
		}
		if m.s.r.IntN(10) < m.s.loss {
			again()
			return
		}
		m.s.msgs = append(m.s.msgs, func() {
			at := m.s.machines[slices.IndexFunc(m.s.machines, func(x *simMachine) bool { return x.name == to.Machine })]
			if !at.up || at.life != to {
				again()
				return
			}
			then := do(at)
			if m.s.r.IntN(10) < m.s.loss {
				again()
				return
			}
			m.s.msgs = append(m.s.msgs, func() {
				if same() {
					then()
				}
			})
		})
	}
	again()
}

func (m *simMachine) step(e Event) {
	for _, f := range m.core.Step(m.s.now, e) {
		switch f := f.(type) {
		case Start:
			m.start(f.Proc)
		case Kill:
			delete(m.running, f.Proc.ID)
			id := f.Proc.ID
			m.later(func() { m.step(Gone{ID: id, Exit: launch.Exited{Wait: 9}}) })
		case Abandon:
			m.later(func() { m.step(NotLaunched{f.ID, sigma.Errorf("sim", sigma.KindCanceled, "abandoned")}) })
		case Enqueue:
			m.enqueue(besched.Job{ID: f.Proc.ID, Realm: f.Proc.Realm, Memory: f.Proc.Memory, Home: m.life})
		case Owed:
			m.owe(f.ID, f.Home)
		case Take:
			m.take(f.ID, f.Home)
		case Decline:
			m.rpc(f.Home, func(to *simMachine) func() { to.step(Declined{f.ID}); return func() {} }, func() {})
		}
	}
	c := m.core
	if c.used > c.capacity {
		m.s.t.Fatalf("%s has given away %v of %v", m.name, c.used, c.capacity)
	}
}

// later does something to this sigmad, if it lives then.
func (m *simMachine) later(f func()) {
	boot, life := m.boot, m.life
	m.s.msgs = append(m.s.msgs, func() {
		if m.up && m.boot == boot && m.life == life {
			f()
		}
	})
}

// start has a process run. What is between the placing and the launch may fail.
func (m *simMachine) start(p *Proc) {
	id, info, home := p.ID, p.ProcInfo, p.Home
	m.later(func() {
		if p := m.core.procs[id]; p == nil || p.State != sigma.ProcStarting || p.killing {
			return
		}
		m.step(LaunchAsked{id, 1})
		if m.s.r.IntN(10) == 0 {
			m.step(NotLaunched{id, sigma.Errorf("sim", sigma.KindNoExec, "no program")})
			return
		}
		if m.s.starts[id]++; m.s.starts[id] > 1 {
			m.s.t.Fatalf("%s was started twice", id)
		}
		info.Machine, info.State = m.name, sigma.ProcRunning
		m.running[id] = &simProcess{info, home, m.s.r.IntN(2) == 0}
		m.later(func() { m.step(Launched{ID: id}) })
	})
}

func (m *simMachine) enqueue(j besched.Job) {
	term := m.attends
	m.later(func() {
		if term != 0 && term == m.s.term {
			gs, _ := m.s.queue.Enqueue([]besched.Job{j})
			m.s.grant(gs)
		}
	})
}

// attend begins a session with besched, or an offer by it. Another follows every session that is
// lost.
func (m *simMachine) attend() {
	s := m.s
	if m.attends != s.term {
		m.attends, m.parked = s.term, false
		gs, _ := s.queue.Gone(sigma.Life{Machine: m.name, Incarnation: m.life.Incarnation})
		s.grant(gs)
		s.queue.Attend(m.life, 2000, 8*simMemory)
		m.step(ShardLost{Shard: "b"})
		m.step(ShardFound{Shard: "b"})
	}
	if !m.parked && m.core.Free() > 0 {
		s.tickets++
		m.parked = true
		s.credits[s.tickets] = m
		s.grant(s.queue.Park(s.tickets, m.name, besched.Offer{Memory: m.core.Free(), Load: uint32(m.core.Running()),
			Ask: s.r.IntN(2) == 0}))
	}
}

// grant sends grants; they may be lost on the way.
func (s *sim) grant(gs []besched.Grant) {
	for _, g := range gs {
		m := s.credits[g.Ticket]
		delete(s.credits, g.Ticket)
		lost := s.r.IntN(10) < s.loss
		m.later(func() {
			m.parked = false
			if lost {
				return
			}
			if g.Lease != besched.NoLease {
				s.queue.Leave(g.Ticket)
				m.step(Leased{On: true, Limit: 2})
				m.later(func() { m.step(Leased{}) })
			}
			for _, j := range g.Jobs {
				if j.Home.Machine == m.name {
					m.step(Assigned{j.ID})
				} else {
					m.step(Offered{ID: j.ID, Realm: j.Realm, Memory: j.Memory, Home: j.Home})
				}
			}
		})
	}
}

func (m *simMachine) take(id sigma.ProcID, home sigma.Life) {
	by, boot := m.life, m.boot
	m.rpc(home, func(to *simMachine) func() {
		info, d, err := to.core.Give(m.s.now, id, by, boot)
		if err != nil {
			return func() { m.step(NotTaken{id}) }
		}
		p := to.core.Proc(info.Realm, id)
		v, kin := p.View, p.Kin
		return func() { m.step(Arrived{Info: info, Descriptor: d, View: v, Kin: kin, Home: home}) }
	}, func() { m.step(NotTaken{id}) })
}

func (m *simMachine) owe(id sigma.ProcID, home sigma.Life) {
	m.debts[home] = append(m.debts[home], id)
	m.pay(home)
}

func (m *simMachine) pay(home sigma.Life) {
	if m.paying[home] || len(m.debts[home]) == 0 {
		return
	}
	ids := m.debts[home]
	delete(m.debts, home)
	m.paying[home] = true
	m.report(home, ids, func() { m.paying[home] = false; m.pay(home) })
}

func (m *simMachine) report(home sigma.Life, ids []sigma.ProcID, then func()) {
	var rs []Report
	for _, id := range ids {
		if r, to, ok := m.core.Report(id); ok && to == home {
			rs = append(rs, r)
		}
	}
	from, boot := m.life, m.boot
	m.rpc(home, func(to *simMachine) func() {
		to.step(Reported{from, boot, rs})
		return func() {
			for _, r := range rs {
				m.step(Told{r.Info.ID, r.Info.State == sigma.ProcEnded})
			}
			then()
		}
	}, func() {})
}

// act does one thing that may happen at any time.
func (s *sim) act() {
	s.now = s.now.Add(time.Millisecond)
	m := s.machines[s.r.IntN(len(s.machines))]
	for range 1 + s.r.IntN(5) {
		s.deliver()
	}
	switch n := s.r.IntN(1000); {
	case !m.up:
		if n < 100 {
			m.begin()
		}
	case n < 60:
		s.spawn(m)
	case n < 400:
		m.attend()
	case n < 550: // one that runs ends
		for _, id := range slices.Sorted(maps.Keys(m.running))[:min(1, len(m.running))] {
			delete(m.running, id)
			m.later(func() { m.step(Gone{ID: id}) })
		}
	case n < 560:
		for _, p := range m.core.sorted(func(p *Proc) bool { return !p.Ended() && s.r.IntN(4) == 0 }) {
			m.step(Killed{p.ID})
			break
		}
	case n < 600:
		m.step(Requeue{Before: s.now.Add(-50 * time.Millisecond)})
	case n < 605:
		s.term++
		s.queue, s.credits = besched.NewCore(), map[besched.Ticket]*simMachine{}
	case n < 615:
		m.restart()
	case n < 618: // it dies, and is found out later
		m.up = false
		life := m.life.Incarnation
		s.msgs = append(s.msgs, func() { s.publish(m.name, life+1) })
	case n < 621: // it is taken for dead
		s.publish(m.name, m.life.Incarnation+1)
	}
}

func (s *sim) deliver() {
	if len(s.msgs) == 0 {
		return
	}
	i := s.r.IntN(min(len(s.msgs), 12))
	f := s.msgs[i]
	s.msgs = slices.Delete(s.msgs, i, i+1)
	if s.loss > 0 && s.r.IntN(4) == 0 { // it is long under way
		s.msgs = append(s.msgs, f)
		return
	}
	f()
}

func (s *sim) spawn(m *simMachine) {
	e := Spawned{By: sigma.Principal{Realm: "a"}}
	for range 1 + s.r.IntN(4) {
		s.procs++
		e.IDs = append(e.IDs, sigma.ProcID(fmt.Sprint("p", s.procs)))
		e.Ds = append(e.Ds, sigma.Descriptor{Program: "/bin/x", Memory: simMemory})
	}
	m.step(e)
}

// heal has everything work, until nothing happens any more.
func (s *sim) heal(ends bool) {
	s.loss = 0
	for range 100 {
		for _, m := range s.machines {
			if !m.up {
				m.begin()
			}
			m.attend()
			m.step(Requeue{Before: s.now})
			for id := range m.running {
				if ends {
					delete(m.running, id)
					m.step(Gone{ID: id})
				}
			}
		}
		for n := 0; len(s.msgs) > 0; n++ {
			if n > 1e6 {
				s.t.Fatal("messages without end")
			}
			s.deliver()
		}
		s.now = s.now.Add(time.Second)
	}
}

// Goal: whatever is lost, restarted or late, no proc is started twice; when all works again, each
// process that runs is listed by exactly one machine, with the machine that runs it, and what is
// listed as running runs; and when all have ended, nobody waits for anything and all memory is
// free.
func TestFarRandom(t *testing.T) {
	for seed := range uint64(80) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newSim(t, seed)
			for range 3000 {
				s.act()
			}
			s.heal(false)
			s.checkListed()
			s.heal(true)
			for _, m := range s.machines {
				c := m.core
				if c.Free() != c.Capacity() || c.Running() != 0 || len(c.expected) != 0 || c.queued != 0 ||
					c.Live("a") != 0 {
					t.Errorf("%s: free %v of %v, %d run, %d are expected, %d are queued, %d live", m.name, c.Free(),
						c.Capacity(), c.Running(), len(c.expected), c.queued, c.Live("a"))
				}
				for id, r := range c.realms {
					for shard, n := range r.waits {
						if n != 0 {
							t.Errorf("%s: %d of %s are counted at %q", m.name, n, id, shard)
						}
					}
				}
				for _, p := range c.sorted(func(p *Proc) bool { return !p.Ended() }) {
					t.Errorf("%s still knows %s as %v, home %v, runner %v", m.name, p.ID, p.State, p.Home, p.Runner)
				}
			}
			if s.queue.Waiting() > 0 || len(s.starts) == 0 {
				t.Errorf("%d jobs wait, %d procs were started", s.queue.Waiting(), len(s.starts))
			}
		})
	}
}

func (s *sim) checkListed() {
	listed := map[sigma.ProcID]sigma.MachineID{} // to who lists it
	for _, m := range s.machines {
		for _, p := range m.core.After("a", 0) {
			if p.Ended() || p.State == sigma.ProcQueued {
				continue
			}
			if by, twice := listed[p.ID]; twice {
				s.t.Errorf("%s is listed by %s and by %s", p.ID, by, m.name)
			}
			listed[p.ID] = m.name
			at := s.machines[slices.IndexFunc(s.machines, func(x *simMachine) bool { return x.name == p.Machine })]
			if at.running[p.ID] == nil {
				s.t.Errorf("%s lists %s as %v at %s, where it does not run", m.name, p.ID, p.State, p.Machine)
			}
		}
	}
	for _, m := range s.machines {
		for id := range m.running {
			if listed[id] == "" {
				s.t.Errorf("%s runs %s, which nobody lists", m.name, id)
			}
		}
	}
}
