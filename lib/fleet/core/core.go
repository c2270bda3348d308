// Package core decides what a fleet's coordinator does: how many members there are, which are
// started, asked to go and replaced, and how a new revision takes the place of an old one.
//
// It is pure: Step takes the time and an event, and gives effects. The coordinator carries them out
// and tells what became of them. It promises that no more than Most members plus Update.Surge are
// kept, that a fleet of which nothing fails comes to rest, and that every act has a Decision which
// says why. It assumes that each proc that it was told of is told to have ended some day. Users:
// lib/fleet/coordinator, lib/fleet/sim.
//
// size.go has the size, roll.go the change of revisions, policy.go what clients are told.
package core

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Event is what happened. It is one of the types below.
type Event interface{ event() }

// The events.
type (
	// Tick is the passing of time; Every says how often it is due.
	Tick struct{}
	// Changed says that the record is another one, which is stored already.
	Changed struct {
		Record fleet.Record
		Why    string
	}
	// Found is a proc that runs as a member and was started by another coordinator.
	Found struct {
		Proc     sigma.ProcID
		Revision uint64
		Machine  sigma.MachineID
	}
	// Spawned answers Spawn.
	Spawned struct {
		Revision uint64
		N        int             // that were asked for
		Near     sigma.MachineID // where they shall be
		Procs    []sigma.ProcID
		Err      error // then there are none
	}
	// Entered says that a member runs and asks whether clients may be sent to it.
	Entered struct {
		Proc     sigma.ProcID
		Revision uint64
		Machine  sigma.MachineID
	}
	// Checked is the answer of a health check; Bad says what was wrong, "" = nothing.
	Checked struct {
		Proc sigma.ProcID
		Bad  string
	}
	// Published says whether a member stands in the directory that clients dial.
	Published struct {
		Proc sigma.ProcID
		Is   bool
	}
	// Reported is a member's load.
	Reported struct {
		Proc     sigma.ProcID
		Revision uint64
		Machine  sigma.MachineID
		Load     fleet.Load
	}
	// Leaving says that a member takes nothing new, because it was asked to go.
	Leaving struct{ Proc sigma.ProcID }
	// Ended says that a proc has ended.
	Ended struct {
		Proc sigma.ProcID
		Why  string // how; for people
		Lost bool   // its machine was lost or stopped, which is no fault of its program
	}
	// Dialled says that a client found no member.
	Dialled struct{}
	// Talked says what members talk with, by machine. Each is the whole truth.
	Talked struct{ Peers []Peer }
)

func (Tick) event()      {}
func (Changed) event()   {}
func (Found) event()     {}
func (Spawned) event()   {}
func (Entered) event()   {}
func (Checked) event()   {}
func (Published) event() {}
func (Reported) event()  {}
func (Leaving) event()   {}
func (Ended) event()     {}
func (Dialled) event()   {}
func (Talked) event()    {}

// Effect is what the coordinator shall do. It is one of the types below.
type Effect interface{ effect() }

// The effects.
type (
	// Spawn starts N members; Spawned answers it.
	Spawn struct {
		Revision uint64
		N        int
		Near     sigma.MachineID // where they should be if there is room; "" = as the description says
	}
	// Evict asks a member to go.
	Evict struct {
		Proc  sigma.ProcID
		Grace time.Duration
	}
	// Admit says that clients may be sent to a member that has Entered.
	Admit struct{ Proc sigma.ProcID }
	// Probe begins health checks of a member, which last until it is gone; Checked tells of each.
	Probe struct{ Proc sigma.ProcID }
	// SetPolicy says how clients choose.
	SetPolicy struct{ Policy sdk.Policy }
	// Save stores a record that the core has changed.
	Save struct{ Record fleet.Record }
	// Note keeps a decision. Its time and number are set, By is not.
	Note struct{ Decision fleet.Decision }
	// Forget says that the fleet was removed and has no members any more.
	Forget struct{}
)

func (Spawn) effect()     {}
func (Evict) effect()     {}
func (Admit) effect()     {}
func (Probe) effect()     {}
func (SetPolicy) effect() {}
func (Save) effect()      {}
func (Note) effect()      {}
func (Forget) effect()    {}

// Every is how often a Tick is due.
const Every = 100 * time.Millisecond

// Limits of a core's patience.
const (
	spawnMost = 32                     // members that one Spawn asks for
	silentMax = 3 * time.Second        // after this a load is not believed any more
	absentMax = 15 * time.Second       // how long a member may be missing from the directory
	rateOver  = 300 * time.Millisecond // a member's rate is the mean over about so long
	provenMin = 2 * time.Second        // after this a ready member has shown that its program works
	pauseMin  = 50 * time.Millisecond
	pauseMax  = 10 * time.Second
)

// Fleet is one fleet. It is not safe for concurrent use.
type Fleet struct {
	record   fleet.Record
	members  map[sigma.ProcID]*member
	listed   map[sigma.ProcID]bool // that stand in the members' directory
	order    []*member             // in which they came; those that have ended may still be among them
	begun    uint64                // members that there ever were
	spawning map[uint64]int        // by revision: that Spawn asked for and was not answered

	size   size
	roll   roll
	place  place
	told   *sdk.Policy // as clients know it; nil = not yet
	seq    uint64      // of the last decision
	fails  int         // members that failed one after another
	failAt time.Time   // when the last did
	next   time.Time   // when the next may be spawned, after failures

	spread spread

	now time.Time
	out []Effect
}

type member struct {
	fleet.Member
	seq      uint64
	near     sigma.MachineID // where it should be; "" = anywhere
	entered  bool
	probed   bool
	admitted bool
	checked  bool // the first check was good
	bad      int  // checks in a row
	reported time.Time

	// markAt and markServed are of the last report when the fleet came to rest at its size: its
	// time, and the requests that it told of.
	markAt     time.Time
	markServed uint64
}

// New makes the core of a fleet as a coordinator finds it that takes over; the procs that run are
// told by Found. last is the number of the last decision.
func New(now time.Time, r fleet.Record, last uint64) *Fleet {
	f := &Fleet{record: r, members: map[sigma.ProcID]*member{},
		listed: map[sigma.ProcID]bool{}, spawning: map[uint64]int{}, seq: last, now: now,
		place: place{coming: map[location]int{}, refused: map[sigma.MachineID]time.Time{}}}
	f.size.start(now)
	return f
}

// Record is the record in force.
func (f *Fleet) Record() fleet.Record { return f.record }

// Step takes one event.
func (f *Fleet) Step(now time.Time, e Event) []Effect {
	f.now, f.out = now, nil
	switch e := e.(type) {
	case Tick:
		f.tick()
	case Changed:
		f.changed(e)
	case Found:
		f.adopt(e.Proc, e.Revision, e.Machine)
		f.size.want = max(f.size.want, min(f.alive(), f.record.Spec.Most))
		return f.out // the rest is for the next tick, when all are known
	case Spawned:
		f.spawned(e)
	case Entered:
		f.entered(e)
	case Checked:
		f.checked(e)
	case Published:
		f.published(e)
	case Reported:
		f.reported(e)
		return f.out // the next tick looks at it: there may be thousands in a second
	case Leaving:
		if m := f.members[e.Proc]; m != nil {
			f.become(m, fleet.Draining, "it is leaving")
		}
	case Ended:
		f.ended(e)
	case Dialled:
		f.dialled()
	case Talked:
		f.place.talked(now, e.Peers)
		return f.out // it moves nobody
	}
	f.reconcile()
	return f.out
}

func (f *Fleet) tick() {
	f.watchOver()
	f.judgeRoll()
	f.resize()
	f.spreadOut()
}

func (f *Fleet) changed(e Changed) {
	before := f.record
	f.record = e.Record
	if before.Revision != e.Record.Revision {
		f.roll = roll{since: f.now}
		f.fails, f.next = 0, time.Time{}
		f.roll.mark(f)
	}
	reason := fleet.ReasonApplied
	if e.Record.Removed {
		reason = fleet.ReasonRemoved
	}
	f.note(reason, e.Why, nil)
	f.resize()
}

// adopt makes a proc a member, if it is none. An unknown one was started by another coordinator.
func (f *Fleet) adopt(id sigma.ProcID, revision uint64, machine sigma.MachineID) *member {
	m := f.members[id]
	if m == nil {
		f.begun++
		m = &member{seq: f.begun, Member: fleet.Member{Proc: id, Revision: revision, State: fleet.Starting,
			Since: f.now}}
		f.members[id] = m
		f.order = append(f.order, m)
		if f.listed[id] { // it was published before the answer of Spawn was here
			f.published(Published{id, true})
		}
	}
	f.came(m, machine)
	return m
}

func (f *Fleet) spawned(e Spawned) {
	f.spawning[e.Revision] = max(0, f.spawning[e.Revision]-e.N)
	if s := (location{e.Revision, e.Near}); f.place.coming[s] > e.N {
		f.place.coming[s] -= e.N
	} else {
		delete(f.place.coming, s)
	}
	if e.Err != nil {
		f.failed(e.Revision, fmt.Sprintf("members cannot be started: %v", e.Err), false)
		return
	}
	for _, id := range e.Procs {
		m := f.adopt(id, e.Revision, "")
		m.near = e.Near
		at := m.Machine
		m.Machine = ""
		f.came(m, at) // it may have entered before this answer was here
	}
}

func (f *Fleet) entered(e Entered) {
	m := f.adopt(e.Proc, e.Revision, e.Machine)
	if !m.entered {
		m.entered = true
		m.checked = m.checked || f.record.Spec.Health.Kind == ""
		f.probe(m)
	}
	if m.checked && m.State != fleet.Draining {
		m.admitted = true
		f.do(Admit{e.Proc})
	}
}

// probe begins health checks of a member, if there are any.
func (f *Fleet) probe(m *member) {
	if f.record.Spec.Health.Kind != "" && !m.probed {
		m.probed = true
		f.do(Probe{m.Proc})
	}
}

func (f *Fleet) checked(e Checked) {
	m := f.members[e.Proc]
	switch {
	case m == nil || m.State == fleet.Draining:
	case e.Bad == "":
		m.bad, m.Why = 0, ""
		m.checked = true
		if !m.admitted {
			m.admitted = true
			f.do(Admit{e.Proc})
		}
	default:
		m.bad++
		m.Why = e.Bad
		if m.checked && m.bad >= cmp.Or(f.record.Spec.Health.Failures, 3) {
			f.failed(m.Revision, fmt.Sprintf("%s failed %d checks: %s", m.Proc, m.bad, e.Bad), true)
			f.evict(m, fleet.ReasonReplace, "it failed its checks: "+e.Bad)
		}
	}
}

func (f *Fleet) published(e Published) {
	if f.listed[e.Proc] = true; !e.Is {
		delete(f.listed, e.Proc)
	}
	m := f.members[e.Proc]
	switch {
	case m == nil:
	case e.Is && m.State == fleet.Starting:
		f.become(m, fleet.Ready, "")
		f.spread.begin(f.now)
		f.probe(m)
	case !e.Is && m.State == fleet.Ready:
		f.become(m, fleet.Starting, "it is missing from the members' directory")
	}
}

func (f *Fleet) reported(e Reported) {
	m := f.adopt(e.Proc, e.Revision, e.Machine)
	if span := f.now.Sub(m.reported).Seconds(); !m.reported.IsZero() && span > 0 && e.Load.Served >= m.Load.Served {
		m.Rate += (float64(e.Load.Served-m.Load.Served)/span - m.Rate) * min(1, span/rateOver.Seconds())
	}
	if e.Load.Served != m.Load.Served {
		f.size.active = f.now
	}
	m.Load, m.reported = bounded(e.Load), f.now
}

// bounded keeps a member that lies from saying more than can be.
func bounded(l fleet.Load) fleet.Load {
	share := func(x, most float64) float64 {
		if !(x >= 0) { // also what is no number
			return 0
		}
		return min(x, most)
	}
	l.Busy = share(l.Busy, 1)
	l.InFlight = share(l.InFlight, 1e6)
	l.CPU = share(l.CPU, sigma.CPUMost/1000)
	l.QueueAge = max(0, min(l.QueueAge, time.Hour))
	l.Failed = min(l.Failed, l.Served)
	return l
}

func (f *Fleet) ended(e Ended) {
	m := f.members[e.Proc]
	if m == nil {
		return
	}
	delete(f.members, e.Proc)
	if m.State == fleet.Draining || f.record.Removed {
		return
	}
	why := fmt.Sprintf("%s of revision %d ended: %s", m.Proc, m.Revision, e.Why)
	if e.Lost || m.State == fleet.Ready && f.now.Sub(m.Since) >= provenMin {
		f.note(fleet.ReasonReplace, why, nil)
		if !e.Lost {
			f.roll.failed(f, m.Revision, why, true)
		}
		return
	}
	f.failed(m.Revision, why, m.State == fleet.Ready)
}

// failed notes that a member failed soon after its start, so that the next is started later and a
// new revision may be taken back.
func (f *Fleet) failed(revision uint64, why string, ready bool) {
	pause := time.Duration(0)
	if f.fails > 0 {
		pause = min(pauseMin<<min(f.fails, 10), pauseMax)
	}
	f.fails++
	f.failAt, f.next = f.now, f.now.Add(pause)
	reason := fleet.ReasonReplace
	if pause >= time.Second {
		reason = fleet.ReasonPause
	}
	f.note(reason, why, map[string]float64{"failures": float64(f.fails), "pause_s": pause.Seconds()})
	f.roll.failed(f, revision, why, ready)
}

// watchOver finds members that take too long.
func (f *Fleet) watchOver() {
	for _, m := range f.sorted() {
		age := f.now.Sub(m.Since)
		switch {
		case m.State == fleet.Ready && age >= provenMin && m.Since.After(f.failAt):
			f.fails = 0
		case m.State == fleet.Starting && m.admitted && age > absentMax:
			f.failed(m.Revision, fmt.Sprintf("%s was missing for %v", m.Proc, absentMax), true)
			f.evict(m, fleet.ReasonReplace, "it was missing from the members' directory for too long")
		}
	}
}

func (f *Fleet) dialled() {
	if f.size.want == 0 && !f.record.Removed {
		f.size.active = f.now
		f.grow(1, fleet.ReasonWanted, "a client found no member", nil)
	}
}

// reconcile starts what is missing and asks to go what is too much.
func (f *Fleet) reconcile() {
	if f.record.Removed {
		f.leave()
		return
	}
	next, old := f.wanted()
	room := f.room()
	room -= f.fill(f.record.Revision, next, room)
	f.trim(f.record.Revision, next)
	if f.rolling() {
		f.fill(f.record.Stable.Revision, old, room)
		f.trim(f.record.Stable.Revision, old)
	}
	f.dropOthers()
	f.tellPolicy()
}

// room is how many more there may be, of all revisions.
func (f *Fleet) room() int {
	most := f.size.want
	if f.rolling() {
		most += f.surge()
		if !f.passed() {
			most = max(most, f.size.want+f.canaries())
		}
	}
	return max(0, most-f.alive()-f.pending())
}

// dropOthers asks members to go whose revision is not wanted any more, because another took its
// place before it was in force: those that do not serve, those of a revision that was taken back,
// and of the others as many as can be done without.
func (f *Fleet) dropOthers() {
	extra := len(f.ready(0)) - max(min(f.size.want, 1), f.size.want-f.record.Spec.Update.Unavailable)
	for _, m := range f.sorted() {
		switch {
		case m.State == fleet.Draining, m.Revision == f.record.Revision,
			f.rolling() && m.Revision == f.record.Stable.Revision:
			continue
		case m.State == fleet.Ready && f.record.Undone == 0:
			if extra <= 0 {
				continue
			}
			extra--
		}
		f.evict(m, fleet.ReasonSurplus, "its revision is not wanted any more")
	}
}

func (f *Fleet) leave() {
	for _, m := range f.sorted() {
		if m.State != fleet.Draining {
			f.evict(m, fleet.ReasonRemoved, "the fleet was removed")
		}
	}
	if len(f.members) == 0 && f.pending() == 0 {
		f.do(Forget{})
	}
}

// fill spawns what is missing of a revision, as far as there is room, and tells how many those are.
func (f *Fleet) fill(revision uint64, n, room int) (spawned int) {
	missing := min(n-f.count(revision), room)
	if missing <= 0 || f.now.Before(f.next) {
		return 0
	}
	if f.fails > 1 { // one at a time, while it is not known whether they live
		missing = min(missing, max(0, 1-f.unproven(revision)))
	}
	for _, s := range f.distribute(revision, n, missing) {
		f.start(s)
	}
	return missing
}

// trim asks members of a revision to go that are too many: first those that do not serve yet, then
// the youngest.
func (f *Fleet) trim(revision uint64, n int) {
	var of []*member
	for _, m := range f.sorted() {
		if m.Revision == revision && m.State != fleet.Draining {
			of = append(of, m)
		}
	}
	extra := len(of) - n
	if extra <= 0 {
		return
	}
	slices.SortFunc(of, func(a, b *member) int {
		if x, y := a.State == fleet.Ready, b.State == fleet.Ready; x != y {
			if y {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.seq, a.seq)
	})
	for _, m := range of[:extra] {
		f.evict(m, fleet.ReasonSurplus, fmt.Sprintf("%d of revision %d are wanted", n, revision))
	}
}

func (f *Fleet) evict(m *member, reason, why string) {
	f.become(m, fleet.Draining, why)
	f.do(Evict{m.Proc, f.record.Spec.Grace.Or(10 * time.Second)})
	if reason == fleet.ReasonReplace { // the others are noted as what the whole fleet does
		f.note(reason, fmt.Sprintf("%s of revision %d goes: %s", m.Proc, m.Revision, why), nil)
	}
}

func (f *Fleet) become(m *member, s fleet.State, why string) {
	if m.State == s || m.State == fleet.Draining {
		return
	}
	m.State, m.Since, m.Why = s, f.now, why
}

// count is how many of a revision are there, or on their way, and stay.
func (f *Fleet) count(revision uint64) int {
	n := f.spawning[revision]
	for _, m := range f.sorted() {
		if m.Revision == revision && m.State != fleet.Draining {
			n++
		}
	}
	return n
}

// unproven is how many of a revision are on their way.
func (f *Fleet) unproven(revision uint64) int {
	n := f.spawning[revision]
	for _, m := range f.sorted() {
		if m.Revision == revision && m.State == fleet.Starting {
			n++
		}
	}
	return n
}

// alive is how many stay, of all revisions.
func (f *Fleet) alive() (n int) {
	for _, m := range f.sorted() {
		if m.State != fleet.Draining {
			n++
		}
	}
	return n
}

func (f *Fleet) pending() (n int) {
	for _, k := range f.spawning {
		n += k
	}
	return n
}

// ready returns the ready members of a revision, or of all revisions if it is 0.
func (f *Fleet) ready(revision uint64) (ms []*member) {
	for _, m := range f.sorted() {
		if m.State == fleet.Ready && (revision == 0 || m.Revision == revision) {
			ms = append(ms, m)
		}
	}
	return ms
}

// sorted are the members in the order in which they came. The slice is good until the next change
// of members.
func (f *Fleet) sorted() []*member {
	if len(f.order) > len(f.members) {
		f.order = slices.DeleteFunc(slices.Clone(f.order), func(m *member) bool { return f.members[m.Proc] != m })
	}
	return f.order
}

func (f *Fleet) do(e Effect) { f.out = append(f.out, e) }

func (f *Fleet) note(reason, why string, numbers map[string]float64) {
	f.seq++
	f.do(Note{fleet.Decision{Seq: f.seq, Time: f.now, Fleet: f.record.Spec.Name, Reason: reason, Why: why,
		Numbers: numbers}})
}

// save changes the record.
func (f *Fleet) save(what string, change func(r *fleet.Record)) {
	r := f.record
	change(&r)
	r.Generation++
	r.At, r.By, r.What = f.now, "", what
	f.record = r
	f.do(Save{r})
}

// Status is the fleet as it is, with its members if all.
func (f *Fleet) Status(all bool) fleet.Status {
	least, most := f.record.Spec.Bounds(f.now)
	s := fleet.Status{Name: f.record.Spec.Name, Generation: f.record.Generation, Revision: f.record.Revision,
		Phase: f.phase(), Want: f.size.want, Starting: f.pending(), Least: least, Most: most,
		Choice: cmp.Or(f.record.Spec.Policy.Choice, "turn"), At: f.now}
	if f.record.Stable != nil {
		s.Old = f.record.Stable.Revision
	}
	for _, m := range f.sorted() {
		switch m.State {
		case fleet.Ready:
			s.Ready++
			s.Busy += m.Load.Busy
			s.Rate += m.Rate
		case fleet.Draining:
			s.Draining++
		default:
			s.Starting++
		}
		s.Failed += m.Load.Failed
		if all {
			s.Members = append(s.Members, m.Member)
		}
	}
	s.Busy /= float64(max(1, s.Ready))
	return s
}

// Due is how soon a member's next report is wanted: soon if it is busy, and so that a large fleet
// does not keep its coordinator busy.
func (f *Fleet) Due(busy float64) time.Duration {
	const perSecond = 2000 // reports that a coordinator takes from one fleet
	due := 250 * time.Millisecond
	if busy > 0.3 || f.size.want == 0 {
		due = Every
	}
	return max(due, time.Duration(len(f.members))*time.Second/perSecond)
}
