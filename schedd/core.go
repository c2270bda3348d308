// Package schedd is the part of sigmad that runs procs: it knows every proc of the machine from Spawn to long after its end, admits best-effort procs by memory, and
// decides what each event means. Core is the pure state machine; kernel carries out its effects.
//
// It promises that each proc that was spawned ends exactly once with a status, that whoever waits is answered, and that memory charged is given back.
package schedd

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
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
	EndedMax     = 8192             // ended procs of one realm that are remembered; each costs about 1 KiB, what it gave to Exited, and its logs
	EndedAge     = time.Hour        // and for how long
	QueuedMax    = 100000           // procs of one realm that have not ended
	resultsMax   = 64 * sigma.MiB   // what the ended procs of one realm gave to Exited; the oldest are forgotten earlier
	waitingMax   = 128 * sigma.MiB  // arguments and environments of one realm's procs that wait for their start
	ArgsShownMax = 1024             // bytes of arguments kept for listings
)

// Proc is what the core knows of a proc.
type Proc struct {
	sigma.ProcInfo
	Descriptor sigma.Descriptor // dropped once started, except what Info shows
	Launch     uint64           // the launcher's id; 0 before
	startedOK  bool
	spoke      time.Time      // when its first message came
	askedAt    time.Time      // when the launcher was asked
	timed      bool           // Timing is complete
	seq        uint64         // in order of Spawn
	bytes      sigma.Bytes    // that Descriptor is charged with
	deadline   time.Time      // of the Timer that was asked for
	forgotten  bool           // nobody can find it any more
	evicting   bool           // it was asked to go, or is being killed
	noticed    bool           // it was given notice
	asked      bool           // the launcher was asked for it
	killing    bool           // it was killed, or is to be as soon as it has been launched
	grace      *time.Duration // to be asked to go as soon as it has been launched
	evictable  int            // calls of WaitEvict that wait
	exited     *sigma.Status
}

// Ended reports whether the proc has a final status.
func (p *Proc) Ended() bool { return p.State == sigma.ProcEnded }

// Said is what the proc gave to Exited; nil before.
func (p *Proc) Said() *sigma.Status { return p.exited }

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
	// Abandon: the proc is not wanted any more while its program is being fetched. NotLaunched follows, or Launched if it is too late.
	Abandon struct{ ID sigma.ProcID }
	// Notice tells the proc to go: answers its WaitEvict calls, or sends the signal if there are none.
	Notice struct {
		Proc   *Proc
		Signal syscall.Signal // 0 = answer WaitEvict
	}
	// Wake tells those who wait for the proc that its state changed.
	Wake struct{ ID sigma.ProcID }
	// Timer asks for TimerFired at a time, which is earlier than that of a former Timer of the proc, if there is one, and takes its place.
	Timer struct {
		ID sigma.ProcID
		At time.Time
	}
	// Forget drops what is kept of an old proc.
	Forget struct{ ID sigma.ProcID }
	// Room says that memory became free, so that a credit can be parked.
	Room struct{}
	// Timed says that the phases of a start are all known.
	Timed struct{ Timing sigma.Timing }
)

func (Enqueue) effect() {}
func (Dequeue) effect() {}
func (Start) effect()   {}
func (Kill) effect()    {}
func (Abandon) effect() {}
func (Notice) effect()  {}
func (Wake) effect()    {}
func (Timer) effect()   {}
func (Forget) effect()  {}
func (Room) effect()    {}
func (Timed) effect()   {}

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
		ID                          sigma.ProcID
		Cloned, Contained, Executed time.Time
	}
	// Spoke: it sent its first message.
	Spoke struct{ ID sigma.ProcID }
	// Froze: its processes were stopped, or go on.
	Froze struct {
		ID sigma.ProcID
		On bool
	}
	// Gone: all its processes ended.
	Gone struct {
		ID   sigma.ProcID
		Exit launch.Exited
	}
	// LauncherDied: the launcher that ran it, or was about to, is dead, and so are its processes.
	LauncherDied struct{ ID sigma.ProcID }
	// Adopted: the launcher runs a proc that a sigmad before this one had started.
	Adopted struct {
		Info   sigma.ProcInfo
		Launch uint64
		Said   *sigma.Status // by Exited
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
	// Leased: besched lets this machine place procs by itself, or does so no more.
	Leased struct{ On bool }
	// SchedulerLost: besched died with what was queued there.
	SchedulerLost struct{}
	// RealmGone: the realm was removed. What is left of its ended procs is forgotten, so that a realm that gets its name later does not see it.
	RealmGone struct{ Realm sigma.RealmID }
)

func (Spawned) event()       {}
func (Assigned) event()      {}
func (LaunchAsked) event()   {}
func (NotLaunched) event()   {}
func (Launched) event()      {}
func (Spoke) event()         {}
func (Froze) event()         {}
func (Gone) event()          {}
func (LauncherDied) event()  {}
func (Adopted) event()       {}
func (CalledStarted) event() {}
func (CalledExited) event()  {}
func (WaitsEvict) event()    {}
func (Evicted) event()       {}
func (Killed) event()        {}
func (TimerFired) event()    {}
func (Leased) event()        {}
func (SchedulerLost) event() {}
func (RealmGone) event()     {}

// Core is the state. Not safe for concurrent use.
type Core struct {
	machine  sigma.MachineID
	capacity sigma.Bytes // for best-effort procs
	used     sigma.Bytes
	leased   bool // procs that fit are placed here without asking besched, unless others wait there
	queued   int  // procs that wait at besched
	procs    map[sigma.ProcID]*Proc
	realms   map[sigma.RealmID]*realm // those that have procs
	seq      uint64                   // of the last Spawn
	swept    time.Time                // when all realms were last looked through for what is too old
}

// realm is what one realm has, so that none makes another's procs be forgotten early, nor another's listings slow.
type realm struct {
	live      int         // procs that have not ended
	waiting   sigma.Bytes // of the descriptors of those that have not been launched
	order     []*Proc     // in order of Spawn; forgotten ones too, until they are the most
	forgotten int         // in order
	ended     []*Proc     // oldest first
	results   sigma.Bytes // of their statuses
}

// NewCore makes the state of a machine that has capacity memory for best-effort procs.
func NewCore(machine sigma.MachineID, capacity sigma.Bytes) *Core {
	return &Core{machine: machine, capacity: capacity, procs: map[sigma.ProcID]*Proc{}, realms: map[sigma.RealmID]*realm{}}
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
func (c *Core) Live(realm sigma.RealmID) int {
	if r := c.realms[realm]; r != nil {
		return r.live
	}
	return 0
}

// After yields a realm's procs in order of Spawn, each with a number that After goes on behind; 0 is before the first.
func (c *Core) After(realm sigma.RealmID, seq uint64) iter.Seq2[uint64, *Proc] {
	return func(yield func(uint64, *Proc) bool) {
		r := c.realms[realm]
		if r == nil {
			return
		}
		from, _ := slices.BinarySearchFunc(r.order, seq+1, func(p *Proc, seq uint64) int { return cmp.Compare(p.seq, seq) })
		for _, p := range r.order[from:] {
			if !p.forgotten && !yield(p.seq, p) {
				return
			}
		}
	}
}

// List returns up to n of a realm's procs, oldest first, without the first skip.
func (c *Core) List(realm sigma.RealmID, all bool, skip, n int) (out []sigma.ProcInfo) {
	for _, p := range c.After(realm, 0) {
		if !all && p.Ended() {
			continue
		}
		if skip--; skip >= 0 {
			continue
		}
		if len(out) == n {
			break
		}
		out = append(out, p.ProcInfo)
	}
	return out
}

// CanSpawn says whether a realm may have the procs ds too, and whether each could ever be admitted.
func (c *Core) CanSpawn(realm sigma.RealmID, ds []sigma.Descriptor) error {
	var waiting sigma.Bytes
	for _, d := range ds {
		if memoryOf(d) > c.capacity {
			return &sigma.Error{Op: "schedd.CanSpawn", Kind: sigma.KindInvalid, Msg: fmt.Sprintf("memory %v can never be admitted: the largest machine has %v for best-effort procs", memoryOf(d), c.capacity),
				Hint: "ask for less memory"}
		}
		waiting += sizeOf(d)
	}
	if r := c.realms[realm]; r != nil {
		waiting += r.waiting
	}
	switch live := c.Live(realm); {
	case live+len(ds) > QueuedMax:
		return sigma.Errorf("schedd.CanSpawn", sigma.KindBusy, "the realm has %d procs that have not ended; %d are allowed", live, QueuedMax)
	case waiting > waitingMax:
		return &sigma.Error{Op: "schedd.CanSpawn", Kind: sigma.KindBusy, Msg: fmt.Sprintf("arguments and environments of the realm's procs that wait to be started exceed %v", waitingMax),
			Hint: "put long input into a file of the realm and pass its path"}
	}
	return nil
}

func memoryOf(d sigma.Descriptor) sigma.Bytes {
	if d.Memory == 0 {
		return sigma.MemoryDefault
	}
	return d.Memory
}

func profileOf(d sigma.Descriptor) sigma.Profile {
	if d.Profile == "" {
		return sigma.ProfileSigma
	}
	return d.Profile
}

// sizeOf is about what a descriptor occupies.
func sizeOf(d sigma.Descriptor) sigma.Bytes {
	n := len(d.Program) + len(d.Name) + len(d.TraceParent)
	for _, list := range [][]string{d.Args, d.Env} {
		for _, s := range list {
			n += len(s) + 16
		}
	}
	return sigma.Bytes(n)
}

// Step applies one event and says what is to be done. Events about unknown or ended procs do nothing.
func (c *Core) Step(now time.Time, e Event) []Effect {
	switch e := e.(type) {
	case Spawned:
		return c.spawned(now, e)
	case Leased:
		c.leased = e.On
		return nil
	case Adopted:
		return c.adopted(now, e)
	case SchedulerLost:
		c.leased = false
		return c.schedulerLost(now)
	case RealmGone:
		return c.realmGone(now, e.Realm)
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
		c.queued--
		return []Effect{c.place(now, p)}
	case LaunchAsked:
		p.Launch, p.asked, p.askedAt = e.Launch, true, now
		p.Timing[sigma.PhasePlacement] = since(now, p.Times.Placed)
	case Spoke:
		p.spoke = now
	case Froze:
		p.Frozen = e.On
	case NotLaunched:
		if p.State != sigma.ProcStarting {
			return nil
		}
		s := sigma.Status{Code: sigma.StatusError, ExitCode: 125, Kind: sigma.KindOf(e.Err), Msg: e.Err.Error()}
		if p.killing {
			s = unstarted()
		} else if s.Kind == sigma.KindNoExec {
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
	case LauncherDied:
		if p.State == sigma.ProcQueued {
			return nil
		}
		s := sigma.Status{Code: sigma.StatusCrashed, ExitCode: 137, Msg: "the launcher died, and the proc with it"}
		if p.exited != nil {
			s = statusOf(p, launch.Exited{Wait: syscall.WaitStatus(syscall.SIGKILL)}) // what it said stands
		}
		return c.end(now, p, s)
	case CalledStarted:
		return c.markStarted(now, p)
	case CalledExited:
		if p.exited == nil {
			p.exited = &e.Status
			return append(c.markStarted(now, p), p.until(now.Add(LingerMax))...)
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
	case Spoke:
		return e.ID
	case Froze:
		return e.ID
	case Gone:
		return e.ID
	case LauncherDied:
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
	r := c.realms[e.By.Realm]
	if r == nil {
		r = &realm{}
		c.realms[e.By.Realm] = r
	}
	for i, d := range e.Ds {
		c.seq++
		p := &Proc{Descriptor: d, seq: c.seq, bytes: sizeOf(d), ProcInfo: sigma.ProcInfo{ID: e.IDs[i], Realm: e.By.Realm, Name: d.Name, Program: d.Program, Args: shown(d.Args), Parent: e.By.Proc,
			Class: d.Class, Memory: memoryOf(d), Profile: profileOf(d), Times: sigma.Times{Spawned: now}}}
		if p.Name == "" {
			p.Name = path.Base(d.Program)
		}
		c.procs[p.ID] = p
		r.live++
		r.waiting += p.bytes
		r.order = append(r.order, p)
		if c.leased && c.queued == 0 && p.Memory <= c.Free() {
			out = append(out, c.place(now, p))
			continue
		}
		c.queued++
		out = append(out, Enqueue{p})
	}
	return append(out, c.forget(now, e.By.Realm)...)
}

// adopted enters a proc that runs. That it has been started is all that is known of its start.
func (c *Core) adopted(now time.Time, e Adopted) []Effect {
	if c.procs[e.Info.ID] != nil {
		return nil
	}
	r := c.realms[e.Info.Realm]
	if r == nil {
		r = &realm{}
		c.realms[e.Info.Realm] = r
	}
	c.seq++
	p := &Proc{ProcInfo: e.Info, Launch: e.Launch, seq: c.seq, startedOK: true, exited: e.Said}
	p.State, p.Machine = sigma.ProcRunning, c.machine
	if p.Times.Started.IsZero() {
		p.Times.Started = now
	}
	c.procs[p.ID] = p
	r.live++
	r.order = append(r.order, p)
	c.used += p.Memory
	if p.exited != nil {
		return p.until(now.Add(LingerMax))
	}
	return nil
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

// place charges a proc's memory and has it started.
func (c *Core) place(now time.Time, p *Proc) Effect {
	p.State, p.Times.Placed, p.Machine = sigma.ProcStarting, now, c.machine
	p.Timing[sigma.PhaseQueue] = since(now, p.Times.Spawned)
	c.used += p.Memory
	return Start{p}
}

// since is how long a phase took; clocks of different processes may differ by a little.
func since(end, begin time.Time) time.Duration { return max(0, end.Sub(begin)) }

func (c *Core) launched(now time.Time, p *Proc, e Launched) []Effect {
	p.State, p.Times.Contained, p.Times.Executed = sigma.ProcRunning, e.Contained, e.Executed
	if p.asked {
		p.Timing[sigma.PhaseHandOver] = since(e.Cloned, p.askedAt)
		p.Timing[sigma.PhaseRestrict] = since(e.Contained, e.Cloned)
		p.Timing[sigma.PhaseExec] = since(e.Executed, e.Contained)
	}
	var out []Effect
	if p.killing {
		out = append(out, Kill{p})
	} else if p.grace != nil {
		out = append(out, c.evict(now, p, *p.grace)...)
	}
	mark := p.Descriptor.Start
	p.Descriptor = sigma.Descriptor{Start: mark}
	c.realms[p.Realm].waiting -= p.bytes
	p.bytes = 0
	if mark == sigma.StartedByExec {
		return append(out, c.markStarted(now, p)...)
	}
	return append(append(out, p.time()...), Wake{p.ID})
}

// time completes the phases once the program executes and has started, whichever was known first.
func (p *Proc) time() []Effect {
	if !p.startedOK || p.Times.Executed.IsZero() || p.timed {
		return nil
	}
	p.timed = true
	first := p.Times.Started
	if p.Descriptor.Start == sigma.StartedByCall && !p.spoke.IsZero() {
		first = p.spoke
	}
	p.Timing[sigma.PhaseFirst] = since(first, p.Times.Executed)
	p.Timing[sigma.PhaseStarted] = since(p.Times.Started, first)
	return []Effect{Timed{p.Timing}}
}

func (c *Core) markStarted(now time.Time, p *Proc) []Effect {
	if p.startedOK {
		return nil
	}
	p.startedOK, p.Times.Started = true, now
	return append(p.time(), Wake{p.ID})
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
	case p.evicting || x.Killed: // the latter maybe by a sigmad before this one
		return sigma.Status{Code: sigma.StatusEvicted, ExitCode: code, Msg: "evicted"}
	case x.Wait.Signaled():
		return sigma.Status{Code: sigma.StatusCrashed, ExitCode: code, Msg: "died of signal " + x.Wait.Signal().String()}
	case code != 0:
		return sigma.Status{Code: sigma.StatusError, ExitCode: code, Msg: fmt.Sprintf("exit code %d", code)}
	}
	return sigma.Status{Code: sigma.StatusOK}
}

func (c *Core) evict(now time.Time, p *Proc, grace time.Duration) []Effect {
	switch {
	case p.State == sigma.ProcQueued, p.State == sigma.ProcStarting && !p.asked:
		return c.kill(now, p)
	case p.State == sigma.ProcStarting: // its program may execute already, and have said so, before the launcher's word comes
		p.grace = &grace
		return nil
	}
	if grace <= 0 {
		grace = GraceDefault
	}
	p.evicting = true
	var out []Effect
	if !p.noticed { // once, whoever asks again
		p.noticed = true
		n := Notice{Proc: p}
		if p.evictable == 0 {
			n.Signal = syscall.SIGTERM
		}
		out = append(out, n)
	}
	return append(out, p.until(now.Add(min(grace, GraceMax)))...)
}

// until has the proc killed at a time, if it is not to be killed before that anyway.
func (p *Proc) until(at time.Time) []Effect {
	if !p.deadline.IsZero() && !at.Before(p.deadline) {
		return nil
	}
	p.deadline = at
	return []Effect{Timer{p.ID, at}}
}

// unstarted is the status of a proc that was ended before there was a process of it.
func unstarted() sigma.Status {
	return sigma.Status{Code: sigma.StatusEvicted, ExitCode: 137, Msg: "evicted before it was started"}
}

func (c *Core) kill(now time.Time, p *Proc) []Effect {
	p.evicting = p.evicting || p.exited == nil
	switch p.State {
	case sigma.ProcQueued:
		return append([]Effect{Dequeue{p.ID}}, c.end(now, p, unstarted())...)
	case sigma.ProcStarting:
		if !p.asked && !p.killing { // its program may be long in coming
			p.killing = true
			return []Effect{Abandon{p.ID}}
		}
	case sigma.ProcRunning:
		if !p.killing { // once, however often it is asked for
			p.killing = true
			return []Effect{Kill{p}}
		}
	}
	p.killing = true
	return nil
}

func (c *Core) end(now time.Time, p *Proc, s sigma.Status) []Effect {
	if p.State == sigma.ProcQueued {
		c.queued--
	} else {
		c.used -= p.Memory
	}
	p.State, p.Status, p.Times.Ended, p.Frozen = sigma.ProcEnded, s, now, false
	p.Descriptor, p.exited = sigma.Descriptor{}, nil
	r := c.realms[p.Realm]
	r.live--
	r.waiting -= p.bytes
	p.bytes = 0
	r.results += resultOf(p)
	r.ended = append(r.ended, p)
	return append([]Effect{Wake{p.ID}, Room{}}, c.forget(now, p.Realm)...)
}

func resultOf(p *Proc) sigma.Bytes { return sigma.Bytes(len(p.Status.Msg) + len(p.Status.Data)) }

// sweepEvery is how often realms in which nothing happens are looked through for what is too old.
const sweepEvery = time.Minute

// forget drops what a realm has too much of, and what is too old.
func (c *Core) forget(now time.Time, realm sigma.RealmID) (out []Effect) {
	if now.Sub(c.swept) < sweepEvery {
		return c.forgetOf(now, realm, false)
	}
	c.swept = now
	for _, id := range slices.Sorted(maps.Keys(c.realms)) {
		out = append(out, c.forgetOf(now, id, false)...)
	}
	return out
}

func (c *Core) forgetOf(now time.Time, id sigma.RealmID, all bool) (out []Effect) {
	r := c.realms[id]
	for len(r.ended) > 0 && (all || len(r.ended) > EndedMax || r.results > resultsMax || now.Sub(r.ended[0].Times.Ended) >= EndedAge) {
		p := r.ended[0]
		r.ended[0] = nil
		r.ended = r.ended[1:]
		r.results -= resultOf(p)
		r.forgotten++
		p.forgotten = true
		delete(c.procs, p.ID)
		out = append(out, Forget{p.ID})
	}
	if r.forgotten > len(r.order)/2 {
		r.order = slices.DeleteFunc(r.order, func(p *Proc) bool { return p.forgotten })
		r.forgotten = 0
	}
	if len(r.order) == 0 {
		delete(c.realms, id)
	}
	return out
}

// realmGone forgets the ended procs of a realm. There are no others, but for what a removal that is under way ends anyway.
func (c *Core) realmGone(now time.Time, id sigma.RealmID) []Effect {
	if c.realms[id] == nil {
		return nil
	}
	return c.forgetOf(now, id, true)
}

// schedulerLost ends what was queued: spawn requests are not persisted (001 §3.4), so waiters must hear of it.
func (c *Core) schedulerLost(now time.Time) (out []Effect) {
	for _, p := range c.procs { // end may forget others meanwhile, which have ended
		if p.State == sigma.ProcQueued {
			out = append(out, c.end(now, p, sigma.Status{Code: sigma.StatusLost, ExitCode: 125, Kind: sigma.KindLost, Msg: "the scheduler died with the proc in its queue; spawn it again"})...)
		}
	}
	return out
}
