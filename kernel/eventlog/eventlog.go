// Package eventlog remembers what happened at a machine lately: of the system, and apart from that
// of each realm. It makes and reads the pages in which machines tell one another of it. Users:
// kernel.
package eventlog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Bounds of what is remembered of events. An event has some 300 bytes, so all of it stays below 16
// MiB.
const (
	eventsOfRealm  = 256  // latest events of one realm
	eventsOfSystem = 2048 // of the system: machines, daemons, realms
	// realms of which events are remembered; of others, those without an event for the longest time
	// go
	realmsMax = 128
)

// Log is what happened at this machine lately: of the system and, apart from that, so that no
// realm drives out another's, of each realm. Safe for concurrent use.
type Log struct {
	machine sigma.MachineID

	mu sync.Mutex
	// mu; of the latest; begins with the time in microseconds, so that a later sigmad of the
	// machine has higher ones
	seq    uint64
	system ring                      // mu
	realms map[sigma.RealmID]*ring   // mu
	told   map[sigma.ProcID]struct{} // mu; procs that run and whose start was told
	now    func() time.Time
}

// New makes the log of a machine on which nothing has happened.
func New(machine sigma.MachineID, now func() time.Time) *Log {
	return &Log{machine: machine, seq: uint64(now().UnixMicro()), system: ring{most: eventsOfSystem},
		realms: map[sigma.RealmID]*ring{}, told: map[sigma.ProcID]struct{}{}, now: now}
}

// ring has the latest events of one kind of reader.
type ring struct {
	most    int
	events  []report.Event // from first on, around
	first   int
	dropped uint64 // the latest that is not remembered any more
}

func (r *ring) add(e report.Event) {
	if len(r.events) < r.most {
		r.events = append(r.events, e)
		return
	}
	r.dropped = r.events[r.first].Seq
	r.events[r.first] = e
	r.first = (r.first + 1) % r.most
}

func (r *ring) last() uint64 {
	if len(r.events) == 0 {
		return 0
	}
	return r.events[(r.first+len(r.events)-1)%len(r.events)].Seq
}

// after appends the events later than a number, oldest first; if some of them are not remembered,
// an event says so first.
func (r *ring) after(out []report.Event, seq uint64) []report.Event {
	for i := range r.events {
		e := r.events[(r.first+i)%len(r.events)]
		if e.Seq <= seq {
			continue
		}
		if seq != 0 && r.dropped > seq && i == 0 {
			out = append(out, report.Event{Seq: r.dropped, Time: e.Time, At: e.At, Event: report.EventGap,
				Realm: e.Realm, Message: "older events are not remembered"})
		}
		out = append(out, e)
	}
	return out
}

// OfSystem notes an event of the system.
func (l *Log) OfSystem(e report.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stampLocked(&e)
	l.system.add(e)
}

// OfRealm notes an event of a realm.
func (l *Log) OfRealm(e report.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ofRealmLocked(e)
}

func (l *Log) ofRealmLocked(e report.Event) {
	id := sigma.RealmID(e.Realm)
	r := l.realms[id]
	if r == nil {
		if len(l.realms) >= realmsMax {
			l.dropLocked()
		}
		r = &ring{most: eventsOfRealm}
		l.realms[id] = r
	}
	l.stampLocked(&e)
	r.add(e)
}

// stampLocked gives an event its number and time.
func (l *Log) stampLocked(e *report.Event) {
	l.seq++
	e.Seq, e.Time, e.At = l.seq, l.now(), string(l.machine)
}

// dropLocked forgets the realm that had no event for the longest time.
func (l *Log) dropLocked() {
	var oldest sigma.RealmID
	for id, r := range l.realms {
		if oldest == "" || r.last() < l.realms[oldest].last() {
			oldest = id
		}
	}
	delete(l.realms, oldest)
}

// Forget drops the events of a realm that is gone.
func (l *Log) Forget(id sigma.RealmID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.realms, id)
}

// OfProc notes what became of a proc of this home: that it has started, once, and that it has
// ended. It reports whether that is so.
func (l *Log) OfProc(p *sigma.ProcInfo, started bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := report.Event{Realm: string(p.Realm), Proc: string(p.ID), Name: p.Name, Machine: string(p.Machine)}
	_, told := l.told[p.ID]
	switch {
	case p.State == sigma.ProcEnded:
		delete(l.told, p.ID)
		e.Event, e.Message = report.EventProcEnded, p.Status.Code.String()
		if p.Status.Msg != "" {
			e.Message += ": " + p.Status.Msg
		}
	case started && !told:
		l.told[p.ID] = struct{}{}
		e.Event = report.EventProcStarted
	default:
		return false
	}
	l.ofRealmLocked(e)
	return true
}

// Asked says which events somebody may be told of.
type Asked struct {
	System bool          // those of the system
	All    bool          // those of all realms
	Realm  sigma.RealmID // else of this one
}

// After lists events later than a number, in order. A number that is not reached yet is of a
// machine whose clock was set back, and stands for none.
func (l *Log) After(q Asked, seq uint64) (out []report.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq > l.seq {
		seq = 0
	}
	if q.System {
		out = l.system.after(out, seq)
	}
	for id, r := range l.realms {
		if q.All || id == q.Realm {
			out = r.after(out, seq)
		}
	}
	Sort(out)
	return out
}

// PageMax events are in one answer at most, and PageBytes of lines, which leaves room in a
// message; MessageMax bytes of a message are told, which JSON may write sixfold.
const (
	PageMax    = 96
	PageBytes  = 48 << 10
	PagesMax   = 64 // that one reading has: where more happens than can be read there is no end otherwise
	MessageMax = 200
)

// Sort puts events in order of time, those of one machine in their order.
func Sort(es []report.Event) {
	slices.SortStableFunc(es, func(a, b report.Event) int {
		if a.At == b.At {
			return cmp.Compare(a.Seq, b.Seq)
		}
		return a.Time.Compare(b.Time)
	})
}

// Page gives the first of the events as lines, as many as are in one answer.
func Page(es []report.Event) (text []byte, n int, err error) {
	for n < min(len(es), PageMax) {
		line, err := report.Line(&es[n])
		if err != nil {
			return nil, 0, err
		}
		if n > 0 && len(text)+len(line) > PageBytes {
			break
		}
		text = append(text, line...)
		n++
	}
	return text, n, nil
}

// Parse reads what a machine told, and believes it nothing about others.
func Parse(lines []byte, from sigma.MachineID) (out []report.Event, err error) {
	for line := range bytes.Lines(lines) {
		var e report.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, sigma.Wrap("kernel.events", "", err)
		}
		if e.At == string(from) && len(out) < PageMax {
			out = append(out, e)
		}
	}
	return out, nil
}

// Code codes which events are asked for.
func (q *Asked) Code(c *sigmap.Coder) {
	c.Bool(&q.System)
	c.Bool(&q.All)
	c.RealmID(&q.Realm)
}
