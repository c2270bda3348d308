package schedd

import (
	"syscall"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/launch"
)

// Effect is something for the shell to do.
type Effect interface{ effect() }

// The effects.
type (
	// Enqueue hands the proc to the besched that it names (Proc.Shard), or to lcsched if it is
	// latency-critical. It waits here while no besched is attended.
	Enqueue struct{ Proc *Proc }
	// Dequeue takes it back.
	Dequeue struct {
		ID    sigma.ProcID
		Class sigma.Class
		Shard besched.Shard
	}
	// Start fetches its program and asks the launcher for it.
	Start struct{ Proc *Proc }
	// Kill ends its processes.
	Kill struct{ Proc *Proc }
	// Abandon: the proc is not wanted any more while its program is being fetched. NotLaunched
	// follows, or Launched if it is too late.
	Abandon struct{ ID sigma.ProcID }
	// Notice tells the proc to go: answers its WaitEvict calls, or sends the signal if there are
	// none.
	Notice struct {
		Proc   *Proc
		Signal syscall.Signal // 0 = answer WaitEvict
	}
	// Wake tells those who wait for the proc that its state changed.
	Wake struct{ ID sigma.ProcID }
	// Timer asks for TimerFired at a time, which is earlier than that of a former Timer of the
	// proc, if there is one, and takes its place.
	Timer struct {
		ID sigma.ProcID
		At time.Time
	}
	// Forget drops what is kept of an old proc.
	Forget struct{ ID sigma.ProcID }
	// Room says that what a credit can be parked for changed: memory became free, or a proc was
	// placed under a lease that is shared.
	Room struct{}
	// Decided: this was decided about a proc, and why.
	Decided struct{ decision.Record }
	// Unreserved tells lcsched that a reservation here is over, or that what it granted is not
	// wanted.
	Unreserved struct{ ID sigma.ProcID }
	// Unfit tells lcsched that there is no room for what it granted.
	Unfit struct{ ID sigma.ProcID }
	// Timed says that the phases of a start are all known.
	Timed struct{ Timing sigma.Timing }
)

// Effects that concern other machines.
type (
	// Owed says that a guest's home is to be told of it (Core.Report).
	Owed struct {
		ID   sigma.ProcID
		Home sigma.Life
	}
	// Take asks the home for a proc that besched gave to this machine. Arrived or NotTaken follows.
	Take struct {
		ID   sigma.ProcID
		Home sigma.Life
	}
	// Decline tells the home that this machine has no room after all.
	Decline struct {
		ID   sigma.ProcID
		Home sigma.Life
	}
)

func (Owed) effect()       {}
func (Decided) effect()    {}
func (Take) effect()       {}
func (Decline) effect()    {}
func (Enqueue) effect()    {}
func (Dequeue) effect()    {}
func (Start) effect()      {}
func (Kill) effect()       {}
func (Abandon) effect()    {}
func (Notice) effect()     {}
func (Wake) effect()       {}
func (Timer) effect()      {}
func (Forget) effect()     {}
func (Room) effect()       {}
func (Unreserved) effect() {}
func (Unfit) effect()      {}
func (Timed) effect()      {}

// Event is something that happened.
type Event interface{ event() }

// The events.
type (
	// Spawned: descriptors were accepted; IDs are theirs.
	Spawned struct {
		By    sigma.Principal
		IDs   []sigma.ProcID
		Ds    []sigma.Descriptor
		Views []*view.Table  // of each; nil = none has one
		Kin   []sigma.ProcID // of all of them
	}
	// Assigned: besched or lcsched gave the proc to this machine.
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
		ID      sigma.ProcID
		Exit    launch.Exited
		Traffic sigma.Traffic // of its connections
	}
	// Carried: of a proc that has ended, or whose Gone is on its way, what its connections carried
	// is known to be more than Gone says.
	Carried struct {
		ID      sigma.ProcID
		Traffic sigma.Traffic
	}
	// LauncherDied: the launcher that ran it, or was about to, is dead, and so are its processes.
	LauncherDied struct{ ID sigma.ProcID }
	// Adopted: the launcher runs a proc that a sigmad before this one had started.
	Adopted struct {
		Info   sigma.ProcInfo
		Launch uint64
		Said   *sigma.Status // by Exited
		View   *view.Table
		Kin    []sigma.ProcID
		Home   sigma.Life // of a guest
	}
	// Remembered: procs that had ended when a sigmad before this one did, and that are not
	// forgotten yet.
	Remembered struct{ Procs []Past }
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
	// Leased: besched lets this machine place procs by itself, while it runs fewer than Limit (0 =
	// no limit), or does so no more.
	Leased struct {
		On    bool
		Limit int
	}
	// Refused: lcsched says that no machine can ever take it.
	Refused struct {
		ID  sigma.ProcID
		Why string
	}
	// Cores: so much can be reserved here.
	Cores struct{ CPU sigma.MilliCPU }
	// LCSchedulerLost: lcsched died, or leads no more, with what was queued there.
	LCSchedulerLost struct{}
	// Maxima: these realms may have so much of the machine's memory at most. Those that are not
	// named may have all.
	Maxima struct{ Memory map[sigma.RealmID]sigma.Bytes }
	// Largest: the largest machine has so much memory for best-effort procs.
	Largest struct{ Memory sigma.Bytes }
	// ShardFound: this machine attends a besched from now on. What could be sent to none is.
	ShardFound struct{ Shard besched.Shard }
	// ShardLost: it does no more, or that besched died, with what was queued there, which goes to
	// another.
	ShardLost struct{ Shard besched.Shard }
	// Requeue: what was sent to besched before a time and is still queued is to be sent again, for
	// it may have been given to a machine that is gone.
	Requeue struct{ Before time.Time }
	// Starved: it is to be seen whether a realm waits in vain for memory that others have too much
	// of. Shares are those of all realms that have not 1.
	Starved struct{ Shares map[sigma.RealmID]uint32 }
	// RealmGone: the realm was removed. What is left of its ended procs is forgotten, so that a
	// realm that gets its name later does not see it.
	RealmGone struct{ Realm sigma.RealmID }
)

// Events that concern other machines.
type (
	// Offered: besched, or lcsched, gave another machine's proc to this one.
	Offered struct {
		ID     sigma.ProcID
		Realm  sigma.RealmID
		Class  sigma.Class
		CPU    sigma.MilliCPU // of an LC proc
		Memory sigma.Bytes
		Home   sigma.Life
	}
	// Arrived: its home gave it too.
	Arrived struct {
		Info       sigma.ProcInfo
		Descriptor sigma.Descriptor
		View       *view.Table
		Kin        []sigma.ProcID
		Home       sigma.Life
	}
	// NotTaken: its home did not, and will not.
	NotTaken struct{ ID sigma.ProcID }
	// Told: the home has heard what Report said of a guest.
	Told struct {
		ID    sigma.ProcID
		Ended bool // it said so
	}
	// Declined: the machine that besched gave this machine's proc to has no room for it.
	Declined struct{ ID sigma.ProcID }
	// Reported: a machine that runs procs of this one tells of them.
	Reported struct {
		From  sigma.Life
		Boot  uint64 // of its sigmad; a later one has a higher number
		Procs []Report
	}
	// Resynced: it has told of all, and whatever else was given to a sigmad before this one did not
	// outlive it.
	Resynced struct {
		From sigma.Life
		Boot uint64
	}
	// Members: of each machine of the system, the first life that is not over. Machines that are
	// not named are none.
	Members struct {
		Least map[sigma.MachineID]sigma.Incarnation
	}
	// Reborn: this machine's own life is over, and its procs with it.
	Reborn struct{}
	// Drained: all that run here are to go, and with Queued those that wait here for their start.
	// Why is told to who waits for them.
	Drained struct {
		Grace  time.Duration // 0 = the default
		Queued bool
		Why    string
	}
)

func (Offered) event()         {}
func (Arrived) event()         {}
func (NotTaken) event()        {}
func (Told) event()            {}
func (Declined) event()        {}
func (Reported) event()        {}
func (Resynced) event()        {}
func (Members) event()         {}
func (Reborn) event()          {}
func (Drained) event()         {}
func (Largest) event()         {}
func (Refused) event()         {}
func (Cores) event()           {}
func (Maxima) event()          {}
func (LCSchedulerLost) event() {}
func (Requeue) event()         {}
func (Spawned) event()         {}
func (Assigned) event()        {}
func (LaunchAsked) event()     {}
func (NotLaunched) event()     {}
func (Launched) event()        {}
func (Spoke) event()           {}
func (Froze) event()           {}
func (Gone) event()            {}
func (LauncherDied) event()    {}
func (Carried) event()         {}
func (Adopted) event()         {}
func (Remembered) event()      {}
func (CalledStarted) event()   {}
func (CalledExited) event()    {}
func (WaitsEvict) event()      {}
func (Evicted) event()         {}
func (Killed) event()          {}
func (TimerFired) event()      {}
func (Leased) event()          {}
func (ShardFound) event()      {}
func (ShardLost) event()       {}
func (Starved) event()         {}
func (RealmGone) event()       {}
