package sim

import (
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// machine is what a machine's sigmad knows, and what really runs there.
type machine struct {
	s         *Sim
	name      sigma.MachineID
	size      Size
	skew      time.Duration // of its clock
	up        bool
	life      sigma.Life
	boot      uint64
	core      *schedd.Core
	running   map[sigma.ProcID]*process
	used      sigma.Bytes    // by what runs
	cpu       sigma.MilliCPU // reserved by what runs
	homes     map[sigma.ProcID]bool
	offers    *besched.Offers
	stands    []stand       // one for each shard
	lent      bool          // the core was told that all shards gave a lease
	plans     time.Duration // when the offers are looked at next; 0 = not
	ended     int           // since what has ended was forgotten
	debts     map[sigma.Life][]sigma.ProcID
	paying    map[sigma.Life]bool
	synced    map[sigma.Life]bool
	lcTerm    int         // of the leader that it attends at
	initEpoch sigma.Epoch // of the latest leader of initd that was heard of
}

// stand is how a machine stands with a shard.
type stand struct {
	term   int // of the besched that it attends at; 0 = none
	ticket besched.Ticket
	lease  besched.Ticket
}

// process is what runs; it outlives its sigmad if it is kept.
type process struct {
	info sigma.ProcInfo
	home sigma.Life
	kept bool
	over bool
}

// begin starts the machine in a new life.
func (m *machine) begin() {
	s := m.s
	s.lives++
	m.life = sigma.Life{Machine: m.name, Incarnation: s.lives}
	m.halt()
	m.running, m.used, m.cpu = map[sigma.ProcID]*process{}, 0, 0
	// whoever waited here is gone, or was told that the machine was lost
	for _, id := range slices.Sorted(maps.Keys(m.homes)) {
		s.answer(id, true)
	}
	m.homes = map[sigma.ProcID]bool{}
	s.publish(m.name, s.lives)
	m.restart()
}

// restart starts the machine's sigmad anew in the same life: what was queued there is lost, what
// runs is adopted if it is kept.
func (m *machine) restart() {
	s := m.s
	m.up, m.lent, m.plans = true, false, 0
	m.boot++
	m.core = schedd.NewCore(m.name, m.size.Memory)
	m.offers, m.stands = besched.NewOffers(m.size.Memory), make([]stand, len(s.shards))
	m.debts, m.paying, m.synced = map[sigma.Life][]sigma.ProcID{}, map[sigma.Life]bool{}, map[sigma.Life]bool{}
	m.lcTerm, m.initEpoch = 0, 0
	m.step(schedd.Cores{CPU: m.cores()})
	if len(s.cfg.Limits) > 0 {
		m.step(schedd.Maxima{Memory: s.maxima()})
	}
	for _, id := range slices.Sorted(maps.Keys(m.running)) {
		p := m.running[id]
		if !p.kept {
			m.stop(id)
			continue
		}
		m.step(schedd.Adopted{Info: p.info, Launch: 1, Home: p.home})
	}
	if s.cfg.Faults {
		for _, id := range slices.Sorted(maps.Keys(m.homes)) {
			if s.procs[id] != nil &&
				m.core.Find(id) == nil {
				// it was queued, or runs elsewhere and is reported; else its waiter is told that it
				// is lost
				m.later(5*time.Second, func() {
					if m.core.Find(id) == nil {
						s.answer(id, true)
					}
				})
			}
		}
	}
	m.hear()
	m.later(0, m.attend)
	m.later(0, m.attendLC)
}

// halt ends all that runs.
func (m *machine) halt() {
	for _, p := range m.running {
		if !p.over {
			m.s.holds(p.info, false)
			p.over = true
		}
	}
}

// holds notes that a proc begins to hold memory of its realm's part, or ends to.
func (s *Sim) holds(info sigma.ProcInfo, begins bool) {
	r := s.realms[info.Realm]
	switch {
	case info.Class == sigma.LatencyCritical && begins:
		r.reserved.CPU += info.CPU
		r.reserved.Memory += info.Memory
	case info.Class == sigma.LatencyCritical:
		r.reserved.CPU -= info.CPU
		r.reserved.Memory -= info.Memory
	case begins:
		r.has += info.Memory
	default:
		r.has -= info.Memory
	}
}

func (m *machine) cores() sigma.MilliCPU { return m.size.CPU }

func (m *machine) clock() time.Time { return start.Add(m.s.now + m.skew) }

// later does something by this sigmad, if it lives then.
func (m *machine) later(d time.Duration, do func()) {
	boot, life := m.boot, m.life
	m.s.after(d, func() {
		if m.up && m.boot == boot && m.life == life {
			do()
		}
	})
}

// publish has all machines hear of a life.
func (s *Sim) publish(name sigma.MachineID, least sigma.Incarnation) {
	s.roster[name] = max(s.roster[name], least)
	if !s.cfg.Faults {
		return
	}
	for _, m := range s.machines {
		s.after(s.delay(), m.hear)
	}
}

// hear is the roster as it is now.
func (m *machine) hear() {
	s := m.s
	if !m.up || !s.cfg.Faults {
		return
	}
	if s.roster[m.name] > m.life.Incarnation { // it was taken for lost
		m.step(schedd.Reborn{})
		m.begin()
		return
	}
	m.step(schedd.Members{Least: s.roster})
	for _, other := range s.machines {
		if l := other.life; other != m && l.Machine != "" && l.Incarnation >= s.roster[l.Machine] && !m.synced[l] {
			m.synced[l] = true
			m.report(l, m.core.Guests(l), func() {
				from, boot := m.life, m.boot
				m.rpc(l, func(to *machine) func() {
					to.step(schedd.Resynced{From: from, Boot: boot})
					for _, id := range to.core.Guests(from) {
						to.owe(id, from)
					}
					return func() {}
				}, func() {})
			})
		}
	}
}

// rpcRetry is when a call is made again that was not answered.
const rpcRetry = 200 * time.Millisecond

// rpc calls another machine until it answers or its life is over. do is done there, and gives what
// is done here with the answer; over is done instead if there will be none.
func (m *machine) rpc(to sigma.Life, do func(*machine) func(), over func()) {
	s := m.s
	var try func()
	again := func() { m.later(rpcRetry, try) }
	try = func() {
		if m.core.Over(to) {
			over()
			return
		}
		if s.lost() {
			again()
			return
		}
		m.later(s.delay(), func() {
			at := s.byName[to.Machine]
			if !at.up || at.life != to {
				again()
				return
			}
			then := do(at)
			if s.lost() {
				again()
				return
			}
			m.later(s.delay(), then)
		})
	}
	try()
}

// step applies an event to the machine's core and carries out what it decides.
func (m *machine) step(e schedd.Event) {
	for _, f := range m.core.Step(m.clock(), e) {
		m.apply(f)
	}
}

func (m *machine) apply(f schedd.Effect) {
	s := m.s
	switch f := f.(type) {
	case schedd.Start:
		m.start(f.Proc)
	case schedd.Kill:
		id := f.Proc.ID
		m.later(s.cfg.Starts, func() { m.stop(id); m.step(schedd.Gone{ID: id, Exit: launch.Exited{Wait: 9}}) })
	case schedd.Notice: // it goes when it is asked
		id := f.Proc.ID
		m.later(s.cfg.Starts, func() { m.exits(id) })
	case schedd.Abandon:
		m.later(0, func() {
			m.step(schedd.NotLaunched{ID: f.ID, Err: sigma.Errorf("sim", sigma.KindCanceled, "abandoned")})
		})
	case schedd.Timer:
		m.later(f.At.Sub(m.clock()), func() { m.step(schedd.TimerFired{ID: f.ID}) })
	case schedd.Enqueue:
		m.enqueue(f.Proc)
	case schedd.Wake:
		if p := m.core.Find(f.ID); p != nil && p.Ended() && m.homes[f.ID] && !p.Guest() {
			s.answer(f.ID, p.Status.Code == sigma.StatusLost)
			delete(m.homes, f.ID)
		}
	case schedd.Room:
		m.later(0, m.plan)
	case schedd.Owed:
		m.owe(f.ID, f.Home)
	case schedd.Take:
		m.take(f.ID, f.Home)
	case schedd.Decline:
		m.rpc(f.Home, func(to *machine) func() { to.step(schedd.Declined{ID: f.ID}); return func() {} }, func() {})
	case schedd.Dequeue:
		m.dequeue(f)
	case schedd.Unreserved:
		m.tellLC(lcsched.Released{Life: m.life, IDs: []sigma.ProcID{f.ID}})
	case schedd.Unfit:
		m.tellLC(lcsched.Declined{Life: m.life, ID: f.ID})
	}
}

// start has a proc run; what is between the placing and the launch may fail.
func (m *machine) start(p *schedd.Proc) {
	s, id, info, home := m.s, p.ID, p.ProcInfo, p.Home
	if sp := s.procs[id]; sp != nil {
		s.leaves(sp)
	}
	starts := s.cfg.Starts
	if sp := s.procs[id]; sp != nil && sp.Start > 0 {
		starts = sp.Start
	}
	m.later(starts, func() {
		if p := m.core.Find(id); p == nil || p.State != sigma.ProcStarting {
			return
		}
		m.step(schedd.LaunchAsked{ID: id, Launch: 1})
		if s.faulty && s.r.IntN(20) == 0 {
			m.step(schedd.NotLaunched{ID: id, Err: sigma.Errorf("sim", sigma.KindNoExec, "no program")})
			return
		}
		m.runs(id, info, home)
		m.step(schedd.Launched{ID: id})
	})
}

// runs begins a process, and checks what must hold then.
func (m *machine) runs(id sigma.ProcID, info sigma.ProcInfo, home sigma.Life) {
	s := m.s
	info.Machine, info.State = m.name, sigma.ProcRunning
	p := &process{info: info, home: home, kept: s.r.IntN(2) == 0}
	m.running[id] = p
	m.used += info.Memory
	m.cpu += info.CPU
	s.holds(info, true)
	if m.used > m.size.Memory || m.cpu > m.cores() {
		s.fail("machine %s is over-committed: %v of %v, %d of %d thousandths of a core", m.name, m.used, m.size.Memory,
			m.cpu, m.cores())
	}
	m.within(info)
	s.initd.runs(m, id, p)
	run := time.Duration(0)
	if sp := s.procs[id]; sp != nil {
		if waited := s.now - sp.spawned; sp.sure && waited > sureWithin && !s.cfg.Faults {
			s.fail("proc %s of realm %s is within the realm's minimum, and waited %v for its reservation", id, sp.Realm,
				waited)
		}
		if sp.starts++; sp.starts > 1 {
			s.fail("proc %s was started twice", id)
		}
		run = sp.Run
		s.report.started(s.now, sp)
		if sp.Near != "" {
			s.report.Wished++
			if sp.Near == m.name {
				s.report.Near++
			}
		}
	}
	s.report.busy += gib(info.Memory) * run.Seconds()
	s.after(run, func() {
		if !p.over && m.running[id] == p {
			m.exits(id)
		}
	})
}

// stop ends a process.
func (m *machine) stop(id sigma.ProcID) {
	if p := m.running[id]; p != nil {
		if !p.over {
			m.s.holds(p.info, false)
		}
		p.over = true
		delete(m.running, id)
		m.used -= p.info.Memory
		m.cpu -= p.info.CPU
	}
}

// exits ends a process, of which sigmad hears if it is up.
func (m *machine) exits(id sigma.ProcID) {
	p := m.running[id]
	if p == nil {
		return
	}
	m.stop(id)
	m.s.report.ended = m.s.now
	exit := launch.Exited{}
	if m.s.initd.exits(id) {
		exit.Wait = 1 << 8
	}
	if !m.up {
		return
	}
	m.charge(id, p)
	m.step(schedd.Gone{ID: id, Exit: exit})
	if m.ended++; m.ended >= endedKept && !m.s.cfg.Faults { // a long run would need much memory
		m.ended = 0
		for _, realm := range m.core.Realms() {
			m.step(schedd.RealmGone{Realm: realm})
		}
	}
}

// endedKept ended procs are kept by a machine without faults: of many machines they would be most
// of what must be in memory.
const endedKept = 8

func (m *machine) take(id sigma.ProcID, home sigma.Life) {
	by, boot := m.life, m.boot
	m.rpc(home, func(to *machine) func() {
		info, d, err := to.core.Give(to.clock(), id, by, boot)
		if err != nil {
			return func() { m.step(schedd.NotTaken{ID: id}) }
		}
		return func() { m.step(schedd.Arrived{Info: info, Descriptor: d, Home: home}) }
	}, func() { m.step(schedd.NotTaken{ID: id}) })
}

func (m *machine) owe(id sigma.ProcID, home sigma.Life) {
	m.debts[home] = append(m.debts[home], id)
	m.pay(home)
}

func (m *machine) pay(home sigma.Life) {
	if m.paying[home] || len(m.debts[home]) == 0 {
		return
	}
	ids := m.debts[home]
	delete(m.debts, home)
	m.paying[home] = true
	m.report(home, ids, func() { delete(m.paying, home); m.pay(home) })
}

func (m *machine) report(home sigma.Life, ids []sigma.ProcID, then func()) {
	from, boot := m.life, m.boot
	var rs []schedd.Report
	for _, id := range ids {
		if r, to, ok := m.core.Report(id); ok && to == home {
			rs = append(rs, r)
		}
	}
	m.rpc(home, func(to *machine) func() {
		to.step(schedd.Reported{From: from, Boot: boot, Procs: rs})
		return func() {
			for _, r := range rs {
				m.step(schedd.Told{ID: r.Info.ID, Ended: r.Info.State == sigma.ProcEnded})
			}
			then()
		}
	}, func() {})
}
