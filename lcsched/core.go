// Package lcsched places latency-critical procs (001 §4.3): by the cores and the memory that they reserve, by the labels of machines, and spread over failure domains. Core is the pure state machine, Service the
// shell that answers machines.
//
// A proc that fits nowhere now waits, in the order of arrival; who waits for long has a machine kept for it. One that no machine could ever take is refused at once, and told what is missing. What
// best-effort procs hold does not count against a reservation, because they give way (schedd); among machines those are preferred where nobody has to.
//
// It promises that what it has given a machine never exceeds what the machine has, as long as it is the only one that leads, and that each job it was told of is granted, refused or still
// waits. It keeps nothing: whoever leads next is told by each machine what is reserved there, and by each home what waits, and places nothing on a machine that has not spoken. That no proc starts twice is the
// home's promise (schedd), from which whoever is granted a job takes it; schedd also checks a machine's reservations again, so that two leaders at once do no harm.
//
// Users: cmd/lcsched; kernel for the names of the methods.
package lcsched

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

const (
	// patience is how long a job is overtaken by others that fit, before a machine is kept for it.
	patience = 10 * time.Second
	// settle is how long after its start a leader refuses nothing, because machines that have not spoken yet may be larger.
	settle = 3 * time.Second
	// retry is how often who waits is looked at again though nothing is known to have changed.
	retry = time.Second
	// absence is how long a machine that is gone is thought to come back, when it is asked whether a job can ever fit.
	absence = time.Minute
)

// Job is a latency-critical proc that wants a place.
type Job struct {
	ID     sigma.ProcID
	Realm  sigma.RealmID
	Name   string
	CPU    sigma.MilliCPU
	Memory sigma.Bytes
	Where  []string   // labels that the machine must have, as in zone=a
	Spread string     // the label whose values are failure domains; "" = each machine is one
	Home   sigma.Life // where it was spawned, and where its descriptor is
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
	// Attended: a machine offers itself, and says what is reserved there and what best-effort procs hold. It attends until Left, or until it attends in another life.
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

	held     map[sigma.ProcID]*reservation
	heldCPU  sigma.MilliCPU
	heldMem  sigma.Bytes
	of       map[sigma.RealmID]Amount // what is held, by realms
	pieces   map[sigma.RealmID]Amount // kept for realms' minima, what these have reserved included
	aside    Amount                   // of pieces, what is not reserved
	lent     sigma.Bytes
	keptFor  *waiting
	declined sigma.ProcID // by which it was said last that there is no room; it is not granted that again before something changes
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
	kept  *machine
	why   string // what it waits for
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
	known    map[sigma.ProcID]*waiting
	at       map[sigma.ProcID]int       // machines where it is reserved: more than one while a former leader's grant is being given back
	spread   map[group]map[*machine]int // how many procs of a group are at a machine
	limits   map[sigma.RealmID]Limits
	of       map[sigma.RealmID]Amount // reserved at all machines
	freed    map[*machine]bool        // in this step; nobody who waited before fits anywhere else
}

// NewCore makes the state of a leader that has heard of nothing.
func NewCore() *Core {
	return &Core{machines: map[sigma.MachineID]*machine{}, known: map[sigma.ProcID]*waiting{}, at: map[sigma.ProcID]int{}, spread: map[group]map[*machine]int{}, limits: map[sigma.RealmID]Limits{}, of: map[sigma.RealmID]Amount{}, freed: map[*machine]bool{}}
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
		out = append(out, Waits{w.Job, w.since, w.why})
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

// Wakes is when Ticked is needed after now; zero if it is not.
func (c *Core) Wakes(now time.Time) (at time.Time) {
	soonest := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if len(c.queue) == 0 {
		return at
	}
	soonest(c.begun.Add(settle))
	soonest(now.Add(retry))
	for _, w := range c.queue {
		if w.kept == nil {
			soonest(w.since.Add(patience))
		}
	}
	for _, m := range c.machines {
		if !m.left.IsZero() {
			soonest(m.left.Add(absence))
		}
	}
	return at
}

// Step applies one event and says what is to be done.
func (c *Core) Step(now time.Time, e Event) []Effect {
	if c.begun.IsZero() {
		c.begun = now
	}
	look := false // at all that wait, because time or machines are others
	switch e := e.(type) {
	case Attended:
		c.attended(now, e)
		look = true
	case Left:
		c.gone(now, e.Life)
		look = true
	case Ticked:
		look = true
		for _, m := range c.machines {
			if m.declined != "" {
				m.declined = ""
				c.freed[m] = true
			}
		}
	case Enqueued:
		for _, j := range e.Jobs {
			if c.known[j.ID] == nil && c.at[j.ID] == 0 && c.attends(j.Home) != nil {
				w := &waiting{Job: j, since: now, fresh: true}
				c.known[j.ID] = w
				c.queue = append(c.queue, w)
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
			m.declined = ""
		}
	case Declined:
		if m := c.attends(e.Life); m != nil && m.held[e.ID] != nil {
			w := m.held[e.ID].job
			c.release(m, e.ID)
			m.declined = e.ID
			if w != nil && c.attends(w.Home) != nil && c.at[w.ID] == 0 {
				w.fresh = true
				c.known[w.ID] = w
				c.queue = append([]*waiting{w}, c.queue...)
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
	c.assign()
	out := c.place(now, look)
	for n := 0; len(out) > n; { // a machine that was kept for one of them is everybody's now
		n = len(out)
		out = append(out, c.place(now, false)...)
	}
	clear(c.freed)
	return out
}

// forgetAbsent forgets machines that are away for so long that they are not thought to come back.
func (c *Core) forgetAbsent(now time.Time) {
	maps.DeleteFunc(c.machines, func(_ sigma.MachineID, m *machine) bool { return !m.left.IsZero() && now.Sub(m.left) >= absence })
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
	m := &machine{life: e.Life, cpu: e.CPU, memory: e.Memory, labels: e.Labels, closed: e.Closed, lent: e.Lent, held: map[sigma.ProcID]*reservation{}, of: map[sigma.RealmID]Amount{}}
	c.machines[e.Life.Machine] = m
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
}

// gone notes that a machine attends no more.
func (c *Core) gone(now time.Time, l sigma.Life) {
	m := c.attends(l)
	if m == nil {
		return
	}
	c.forget(m)
	m.left = now
}

// forget drops what a machine holds and is the home of.
func (c *Core) forget(m *machine) {
	for _, id := range slices.Sorted(maps.Keys(m.held)) {
		c.release(m, id)
	}
	if m.keptFor != nil {
		m.keptFor.kept, m.keptFor = nil, nil
	}
	for _, w := range slices.Clone(c.queue) {
		if w.Home == m.life {
			c.drop(w)
		}
	}
}

// drop takes a job out of the queue.
func (c *Core) drop(w *waiting) {
	delete(c.known, w.ID)
	if w.kept != nil {
		c.freed[w.kept] = true
		w.kept.keptFor, w.kept = nil, nil
	}
	c.queue = slices.DeleteFunc(c.queue, func(x *waiting) bool { return x == w })
}

func (c *Core) hold(m *machine, r *reservation) {
	m.held[r.ID] = r
	m.heldCPU += r.CPU
	m.heldMem += r.Memory
	a := Amount{r.CPU, r.Memory}
	m.of[r.Realm], c.of[r.Realm] = m.of[r.Realm].plus(a), c.of[r.Realm].plus(a)
	m.setAside()
	c.at[r.ID]++
	g := group{r.Realm, r.Name}
	if c.spread[g] == nil {
		c.spread[g] = map[*machine]int{}
	}
	c.spread[g][m]++
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
	m.heldCPU -= r.CPU
	m.heldMem -= r.Memory
	a := Amount{r.CPU, r.Memory}
	for _, of := range []map[sigma.RealmID]Amount{m.of, c.of} {
		if of[r.Realm] = of[r.Realm].less(a); of[r.Realm] == (Amount{}) {
			delete(of, r.Realm)
		}
	}
	m.setAside()
	if l := c.limits[r.Realm]; l.Reservable != (Amount{}) { // another may go on anywhere
		for _, other := range c.machines {
			c.freed[other] = true
		}
	}
	g := group{r.Realm, r.Name}
	if c.spread[g][m]--; c.spread[g][m] == 0 {
		delete(c.spread[g], m)
	}
	if len(c.spread[g]) == 0 {
		delete(c.spread, g)
	}
}

// place grants what fits, keeps machines for who waits for long, and refuses what can never fit. Without look it sees only to who is new, and to the machines that got room.
func (c *Core) place(now time.Time, look bool) (out []Effect) {
	if len(c.queue) == 0 || !look && len(c.freed) == 0 && !c.queue[len(c.queue)-1].fresh && !c.queue[0].fresh {
		return nil
	}
	settled := now.Sub(c.begun) >= settle
	for _, w := range slices.Clone(c.queue) {
		fresh := w.fresh
		w.fresh = false
		var m *machine
		if fresh {
			m = c.best(w, maps.Values(c.machines))
		} else if len(c.freed) > 0 {
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
		why, never := c.lacks(&w.Job)
		w.why = why
		switch {
		case never && settled:
			c.drop(w)
			out = append(out, Refuse{w.Job, why})
		case !never && w.kept == nil && now.Sub(w.since) >= patience:
			c.keep(w)
		}
	}
	return out
}

func (m *machine) has(labels []string) bool {
	return !slices.ContainsFunc(labels, func(l string) bool {
		name, value, _ := strings.Cut(l, "=")
		v, ok := m.labels[name]
		return !ok || v != value
	})
}

// takes reports whether a job fits into what is not reserved, nor kept for other realms, and its realm may have it there.
func (c *Core) takes(m *machine, w *waiting) bool {
	if !m.left.IsZero() || m.closed || m.keptFor != nil && m.keptFor != w && !m.own(w) || m.declined == w.ID || !m.has(w.Where) {
		return false
	}
	free := m.free(w.Realm)
	return w.CPU <= free.CPU && w.Memory <= free.Memory && m.of[w.Realm].plus(w.amount()).within(c.limits[w.Realm].Max)
}

// own reports whether a job takes nothing but what is kept there for its realm's minimum, and so nothing from another realm's job that the machine is kept for.
func (m *machine) own(w *waiting) bool {
	return m.keptFor.Realm != w.Realm && w.amount().less(m.pieces[w.Realm].less(m.of[w.Realm])) == Amount{}
}

// crowd counts the procs of a job's group in the failure domain of a machine.
func (c *Core) crowd(w *waiting, m *machine) (n int) {
	of := c.spread[group{w.Realm, w.Name}]
	if w.Spread == "" {
		return of[m]
	}
	for other, k := range of {
		if other.labels[w.Spread] == m.labels[w.Spread] {
			n += k
		}
	}
	return n
}

// best chooses the machine for a job: where its failure domain has the fewest of its group, then where no best-effort proc has to go, then the fullest that has room, so that large jobs find room later.
func (c *Core) best(w *waiting, of iter.Seq[*machine]) (best *machine) {
	type rank struct {
		crowd, evicts int
		left          sigma.MilliCPU
		memory        sigma.Bytes
		name          sigma.MachineID
	}
	var least rank
	if why, _ := c.barred(&w.Job); why != "" {
		return nil
	}
	for m := range of {
		if !c.takes(m, w) {
			continue
		}
		r := rank{crowd: c.crowd(w, m), left: m.cpu - m.heldCPU, memory: m.memory - m.heldMem, name: m.life.Machine}
		if m.heldMem+m.lent+w.Memory > m.memory {
			r.evicts = 1
		}
		if best == nil || cmp.Or(cmp.Compare(r.crowd, least.crowd), cmp.Compare(r.evicts, least.evicts), cmp.Compare(r.left, least.left), cmp.Compare(r.memory, least.memory), cmp.Compare(r.name, least.name)) < 0 {
			best, least = m, r
		}
	}
	return best
}

// keep reserves for a job the machine with the most room of those that are large enough: nobody else is placed there. Half of the machines at most are kept, but one always may be.
func (c *Core) keep(w *waiting) {
	if why, _ := c.barred(&w.Job); why != "" { // by its own realm
		return
	}
	var best *machine
	n, kept := 0, 0
	for _, m := range c.machines {
		if !m.left.IsZero() || m.closed {
			continue
		}
		n++
		if m.keptFor != nil {
			kept++
			continue
		}
		if whole := m.whole(w.Realm); w.CPU > whole.CPU || w.Memory > whole.Memory || !m.has(w.Where) || !m.of[w.Realm].plus(w.amount()).within(c.limits[w.Realm].Max) {
			continue
		}
		if best == nil || cmp.Or(-cmp.Compare(m.cpu-min(m.cpu, m.heldCPU), best.cpu-min(best.cpu, best.heldCPU)), -cmp.Compare(m.memory-min(m.memory, m.heldMem), best.memory-min(best.memory, best.heldMem)), cmp.Compare(m.life.Machine, best.life.Machine)) < 0 {
			best = m
		}
	}
	if best != nil && (kept == 0 || 2*(kept+1) <= n) {
		best.keptFor, w.kept = w, best
	}
}

// yield gives up machines that are kept for jobs which their own realms' limits stop there.
func (c *Core) yield() {
	for _, w := range c.queue {
		m := w.kept
		if m == nil {
			continue
		}
		if why, _ := c.barred(&w.Job); why != "" || !m.of[w.Realm].plus(w.amount()).within(c.limits[w.Realm].Max) {
			c.freed[m] = true
			m.keptFor, w.kept = nil, nil
		}
	}
}

// lacks says what a job waits for, and whether it would for ever.
func (c *Core) lacks(j *Job) (why string, never bool) {
	if why, never = c.barred(j); why != "" {
		return why, never
	}
	var named, cores, memory, both int
	var mostCPU sigma.MilliCPU
	var mostMemory sigma.Bytes
	for _, m := range c.machines {
		if !m.has(j.Where) {
			continue
		}
		named++
		mostCPU, mostMemory = max(mostCPU, m.cpu), max(mostMemory, m.memory)
		if j.CPU <= m.cpu {
			cores++
		}
		if j.Memory <= m.memory {
			memory++
		}
		if j.CPU <= m.cpu && j.Memory <= m.memory {
			both++
		}
	}
	of := "machine"
	if len(j.Where) > 0 {
		of += " with " + strings.Join(j.Where, ", ")
	}
	switch {
	case named == 0:
		return fmt.Sprintf("there is no %s", of), true
	case cores == 0:
		return fmt.Sprintf("it reserves %v cores; no %s has more than %v", cpus(j.CPU), of, cpus(mostCPU)), true
	case memory == 0:
		return fmt.Sprintf("it reserves %v of memory; no %s has more than %v", j.Memory, of, mostMemory), true
	case both == 0:
		return fmt.Sprintf("it reserves %v cores and %v of memory; no single %s has both", cpus(j.CPU), j.Memory, of), true
	}
	reserved := "what is reserved"
	for _, m := range c.machines {
		if m.whole(j.Realm) != (Amount{m.cpu, m.memory}) {
			reserved += ", or kept for realms by their minima,"
			break
		}
	}
	return fmt.Sprintf("%s leaves no %s with %v cores and %v of memory", reserved, of, cpus(j.CPU), j.Memory), false
}

func cpus(c sigma.MilliCPU) string {
	return strings.TrimSuffix(fmt.Sprintf("%.3g", float64(c)/1000), ".0")
}
