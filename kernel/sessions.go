package kernel

import (
	"context"
	"fmt"
	"net"
	"time"

	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// endSessions ends the sessions that are attached to a realm, but for one, and waits until their
// last requests are over.
func (k *Kernel) endSessions(ctx context.Context, realm sigma.RealmID, but any) error {
	k.sessions.mu.Lock()
	var ts []*tree
	for t := range k.sessions.open {
		if any(t) != but && t.realms[realm] {
			ts = append(ts, t)
		}
	}
	k.sessions.mu.Unlock()
	for _, t := range ts {
		t.end()
	}
	for _, t := range ts {
		select {
		case <-t.over:
		case <-ctx.Done():
			return sigma.Wrap("kernel.realms", "", ctx.Err())
		}
	}
	return nil
}

// serve answers one program's session until it ends.
func (k *Kernel) serve(ctx context.Context, conn session.Conn, p sigma.Principal) {
	k.serveAs(ctx, conn, &tree{k: k, principal: p}, false)
}

// serveAs serves t, which is of this session alone. The connection may have been another sigmad's
// (reset).
func (k *Kernel) serveAs(ctx context.Context, conn session.Conn, t *tree, reset bool) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	p := t.principal
	t.end, t.over, t.realms = end, make(chan struct{}), map[sigma.RealmID]bool{}
	k.sessions.mu.Lock()
	k.sessions.open[t] = true
	k.sessions.mu.Unlock()
	conn.Passing().Charge(k.passed, p.Realm, p.Proc)
	cfg := treekit.Config{Tree: t, Principal: p, Reset: reset, Turns: k.meters.turns, Events: k.serveEvents(p)}
	cfg.Events.Numbered = t.numbered
	if t.granted != nil {
		cfg.Requests = guests.RequestsMax
	}
	if t.far {
		cfg.BulkTicket = func(ctx context.Context, serve func(net.Conn)) ([]byte, error) {
			return k.connect.Tickets.Give(ctx, p, serve)
		}
	} else {
		if t.quota = k.quotas.Of(p); t.quota != nil {
			cfg.Handles = t.quota
			defer t.quota.Close()
		}
	}
	err := treekit.Serve(ctx, conn, cfg)
	if err != nil {
		k.cfg.Log.Debug("session ended", "realm", p.Realm, "proc", p.Proc, "err", err)
	}
	k.sessions.mu.Lock()
	delete(k.sessions.open, t)
	k.sessions.mu.Unlock()
	close(t.over)
	if t.counted {
		t.quota.Leave()
	}
	if t.far { // it can have neither, and the proc that it names may be anybody's
		return
	}
	if own := k.services.Of(p); own != nil {
		own.Ending(p.Proc)
	}
	k.proxy.CloseProc(p.Proc) // here, when no Listen can come any more
	t.release()
}

// serveEvents logs what goes wrong in a session of p.
func (k *Kernel) serveEvents(p sigma.Principal) treekit.Events {
	return treekit.Events{
		Panicked: func(op string, value any, stack []byte) {
			k.cfg.Log.Error("handler panicked", "realm", p.Realm, "proc", p.Proc, "op", op, "err", fmt.Sprint(value),
				"stack", string(stack))
		},
		Failed: func(op string, err error) {
			if !k.mayLog() {
				return
			}
			k.cfg.Log.Warn("request failed", "realm", p.Realm, "proc", p.Proc, "op", op, "err", err)
		},
	}
}

// Failures of requests are logged up to failuresMax in failuresTime, so that a proc that repeats
// one does not fill the disk.
const (
	failuresMax  = 10
	failuresTime = 10 * time.Second
)

func (k *Kernel) mayLog() bool {
	k.sessions.mu.Lock()
	defer k.sessions.mu.Unlock()
	if now := time.Now(); now.Sub(k.sessions.failing) >= failuresTime {
		k.sessions.failing, k.sessions.failures = now, 0
	}
	k.sessions.failures++
	return k.sessions.failures <= failuresMax
}

// isAttached says whether a session is attached to a realm.
func (k *Kernel) isAttached(realm sigma.RealmID) bool {
	k.sessions.mu.Lock()
	defer k.sessions.mu.Unlock()
	for t := range k.sessions.open {
		if t.realms[realm] {
			return true
		}
	}
	return false
}

// rootOf is the root of a principal's realm without a session.
func (k *Kernel) rootOf(p sigma.Principal) sigma.File {
	return &root{tree: &tree{k: k, principal: p}, realm: p.Realm}
}

// tellDaemon notes that a daemon of this machine ended or is there again.
func (k *Kernel) tellDaemon(what, name, message string) { k.history.TellDaemon(what, name, message) }

// serveGuest answers a guest's session.
func (k *Kernel) serveGuest(ctx context.Context, conn session.Conn, g *guests.Granted) {
	t := &tree{k: k, granted: g, principal: sigma.Principal{Realm: g.Presented.Realm, Proc: sigma.NewProcID(),
		Machine: k.cfg.Machine}}
	t.view = t.viewer(viewfs.Config{Table: g.View, Role: g.Role.String()})
	k.serveAs(ctx, conn, t, false)
	k.meters.traffic.End(time.Now(), t.principal.Proc)
}

// owesAnswers says whether somebody is still to hear of the end of a proc: its home, or a session
// that waited for one and has not ended.
func (k *Kernel) owesAnswers() bool {
	owes := false
	if k.procs.With(func(v procs.View) { owes = v.Owes() }); owes {
		return true
	}
	k.sessions.mu.Lock()
	defer k.sessions.mu.Unlock()
	for t := range k.sessions.open {
		if t.waited.Load() {
			return true
		}
	}
	return false
}
