// Package history tells what happened lately on all machines (/sys/events), and why procs waited,
// were placed and failed (/sys/decisions). Each machine keeps its own (kernel/eventlog, decision).
// It has no lock; procs.Table's may be held when it is told of procs. Users: kernel.
package history

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/eventlog"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// peerEvents asks for JSON lines of the machine's events after a number, up to eventsPage and
// eventsBytes.
var peerEvents = sigmap.Method[eventsAsk, []byte]{Name: "events", Request: codeEventsAsk, Reply: (*sigmap.Coder).Data}

type eventsAsk struct {
	which eventlog.Asked
	seq   uint64
}

func codeEventsAsk(c *sigmap.Coder, a *eventsAsk) {
	a.which.Code(c)
	c.U64(&a.seq)
}

// Config is what a History needs of its user.
type Config struct {
	Machine sigma.MachineID
	Data    string // directory of what is written down
	Log     *slog.Logger
	Procs   *procs.Table
	Cluster *cluster.Cluster
	Reach   *reach.Reach
	// Machines are all members, whether they are there or not, in order.
	Machines func() []sigma.MachineID
}

// History is what happened lately. Safe for concurrent use.
type History struct {
	cfg       Config
	Events    *eventlog.Log // of this machine
	Decisions *decision.Log // of this machine
}

// New reads what was noted before this sigmad, and answers other machines.
func New(cfg Config) *History {
	x := &History{cfg: cfg, Events: eventlog.New(cfg.Machine, time.Now)}
	x.Decisions = x.openDecisions()
	cfg.Reach.Answer(reach.On(peerEvents, x.eventsHere), reach.On(peerDecisions, x.decisionsHere))
	return x
}

// eventsAt is how far a reader of /sys/events has come.
type eventsAt struct {
	cursor report.Cursor
	pages  int
}

// EventsFile is /sys/events: what happened lately, on all machines, as far as q says.
func (x *History) EventsFile(q eventlog.Asked) *computed.Lines[eventsAt] {
	return computed.LinesFile("/sys/"+sigmap.FileEvents, sigmap.FileEvents, 0o444,
		func(ctx context.Context, from eventsAt) ([]byte, eventsAt, bool, error) {
			text, next, more, err := x.eventsAfter(ctx, q, from.cursor)
			return text, eventsAt{next, from.pages + 1}, more && from.pages < eventlog.PagesMax, err
		})
}

// EventsAfter are the events after a report.Cursor, given as text.
func (x *History) EventsAfter(ctx context.Context, q eventlog.Asked, text string) ([]byte, error) {
	after, err := report.ParseCursor(text)
	if err != nil {
		return nil, err
	}
	lines, _, _, err := x.eventsAfter(ctx, q, after)
	return lines, err
}

// eventsAfter merges what all machines remember; more: there may be more than that. One that does
// not answer is left out, and told of when it does.
func (x *History) eventsAfter(ctx context.Context, q eventlog.Asked, after report.Cursor) (text []byte,
	next report.Cursor, more bool, err error) {
	own := x.Events.After(q, after[string(x.cfg.Machine)])
	out := slices.Clone(own[:min(len(own), eventlog.PageMax)])
	more = len(own) > eventlog.PageMax
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range x.cfg.Cluster.Others() {
		all.Go(func() {
			lines, err := peerEvents.Ask(ctx, x.cfg.Reach.At(m), eventsAsk{q, after[string(m)]})
			es, perr := eventlog.Parse(lines, m)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && perr == nil {
				out = append(out, es...)
				// that was not all, maybe
				more = more || len(es) == eventlog.PageMax || len(lines) > eventlog.PageBytes/2
			}
		})
	}
	all.Wait()
	eventlog.Sort(out)
	next = maps.Clone(after)
	if next == nil {
		next = report.Cursor{}
	}
	text, n, err := eventlog.Page(out)
	for _, e := range out[:n] {
		next[e.At] = e.Seq
	}
	return text, next, n > 0 && (more || n < len(out)), err
}

// eventsHere answers peerEvents.
func (x *History) eventsHere(_ context.Context, a eventsAsk) ([]byte, error) {
	lines, _, err := eventlog.Page(x.Events.After(a.which, a.seq))
	return lines, err
}

// TellProc notes what became of a proc that is at home here. It does not block.
func (x *History) TellProc(p *schedd.Proc) {
	if !p.Guest() {
		info := p.ProcInfo
		info.Status.Msg = info.Status.Msg[:min(len(info.Status.Msg), eventlog.MessageMax)]
		if x.Events.OfProc(&info, p.HasStarted()) {
			x.noteFate(&info)
		}
	}
}

// TellMembers notes what became of machines. Of those that are alive the first by name does, so
// that it is told once.
func (x *History) TellMembers(before, after []identity.Member) {
	first := slices.IndexFunc(after, func(m identity.Member) bool { return !m.Lost })
	if first < 0 || after[first].Machine != x.cfg.Machine || before == nil {
		return
	}
	tell := func(what string, m sigma.MachineID, message string) {
		x.Events.OfSystem(report.Event{Event: what, Machine: string(m), Message: message})
	}
	old := map[sigma.MachineID]identity.Member{}
	for _, m := range before {
		old[m.Machine] = m
	}
	for _, m := range after {
		was, known := old[m.Machine]
		delete(old, m.Machine)
		switch {
		case !known || was.Incarnation < m.Incarnation && !m.Lost || was.Lost && !m.Lost:
			tell(report.EventMachineJoined, m.Machine, "")
		case m.Lost && !was.Lost:
			tell(x.cfg.Cluster.LostOrLeft(m), m.Machine, "")
		case m.Draining && !was.Draining:
			tell(report.EventMachineDrained, m.Machine, "its procs are asked to go")
		case m.Cordoned && !was.Cordoned:
			tell(report.EventMachineCordoned, m.Machine, "it gets no new procs")
		case !m.Cordoned && was.Cordoned:
			tell(report.EventMachineUncordoned, m.Machine, "it gets new procs again")
		}
	}
	for m := range old {
		tell(report.EventMachineRemoved, m, "")
	}
}

// TellDaemon notes that a daemon of this machine ended or is there again.
func (x *History) TellDaemon(what, name, message string) {
	x.Events.OfSystem(report.Event{Event: what, Machine: string(x.cfg.Machine), Daemon: name, Message: message})
}

// TellRefused notes that a reservation can never be had.
func (x *History) TellRefused(id sigma.ProcID, why string) {
	if p, ok := x.cfg.Procs.Find(id); ok && !p.Ended() {
		x.Events.OfRealm(report.Event{Event: report.EventReservationRefused, Realm: string(p.Realm), Proc: string(id),
			Name: p.Name, Message: why[:min(len(why), eventlog.MessageMax)]})
	}
}
