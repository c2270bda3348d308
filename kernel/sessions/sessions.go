// Package sessions serves the sessions that a machine's sigmad has with programs and with other
// machines: it knows whose each is, what it sees and what it holds, and ends with it what is the
// session's own. What a session is shown is the user's (Config.Root). Users: kernel and the
// directories below it.
//
// Locks: Sessions.mu, under which procs.Table's is taken, and Session.mu, a leaf. realms.Realms's
// may be held when IsAttached is called.
package sessions

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/quotas"
	"sigmaos.dev/kernel/realms"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/session"
)

// Config is what Sessions need of their user.
type Config struct {
	Machine  sigma.MachineID
	Log      *slog.Logger
	Passed   *inflight.Account // descriptors that programs have not received
	Turns    *treeserver.Turns
	Traffic  *meter.Traffic
	Proxy    *dialproxy.Proxy
	Procs    *procs.Table
	Cluster  *cluster.Cluster
	Services *services.Set
	Connect  *connect.Connect
	Quotas   *quotas.Quotas
	Remote   *remote.Remote
	Realms   *realms.Realms
	// Root is the root of a realm as a session has it, before its view.
	Root func(s Scope) sigma.File
	// Shared is what a session of another machine is shown of a realm.
	Shared func(s Scope) sigma.File
}

// Sessions are those of a machine. Safe for concurrent use.
type Sessions struct {
	cfg Config
	ctx context.Context // set by Begin

	mu       sync.Mutex
	open     map[*Session]bool // mu
	failing  time.Time         // mu; when counting failures began
	failures int               // mu; of requests, since then
}

// New makes the sessions of a machine that has none.
func New(cfg Config) *Sessions { return &Sessions{cfg: cfg, open: map[*Session]bool{}} }

// Begin sets the context of what is done after a session has ended. It is called before the rest.
func (x *Sessions) Begin(ctx context.Context) { x.ctx = ctx }

// Of gives p's session without a connection.
func (x *Sessions) Of(p sigma.Principal) *Session { return &Session{x: x, Principal: p} }

// Open are the sessions there are, if match says so.
func (x *Sessions) Open(match func(*Session) bool) (out []*Session) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for s := range x.open {
		if match(s) {
			out = append(out, s)
		}
	}
	return out
}

// End ends the sessions that are attached to a realm, but for one, and waits until their last
// requests are over.
func (x *Sessions) End(ctx context.Context, realm sigma.RealmID, but any) error {
	ss := x.Open(func(s *Session) bool { return any(s) != but && s.realms[realm] })
	for _, s := range ss {
		s.end()
	}
	for _, s := range ss {
		select {
		case <-s.over:
		case <-ctx.Done():
			return sigma.Wrap("kernel.realms", "", ctx.Err())
		}
	}
	return nil
}

// IsAttached says whether a session is attached to a realm.
func (x *Sessions) IsAttached(realm sigma.RealmID) bool {
	return len(x.Open(func(s *Session) bool { return s.realms[realm] })) > 0
}

// Serve answers one program's session until it ends.
func (x *Sessions) Serve(ctx context.Context, conn session.Conn, p sigma.Principal) {
	x.serve(ctx, conn, x.Of(p))
}

// ServeFar answers another machine's sigmad, that asks for p, until the session ends.
func (x *Sessions) ServeFar(ctx context.Context, conn session.Conn, p sigma.Principal) {
	x.serve(ctx, conn, &Session{x: x, Principal: p, Far: true})
}

// ServeProc answers a proc's session until it ends. v is nil if the proc sees all of its realm; kin
// are its ancestors with views. The connection of an adopted proc may have been another sigmad's.
func (x *Sessions) ServeProc(ctx context.Context, conn session.Conn, who sigma.Principal, v *view.Table,
	kin []sigma.ProcID, adopted bool) {
	s := x.Of(who)
	if v != nil {
		s.View = s.viewer(viewfs.Config{Table: v, Kin: kin})
	}
	s.Inherited = adopted
	x.serve(ctx, conn, s)
}

// ServeGuest answers a guest's session until it ends. The session counts as a proc that nobody
// knows: what it holds has an owner.
func (x *Sessions) ServeGuest(ctx context.Context, conn session.Conn, g *guests.Granted) {
	s := x.Of(sigma.Principal{Realm: g.Presented.Realm, Proc: sigma.NewProcID(), Machine: x.cfg.Machine})
	s.Granted, s.View = g, s.viewer(viewfs.Config{Table: g.View, Role: g.Role.String()})
	x.serve(ctx, conn, s)
	x.cfg.Traffic.End(time.Now(), s.Principal.Proc)
}

// serve serves s, which is of this session alone.
func (x *Sessions) serve(ctx context.Context, conn session.Conn, s *Session) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	p := s.Principal
	s.end, s.over, s.realms = end, make(chan struct{}), map[sigma.RealmID]bool{}
	x.mu.Lock()
	x.open[s] = true
	x.mu.Unlock()
	conn.Passing().Charge(x.cfg.Passed, p.Realm, p.Proc)
	cfg := treeserver.Config{Tree: s, Principal: p, Reset: s.Inherited, Turns: x.cfg.Turns, Events: x.Events(p)}
	cfg.Events.Numbered = s.numbered
	if s.Granted != nil {
		cfg.Requests = guests.RequestsMax
	}
	if s.Far {
		cfg.BulkTicket = func(ctx context.Context, serve func(net.Conn)) ([]byte, error) {
			return x.cfg.Connect.Tickets.Give(ctx, p, serve)
		}
	} else {
		if s.quota = x.cfg.Quotas.Of(p); s.quota != nil {
			cfg.Handles = s.quota
			defer s.quota.Close()
		}
	}
	err := treeserver.Serve(ctx, conn, cfg)
	if err != nil {
		x.cfg.Log.Debug("session ended", "realm", p.Realm, "proc", p.Proc, "err", err)
	}
	x.mu.Lock()
	delete(x.open, s)
	x.mu.Unlock()
	close(s.over)
	if s.counted {
		s.quota.Leave()
	}
	if s.Far { // it can have neither, and the proc that it names may be anybody's
		return
	}
	if own := s.service(); own != nil {
		own.Ending(p.Proc)
	}
	x.cfg.Proxy.CloseProc(p.Proc) // here, when no Listen can come any more
	s.release()
}

// Events logs what goes wrong in a session of p.
func (x *Sessions) Events(p sigma.Principal) treeserver.Events {
	return treeserver.Events{
		Panicked: func(op string, value any, stack []byte) {
			x.cfg.Log.Error("handler panicked", "realm", p.Realm, "proc", p.Proc, "op", op, "err", fmt.Sprint(value),
				"stack", string(stack))
		},
		Failed: func(op string, err error) {
			if x.MayLog() {
				x.cfg.Log.Warn("request failed", "realm", p.Realm, "proc", p.Proc, "op", op, "err", err)
			}
		},
	}
}

// Failures of requests are logged up to failuresMax in failuresTime, so that a proc that repeats
// one does not fill the disk.
const (
	failuresMax  = 10
	failuresTime = 10 * time.Second
)

// MayLog says whether one more failure is logged now, and counts it.
func (x *Sessions) MayLog() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if now := time.Now(); now.Sub(x.failing) >= failuresTime {
		x.failing, x.failures = now, 0
	}
	x.failures++
	return x.failures <= failuresMax
}

// OweAnswers says whether somebody is still to hear of the end of a proc: its home, or a session
// that waited for one and has not ended.
func (x *Sessions) OweAnswers() bool {
	owes := false
	x.cfg.Procs.With(func(v procs.View) { owes = v.Owes() })
	return owes || len(x.Open(func(s *Session) bool { return s.waited.Load() })) > 0
}
