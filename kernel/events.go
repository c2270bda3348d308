package kernel

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/eventlog"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// peerEvents: which, number -> JSON lines of the machine's events after that, up to eventsPage and
// eventsBytes.
const peerEvents = "events"

// mayKnow says which events the session is told of: a tenant of its realm's; the provider of the
// system's and of the realm's that it works in, or in that of the system of all.
func (r *root) mayKnow() eventlog.Asked {
	p := r.tree.principal.System
	return eventlog.Asked{System: p, All: p && r.realm == sigma.SystemRealm, Realm: r.realm}
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
		return text, at{next, from.pages + 1}, more && from.pages < eventlog.PagesMax, err
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
	return computed.LinesFile("/sys/"+sigmap.FileEvents, sigmap.FileEvents, 0o444,
		page).Answering(r.callable(sigmap.FileEvents,
		calls))
}

// eventsAfter merges what all machines remember; more: there may be more than that. One that does
// not answer is left out, and told of when it does.
func (r *root) eventsAfter(ctx context.Context, after state.Cursor) (text []byte, next state.Cursor, more bool,
	err error) {
	k, q := r.tree.k, r.mayKnow()
	own := k.events.After(q, after[string(k.cfg.Machine)])
	out := slices.Clone(own[:min(len(own), eventlog.PageMax)])
	more = len(own) > eventlog.PageMax
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range k.cluster.Others() {
		all.Go(func() {
			seq := after[string(m)]
			var lines []byte
			err := k.reach.Ask(ctx, m, peerEvents, func(c *sigmap.Coder) {
				q.Code(c)
				c.U64(&seq)
			}, func(c *sigmap.Coder) { c.Data(&lines) })
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
		next = state.Cursor{}
	}
	text, n, err := eventlog.Page(out)
	for _, e := range out[:n] {
		next[e.At] = e.Seq
	}
	return text, next, n > 0 && (more || n < len(out)), err
}

func (k *Kernel) peerEvents(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var q eventlog.Asked
	var seq uint64
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { q.Code(c); c.U64(&seq) }); err != nil {
		return nil, err
	}
	lines, _, err := eventlog.Page(k.events.After(q, seq))
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&lines) })
}

// tellProc notes what became of a proc that is at home here. It does not block.
func (k *Kernel) tellProc(p *schedd.Proc) {
	if !p.Guest() {
		info := p.ProcInfo
		info.Status.Msg = info.Status.Msg[:min(len(info.Status.Msg), eventlog.MessageMax)]
		if k.events.OfProc(&info, p.HasStarted()) {
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
		k.events.OfSystem(state.Event{Event: what, Machine: string(m), Message: message})
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
			tell(k.cluster.LostOrLeft(m), m.Machine, "")
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
	k.events.OfSystem(state.Event{Event: what, Machine: string(k.cfg.Machine), Daemon: name, Message: message})
}

// tellRefused notes that a reservation can never be had.
func (k *Kernel) tellRefused(id sigma.ProcID, why string) {
	if p, ok := k.procs.Find(id); ok && !p.Ended() {
		k.events.OfRealm(state.Event{Event: state.EventReservationRefused, Realm: string(p.Realm), Proc: string(id),
			Name: p.Name, Message: why[:min(len(why), eventlog.MessageMax)]})
	}
}
