package kernel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"sync"

	"sigmaos.dev/identity"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// peerEvents: which, number -> JSON lines of the machine's events after that, up to eventsPage and
// eventsBytes.
const peerEvents = "events"

// eventsPage events are in one answer at most, and eventsBytes of lines, which leaves room in a
// message; eventMessage bytes of a message are told, which JSON may write sixfold.
const (
	eventsPage   = 96
	eventsBytes  = 48 << 10
	eventsPages  = 64 // that one reading has: where more happens than can be read there is no end otherwise
	eventMessage = 200
)

// sortEvents puts events in order of time, those of one machine in their order.
func sortEvents(es []state.Event) {
	slices.SortStableFunc(es, func(a, b state.Event) int {
		if a.At == b.At {
			return cmp.Compare(a.Seq, b.Seq)
		}
		return a.Time.Compare(b.Time)
	})
}

// mayKnow says which events the session is told of: a tenant of its realm's; the provider of the
// system's and of the realm's that it works in, or in that of the system of all.
func (r *root) mayKnow() asked {
	p := r.tree.principal.System
	return asked{system: p, all: p && r.realm == sigma.SystemRealm, realm: r.realm}
}

// eventsFile is /sys/events: what happened lately, on all machines; the call events for who goes on
// from where it was.
func (r *root) eventsFile() sigma.File {
	type at struct {
		cursor state.Cursor
		pages  int
	}
	page := func(ctx context.Context, from at) ([]byte, at, bool, error) {
		text, next, more, err := r.eventsAfter(ctx, from.cursor)
		return text, at{next, from.pages + 1}, more && from.pages < eventsPages, err
	}
	calls := map[string]handler{sigmap.CallEvents: func(ctx context.Context, payload []byte) ([]byte, []*os.File,
		error) {
		var text string
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&text) }); err != nil {
			return nil, nil, err
		}
		after, err := state.ParseCursor(text)
		if err != nil {
			return nil, nil, err
		}
		lines, _, _, err := r.eventsAfter(ctx, after)
		return lines, nil, err
	}}
	return linesFile("/sys/"+sigmap.FileEvents, sigmap.FileEvents, 0o444, page).answering(r.callable(sigmap.FileEvents,
		calls))
}

// eventLines gives the first of the events as lines, as many as are in one answer.
func eventLines(es []state.Event) (text []byte, n int, err error) {
	for n < min(len(es), eventsPage) {
		line, err := state.Line(&es[n])
		if err != nil {
			return nil, 0, err
		}
		if n > 0 && len(text)+len(line) > eventsBytes {
			break
		}
		text = append(text, line...)
		n++
	}
	return text, n, nil
}

// eventsAfter merges what all machines remember; more: there may be more than that. One that does
// not answer is left out, and told of when it does.
func (r *root) eventsAfter(ctx context.Context, after state.Cursor) (text []byte, next state.Cursor, more bool,
	err error) {
	k, q := r.tree.k, r.mayKnow()
	own := k.events.after(q, after[string(k.cfg.Machine)])
	out := slices.Clone(own[:min(len(own), eventsPage)])
	more = len(own) > eventsPage
	ctx, cancel := context.WithTimeout(ctx, findMax)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range k.others() {
		all.Go(func() {
			seq := after[string(m)]
			var lines []byte
			err := k.ask(ctx, m, peerEvents, func(c *sigmap.Coder) {
				codeAsked(c, &q)
				c.U64(&seq)
			}, func(c *sigmap.Coder) { c.Data(&lines) })
			es, perr := parseEvents(lines, m)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && perr == nil {
				out = append(out, es...)
				more = more || len(es) == eventsPage || len(lines) > eventsBytes/2 // that was not all, maybe
			}
		})
	}
	all.Wait()
	sortEvents(out)
	next = maps.Clone(after)
	if next == nil {
		next = state.Cursor{}
	}
	text, n, err := eventLines(out)
	for _, e := range out[:n] {
		next[e.At] = e.Seq
	}
	return text, next, n > 0 && (more || n < len(out)), err
}

// parseEvents reads what a machine told, and believes it nothing about others.
func parseEvents(lines []byte, from sigma.MachineID) (out []state.Event, err error) {
	for line := range bytes.Lines(lines) {
		var e state.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, sigma.Wrap("kernel.events", "", err)
		}
		if e.At == string(from) && len(out) < eventsPage {
			out = append(out, e)
		}
	}
	return out, nil
}

func codeAsked(c *sigmap.Coder, q *asked) {
	c.Bool(&q.system)
	c.Bool(&q.all)
	c.RealmID(&q.realm)
}

func (k *Kernel) peerEvents(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var q asked
	var seq uint64
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { codeAsked(c, &q); c.U64(&seq) }); err != nil {
		return nil, err
	}
	lines, _, err := eventLines(k.events.after(q, seq))
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&lines) })
}

// tellProc notes what became of a proc that is at home here. It does not block.
func (k *Kernel) tellProc(p *schedd.Proc) {
	if !p.Guest() {
		info := p.ProcInfo
		info.Status.Msg = info.Status.Msg[:min(len(info.Status.Msg), eventMessage)]
		if k.events.proc(&info, p.HasStarted()) {
			k.noteFate(&info)
		}
	}
}

// tellMembers notes what became of machines. Of those that are alive the first by name does, so
// that it is told once.
func (k *Kernel) tellMembers(before, after []identity.Member) {
	first := slices.IndexFunc(after, func(m identity.Member) bool { return !m.Lost })
	if first < 0 || after[first].Machine != k.cfg.Machine || before == nil {
		return
	}
	tell := func(what string, m sigma.MachineID, message string) {
		k.events.ofSystem(state.Event{Event: what, Machine: string(m), Message: message})
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
			tell(state.EventMachineJoined, m.Machine, "")
		case m.Lost && !was.Lost:
			tell(k.own.lostOrLeft(m), m.Machine, "")
		case m.Draining && !was.Draining:
			tell(state.EventMachineDrained, m.Machine, "its procs are asked to go")
		case m.Cordoned && !was.Cordoned:
			tell(state.EventMachineCordoned, m.Machine, "it gets no new procs")
		case !m.Cordoned && was.Cordoned:
			tell(state.EventMachineUncordoned, m.Machine, "it gets new procs again")
		}
	}
	for m := range old {
		tell(state.EventMachineRemoved, m, "")
	}
}

// tellDaemon notes that a daemon of this machine ended or is there again.
func (k *Kernel) tellDaemon(what, name, message string) {
	k.events.ofSystem(state.Event{Event: what, Machine: string(k.cfg.Machine), Daemon: name, Message: message})
}

// tellRefused notes that a reservation can never be had.
func (k *Kernel) tellRefused(id sigma.ProcID, why string) {
	if p, ok := k.procs.Find(id); ok && !p.Ended() {
		k.events.ofRealm(state.Event{Event: state.EventReservationRefused, Realm: string(p.Realm), Proc: string(id),
			Name: p.Name, Message: why[:min(len(why), eventMessage)]})
	}
}
