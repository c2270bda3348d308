// Package sim runs the decisions of a whole system in virtual time: the very cores of schedd,
// besched, lcsched and initd, with procs that arrive, run and end by a seed, messages that take
// time and get lost, machines and daemons that die, and clocks that are wrong. The same Config
// gives the same run.
//
// It checks at each step that no machine is over-committed, no realm has more of one than it may,
// and no proc starts twice; without faults also that no realm reserves more than it may at all
// machines, and what it has a right to within sureWithin; each second of virtual time that no realm
// that waits is passed over for long or falls behind its ideal part, and that who was spawned is
// known where it is at home; that of each registered proc one instance at most runs, and soon one
// does or waits in its pause; and in the end that each was answered once and nothing is reserved
// any more. A Violation names the seed. What it leaves out is what procs do to one another by
// computing: a proc runs for the time that it was given, and is admitted by memory or by its
// reservation.
//
// Users: cmd/sigma (sigma sim).
package sim

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// Config says what is simulated. Defaults are those of Config.fill.
type Config struct {
	Seed     uint64
	Machines int
	Realms   int
	Procs    int
	// offered memory-time as a part of all machines'; above 1 the queue grows until the last has
	// come
	Load       float64
	Run        time.Duration // mean of the procs' run times, which are exponential
	LC         float64       // part of the procs that reserve cores
	Near       float64       // part of the procs that should be near a machine
	Shards     int           // of besched
	Cores      int           // of each machine
	Memory     sigma.Bytes   // of each machine, for procs
	Sizes      []Size        // of machines, in turn, instead of Cores and Memory
	Registered int           // procs that are registered with initd, besides Procs
	// messages are lost, machines and daemons die, clocks are wrong by up to an hour
	Faults   bool
	Shares   []uint32                            // of realms, in turn; none = 1 each
	SharesOf map[sigma.RealmID]uint32            // of those that have not 1, instead of Shares
	Limits   map[sigma.RealmID]sigma.RealmLimits // of processors and memory, of realms that have any
	Trace    []Arrival                           // instead of procs by the seed
	Delay    time.Duration                       // mean time that a message is under way
	Starts   time.Duration                       // between placing a proc and its program's first instruction
}

// Size is what a machine has for procs.
type Size struct {
	CPU    sigma.MilliCPU
	Memory sigma.Bytes
}

// Arrival is a proc that is spawned.
type Arrival struct {
	At     time.Duration // since the first
	Realm  sigma.RealmID
	Start  time.Duration // from its placement to its program's first instruction; 0 = Config.Starts
	Run    time.Duration // from there to its end
	Memory sigma.Bytes
	CPU    sigma.MilliCPU  // of a latency-critical proc; 0 = it is best-effort
	Near   sigma.MachineID // where it should be; "" = anywhere
	Waited time.Duration   // in the run that was recorded, from its spawn to its placement; negative = not known
}

func (c *Config) fill() {
	or := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&c.Machines, 10)
	or(&c.Realms, 4)
	or(&c.Procs, 10000)
	or(&c.Shards, 1)
	or(&c.Cores, 8)
	if c.Memory == 0 {
		c.Memory = 2 * sigma.GiB
	}
	if len(c.Sizes) == 0 {
		c.Sizes = []Size{{sigma.MilliCPU(1000 * c.Cores), c.Memory}}
	}
	if c.Load <= 0 {
		c.Load = 0.9
	}
	if len(c.Trace) > 0 {
		var all time.Duration
		for _, a := range c.Trace {
			all += a.Run / time.Duration(len(c.Trace))
		}
		c.Run = max(all, time.Millisecond)
	}
	if c.Run <= 0 {
		c.Run = time.Second
	}
	if c.Delay <= 0 {
		c.Delay = 200 * time.Microsecond
	}
	if c.Starts <= 0 {
		c.Starts = 500 * time.Microsecond
	}
}

// Violation is an invariant that does not hold.
type Violation struct {
	Seed uint64
	At   time.Duration
	What string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d, after %v: %s", v.Seed, v.At, v.What)
}

// event is something to be done at a time.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func (e *event) before(other *event) bool {
	return e.at < other.at || e.at == other.at && e.seq < other.seq
}

// events is a heap, the next first. Its own, for container/heap would allocate for each.
type events []event

func (h *events) push(e event) {
	q := append(*h, e)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&q[up]) {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = e
	*h = q
}

func (h *events) pop() event {
	q := *h
	first, last := q[0], q[len(q)-1]
	q[len(q)-1] = event{}
	q = q[:len(q)-1]
	*h = q
	for i := 0; len(q) > 0; {
		least := 4*i + 1
		for j := least + 1; j < min(4*i+5, len(q)); j++ {
			if q[j].before(&q[least]) {
				least = j
			}
		}
		if least >= len(q) || !q[least].before(&last) {
			q[i] = last
			break
		}
		q[i] = q[least]
		i = least
	}
	return first
}

// proc is what the simulation knows of one.
type proc struct {
	Arrival
	id      sigma.ProcID
	spawned time.Duration
	placed  time.Duration
	starts  int
	prepaid time.Duration
	shard   *shard   // that granted it
	given   *machine // to which it was granted; nil once it has ended there
	// when it came it and all that its realm had reserved, or waited for, was within the realm's
	// minimum
	sure bool
}

// Sim is one run. Not safe for concurrent use.
type Sim struct {
	cfg       Config
	r         *rand.Rand
	now       time.Duration
	queue     events
	seq       uint64
	machines  []*machine
	memory    sigma.Bytes // of all machines
	least     sigma.Bytes // of the smallest
	byName    map[sigma.MachineID]*machine
	shards    []*shard
	lc        *leader
	initd     *registry // nil = nothing is registered
	lives     sigma.Incarnation
	roster    map[sigma.MachineID]sigma.Incarnation // first life of each machine that is not over
	procs     map[sigma.ProcID]*proc                // that were not answered
	loss      int                                   // of 100 messages
	faulty    bool                                  // things break now
	broken    time.Duration                         // when something could break last
	spawned   int
	last      time.Duration // of arrivals
	realms    map[sigma.RealmID]*realm
	order     []*realm      // of realms, in order of their first procs
	contended time.Duration // when less than two realms waited last
	failure   *Violation
	report    Report
}

// start is the time of the virtual beginning.
var start = time.Unix(1_000_000_000, 0)

// New prepares a run.
func New(cfg Config) *Sim {
	cfg.fill()
	s := &Sim{cfg: cfg, r: rand.New(rand.NewPCG(cfg.Seed, 0x51)), byName: map[sigma.MachineID]*machine{},
		roster: map[sigma.MachineID]sigma.Incarnation{}, procs: map[sigma.ProcID]*proc{},
		realms: map[sigma.RealmID]*realm{}}
	for i := range cfg.Shards {
		s.shards = append(s.shards, newShard(s, i))
	}
	s.lc = newLeader(s)
	for i := range cfg.Machines {
		m := &machine{s: s, name: sigma.MachineID("m" + strconv.Itoa(i)), size: s.cfg.Sizes[i%len(s.cfg.Sizes)]}
		s.memory += m.size.Memory
		if i == 0 || m.size.Memory < s.least {
			s.least = m.size.Memory
		}
		if cfg.Faults {
			m.skew = time.Duration(s.r.Int64N(int64(2*time.Hour))) - time.Hour
		}
		s.machines = append(s.machines, m)
		s.byName[m.name] = m
	}
	for _, m := range s.machines {
		m.begin()
	}
	return s
}

// after does something later.
func (s *Sim) after(d time.Duration, do func()) {
	s.seq++
	s.queue.push(event{s.now + max(0, d), s.seq, do})
}

// delay is how long a message is under way.
func (s *Sim) delay() time.Duration {
	d := s.cfg.Delay/2 + time.Duration(s.r.Int64N(int64(s.cfg.Delay)))
	if s.faulty && s.r.IntN(50) == 0 {
		d *= 200
	}
	return d
}

func (s *Sim) lost() bool { return s.loss > 0 && s.r.IntN(100) < s.loss }

// fail notes the first invariant that does not hold.
func (s *Sim) fail(format string, args ...any) {
	if s.failure == nil {
		s.failure = &Violation{s.cfg.Seed, s.now, fmt.Sprintf(format, args...)}
	}
}

// Run simulates until all procs were answered. The error is a *Violation.
func (s *Sim) Run() (*Report, error) {
	if s.cfg.Registered > 0 {
		s.register()
	}
	s.arrivals()
	s.after(time.Second, s.watch)
	if s.cfg.Faults {
		s.faulty, s.loss = true, 10
		s.after(50*time.Millisecond, s.breakSomething)
	}
	for steps := 0; len(s.queue) > 0 && s.failure == nil; steps++ {
		e := s.queue.pop()
		s.now = e.at
		e.do()
		if s.spawned == s.report.Procs && len(s.procs) == 0 && s.now > s.last+time.Minute && s.initd.idle() {
			break
		}
		if s.now > s.last+24*time.Hour {
			s.fail("%d procs are not answered a day after the last was spawned", len(s.procs))
		}
	}
	if s.failure == nil {
		s.settled()
	}
	s.finish()
	if s.failure != nil {
		return &s.report, s.failure
	}
	return &s.report, nil
}

// arrivals has procs spawned, by the trace or by the seed.
func (s *Sim) arrivals() {
	if len(s.cfg.Trace) > 0 {
		s.report.Procs = len(s.cfg.Trace)
		for _, a := range s.cfg.Trace {
			s.last = max(s.last, a.At)
			s.after(a.At, func() { s.spawn(a) })
		}
		return
	}
	s.report.Procs = s.cfg.Procs
	mean := float64(s.least) / 16 * s.cfg.Run.Seconds() // memory-time of a proc
	rate := s.cfg.Load * float64(s.memory) / mean
	var next func()
	n := 0
	next = func() {
		if n == s.cfg.Procs {
			return
		}
		n++
		a := Arrival{At: s.now, Realm: sigma.RealmID("r" + strconv.Itoa(s.r.IntN(s.cfg.Realms))), Waited: -1,
			Run:    time.Duration(min(s.r.ExpFloat64(), 10) * float64(s.cfg.Run)),
			Memory: max(sigma.MemoryLeast, s.least/32*sigma.Bytes(1+s.r.IntN(3)))}
		if s.r.Float64() < s.cfg.LC {
			a.CPU = sigma.MilliCPU(1 + s.r.IntN(int(s.cfg.Sizes[0].CPU/2)))
		}
		if s.cfg.Near > 0 && s.r.Float64() < s.cfg.Near {
			a.Near = s.machines[s.r.IntN(len(s.machines))].name
		}
		s.last = s.now
		s.spawn(a)
		s.after(time.Duration(s.r.ExpFloat64()/rate*1e9), next)
	}
	next()
}

// spawn enters a proc at a machine that is up; if none is, it is spawned as soon as one may be.
func (s *Sim) spawn(a Arrival) {
	m := s.machines[s.r.IntN(len(s.machines))]
	if !m.up {
		s.after(100*time.Millisecond, func() { s.spawn(a) })
		return
	}
	s.spawned++
	d := sigma.Descriptor{Program: "/bin/x", Memory: a.Memory, Near: a.Near}
	if a.CPU > 0 {
		d.Class, d.CPU = sigma.LatencyCritical, a.CPU
	}
	s.enter(m, &proc{Arrival: a, id: sigma.ProcID("p" + strconv.Itoa(s.spawned))}, d)
}

// enter has a machine be the home of a new proc.
func (s *Sim) enter(m *machine, p *proc, d sigma.Descriptor) {
	a := p.Arrival
	p.spawned, p.placed = s.now, -1
	s.procs[p.id] = p
	m.homes[p.id] = true
	r := s.realms[a.Realm]
	if r == nil {
		r = &realm{id: a.Realm, shares: float64(s.shareOf(a.Realm)),
			most: gib(s.cfg.Limits[a.Realm].MaxMemory) * float64(len(s.machines))}
		s.realms[a.Realm] = r
		s.order = append(s.order, r)
		s.tellShares(s.shards...)
	}
	if r.waiting == 0 {
		r.progress = s.now
	}
	if r.waiting++; a.CPU == 0 {
		r.wants += a.Memory
	} else {
		r.asked.CPU += a.CPU
		r.asked.Memory += a.Memory
		l := s.cfg.Limits[a.Realm]
		p.sure = r.asked.CPU <= l.MinCPU && r.asked.Memory <= l.MinMemory
	}
	m.step(schedd.Spawned{By: sigma.Principal{Realm: a.Realm}, IDs: []sigma.ProcID{p.id}, Ds: []sigma.Descriptor{d}})
}

func (s *Sim) shareOf(id sigma.RealmID) uint32 {
	if n := s.cfg.SharesOf[id]; n > 0 {
		return n
	}
	if len(s.cfg.Shares) == 0 {
		return 1
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(string(id), "r"))
	return s.cfg.Shares[n%len(s.cfg.Shares)]
}

// tellShares tells bescheds what the realms have a right to.
func (s *Sim) tellShares(shards ...*shard) {
	if len(s.cfg.Shares) == 0 && len(s.cfg.SharesOf) == 0 {
		return
	}
	for _, sh := range shards {
		of := map[sigma.RealmID]uint32{}
		for id := range s.realms {
			of[id] = s.shareOf(id)
		}
		sh.core.Shares(of)
	}
}

// leaves notes that a proc waits no more.
func (s *Sim) leaves(p *proc) {
	if p.placed >= 0 {
		return
	}
	p.placed = s.now
	r := s.realms[p.Realm]
	r.waiting--
	r.progress = s.now
	if p.CPU == 0 {
		r.wants -= p.Memory
	}
}

// answer notes that a proc's waiter has its answer.
func (s *Sim) answer(id sigma.ProcID, lost bool) {
	p := s.procs[id]
	if p == nil {
		return
	}
	if p.placed < 0 {
		s.leaves(p)
		s.report.Unplaced++
	}
	if lost {
		s.report.Lost++
	}
	if r := s.realms[p.Realm]; p.CPU > 0 {
		r.asked.CPU -= p.CPU
		r.asked.Memory -= p.Memory
	}
	s.ungive(p)
	delete(s.procs, id)
}
