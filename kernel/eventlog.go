package kernel

import (
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// Bounds of what is remembered of events. An event has some 300 bytes, so all of it stays below 16
// MiB.
const (
	eventsOfRealm  = 256  // latest events of one realm
	eventsOfSystem = 2048 // of the system: machines, daemons, realms
	// realms of which events are remembered; of others, those without an event for the longest time
	// go
	eventRealms = 128
)

// eventLog is what happened at this machine lately: of the system and, apart from that, so that no
// realm drives out another's, of each realm. Safe for concurrent use.
type eventLog struct {
	machine sigma.MachineID

	mu sync.Mutex
	// mu; of the latest; begins with the time in microseconds, so that a later sigmad of the
	// machine has higher ones
	seq    uint64
	system eventRing                    // mu
	realms map[sigma.RealmID]*eventRing // mu
	told   map[sigma.ProcID]struct{}    // mu; procs that run and whose start was told
	now    func() time.Time
}

func newEventLog(machine sigma.MachineID, now func() time.Time) *eventLog {
	return &eventLog{machine: machine, seq: uint64(now().UnixMicro()), system: eventRing{most: eventsOfSystem},
		realms: map[sigma.RealmID]*eventRing{}, told: map[sigma.ProcID]struct{}{}, now: now}
}

// eventRing has the latest events of one kind of reader.
type eventRing struct {
	most    int
	events  []state.Event // from first on, around
	first   int
	dropped uint64 // the latest that is not remembered any more
}

func (r *eventRing) add(e state.Event) {
	if len(r.events) < r.most {
		r.events = append(r.events, e)
		return
	}
	r.dropped = r.events[r.first].Seq
	r.events[r.first] = e
	r.first = (r.first + 1) % r.most
}

func (r *eventRing) last() uint64 {
	if len(r.events) == 0 {
		return 0
	}
	return r.events[(r.first+len(r.events)-1)%len(r.events)].Seq
}

// after appends the events later than a number, oldest first; if some of them are not remembered,
// an event says so first.
func (r *eventRing) after(out []state.Event, seq uint64) []state.Event {
	for i := range r.events {
		e := r.events[(r.first+i)%len(r.events)]
		if e.Seq <= seq {
			continue
		}
		if seq != 0 && r.dropped > seq && i == 0 {
			out = append(out, state.Event{Seq: r.dropped, Time: e.Time, At: e.At, Event: state.EventGap, Realm: e.Realm,
				Message: "older events are not remembered"})
		}
		out = append(out, e)
	}
	return out
}

// ofSystem notes an event of the system.
func (l *eventLog) ofSystem(e state.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stampLocked(&e)
	l.system.add(e)
}

// ofRealm notes an event of a realm.
func (l *eventLog) ofRealm(e state.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ofRealmLocked(e)
}

func (l *eventLog) ofRealmLocked(e state.Event) {
	id := sigma.RealmID(e.Realm)
	r := l.realms[id]
	if r == nil {
		if len(l.realms) >= eventRealms {
			l.dropLocked()
		}
		r = &eventRing{most: eventsOfRealm}
		l.realms[id] = r
	}
	l.stampLocked(&e)
	r.add(e)
}

// stampLocked gives an event its number and time.
func (l *eventLog) stampLocked(e *state.Event) {
	l.seq++
	e.Seq, e.Time, e.At = l.seq, l.now(), string(l.machine)
}

// dropLocked forgets the realm that had no event for the longest time.
func (l *eventLog) dropLocked() {
	var oldest sigma.RealmID
	for id, r := range l.realms {
		if oldest == "" || r.last() < l.realms[oldest].last() {
			oldest = id
		}
	}
	delete(l.realms, oldest)
}

// forget drops the events of a realm that is gone.
func (l *eventLog) forget(id sigma.RealmID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.realms, id)
}

// proc notes what became of a proc of this home: that it has started, once, and that it has ended.
// It reports whether that is so.
func (l *eventLog) proc(p *sigma.ProcInfo, started bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := state.Event{Realm: string(p.Realm), Proc: string(p.ID), Name: p.Name, Machine: string(p.Machine)}
	_, told := l.told[p.ID]
	switch {
	case p.State == sigma.ProcEnded:
		delete(l.told, p.ID)
		e.Event, e.Message = state.EventProcEnded, p.Status.Code.String()
		if p.Status.Msg != "" {
			e.Message += ": " + p.Status.Msg
		}
	case started && !told:
		l.told[p.ID] = struct{}{}
		e.Event = state.EventProcStarted
	default:
		return false
	}
	l.ofRealmLocked(e)
	return true
}

// asked says which events somebody may be told of.
type asked struct {
	system bool          // those of the system
	all    bool          // those of all realms
	realm  sigma.RealmID // else of this one
}

// after lists events later than a number, in order. A number that is not reached yet is of a
// machine whose clock was set back, and stands for none.
func (l *eventLog) after(q asked, seq uint64) (out []state.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq > l.seq {
		seq = 0
	}
	if q.system {
		out = l.system.after(out, seq)
	}
	for id, r := range l.realms {
		if q.all || id == q.realm {
			out = r.after(out, seq)
		}
	}
	sortEvents(out)
	return out
}
