// Package lcsched places latency-critical procs (001 §4.3): by the cores and the memory that they
// reserve, by the labels of machines, and spread over failure domains. Core is the pure state
// machine, Service the shell that answers machines.
//
// A proc that fits nowhere now waits, in the order of arrival; who waits for long has a machine
// kept for it. One that no machine could ever take is refused at once, and told what is missing.
// What best-effort procs hold does not count against a reservation, because they give way (schedd);
// among machines those are preferred where nobody has to.
//
// It promises that what it has given a machine never exceeds what the machine has, as long as it is
// the only one that leads, and that each job it was told of is granted, refused or still waits. It
// keeps nothing: whoever leads next is told by each machine what is reserved there, and by each
// home what waits, and places nothing on a machine that has not spoken. That no proc starts twice
// is the home's promise (schedd), from which whoever is granted a job takes it; schedd also checks
// a machine's reservations again, so that two leaders at once do no harm.
//
// Users: cmd/lcsched; kernel for the names of the methods.
package lcsched

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
)

const (
	// patience is how long a job is overtaken by others that fit, before a machine is kept for it.
	patience = 10 * time.Second
	// settle is how long after its start a leader refuses nothing, because machines that have not
	// spoken yet may be larger.
	settle = 3 * time.Second
	// retry is how often who waits is looked at again though nothing is known to have changed.
	retry = time.Second
	// absence is how long a machine that is gone is thought to come back, when it is asked whether
	// a job can ever fit.
	absence = time.Minute
)

// Job is a latency-critical proc that wants a place.
type Job struct {
	ID     sigma.ProcID
	Realm  sigma.RealmID
	Name   string
	CPU    sigma.MilliCPU
	Memory sigma.Bytes
	Where  []string        // labels that the machine must have, as in zone=a
	Spread string          // the label whose values are failure domains; "" = each machine is one
	Near   sigma.MachineID // where it should be if there is room within sigma.NearWait; "" = anywhere
	Home   sigma.Life      // where it was spawned, and where its descriptor is
}

// Held is a reservation at a machine.
type Held struct {
	ID     sigma.ProcID
	Realm  sigma.RealmID
	Name   string
	CPU    sigma.MilliCPU
	Memory sigma.Bytes
}

// Event is something that happened.
type Event interface{ event() }

// The events. Those of a machine's life that does not attend do nothing.
type (
	// Attended: a machine offers itself, and says what is reserved there and what best-effort procs
	// hold. It attends until Left, or until it attends in another life.
	Attended struct {
		Life   sigma.Life
		CPU    sigma.MilliCPU
		Memory sigma.Bytes
		Labels map[string]string
		Held   []Held
		Lent   sigma.Bytes
		Closed bool // it takes nothing new
	}
	// Left: the machine's session is over. What it is the home of, and waits, goes with it.
	Left struct{ Life sigma.Life }
	// Enqueued: procs were spawned. Those that are known are ignored.
	Enqueued struct{ Jobs []Job }
	// Canceled: one that waits is not wanted any more, says its home.
	Canceled struct {
		Home sigma.Life
		ID   sigma.ProcID
	}
	// Released: reservations at a machine are over.
	Released struct {
		Life sigma.Life
		IDs  []sigma.ProcID
	}
	// Declined: the machine has no room for what it was granted. The job waits again.
	Declined struct {
		Life sigma.Life
		ID   sigma.ProcID
	}
	// Lent: best-effort procs hold so much of a machine's memory.
	Lent struct {
		Life   sigma.Life
		Memory sigma.Bytes
	}
	// Ticked: time has passed; Core.Wakes tells when it is needed.
	Ticked struct{}
)

func (Attended) event() {}
func (Left) event()     {}
func (Enqueued) event() {}
func (Canceled) event() {}
func (Released) event() {}
func (Declined) event() {}
func (Lent) event()     {}
func (Ticked) event()   {}

// Effect is something for the shell to do.
type Effect interface{ effect() }

// The effects.
type (
	// Grant gives a job to a machine, where its reservation counts from now on.
	Grant struct {
		To  sigma.Life
		Job Job
	}
	// Refuse tells a job's home that it will never fit.
	Refuse struct {
		Job Job
		Why string
	}
)

func (Grant) effect()  {}
func (Refuse) effect() {}

// machine is one that attends, or did.
type machine struct {
	life   sigma.Life
	cpu    sigma.MilliCPU
	memory sigma.Bytes
	labels map[string]string
	closed bool
	left   time.Time // zero = it attends

	held    map[sigma.ProcID]*reservation
	heldCPU sigma.MilliCPU
	heldMem sigma.Bytes
	of      map[sigma.RealmID]Amount // what is held, by realms
	pieces  map[sigma.RealmID]Amount // kept for realms' minima, what these have reserved included
	pieced  Amount                   // all pieces
	aside   Amount                   // of pieces, what is not reserved
	lent    sigma.Bytes
	keptFor *waiting
	// of which it said that there is no room; it is not granted them again before something changes
	declined map[sigma.ProcID]bool
	shape    *shape
	listed   bool // in rooms
}

// reservation is what is held at a machine. job is nil if it was learnt.
type reservation struct {
	Held
	job *waiting
}

// waiting is a job that waits.
type waiting struct {
	Job
	since time.Time
	fresh bool // it was not looked at yet
	gone  bool // it waits no more
	hopes bool // for the machine that it should be near, which alone it takes
	kept  *machine
	told  decision.Reason
}

// group is those procs that are to be spread.
type group struct {
	realm sigma.RealmID
	name  string
}

// Core is the state. Not safe for concurrent use.
type Core struct {
	begun    time.Time // zero before the first event
	machines map[sigma.MachineID]*machine
	queue    []*waiting // oldest first
	gaps     int        // in queue, of those that wait no more; none between steps
	fresh    bool       // somebody in queue was not looked at yet
	hoping   []*waiting // those that hoped, the oldest first
	ticked   time.Time  // when all that wait were looked at last because time had passed
	known    map[sigma.ProcID]*waiting
	// machines where it is reserved: more than one while a former leader's grant is being given
	// back
	at      map[sigma.ProcID]int
	spread  map[group]map[*machine]int // how many procs of a group are at a machine
	limits  map[sigma.RealmID]Limits
	of      map[sigma.RealmID]Amount // reserved at all machines
	freed   map[*machine]bool        // in this step; nobody who waited before fits anywhere else
	may     map[sigma.RealmID]bool   // in this step these came below what they may reserve, and may fit anywhere
	rooms   rooms
	keeping int // machines that are kept for a job
	minima  minima
}

// NewCore makes the state of a leader that has heard of nothing.
func NewCore() *Core {
	return &Core{machines: map[sigma.MachineID]*machine{}, known: map[sigma.ProcID]*waiting{},
		at: map[sigma.ProcID]int{}, spread: map[group]map[*machine]int{}, limits: map[sigma.RealmID]Limits{},
		of:    map[sigma.RealmID]Amount{},
		freed: map[*machine]bool{}, may: map[sigma.RealmID]bool{}, rooms: newRooms(), minima: newMinima()}
}

// Waits is a job that waits, and why.
type Waits struct {
	Job
	Since time.Time
	Why   string
}

// Waiting lists what waits, the oldest first.
func (c *Core) Waiting() (out []Waits) {
	for _, w := range c.queue {
		why := c.lacks(&w.Job)
		if w.hopes {
			why = fmt.Sprintf("it should be near machine %s, which has no room, and waits %v for it", w.Near,
				sigma.NearWait)
		}
		out = append(out, Waits{w.Job, w.since, why})
	}
	return out
}

// Held is what is reserved at a machine that attends.
func (c *Core) Held(id sigma.MachineID) (cpu sigma.MilliCPU, memory sigma.Bytes) {
	if m := c.machines[id]; m != nil {
		return m.heldCPU, m.heldMem
	}
	return 0, 0
}

// Wakes is when Ticked is needed after now; zero if it is not. What is due in between, such as a
// job's patience, waits until then.
func (c *Core) Wakes(now time.Time) time.Time {
	if len(c.queue) == 0 {
		return time.Time{}
	}
	at := now.Add(retry)
	if settled := c.begun.Add(settle); settled.After(now) && settled.Before(at) {
		at = settled
	}
	if len(c.hoping) > 0 {
		if despairs := c.hoping[0].since.Add(sigma.NearWait); despairs.Before(at) {
			at = despairs
		}
	}
	return at
}

// Step applies one event and says what is to be done.
func (c *Core) Step(now time.Time, e Event) []Effect {
	if c.begun.IsZero() {
		c.begun = now
	}
	look := false // at all that wait, because time has passed or there is less
	switch e := e.(type) {
	case Attended:
		c.attended(now, e)
	case Left:
		c.gone(now, e.Life)
		look = true
	case Ticked:
		if c.hopeEnds(now) && now.Sub(c.ticked) < retry { // it is for that one alone
			break
		}
		look, c.ticked = true, now
		for _, m := range c.machines {
			if len(m.declined) > 0 {
				m.declined = nil
				c.freed[m] = true
			}
		}
	case Enqueued:
		for _, j := range e.Jobs {
			if c.known[j.ID] == nil && c.at[j.ID] == 0 && c.attends(j.Home) != nil {
				w := &waiting{Job: j, since: now, fresh: true}
				c.known[j.ID] = w
				c.queue = append(c.queue, w)
				c.fresh = true
			}
		}
	case Canceled:
		if w := c.known[e.ID]; w != nil && w.Home == e.Home {
			c.drop(w)
		}
	case Released:
		if m := c.attends(e.Life); m != nil {
			for _, id := range e.IDs {
				c.release(m, id)
			}
			m.declined = nil
		}
	case Declined:
		if m := c.attends(e.Life); m != nil && m.held[e.ID] != nil {
			w := m.held[e.ID].job
			c.release(m, e.ID)
			if m.declined == nil {
				m.declined = map[sigma.ProcID]bool{}
			}
			m.declined[e.ID] = true
			if w != nil && c.attends(w.Home) != nil && c.at[w.ID] == 0 {
				w.fresh, w.gone, w.hopes, c.fresh = true, false, false, true
				c.known[w.ID] = w
				c.queue = slices.Insert(c.queue, 0, w)
			}
		}
	case Limited:
		c.limited(e)
		look = true
	case Lent:
		if m := c.attends(e.Life); m != nil {
			m.lent = e.Memory
		}
	}
	if look {
		c.forgetAbsent(now)
		c.yield()
	}
	c.despair(now)
	c.assign()
	out := c.place(now, look)
	for n := 0; len(out) > n; { // a machine that was kept for one of them is everybody's now
		n = len(out)
		out = append(out, c.place(now, false)...)
	}
	clear(c.freed)
	clear(c.may)
	c.tidy()
	return out
}

// tidy takes those out of the queue that wait no more.
func (c *Core) tidy() {
	if c.gaps > 0 {
		c.queue = slices.DeleteFunc(c.queue, func(w *waiting) bool { return w.gone })
		c.gaps = 0
	}
}

// forgetAbsent forgets machines that are away for so long that they are not thought to come back.
func (c *Core) forgetAbsent(now time.Time) {
	if len(c.rooms.byRoom) == len(c.machines) {
		return
	}
	for id, m := range c.machines {
		if !m.left.IsZero() && now.Sub(m.left) >= absence {
			delete(c.machines, id)
			c.rooms.unshape(m)
		}
	}
}

// attends finds the machine of a life that attends.
func (c *Core) attends(l sigma.Life) *machine {
	if m := c.machines[l.Machine]; m != nil && m.life == l && m.left.IsZero() {
		return m
	}
	return nil
}

func (c *Core) attended(now time.Time, e Attended) {
	if m := c.machines[e.Life.Machine]; m != nil && m.left.IsZero() {
		c.gone(now, m.life)
	}
	m := &machine{life: e.Life, cpu: e.CPU, memory: e.Memory, labels: e.Labels, closed: e.Closed, lent: e.Lent,
		held: map[sigma.ProcID]*reservation{}, of: map[sigma.RealmID]Amount{}}
	if old := c.machines[e.Life.Machine]; old != nil {
		c.rooms.unshape(old)
	}
	c.machines[e.Life.Machine] = m
	c.rooms.addShape(m)
	c.freed[m] = true
	for _, h := range e.Held {
		if m.held[h.ID] != nil {
			continue
		}
		if w := c.known[h.ID]; w != nil { // a leader before this one granted it
			c.drop(w)
		}
		c.hold(m, &reservation{Held: h})
	}
	c.rooms.list(m)
	c.minima.roomier[m] = true
}

// gone notes that a machine attends no more.
func (c *Core) gone(now time.Time, l sigma.Life) {
	m := c.attends(l)
	if m == nil {
		return
	}
	c.forget(m)
	c.rooms.unlist(m)
	c.dropPieces(m, func(sigma.RealmID) bool { return true })
	m.left = now
}

// forget drops what a machine holds and is the home of.
func (c *Core) forget(m *machine) {
	for _, id := range slices.Sorted(maps.Keys(m.held)) {
		c.release(m, id)
	}
	c.unkeep(m)
	for _, w := range c.queue {
		if w.Home == m.life && !w.gone {
			c.drop(w)
		}
	}
}

// unkeep gives up a machine that is kept for a job.
func (c *Core) unkeep(m *machine) {
	if m.keptFor != nil {
		m.keptFor.kept, m.keptFor = nil, nil
		c.keeping--
		c.freed[m] = true
	}
}

// drop takes a job out of the queue.
func (c *Core) drop(w *waiting) {
	delete(c.known, w.ID)
	if w.kept != nil {
		c.unkeep(w.kept)
	}
	w.gone = true
	c.gaps++
}

func (c *Core) hold(m *machine, r *reservation) {
	m.held[r.ID] = r
	c.holds(m, r.Realm, func(is Amount) Amount { return is.plus(Amount{r.CPU, r.Memory}) })
	c.at[r.ID]++
	g := group{r.Realm, r.Name}
	if c.spread[g] == nil {
		c.spread[g] = map[*machine]int{}
	}
	c.spread[g][m]++
}

// holds changes what a realm has reserved at a machine.
func (c *Core) holds(m *machine, realm sigma.RealmID, change func(Amount) Amount) {
	listed := m.listed
	c.rooms.unlist(m)
	before := m.piece(realm)
	held := change(Amount{m.heldCPU, m.heldMem})
	m.heldCPU, m.heldMem = held.CPU, held.Memory
	for _, of := range []map[sigma.RealmID]Amount{m.of, c.of} {
		if of[realm] = change(of[realm]); of[realm] == (Amount{}) {
			delete(of, realm)
		}
	}
	m.aside = m.aside.less(before).plus(m.piece(realm))
	if listed {
		c.rooms.list(m)
	}
	c.minima.roomier[m] = true
}

func (c *Core) release(m *machine, id sigma.ProcID) {
	r := m.held[id]
	if r == nil {
		return
	}
	c.freed[m] = true
	delete(m.held, id)
	if c.at[id]--; c.at[id] == 0 {
		delete(c.at, id)
	}
	c.holds(m, r.Realm, func(is Amount) Amount { return is.less(Amount{r.CPU, r.Memory}) })
	if c.limits[r.Realm].Reservable != (Amount{}) { // another may go on anywhere
		c.may[r.Realm] = true
	}
	g := group{r.Realm, r.Name}
	if c.spread[g][m]--; c.spread[g][m] == 0 {
		delete(c.spread[g], m)
	}
	if len(c.spread[g]) == 0 {
		delete(c.spread, g)
	}
}

// place grants what fits, keeps machines for who waits for long, and refuses what can never fit.
// Without look it sees only to who is new, and to the machines that got room.
func (c *Core) place(now time.Time, look bool) (out []Effect) {
	if len(c.queue) == c.gaps || !look && len(c.freed) == 0 && !c.fresh && len(c.may) == 0 {
		return nil
	}
	c.fresh = false
	settled := now.Sub(c.begun) >= settle
	most := c.most(c.freed)
	full, unkept := map[wish]bool{}, map[wish]bool{} // that no machine takes, or can be kept for, in this call
	for _, w := range c.queue {
		if w.gone {
			continue
		}
		fresh := w.fresh
		w.fresh = false
		var m *machine
		switch {
		case fresh && c.hopesFor(now, w):
			m = c.best(w, slices.Values([]*machine{c.machines[w.Near]}))
			if w.hopes = m == nil; w.hopes {
				c.hoping = append(c.hoping, w)
				continue
			}
		case w.hopes:
			if m = c.machines[w.Near]; m == nil || !c.freed[m] && !c.may[w.Realm] ||
				c.best(w, slices.Values([]*machine{m})) == nil {
				continue
			}
		case fresh || c.may[w.Realm]:
			m = c.anywhere(w, full)
		case w.CPU <= most.CPU && w.Memory <= most.Memory:
			m = c.best(w, maps.Keys(c.freed))
		}
		if m != nil {
			c.drop(w)
			c.hold(m, &reservation{Held{w.ID, w.Realm, w.Name, w.CPU, w.Memory}, w})
			out = append(out, Grant{m.life, w.Job})
			continue
		}
		if !fresh && !look {
			continue
		}
		switch never := c.never(&w.Job); {
		case never && settled:
			c.drop(w)
			why := c.lacks(&w.Job)
			out = append(out, Refuse{w.Job, why})
		case !never && w.kept == nil && now.Sub(w.since) >= patience:
			c.keep(w, unkept)
		}
	}
	return out
}

// hopesFor reports whether a job is to wait for the machine that it should be near: one that
// attends and could take it, for a while after it came.
func (c *Core) hopesFor(now time.Time, w *waiting) bool {
	if w.Near == "" || now.Sub(w.since) >= sigma.NearWait {
		return false
	}
	m := c.machines[w.Near]
	return m != nil && m.listed && !m.closed && w.CPU <= m.cpu && w.Memory <= m.memory && m.has(w.Where)
}

// hopeEnds reports whether a job has hoped for long enough.
func (c *Core) hopeEnds(now time.Time) bool {
	return len(c.hoping) > 0 && now.Sub(c.hoping[0].since) >= sigma.NearWait
}

// despair has those look for any machine that hoped for long enough, or whose machine is gone.
func (c *Core) despair(now time.Time) {
	for len(c.hoping) > 0 && (c.hoping[0].gone || !c.hopesFor(now, c.hoping[0])) {
		w := c.hoping[0]
		c.hoping = c.hoping[1:]
		if w.hopes && !w.gone {
			w.hopes, w.fresh, c.fresh = false, true, true
		}
	}
}

func (m *machine) has(labels []string) bool {
	return !slices.ContainsFunc(labels, func(l string) bool {
		name, value, _ := strings.Cut(l, "=")
		v, ok := m.labels[name]
		return !ok || v != value
	})
}

// takes reports whether a job fits into what is not reserved, nor kept for other realms, and its
// realm may have it there.
func (c *Core) takes(m *machine, w *waiting) bool {
	if !m.left.IsZero() || m.closed || m.keptFor != nil && m.keptFor != w && !m.own(w) || m.declined[w.ID] ||
		!m.has(w.Where) {
		return false
	}
	free := m.free(w.Realm)
	return w.CPU <= free.CPU && w.Memory <= free.Memory && m.of[w.Realm].plus(w.amount()).within(c.limits[w.Realm].Max)
}

// own reports whether a job takes nothing but what is kept there for its realm's minimum, and so
// nothing from another realm's job that the machine is kept for.
func (m *machine) own(w *waiting) bool {
	return m.keptFor.Realm != w.Realm && w.amount().less(m.pieces[w.Realm].less(m.of[w.Realm])) == Amount{}
}
