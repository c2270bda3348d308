// Package schedd is the part of sigmad that runs procs: it knows every proc of the machine from Spawn to long after its end, admits best-effort procs by memory, and
// decides what each event means. Core is the pure state machine; kernel carries out its effects.
//
// It promises that each proc that was spawned ends exactly once with a status, that whoever waits is answered, and that memory charged is given back.
package schedd

import (
	"fmt"
	"path"
	"slices"
	"syscall"
	"time"

	"sigmaos.dev/launch"
	"sigmaos.dev/sigma"
)

// Defaults and limits.
const (
	GraceDefault = 5 * time.Second  // between notice and kill
	GraceMax     = 10 * time.Minute // a longer wish is cut to this
	LingerMax    = 10 * time.Second // a proc that called Exited has this long to end
	EndedMax     = 8192             // ended procs that are remembered; each costs about 1 KiB and its logs
	EndedAge     = time.Hour        // and for how long
	QueuedMax    = 100000           // procs of one realm that have not ended
	ArgsShownMax = 1024             // bytes of arguments kept for listings
)

// Proc is what the core knows of a proc.
type Proc struct {
	sigma.ProcInfo
	Descriptor sigma.Descriptor // dropped once started, except what Info shows
	Launch     uint64           // the launcher's id; 0 before
	startedOK  bool
	evicting   bool           // it was asked to go, or is being killed
	killing    bool           // to be killed as soon as it has been launched
	grace      *time.Duration // to be asked to go as soon as it has been launched
	evictable  int            // calls of WaitEvict that wait
	exited     *sigma.Status
}

// Ended reports whether the proc has a final status.
func (p *Proc) Ended() bool { return p.State == sigma.ProcEnded }

// HasStarted reports whether WaitStart may return.
func (p *Proc) HasStarted() bool { return p.startedOK }

// Effect is something for the shell to do.
type Effect interface{ effect() }

// The effects.
type (
	// Enqueue hands the proc to besched.
	Enqueue struct{ Proc *Proc }
	// Dequeue takes it back.
	Dequeue struct{ ID sigma.ProcID }
	// Start fetches its program and asks the launcher for it.
	Start struct{ Proc *Proc }
	// Kill ends its processes.
	Kill struct{ Proc *Proc }
	// Notice tells the proc to go: answers its WaitEvict calls, or sends the signal if there are none.
	Notice struct {
		Proc   *Proc
		Signal syscall.Signal // 0 = answer WaitEvict
	}
	// Wake tells those who wait for the proc that its state changed.
	Wake struct{ ID sigma.ProcID }
	// Timer asks for TimerFired at a time.
	Timer struct {
		ID sigma.ProcID
		At time.Time
	}
	// Forget drops what is kept of an old proc.
	Forget struct{ ID sigma.ProcID }
	// Room says that memory became free, so that a credit can be parked.
	Room struct{}
)

func (Enqueue) effect() {}
func (Dequeue) effect() {}
func (Start) effect()   {}
func (Kill) effect()    {}
func (Notice) effect()  {}
func (Wake) effect()    {}
func (Timer) effect()   {}
func (Forget) effect()  {}
func (Room) effect()    {}

// Event is something that happened.
type Event interface{ event() }

// The events.
type (
	// Spawned: descriptors were accepted; IDs are theirs.
	Spawned struct {
		By  sigma.Principal
		IDs []sigma.ProcID
		Ds  []sigma.Descriptor
	}
	// Assigned: besched gave the proc to this machine.
	Assigned struct{ ID sigma.ProcID }
	// LaunchAsked: the launcher was asked under this id.
	LaunchAsked struct {
		ID     sigma.ProcID
		Launch uint64
	}
	// NotLaunched: the program could not be fetched, or the launcher refused.
	NotLaunched struct {
		ID  sigma.ProcID
		Err error
	}
	// Launched: the program executes.
	Launched struct {
		ID                  sigma.ProcID
		Contained, Executed time.Time
	}
	// Gone: all its processes ended.
	Gone struct {
		ID   sigma.ProcID
		Exit launch.Exited
	}
	// CalledStarted, CalledExited: the proc said so.
	CalledStarted struct{ ID sigma.ProcID }
	// CalledExited records the status it wants.
	CalledExited struct {
		ID     sigma.ProcID
		Status sigma.Status
	}
	// WaitsEvict: a call of WaitEvict began (Delta 1) or ended (-1).
	WaitsEvict struct {
		ID    sigma.ProcID
		Delta int
	}
	// Evicted: somebody asked it to go.
	Evicted struct {
		ID    sigma.ProcID
		Grace time.Duration
	}
	// Killed: somebody asked to end it.
	Killed struct{ ID sigma.ProcID }
	// TimerFired: the time of a Timer came.
	TimerFired struct{ ID sigma.ProcID }
	// SchedulerLost: besched died with what was queued there.
	SchedulerLost struct{}
)

func (Spawned) event()       {}
func (Assigned) event()      {}
func (LaunchAsked) event()   {}
func (NotLaunched) event()   {}
func (Launched) event()      {}
func (Gone) event()          {}
func (CalledStarted) event() {}
func (CalledExited) event()  {}
func (WaitsEvict) event()    {}
func (Evicted) event()       {}
func (Killed) event()        {}
func (TimerFired) event()    {}
func (SchedulerLost) event() {}

// Core is the state. Not safe for concurrent use.
type Core struct {
	machine  sigma.MachineID
	capacity sigma.Bytes // for best-effort procs
	used     sigma.Bytes
	procs    map[sigma.ProcID]*Proc
	live     map[sigma.RealmID]int
	ended    []sigma.ProcID // oldest first
}

// NewCore makes the state of a machine that has capacity memory for best-effort procs.
func NewCore(machine sigma.MachineID, capacity sigma.Bytes) *Core {
	return &Core{machine: machine, capacity: capacity, procs: map[sigma.ProcID]*Proc{}, live: map[sigma.RealmID]int{}}
}

// Free is the memory that procs can still be admitted to.
func (c *Core) Free() sigma.Bytes { return c.capacity - min(c.used, c.capacity) }

// Capacity is all the memory for best-effort procs.
func (c *Core) Capacity() sigma.Bytes { return c.capacity }

// Proc finds a proc of a realm; nil if there is none there.
func (c *Core) Proc(realm sigma.RealmID, id sigma.ProcID) *Proc {
	if p := c.procs[id]; p != nil && p.Realm == realm {
		return p
	}
	return nil
}

// Live counts a realm's procs that have not ended.
func (c *Core) Live(realm sigma.RealmID) int { return c.live[realm] }

// List returns a realm's procs, oldest first.
func (c *Core) List(realm sigma.RealmID, all bool) []sigma.ProcInfo {
	var out []sigma.ProcInfo
	for _, p := range c.procs {
		if p.Realm == realm && (all || !p.Ended()) {
			out = append(out, p.ProcInfo)
		}
	}
	slices.SortFunc(out, func(a, b sigma.ProcInfo) int {
		if d := a.Times.Spawned.Compare(b.Times.Spawned); d != 0 {
			return d
		}
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out
}

// CanSpawn says whether a realm may have n more procs, and whether each could ever be admitted.
func (c *Core) CanSpawn(realm sigma.RealmID, ds []sigma.Descriptor) error {
	for _, d := range ds {
		if memoryOf(d) > c.capacity {
			return &sigma.Error{Op: "schedd.CanSpawn", Kind: sigma.KindInvalid, Msg: fmt.Sprintf("memory %v can never be admitted: the largest machine has %v for best-effort procs", memoryOf(d), c.capacity),
				Hint: "ask for less memory"}
		}
	}
	if c.live[realm]+len(ds) > QueuedMax {
		return sigma.Errorf("schedd.CanSpawn", sigma.KindBusy, "the realm has %d procs that have not ended; %d are allowed", c.live[realm], QueuedMax)
	}
	return nil
}

func memoryOf(d sigma.Descriptor) sigma.Bytes {
	if d.Memory == 0 {
		return sigma.MemoryDefault
	}
	return d.Memory
}

// Step applies one event and says what is to be done. Events about unknown or ended procs do nothing.
func (c *Core) Step(now time.Time, e Event) []Effect {
	switch e := e.(type) {
	case Spawned:
		return c.spawned(now, e)
	case SchedulerLost:
		return c.schedulerLost(now)
	}
	p := c.procs[idOf(e)]
	if p == nil || p.Ended() {
		return nil
	}
	switch e := e.(type) {
	case Assigned:
		if p.State != sigma.ProcQueued {
			return nil // one pid never starts twice
		}
		p.State, p.Times.Placed, p.Machine = sigma.ProcStarting, now, c.machine
		c.used += p.Memory
		return []Effect{Start{p}}
	case LaunchAsked:
		p.Launch = e.Launch
	case NotLaunched:
		if p.State != sigma.ProcStarting {
			return nil
		}
		s := sigma.Status{Code: sigma.StatusError, ExitCode: 125, Kind: sigma.KindOf(e.Err), Msg: e.Err.Error()}
		if s.Kind == sigma.KindNoExec {
			s.ExitCode = 126
		} else if s.Kind == sigma.KindNotFound {
			s.ExitCode = 127
		} else if s.Kind == sigma.KindLost {
			s.Code = sigma.StatusLost
		}
		return c.end(now, p, s)
	case Launched:
		if p.State == sigma.ProcStarting {
			return c.launched(now, p, e)
		}
	case Gone:
		if p.State == sigma.ProcQueued {
			return nil
		}
		p.Usage = sigma.Usage{UserTime: e.Exit.User, SystemTime: e.Exit.Sys, MemoryPeak: e.Exit.MemoryPeak}
		return c.end(now, p, statusOf(p, e.Exit))
	case CalledStarted:
		return c.markStarted(now, p)
	case CalledExited:
		if p.exited == nil {
			p.exited = &e.Status
			return append(c.markStarted(now, p), Timer{p.ID, now.Add(LingerMax)})
		}
	case WaitsEvict:
		p.evictable += e.Delta
		if e.Delta > 0 && p.evicting {
			return []Effect{Notice{Proc: p}} // it asks only now, and is told at once
		}
	case Evicted:
		return c.evict(now, p, e.Grace)
	case Killed, TimerFired:
		return c.kill(now, p)
	}
	return nil
}

func idOf(e Event) sigma.ProcID {
	switch e := e.(type) {
	case Assigned:
		return e.ID
	case LaunchAsked:
		return e.ID
	case NotLaunched:
		return e.ID
	case Launched:
		return e.ID
	case Gone:
		return e.ID
	case CalledStarted:
		return e.ID
	case CalledExited:
		return e.ID
	case WaitsEvict:
		return e.ID
	case Evicted:
		return e.ID
	case Killed:
		return e.ID
	case TimerFired:
		return e.ID
	}
	return ""
}

func (c *Core) spawned(now time.Time, e Spawned) []Effect {
	var out []Effect
	for i, d := range e.Ds {
		p := &Proc{Descriptor: d, ProcInfo: sigma.ProcInfo{ID: e.IDs[i], Realm: e.By.Realm, Name: d.Name, Program: d.Program, Args: shown(d.Args), Parent: e.By.Proc,
			Class: d.Class, Memory: memoryOf(d), Times: sigma.Times{Spawned: now}}}
		if p.Name == "" {
			p.Name = path.Base(d.Program)
		}
		c.procs[p.ID] = p
		c.live[p.Realm]++
		out = append(out, Enqueue{p})
	}
	return append(out, c.forget(now)...)
}

// shown cuts arguments for listings.
func shown(args []string) []string {
	room := ArgsShownMax
	for i, a := range args {
		if room -= len(a) + 1; room < 0 {
			return append(slices.Clone(args[:i]), "...")
		}
	}
	return args
}

func (c *Core) launched(now time.Time, p *Proc, e Launched) []Effect {
	p.State, p.Times.Contained, p.Times.Executed = sigma.ProcRunning, e.Contained, e.Executed
	var out []Effect
	if p.killing {
		out = append(out, Kill{p})
	} else if p.grace != nil {
		out = append(out, c.evict(now, p, *p.grace)...)
	}
	mark := p.Descriptor.Start
	p.Descriptor = sigma.Descriptor{Start: mark}
	if mark == sigma.StartedByExec {
		return append(out, c.markStarted(now, p)...)
	}
	return append(out, Wake{p.ID})
}

func (c *Core) markStarted(now time.Time, p *Proc) []Effect {
	if p.startedOK {
		return nil
	}
	p.startedOK, p.Times.Started = true, now
	return []Effect{Wake{p.ID}}
}

// statusOf reads how the main process ended. What the proc said by Exited stands, unless the system ended it before it could.
func statusOf(p *Proc, x launch.Exited) sigma.Status {
	code := x.Wait.ExitStatus()
	if x.Wait.Signaled() {
		code = 128 + int(x.Wait.Signal())
	}
	switch {
	case p.exited != nil:
		s := *p.exited
		if s.ExitCode = max(code, 1); s.Code == sigma.StatusOK {
			s.ExitCode = 0
		}
		return s
	case x.OOM && code != 0:
		return sigma.Status{Code: sigma.StatusOOM, ExitCode: 137, Msg: fmt.Sprintf("exceeded its memory limit of %v", p.Memory)}
	case p.evicting:
		return sigma.Status{Code: sigma.StatusEvicted, ExitCode: code, Msg: "evicted"}
	case x.Wait.Signaled():
		return sigma.Status{Code: sigma.StatusCrashed, ExitCode: code, Msg: "died of signal " + x.Wait.Signal().String()}
	case code != 0:
		return sigma.Status{Code: sigma.StatusError, ExitCode: code, Msg: fmt.Sprintf("exit code %d", code)}
	}
	return sigma.Status{Code: sigma.StatusOK}
}

func (c *Core) evict(now time.Time, p *Proc, grace time.Duration) []Effect {
	switch p.State {
	case sigma.ProcQueued:
		return c.kill(now, p)
	case sigma.ProcStarting: // its program may execute already, and have said so, before the launcher's word comes
		p.grace = &grace
		return nil
	}
	if grace <= 0 {
		grace = GraceDefault
	}
	n := Notice{Proc: p}
	if p.evictable == 0 {
		n.Signal = syscall.SIGTERM
	}
	p.evicting = true
	return []Effect{n, Timer{p.ID, now.Add(min(grace, GraceMax))}}
}

func (c *Core) kill(now time.Time, p *Proc) []Effect {
	p.evicting = p.evicting || p.exited == nil
	switch p.State {
	case sigma.ProcQueued:
		return append([]Effect{Dequeue{p.ID}}, c.end(now, p, sigma.Status{Code: sigma.StatusEvicted, ExitCode: 137, Msg: "evicted before it was started"})...)
	case sigma.ProcRunning:
		return []Effect{Kill{p}}
	}
	p.killing = true
	return nil
}

func (c *Core) end(now time.Time, p *Proc, s sigma.Status) []Effect {
	if p.State == sigma.ProcStarting || p.State == sigma.ProcRunning {
		c.used -= p.Memory
	}
	p.State, p.Status, p.Times.Ended = sigma.ProcEnded, s, now
	p.Descriptor, p.exited = sigma.Descriptor{}, nil
	if c.live[p.Realm]--; c.live[p.Realm] == 0 {
		delete(c.live, p.Realm)
	}
	c.ended = append(c.ended, p.ID)
	return append([]Effect{Wake{p.ID}, Room{}}, c.forget(now)...)
}

func (c *Core) forget(now time.Time) (out []Effect) {
	for len(c.ended) > 0 {
		p := c.procs[c.ended[0]]
		if len(c.ended) <= EndedMax && now.Sub(p.Times.Ended) < EndedAge {
			break
		}
		delete(c.procs, p.ID)
		c.ended = c.ended[1:]
		out = append(out, Forget{p.ID})
	}
	return out
}

// schedulerLost ends what was queued: spawn requests are not persisted (001 §3.4), so waiters must hear of it.
func (c *Core) schedulerLost(now time.Time) (out []Effect) {
	for _, p := range c.procs {
		if p.State == sigma.ProcQueued {
			out = append(out, c.end(now, p, sigma.Status{Code: sigma.StatusLost, ExitCode: 125, Kind: sigma.KindLost, Msg: "the scheduler died with the proc in its queue; spawn it again"})...)
		}
	}
	return out
}
