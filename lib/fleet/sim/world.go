// Package sim runs the core of a fleet's coordinator in virtual time, with members, machines and
// clients that are simulated. It promises that the same seed gives the same run. It knows nothing
// of the system: what a member does is in its Behaviour. Users: its own tests of the core.
package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/lib/fleet/core"
	"sigmaos.dev/sigma"
)

// Behaviour is how members of a revision are.
type Behaviour struct {
	Start   time.Duration // from Spawn until it serves; 0 = 5 ms
	Crash   bool          // it ends before it serves
	Sick    bool          // its health checks fail
	Errors  float64       // share of its requests that fail
	Stay    bool          // it never ends when it is asked to go; it is killed after its grace
	Capped  int           // so many members serve no more than so many of them would; 0 = no bound
	Plain   bool          // it asks nobody before it is published
	Capture bool          // it lies about its load: it is always fully busy
}

// World is the fleet's world.
type World struct {
	Now      time.Time
	Load     float64 // members' worth of requests
	Machines int
	Behave   map[uint64]Behaviour // by revision
	Notes    []fleet.Decision
	Policies int             // how often clients were told
	MostEver int             // members that were there at a time and not draining
	Talk     map[int]float64 // by machine: bytes a second that members exchange with what is there
	Full     map[int]bool    // machines that have no room

	// MemberTime is the time that members ran, Missed how much of the load was not served, both in
	// members' worth of time.
	MemberTime, Missed time.Duration

	c      *core.Fleet
	record fleet.Record // as it is stored
	procs  map[sigma.ProcID]*proc
	order  []*proc // in which they were started
	drawn  int
	rand   *rand.Rand
	gone   bool
	queue  []event
}

type proc struct {
	id       sigma.ProcID
	revision uint64
	machine  int
	serves   time.Time
	ready    bool
	ends     time.Time // zero = it was not asked to go
	known    bool      // the core has had the answer of Spawn
	served   float64
	busy     float64
}

// event is one that the core hears at a time.
type event struct {
	at time.Time
	e  core.Event
}

// perSecond is how many requests one member serves in a second.
const perSecond = 1000

// step is the grain of time.
const step = 10 * time.Millisecond

// New makes a world in which a fleet was just applied.
func New(seed uint64, s fleet.Spec, machines int) *World {
	w := &World{Now: time.Unix(1000, 0).UTC(), Machines: max(1, machines), Behave: map[uint64]Behaviour{},
		Talk: map[int]float64{}, Full: map[int]bool{}, procs: map[sigma.ProcID]*proc{},
		rand: rand.New(rand.NewPCG(seed, 1))}
	w.record = fleet.Record{Generation: 1, Revision: 1, Highest: 1, Spec: s, At: w.Now}
	w.c = core.New(w.Now, w.record, 0)
	w.tell(core.Changed{Record: w.record, Why: "the fleet was made"})
	return w
}

// Apply puts a description in force, as a coordinator does.
func (w *World) Apply(s fleet.Spec) {
	w.record = w.c.Record().Next(s, w.Now, "", "applied")
	w.tell(core.Changed{Record: w.record, Why: "applied"})
}

// Roll gives all members a new revision.
func (w *World) Roll() {
	w.record = w.c.Record().Rolled(w.Now, "")
	w.tell(core.Changed{Record: w.record, Why: "rolled"})
}

// Remove removes the fleet.
func (w *World) Remove() {
	w.record.Removed = true
	w.record.Generation++
	w.tell(core.Changed{Record: w.record, Why: "removed"})
}

// Gone reports whether the fleet was removed and forgotten.
func (w *World) Gone() bool { return w.gone }

// Status is the fleet as its coordinator sees it.
func (w *World) Status() fleet.Status { return w.c.Status(true) }

// Dial is a client that finds no member.
func (w *World) Dial() { w.tell(core.Dialled{}) }

// Restart has another coordinator take over, which knows only what is stored and which procs run.
func (w *World) Restart() {
	w.queue = nil
	w.c = core.New(w.Now, w.record, uint64(len(w.Notes)))
	for _, p := range w.sorted() {
		p.known = true
		w.tell(core.Found{Proc: p.id, Revision: p.revision, Machine: machineName(p.machine)})
	}
	for _, p := range w.sorted() {
		if p.ready && p.ends.IsZero() {
			w.tell(core.Published{Proc: p.id, Is: true})
		}
	}
}

// Kill ends the n-th member, in the order of their start.
func (w *World) Kill(n int) {
	if ps := w.sorted(); len(ps) > 0 {
		w.end(ps[n%len(ps)], "crashed", false)
	}
}

// Lose ends all members of a machine.
func (w *World) Lose(machine int) {
	for _, p := range w.sorted() {
		if p.machine == machine {
			w.end(p, "lost", true)
		}
	}
}

// Run lets time pass.
func (w *World) Run(d time.Duration) {
	for end := w.Now.Add(d); w.Now.Before(end); {
		w.Now = w.Now.Add(step)
		w.move()
		for len(w.queue) > 0 && !w.queue[0].at.After(w.Now) {
			e := w.queue[0].e
			w.queue = w.queue[1:]
			if s, is := e.(core.Spawned); is {
				for _, id := range s.Procs {
					if p := w.procs[id]; p != nil {
						p.known = true
					}
				}
			}
			w.tell(e)
		}
		if w.Now.UnixMilli()%core.Every.Milliseconds() == 0 {
			w.report()
			w.talk()
			w.tell(core.Tick{})
		}
	}
}

// move lets members serve and end.
func (w *World) move() {
	var serving []*proc
	for _, p := range w.sorted() {
		w.MemberTime += step
		b := w.Behave[p.revision]
		if !p.ends.IsZero() && !p.ends.After(w.Now) {
			w.end(p, "evicted", false)
			continue
		}
		if p.ends.IsZero() && p.ready {
			serving = append(serving, p)
		}
		if !p.ready && !p.serves.After(w.Now) && p.ends.IsZero() {
			w.serve(p, b)
		}
	}
	able := float64(len(serving))
	if c := w.Behave[w.record.Revision].Capped; c > 0 {
		able = min(able, float64(c))
	}
	if able == 0 {
		w.Missed += time.Duration(w.Load * float64(step))
		return
	}
	done := min(w.Load, able)
	w.Missed += time.Duration((w.Load - done) * float64(step))
	for _, p := range serving {
		p.served += done / float64(len(serving)) * perSecond * step.Seconds()
		p.busy = min(1, w.Load/able)
	}
}

// serve has a member that has started say so.
func (w *World) serve(p *proc, b Behaviour) {
	switch {
	case b.Crash:
		w.end(p, "exit code 1", false)
	case b.Sick:
		w.tell(core.Entered{Proc: p.id, Revision: p.revision, Machine: machineName(p.machine)})
		w.tell(core.Checked{Proc: p.id, Bad: "status 500"})
		p.serves = w.Now.Add(time.Second)
	default:
		p.ready = true
		if b.Plain {
			w.tell(core.Published{Proc: p.id, Is: true})
			return
		}
		w.tell(core.Entered{Proc: p.id, Revision: p.revision, Machine: machineName(p.machine)})
		if w.record.Spec.Health.Kind != "" {
			w.tell(core.Checked{Proc: p.id})
		}
		w.tell(core.Published{Proc: p.id, Is: true})
	}
}

func (w *World) report() {
	for _, p := range w.sorted() {
		if !p.ready || !p.ends.IsZero() {
			continue
		}
		b := w.Behave[p.revision]
		l := fleet.Load{Busy: p.busy, InFlight: p.busy, Served: uint64(p.served), Failed: uint64(p.served * b.Errors)}
		if b.Capture {
			l.Busy, l.InFlight = 1, 1e9
		}
		w.tell(core.Reported{Proc: p.id, Revision: p.revision, Machine: machineName(p.machine), Load: l})
	}
}

func (w *World) end(p *proc, why string, lost bool) {
	delete(w.procs, p.id)
	e := core.Ended{Proc: p.id, Why: why, Lost: lost}
	if !p.known { // nobody waits for its end before its start is known
		w.queue = append(w.queue, event{w.Now.Add(step), e})
		return
	}
	w.tell(e)
}

// tell steps the core and carries out what it says.
func (w *World) tell(e core.Event) {
	for _, f := range w.c.Step(w.Now, e) {
		switch f := f.(type) {
		case core.Spawn:
			w.spawn(f)
		case core.Evict:
			w.evict(f)
		case core.Save:
			w.record = f.Record
		case core.Note:
			w.Notes = append(w.Notes, f.Decision)
		case core.SetPolicy:
			w.Policies++
		case core.Forget:
			w.gone = true
		}
	}
}

func (w *World) spawn(f core.Spawn) {
	var ids []sigma.ProcID
	for range f.N {
		w.drawn++
		b := w.Behave[f.Revision]
		p := &proc{id: sigma.ProcID(fmt.Sprintf("p%d", w.drawn)), revision: f.Revision,
			machine: w.room(f.Near),
			serves:  w.Now.Add(cmp.Or(b.Start, 5*time.Millisecond))}
		w.procs[p.id] = p
		w.order = append(w.order, p)
		ids = append(ids, p.id)
	}
	n := 0
	for _, p := range w.procs {
		if p.ends.IsZero() {
			n++
		}
	}
	w.MostEver = max(w.MostEver, n)
	w.queue = append(w.queue, event{w.Now.Add(step), core.Spawned{Revision: f.Revision, N: f.N, Near: f.Near,
		Procs: ids}})
}

// room is the machine where a member comes: the one that it should be near, if that has room.
func (w *World) room(near sigma.MachineID) int {
	any := w.rand.IntN(w.Machines)
	for i := range w.Machines {
		if machineName(i) == near && !w.Full[i] {
			return i
		}
	}
	for i := range w.Machines {
		if m := (any + i) % w.Machines; !w.Full[m] {
			return m
		}
	}
	return any
}

func machineName(i int) sigma.MachineID { return sigma.MachineID(fmt.Sprintf("m%d", i)) }

// talk tells what members talk with, while there are some.
func (w *World) talk() {
	var peers []core.Peer
	for i, rate := range w.Talk {
		if len(w.procs) > 0 {
			peers = append(peers, core.Peer{Machine: machineName(i), Rate: rate, With: "clients"})
		}
	}
	w.tell(core.Talked{Peers: peers})
}

// On is how many members run on a machine and were not asked to go.
func (w *World) On(machine int) (n int) {
	for _, p := range w.procs {
		if p.machine == machine && p.ends.IsZero() {
			n++
		}
	}
	return n
}

func (w *World) evict(f core.Evict) {
	p := w.procs[f.Proc]
	if p == nil || !p.ends.IsZero() {
		return
	}
	p.ends = w.Now.Add(50 * time.Millisecond)
	if w.Behave[p.revision].Stay {
		p.ends = w.Now.Add(f.Grace)
	}
}

// sorted are the procs that run, in the order of their start.
func (w *World) sorted() []*proc {
	if len(w.order) > len(w.procs) {
		w.order = slices.DeleteFunc(slices.Clone(w.order), func(p *proc) bool { return w.procs[p.id] != p })
	}
	return w.order
}
