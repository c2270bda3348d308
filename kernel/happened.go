package kernel

import (
	"context"
	"os"

	"sigmaos.dev/kernel/eventlog"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// mayKnow says which events the session is told of: a tenant of its realm's; the provider of the
// system's and of the realm's that it works in, or in that of the system of all.
func (r sys) mayKnow() eventlog.Asked {
	p := r.tree.principal.System
	return eventlog.Asked{System: p, All: p && r.realm == sigma.SystemRealm, Realm: r.realm}
}

// eventsFile is /sys/events, and the call events.
func (r sys) eventsFile() sigma.File {
	k, q := r.tree.k, r.mayKnow()
	calls := map[string]handler{sigmap.CallEvents: func(ctx context.Context, payload []byte) ([]byte, []*os.File,
		error) {
		lines, err := k.history.EventsCall(ctx, q, payload)
		return lines, nil, err
	}}
	return k.history.EventsFile(q).Answering(r.callable(sigmap.FileEvents, calls))
}

// decisionsFile is /sys/decisions: a tenant is told of its own realm, the provider of the realm
// that it works in, and in that of the system of all. Schedulers note in it what they decide.
func (r sys) decisionsFile() sigma.File {
	k, of := r.tree.k, r.realm
	if of == sigma.SystemRealm && r.tree.principal.System {
		of = ""
	}
	f := k.history.DecisionsFile(of)
	if r.realm == sigma.SystemRealm && k.services.Of(r.tree.principal) != nil {
		return f.Answering(r.callable(sigmap.FileDecisions, map[string]handler{sigmap.CallNote: k.history.NoteCall}))
	}
	return f
}

// tellDaemon notes that a daemon of this machine ended or is there again.
func (k *Kernel) tellDaemon(what, name, message string) { k.history.TellDaemon(what, name, message) }
