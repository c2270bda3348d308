package initd

import (
	"maps"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// Pauses before a proc that ended is started again: pauseMin, doubled with each that ended within
// healthy, up to pauseMax.
const (
	pauseMin = 200 * time.Millisecond
	pauseMax = 30 * time.Second
	healthy  = 30 * time.Second
)

// stopAgain is after how long a proc that is to end is asked again to go, when its machine may not
// have heard it.
const stopAgain = 5 * time.Second

// Sight is what is known of a proc.
type Sight uint8

// The sights.
const (
	Unsure Sight = iota // some machine that may know it has not answered
	Alive               // it is queued, starts or runs
	Ended               // it has a Status
	Gone                // no machine knows it, and none will: it was never spawned, or was lost
)

// Event is something that happened.
type Event interface{ event() }

// The events. Those of a version or proc that is not the present one do nothing.
type (
	// Listed: these are all records there are.
	Listed struct{ Records map[Key]Versioned }
	// Saved: a Save was made and gave the record this version.
	Saved struct {
		Key     Key
		Version sigma.Version
	}
	// Dropped: a Save or Forget was not made, or may not have been. What the record is Listed will
	// tell.
	Dropped struct{ Key Key }
	// Forgotten: the record is gone.
	Forgotten struct{ Key Key }
	// Saw: what became of a proc.
	Saw struct {
		Key    Key
		Proc   sigma.ProcID
		Sight  Sight
		Ran    time.Duration // since it left the queue, to its end if it has ended
		Status sigma.Status  // if it has ended
	}
	// Refused: a Spawn was refused for good, so there is no such proc.
	Refused struct {
		Key  Key
		Proc sigma.ProcID
		Err  error
	}
	// Ticked: time has passed.
	Ticked struct{}
)

func (Listed) event()    {}
func (Saved) event()     {}
func (Dropped) event()   {}
func (Forgotten) event() {}
func (Saw) event()       {}
func (Refused) event()   {}
func (Ticked) event()    {}

// Versioned is a record and the version of its file.
type Versioned struct {
	Record  Record
	Version sigma.Version
}

// Effect is something for the shell to do. Save and Forget are answered by Saved, Dropped or
// Forgotten; until then nothing else is wanted of their key.
type Effect interface{ effect() }

// The effects.
type (
	// Save writes a record if its file is at a version.
	Save struct {
		Key Key
		Versioned
	}
	// Spawn makes a proc. Its record is saved before.
	Spawn struct {
		Key        Key
		Proc       sigma.ProcID
		Descriptor sigma.Descriptor
	}
	// Stop asks a proc to go.
	Stop struct {
		Key  Key
		Proc sigma.ProcID
	}
	// Forget removes a record if its file is at a version.
	Forget struct {
		Key     Key
		Version sigma.Version
	}
)

func (Save) effect()   {}
func (Spawn) effect()  {}
func (Stop) effect()   {}
func (Forget) effect() {}

// entry is what is known of a registration.
type entry struct {
	Versioned
	busy  bool      // a Save or Forget is under way, or its outcome is not known
	stale bool      // it is not known what the record is
	spawn bool      // with the Save that is under way its proc is to be spawned
	stop  time.Time // when its proc is to be asked to go again, if it is to end
	due   time.Time // when the next is to be started
	pause time.Duration
}

// Core is what a leader knows. Its machine and draw are for new procs. Not safe for concurrent use.
type Core struct {
	machine sigma.MachineID
	draw    func() sigma.ProcID
	entries map[Key]*entry
}

// NewCore makes that of a leader on a machine, which has heard of nothing; draw makes ids of procs.
func NewCore(machine sigma.MachineID, draw func() sigma.ProcID) *Core {
	return &Core{machine: machine, draw: draw, entries: map[Key]*entry{}}
}

// Watched are the procs whose end is waited for, by registration.
func (c *Core) Watched() map[Key]sigma.ProcID {
	out := map[Key]sigma.ProcID{}
	for k, e := range c.entries {
		if p := e.Record.Present(); p != nil && !e.busy && !e.stale {
			out[k] = p.Proc
		}
	}
	return out
}

// Stale says whether the records have to be listed again.
func (c *Core) Stale() bool {
	for _, e := range c.entries {
		if e.stale {
			return true
		}
	}
	return false
}

// Wakes is when Ticked is needed; zero if it is not.
func (c *Core) Wakes() (at time.Time) {
	for _, e := range c.entries {
		if e.waits() && (at.IsZero() || e.due.Before(at)) {
			at = e.due
		}
	}
	return at
}

// waits says that an instance is to be started when it is due.
func (e *entry) waits() bool {
	r := &e.Record
	return !e.busy && !e.stale && !r.Removed && r.Present() == nil && !r.over() && !r.spent()
}

// Step applies an event and says what is to be done.
func (c *Core) Step(now time.Time, ev Event) (out []Effect) {
	switch ev := ev.(type) {
	case Listed:
		c.listed(now, ev.Records)
	case Saved:
		if e := c.entries[ev.Key]; e != nil && e.busy {
			e.busy, e.Version = false, ev.Version
			if e.spawn {
				e.spawn = false
				p := e.Record.Present()
				e.stop = now
				out = append(out, Spawn{ev.Key, p.Proc, e.Record.Registration.Descriptor})
			}
		}
	case Dropped:
		if e := c.entries[ev.Key]; e != nil {
			e.busy, e.spawn, e.stale = false, false, true
		}
	case Forgotten:
		delete(c.entries, ev.Key)
	case Saw:
		if e := c.present(ev.Key, ev.Proc); e != nil {
			if ev.Ran >= healthy {
				e.pause = pauseMin
			}
			switch ev.Sight {
			case Alive:
				if ev.Ran >= healthy && e.Record.Pause > 0 { // which a later leader is to know
					e.Record.Pause = 0
					out = append(out, c.save(ev.Key, e))
				}
			case Ended:
				if ev.Ran > 0 { // now it is known how long of this it was queued
					h := slices.Clone(e.Record.History)
					h[len(h)-1].Begun = now.Add(-ev.Ran)
					e.Record.History = h
				}
				c.ended(now, e, ev.Status)
				out = append(out, c.save(ev.Key, e))
			case Gone:
				c.ended(now, e, sigma.Status{Code: sigma.StatusLost, ExitCode: 125, Kind: sigma.KindLost,
					Msg: "no machine knows it: its machine, or the whole system, was lost or restarted"})
				out = append(out, c.save(ev.Key, e))
			}
		}
	case Refused:
		if e := c.present(ev.Key, ev.Proc); e != nil {
			c.ended(now, e, sigma.Status{Code: sigma.StatusError, ExitCode: 125, Kind: sigma.KindOf(ev.Err),
				Msg: ev.Err.Error()})
			out = append(out, c.save(ev.Key, e))
		}
	}
	return append(out, c.wanted(now)...)
}

// present finds the registration whose present proc is p.
func (c *Core) present(k Key, p sigma.ProcID) *entry {
	e := c.entries[k]
	if e == nil || e.busy || e.stale {
		return nil
	}
	if i := e.Record.Present(); i == nil || i.Proc != p {
		return nil
	}
	return e
}

// listed takes what the records are. One for which something is under way is as that leaves it; if
// somebody else has changed it, the Save fails.
func (c *Core) listed(now time.Time, all map[Key]Versioned) {
	maps.DeleteFunc(c.entries, func(k Key, e *entry) bool { _, there := all[k]; return !there && !e.busy })
	for k, v := range all {
		e := c.entries[k]
		if e == nil {
			e = &entry{due: now, pause: pauseMin}
			if waited := min(v.Record.Pause, pauseMax); waited > 0 { // under a leader before
				e.due, e.pause = now.Add(waited), min(2*waited, pauseMax)
			}
			c.entries[k] = e
		}
		if e.busy {
			continue
		}
		before := e.Record.Present()
		e.Versioned, e.stale = v, false
		if p := v.Record.Present(); p != nil && (before == nil || before.Proc != p.Proc) {
			e.stop = now
		}
		if v.Record.Anew {
			e.due, e.pause = now, pauseMin
		}
	}
}

// ended notes the end of the present instance and when the next is due: at once if it was told to
// go, or was lost or its machine stopped, which is no fault of the proc's, unless that goes on. The
// time that an instance waited in a queue says nothing about its health.
func (c *Core) ended(now time.Time, e *entry, s sigma.Status) {
	e.Record.end(s, now)
	if e.Record.Anew {
		e.pause = pauseMin
	}
	e.Record.Pause = e.pause
	lost := s.Code == sigma.StatusLost || s.Code == sigma.StatusEvicted &&
		s.Kind == sigma.KindUnavailable // with its machine, or before that went
	if e.Record.Anew || lost && e.pause == pauseMin {
		e.Record.Pause = 0
	}
	e.due = now.Add(e.Record.Pause)
	e.pause = min(2*e.pause, pauseMax)
}

// save has the record of an entry written.
func (c *Core) save(k Key, e *entry) Effect {
	e.busy = true
	return Save{k, e.Versioned}
}

// wanted is what is to be done now, by name, so that it is the same whenever the same has happened.
func (c *Core) wanted(now time.Time) (out []Effect) {
	for _, k := range slices.SortedFunc(maps.Keys(c.entries), byName) {
		e := c.entries[k]
		switch p := e.Record.Present(); {
		case e.busy || e.stale:
		case e.Record.Removed && p == nil:
			e.busy = true
			out = append(out, Forget{k, e.Version})
		case (e.Record.Removed || e.Record.Anew) && p != nil && !now.Before(e.stop):
			e.stop = now.Add(stopAgain)
			out = append(out, Stop{k, p.Proc})
		case e.waits() && !now.Before(e.due):
			e.Record.begin(c.draw(), c.machine, now)
			e.spawn = true
			out = append(out, c.save(k, e))
		}
	}
	return out
}

func byName(a, b Key) int {
	if n := strings.Compare(string(a.Realm), string(b.Realm)); n != 0 {
		return n
	}
	return strings.Compare(a.Name, b.Name)
}
