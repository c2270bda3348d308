package sim

import (
	"strconv"
	"time"

	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sigma"
)

// What must hold of registered procs: without one for longer than registeredWithin none is
// (docs/reference/commands/sim.md), pauses are at least registeredPause, and those that fail are
// not started more often than pauses of up to 30 s let them.
const (
	registeredWithin = 15 * time.Second
	registeredPause  = 200 * time.Millisecond
	registeredSlow   = 25 * time.Second
	registeredQuick  = 10 // until pauses are that long
)

// Registrations stay for so long after the last arrival, and are to be gone so long after they were
// removed.
const (
	registeredStay = 40 * time.Second
	registeredGone = 30 * time.Second
)

// registry is initd's: the records, as the names keep them, and who leads.
type registry struct {
	s       *Sim
	files   map[initd.Key]initd.Versioned
	version sigma.Version
	fence   sigma.Epoch // the highest that the names have heard of
	epoch   sigma.Epoch // of who was elected last
	leader  *initLeader
	drawn   int
	all     []*registration
	byKey   map[initd.Key]*registration
	of      map[sigma.ProcID]*registration
}

// registration is what one is held to.
type registration struct {
	key     initd.Key
	fails   bool // its instances do, soon
	starts  int
	lost    int           // instances that were taken for lost
	ended   time.Duration // when an instance ended by itself; 0 = none has, or it was lost since
	well    time.Duration // when it was last known to run, to be queued or to wait in its pause
	removed time.Duration // when it was; 0 = it was not
	process *process      // that began last
	at      *machine
	life    sigma.Life // of it then
}

// register registers procs, of which some fail at once, one in four is to be started at most five
// times, and one in five is removed soon.
func (s *Sim) register() {
	in := &registry{s: s, files: map[initd.Key]initd.Versioned{}, byKey: map[initd.Key]*registration{},
		of: map[sigma.ProcID]*registration{}}
	s.initd = in
	for i := range s.cfg.Registered {
		g := &registration{key: initd.Key{Realm: sigma.RealmID("r" + strconv.Itoa(i%s.cfg.Realms)),
			Name: "i" + strconv.Itoa(i)}, fails: i%3 == 2}
		r := sigma.Registration{Name: g.key.Name, Descriptor: s.registered(), Restart: sigma.RestartAlways}
		if i%4 == 3 {
			r.Most = 5
		}
		in.all, in.byKey[g.key] = append(in.all, g), g
		in.put(g.key, initd.NewRecord(r, start))
		if i%5 == 4 {
			s.after(time.Duration(s.r.Int64N(int64(5*time.Second))), func() { in.remove(g) })
		}
	}
	in.elect()
	in.seeToLeader()
}

func (s *Sim) registered() sigma.Descriptor {
	return sigma.Descriptor{Program: "/bin/x", Memory: max(sigma.MemoryLeast, s.least/32)}
}

func (in *registry) put(k initd.Key, r initd.Record) {
	in.version++
	in.files[k] = initd.Versioned{Record: r, Version: in.version}
}

// remove is sigma init rm.
func (in *registry) remove(g *registration) {
	v, there := in.files[g.key]
	if !there || g.removed > 0 {
		return
	}
	g.removed = in.s.now
	v.Record.Removed = true
	in.put(g.key, v.Record)
	in.s.after(in.s.delay(), func() {
		if l := in.leader; l != nil && l.alive() {
			l.news()
		}
	})
}

// save writes a record for a leader, if its file is at the version that it knows.
func (in *registry) save(k initd.Key, v initd.Versioned) (sigma.Version, bool) {
	if had, there := in.files[k]; !there || had.Version != v.Version {
		return 0, false
	}
	if g, p := in.byKey[k], v.Record.Present(); p != nil {
		in.of[p.Proc] = g
	} else {
		g.well = in.s.now + v.Record.Pause
		if h := v.Record.History; h[len(h)-1].Status.Code == sigma.StatusLost {
			g.lost++
			g.ended = 0
		}
	}
	in.put(k, v.Record)
	return in.version, true
}

// elect makes a machine that is up the leader's. The one before is not told.
func (in *registry) elect() {
	s := in.s
	m := s.machines[s.r.IntN(len(s.machines))]
	if !m.up {
		return
	}
	in.epoch++
	s.report.Leaders++
	l := &initLeader{s: s, m: m, boot: m.boot, life: m.life, epoch: in.epoch, list: true}
	l.core = initd.NewCore(m.name, func() sigma.ProcID {
		in.drawn++
		return sigma.ProcID("i" + strconv.Itoa(in.drawn))
	})
	in.leader = l
	l.later(s.delay(), l.pass)
}

// seeToLeader has another one elected when the leader is no more.
func (in *registry) seeToLeader() {
	s := in.s
	if in.leader != nil && in.leader.alive() {
		s.after(initRetry, in.seeToLeader)
		return
	}
	s.after(time.Duration(s.r.Int64N(int64(3*time.Second))), func() {
		if in.leader == nil || !in.leader.alive() {
			in.elect()
		}
		in.seeToLeader()
	})
}

// spawn makes an instance, at home on the leader's machine. Those that do not fail run ten times as
// long as other procs.
func (in *registry) spawn(m *machine, k initd.Key, id sigma.ProcID) {
	s, d := in.s, in.s.registered()
	a := Arrival{At: s.now, Realm: k.Realm, Run: time.Duration(min(s.r.ExpFloat64(), 10) * 10 * float64(s.cfg.Run)),
		Memory: d.Memory, Waited: -1}
	if in.byKey[k].fails {
		a.Run = time.Duration(s.r.Int64N(int64(100 * time.Millisecond)))
	}
	s.enter(m, &proc{Arrival: a, id: id}, d)
}

// runs checks an instance that begins to run: it is the only one, and it was not started too soon.
func (in *registry) runs(m *machine, id sigma.ProcID, p *process) {
	if in == nil || in.of[id] == nil {
		return
	}
	g, s := in.of[id], in.s
	if other := g.process; other != nil && !other.over && g.at.life == g.life &&
		g.life.Incarnation >= s.roster[g.at.name] {
		s.fail("%s of registration %s is started at machine %s while %s runs at machine %s", id, g.key.Name, m.name,
			other.info.ID, g.at.name)
	}
	if g.ended > 0 && s.now-g.ended < registeredPause {
		s.fail("%s of registration %s is started %v after the one before has ended", id, g.key.Name, s.now-g.ended)
	}
	g.process, g.at, g.life = p, m, m.life
	g.starts++
	s.report.Restarts++
	if most := in.files[g.key].Record.Registration.Most; most > 0 && g.starts > int(most) {
		s.fail("registration %s is started %d times, at most %d were asked for", g.key.Name, g.starts, most)
	}
	if often := g.lost + registeredQuick*s.report.Leaders + int(s.now/registeredSlow); g.fails && g.starts > often {
		s.fail("registration %s, whose procs fail, is started %d times in %v", g.key.Name, g.starts, s.now)
	}
}

// exits notes that an instance ends by itself, and says whether it fails.
func (in *registry) exits(id sigma.ProcID) (fails bool) {
	if in == nil || in.of[id] == nil {
		return false
	}
	g := in.of[id]
	g.ended = in.s.now
	return g.fails
}

// check looks each second whether each registration has a proc, or waits for one.
func (in *registry) check() {
	if in == nil {
		return
	}
	s := in.s
	over := s.spawned == s.report.Procs && s.now > s.last+registeredStay
	for _, g := range in.all {
		v, there := in.files[g.key]
		switch {
		case !there && g.removed == 0:
			s.fail("registration %s is gone, and nobody has removed it", g.key.Name)
		case !there:
		case g.removed > 0:
			if since := max(g.removed, s.broken); s.now-since > registeredGone {
				s.fail("registration %s is there %v after it was removed, its record: %+v", g.key.Name, s.now-since,
					v.Record.History)
			}
		case over:
			in.remove(g)
		case in.isWell(v.Record):
			g.well = max(g.well, s.now)
		case s.now-max(g.well, s.broken) > registeredWithin:
			s.fail("registration %s has had no proc for %v, and waits for none; its record: %+v", g.key.Name,
				s.now-max(g.well, s.broken), v.Record.History)
		}
	}
}

// isWell says that the present instance is known to a machine that is not lost, or none is wanted.
func (in *registry) isWell(r initd.Record) bool {
	p := r.Present()
	if p == nil {
		return r.State() == "given-up"
	}
	for _, m := range in.s.machines {
		if q := m.core.Find(p.Proc); m.up && q != nil && !q.Ended() {
			return true
		}
	}
	return false
}

// idle says that all registrations are gone, as they are to be in the end.
func (in *registry) idle() bool { return in == nil || len(in.files) == 0 }
