// Package schedd is the part of sigmad that runs procs: it knows every proc that was spawned here,
// or runs here, from Spawn to long after its end, admits best-effort procs by memory, and decides
// what each event means. Core is the pure state machine; kernel carries out its effects.
//
// A proc's home is the machine where it was spawned. If another machine runs it, the proc is away
// there: the home keeps its descriptor until it was given, once, to one machine in one life, and
// its status for ever after; for the machine that runs it it is a guest, whose every change is owed
// to the home as a report. When the home's life is over, the guest is at home where it runs; when
// the runner's is over, the proc is lost (docs/adr/0007-several-machines.md).
//
// It promises that each proc that was spawned is started at most once, ends exactly once with a
// status, that whoever waits is answered, and that memory charged is given back. It assumes that
// what reports say is from the machine in the life that is named, that none is older than one from
// the same proc that came before it, and that Members tells all machines in the end.
package schedd

import (
	"slices"
	"syscall"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/launch"
)

// Defaults and limits.
const (
	GraceDefault = 5 * time.Second  // between notice and kill
	GraceMax     = 10 * time.Minute // a longer wish is cut to this
	LingerMax    = 10 * time.Second // a proc that called Exited has this long to end
	// ended procs of one realm that are remembered; each costs about 1 KiB, what it gave to Exited,
	// and its logs
	EndedMax  = 8192
	EndedAge  = time.Hour // and for how long
	QueuedMax = 100000    // procs of one realm that have not ended
	// what the ended procs of one realm gave to Exited; the oldest are forgotten earlier
	resultsMax   = 64 * sigma.MiB
	waitingMax   = 128 * sigma.MiB // what one realm's procs that wait for their start occupy
	waitingSum   = 512 * sigma.MiB // and those of all realms; sigmad has to live with as much
	waitingPart  = 4 * sigma.MiB   // of which each realm may have so much whatever others have
	ArgsShownMax = 1024            // bytes of arguments kept for listings
	KinMax       = 32              // ancestors that are remembered; earlier ones do not see a proc any more
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
	why        string         // it was asked to go, if its machine was the reason
	asked      bool           // the launcher was asked for it
	killing    bool           // it was killed, or is to be as soon as it has been launched
	grace      *time.Duration // to be asked to go as soon as it has been launched
	evictable  int            // calls of WaitEvict that wait
	exited     *sigma.Status

	Near sigma.MachineID // where it should be if there is room; "" = anywhere

	View *view.Table    // what it sees; nil = all of its realm. Dropped when it has ended, or runs elsewhere
	Kin  []sigma.ProcID // its ancestors that have views, the nearest first, at most KinMax: they may see it

	Home    sigma.Life // of a guest; none if here
	Runner  sigma.Life // of one that is away; none if not
	boot    uint64     // of the runner's sigmad
	charged bool       // its memory is
	owed    bool       // the home has not been told of its end
	doomed  bool       // it dies with this machine's life
	sent    time.Time  // to besched, last
	back    bool       // it is kept back here (maxima)

	Shard   besched.Shard // to which it was sent last; "" = to none
	counted besched.Shard // where it is counted (realm.waits); "" = nowhere
}

// Guest reports whether its home is another machine.
func (p *Proc) Guest() bool { return p.Home.Machine != "" }

// Away reports whether another machine runs it, or did.
func (p *Proc) Away() bool { return p.Runner.Machine != "" }

// Ended reports whether the proc has a final status.
func (p *Proc) Ended() bool { return p.State == sigma.ProcEnded }

// Told reports whether it was a guest whose home has been told of its end.
func (p *Proc) Told() bool { return p.Ended() && p.Guest() && !p.owed }

// IsKin reports whether of, which has a view, is the proc or one of its ancestors.
func (p *Proc) IsKin(of sigma.ProcID) bool { return p.ID == of || slices.Contains(p.Kin, of) }

// Said is what the proc gave to Exited; nil before.
func (p *Proc) Said() *sigma.Status { return p.exited }

// HasStarted reports whether WaitStart may return.
func (p *Proc) HasStarted() bool { return p.startedOK }

// Core is the state. Not safe for concurrent use.
type Core struct {
	machine  sigma.MachineID
	capacity sigma.Bytes // for best-effort procs
	used     sigma.Bytes
	largest  sigma.Bytes     // capacity of the largest machine that is known; 0 = this
	running  int             // procs that used is charged with, but for reservations that wait for room
	leased   bool            // procs that fit are placed here without asking besched, unless others wait there
	limit    int             // procs run here beyond which even then none is placed without asking; 0 = no limit
	queued   int             // best-effort procs that wait at besched
	shards   []besched.Shard // that are attended
	procs    map[sigma.ProcID]*Proc
	realms   map[sigma.RealmID]*realm // those that have procs
	seq      uint64                   // of the last Spawn
	swept    time.Time                // when all realms were last looked through for what is too old

	reserved reserved
	maxima   maxima
	waiting  sigma.Bytes                  // of all realms
	expected map[sigma.ProcID]sigma.Bytes // procs that may become guests, and what they are charged with
	// of each member, the first life that is not over; nil before the first Members
	least map[sigma.MachineID]sigma.Incarnation
	boots map[sigma.Life]uint64 // of other machines' sigmads, the last that is known

	expectedOf map[sigma.ProcID]sigma.RealmID // whose those are
}

// realm is what one realm has, so that none makes another's procs be forgotten early, nor another's
// listings slow.
type realm struct {
	live      int         // procs that have not ended and are at home here
	waiting   sigma.Bytes // of those that have not been launched
	order     []*Proc     // in order of Spawn; forgotten ones too, until they are the most
	forgotten int         // in order
	ended     []*Proc     // oldest first
	results   sigma.Bytes // of their statuses
	sent      int         // best-effort procs, to one shard after the other if as many wait at each

	waits  map[besched.Shard]int // best-effort procs
	line   line                  // latency-critical procs
	placed time.Time             // when one that is at home here was, the last time
}

// NewCore makes the state of a machine that has capacity memory for best-effort procs.
func NewCore(machine sigma.MachineID, capacity sigma.Bytes) *Core {
	return &Core{machine: machine, capacity: capacity, procs: map[sigma.ProcID]*Proc{},
		realms: map[sigma.RealmID]*realm{},
		reserved: reserved{by: map[sigma.ProcID]*reservation{}, sent: map[sigma.ProcID]*Proc{},
			behind: map[sigma.RealmID]bool{}, of: map[sigma.RealmID]sigma.MilliCPU{}}, maxima: newMaxima(),
		expected: map[sigma.ProcID]sigma.Bytes{}, expectedOf: map[sigma.ProcID]sigma.RealmID{},
		boots: map[sigma.Life]uint64{}}
}

// Free is the memory that procs can still be admitted to.
func (c *Core) Free() sigma.Bytes { return c.capacity - min(c.used, c.capacity) }

// Capacity is all the memory for best-effort procs.
func (c *Core) Capacity() sigma.Bytes { return c.capacity }

// Running counts the procs that run here or are about to, guests too.
func (c *Core) Running() int { return c.running }

// Queued counts the best-effort procs that wait at besched.
func (c *Core) Queued() int { return c.queued }

// Proc finds a proc of a realm; nil if there is none there.
func (c *Core) Proc(realm sigma.RealmID, id sigma.ProcID) *Proc {
	if p := c.procs[id]; p != nil && p.Realm == realm {
		return p
	}
	return nil
}

// Find finds a proc of any realm; nil if there is none.
func (c *Core) Find(id sigma.ProcID) *Proc { return c.procs[id] }

// Holds reports whether a proc holds memory here, or is about to.
func (c *Core) Holds(id sigma.ProcID) bool {
	p := c.procs[id]
	return c.expected[id] != 0 || p != nil && p.charged && !p.Ended()
}

// Step applies one event and says what is to be done. Events about unknown or ended procs do
// nothing.
func (c *Core) Step(now time.Time, e Event) []Effect {
	out := c.step(now, e)
	if len(c.reserved.behind) > 0 {
		out = append(out, c.advance(now)...)
	}
	return out
}

func (c *Core) step(now time.Time, e Event) []Effect {
	if p := c.procs[idOf(e)]; p != nil && !p.Ended() && !p.Away() {
		before := p.seen()
		out := c.stepProc(now, p, e)
		if p.Guest() && p.seen() != before {
			out = append(out, Owed{p.ID, p.Home})
		}
		return out
	}
	switch e := e.(type) {
	case Spawned:
		return c.spawned(now, e)
	case Leased:
		c.leased, c.limit = e.On, e.Limit
	case Assigned:
		if p := c.procs[e.ID]; p == nil || p.Class == sigma.LatencyCritical {
			return c.unwanted(e.ID, sigma.LatencyCritical)
		}
	case Cores:
		c.reserved.most = e.CPU
	case Maxima:
		return c.setMaxima(now, e.Memory)
	case LCSchedulerLost:
		return c.requeueClass(now, now, sigma.LatencyCritical)
	case Largest:
		c.largest = e.Memory
	case Adopted:
		return c.adopted(now, e)
	case Remembered:
		return c.remembered(now, e.Procs)
	case ShardFound:
		if !slices.Contains(c.shards, e.Shard) {
			c.shards = append(c.shards, e.Shard)
		}
		return c.resend(now, "")
	case ShardLost:
		c.shards = slices.DeleteFunc(c.shards, func(s besched.Shard) bool { return s == e.Shard })
		c.leased = false
		return c.resend(now, e.Shard)
	case Carried:
		if p := c.procs[e.ID]; p != nil && !p.Away() {
			p.Usage.Traffic = p.Usage.Traffic.Plus(e.Traffic)
		}
	case Requeue:
		return c.requeue(now, e.Before)
	case Starved:
		return c.starved(now, e.Shares)
	case RealmGone:
		return c.realmGone(now, e.Realm)
	}
	return c.stepFar(now, e)
}

// stepProc applies an event about a proc that has not ended and is not away.
func (c *Core) stepProc(now time.Time, p *Proc, e Event) []Effect {
	switch e := e.(type) {
	case Assigned:
		if p.State != sigma.ProcQueued {
			return c.unwanted(p.ID, p.Class) // one pid never starts twice
		}
		if p.Class == sigma.LatencyCritical {
			return c.reserve(now, reservation{id: p.ID, realm: p.Realm, cpu: p.CPU, memory: p.Memory})
		}
		if !c.may(p.Realm, p.Memory) {
			return c.keepBack(now, p)
		}
		if p.Memory > c.Free() { // what was placed since the credit was parked took its place
			if p.back {
				c.notBack(p)
				c.queued++
			}
			return []Effect{c.enqueue(now, p)}
		}
		c.leavesQueue(p)
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
			s = unstarted(p)
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
		carried := e.Traffic.Plus(p.Usage.Traffic) // TCP may have told more before the end was known
		p.Usage = sigma.Usage{UserTime: e.Exit.User, SystemTime: e.Exit.Sys, MemoryPeak: e.Exit.MemoryPeak,
			Traffic: carried}
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
	case Refused:
		if p.State == sigma.ProcQueued && p.Class == sigma.LatencyCritical {
			return c.end(now, p, sigma.Status{Code: sigma.StatusError, ExitCode: 125, Kind: sigma.KindTooBig,
				Msg: e.Why})
		}
	case Declined:
		if p.State == sigma.ProcQueued && !p.back {
			return []Effect{c.enqueue(now, p)}
		}
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
	case Declined:
		return e.ID
	case Refused:
		return e.ID
	}
	return ""
}
