// Package coordinator is the proc that keeps the fleets of a realm. One leads by an election at
// fleet.Leader; initd starts another when it ends.
//
// It promises that everything a user asked for is stored among the names before it is answered, and
// that a coordinator which was deposed writes nothing any more: /fleet is fenced. It assumes that
// procs of the realm mean well with one another: a proc that claims to be a member is taken for
// one. Users: cmd/fleetd.
//
// One goroutine per fleet (keeper) owns its core (lib/fleet/core); everything else tells it events.
// Locks: Coordinator.mu, under which nothing is taken.
package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// Config is what a coordinator needs.
type Config struct {
	Client *sdk.Client // of a proc
	Log    *slog.Logger
	// TTL is how long a coordinator that is cut off keeps others from leading; 0 = 2 s.
	TTL time.Duration
}

// Coordinator keeps fleets while it leads.
type Coordinator struct {
	cfg Config
	c   *sdk.Client
	ctx context.Context // of Run

	mu      sync.Mutex
	leads   bool               // mu
	keepers map[string]*keeper // mu; by fleet
	all     sync.WaitGroup
}

// Run campaigns and keeps the fleets until ctx ends, which is no error, or it was deposed.
func Run(ctx context.Context, cfg Config) error {
	if cfg.TTL == 0 {
		cfg.TTL = 2 * time.Second
	}
	c := &Coordinator{cfg: cfg, c: cfg.Client, keepers: map[string]*keeper{}}
	l, err := c.c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	server, err := c.server()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer c.all.Wait()
	defer cancel(nil)
	c.ctx = ctx
	c.all.Go(func() { cancel(server.Serve(ctx, l)) })
	if err := c.c.MkdirAll(ctx, fleet.Root, 0o755); err != nil {
		return err
	}
	if err := c.c.Started(ctx); err != nil {
		return err
	}
	lead, err := c.c.Campaign(ctx, sdk.Election{Path: fleet.Leader, Data: []byte(l.Endpoint().String()),
		Kind: sigma.KindEndpoint, TTL: cfg.TTL, Fenced: []string{fleet.Root}})
	if err != nil {
		return orEnd(ctx, err)
	}
	defer lead.Resign(context.WithoutCancel(ctx))
	if err := c.takeOver(ctx); err != nil {
		return orEnd(ctx, err)
	}
	c.all.Go(func() { c.watchTraffic(ctx) })
	select {
	case <-ctx.Done():
		return orEnd(ctx, nil)
	case <-lead.Lost():
		return sigma.Errorf("coordinator.Run", sigma.KindStale, "another coordinator leads")
	}
}

// orEnd is nil if the context was ended by its owner.
func orEnd(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return err
	case errors.Is(cause, context.Canceled):
		return nil
	default:
		return cause
	}
}

// takeOver finds the fleets, and the procs that run as their members.
func (c *Coordinator) takeOver(ctx context.Context) error {
	entries, err := c.c.ReadDir(ctx, fleet.Root)
	if err != nil {
		return err
	}
	procs, err := c.procs(ctx)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.ID.Kind != sigma.KindDir || fleet.CheckName(e.Name) != nil {
			continue
		}
		if err := c.resume(ctx, e.Name, procs[e.Name]); err != nil {
			c.cfg.Log.Error("a fleet is not kept", "fleet", e.Name, "err", err)
		}
	}
	c.mu.Lock()
	c.leads = true
	c.mu.Unlock()
	c.all.Go(func() { c.lookAgain(ctx) })
	return nil
}

// lateMost is how long a proc may take to be there that a coordinator asked for which then ended.
const lateMost = 3 * time.Second

// lookAgain finds members that came after the first look, and would run beside those that this
// coordinator starts.
func (c *Coordinator) lookAgain(ctx context.Context) {
	if !retry.Pause(ctx, lateMost) {
		return
	}
	procs, err := c.procs(ctx)
	if err != nil {
		c.cfg.Log.Warn("members that came late are not looked for", "err", err)
		return
	}
	for name, ps := range procs {
		if k, err := c.keeper(name); err == nil {
			k.find(ps)
		}
	}
}

// procs are the realm's procs that run and are named as members, by fleet.
func (c *Coordinator) procs(ctx context.Context) (map[string][]sigma.ProcInfo, error) {
	all, err := c.c.List(ctx, false)
	if err != nil {
		return nil, err
	}
	of := map[string][]sigma.ProcInfo{}
	for _, p := range all {
		if name, _, ok := fleet.ParseMemberName(p.Name); ok {
			of[name] = append(of[name], p)
		}
	}
	return of, nil
}

// resume keeps a fleet of which there is a record. Without one its making was interrupted, and what
// is there is removed.
func (c *Coordinator) resume(ctx context.Context, name string, procs []sigma.ProcInfo) error {
	text, _, err := c.c.Get(ctx, fleet.Dir(name)+"/spec")
	if sigma.KindOf(err) == sigma.KindNotFound && err != nil {
		return c.c.RemoveAll(ctx, fleet.Dir(name))
	}
	if err != nil {
		return err
	}
	r, err := fleet.ParseRecord(text)
	if err != nil {
		return err
	}
	k := c.newKeeper(r)
	if err := k.papers.recall(ctx); err != nil {
		return err
	}
	c.keep(k, procs)
	return nil
}

// keep begins to keep a fleet.
func (c *Coordinator) keep(k *keeper, procs []sigma.ProcInfo) {
	c.mu.Lock()
	c.keepers[k.name] = k
	c.mu.Unlock()
	c.all.Go(func() {
		k.run(c.ctx, procs)
		c.mu.Lock()
		delete(c.keepers, k.name)
		c.mu.Unlock()
	})
}

// keeper finds who keeps a fleet. KindUnavailable: this coordinator does not lead.
func (c *Coordinator) keeper(name string) (*keeper, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leads {
		return nil, sigma.Errorf("fleet", sigma.KindUnavailable, "this coordinator does not lead")
	}
	if k := c.keepers[name]; k != nil {
		return k, nil
	}
	return nil, &sigma.Error{Op: "fleet", Path: fleet.Dir(name), Kind: sigma.KindNotFound,
		Msg: fmt.Sprintf("there is no fleet %.60q", name), Hint: "sigma fleet ls lists those that there are"}
}

// server answers the calls of users and members.
func (c *Coordinator) server() (*call.Server, error) {
	s := call.NewServer(call.Config{CallsMax: 4096})
	return s, errors.Join(
		handle(s, fleet.ApplyMethod, c.apply),
		handle(s, fleet.ListMethod, func(context.Context, struct{}) ([]fleet.Status, error) { return c.list() }),
		handle(s, fleet.RemoveMethod, func(ctx context.Context, a fleet.NameArg) (struct{}, error) {
			return struct{}{}, c.remove(ctx, a.Name)
		}),
		of(c, s, fleet.ScaleMethod, func(a fleet.ScaleArg) string { return a.Name }, (*keeper).scale),
		of(c, s, fleet.PolicyMethod, func(a fleet.PolicyArg) string { return a.Name }, (*keeper).setPolicy),
		of(c, s, fleet.RollMethod, nameOf, (*keeper).roll),
		of(c, s, fleet.UndoMethod, nameOf, (*keeper).undo),
		of(c, s, fleet.StatusMethod, nameOf, (*keeper).status),
		of(c, s, fleet.HistoryMethod, nameOf, (*keeper).history),
		of(c, s, fleet.DecisionsMethod, nameOf, (*keeper).decisions),
		of(c, s, fleet.EnterMethod, func(a fleet.EnterArg) string { return a.Name }, (*keeper).enter),
		of(c, s, fleet.ReportMethod, func(a fleet.ReportArg) string { return a.Name }, (*keeper).report),
		of(c, s, fleet.LeavingMethod, func(a fleet.MemberArg) string { return a.Name }, (*keeper).leaving))
}

const hintLost = "another coordinator starts: look with sigma fleet status, and do it again"

func nameOf(a fleet.NameArg) string { return a.Name }

// handle registers a call whose argument and answer are JSON.
func handle[A, R any](s *call.Server, m *call.Method, do func(context.Context, A) (R, error)) error {
	return s.Handle(m, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		var a A
		if len(arg) > 0 {
			if err := json.Unmarshal(arg, &a); err != nil {
				return nil, sigma.Errorf(m.Name, sigma.KindInvalid, "the argument cannot be read")
			}
		}
		r, err := do(ctx, a)
		if sigma.KindOf(err) == sigma.KindCanceled { // a caller who gave up hears nothing of it
			err = &sigma.Error{Op: m.Name, Kind: sigma.KindLost, Err: err,
				Msg: "the coordinator ended before it was done, and it may have been done", Hint: hintLost}
		}
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(r)
		return append(reply, b...), err
	})
}

// of registers a call about one fleet.
func of[A, R any](c *Coordinator, s *call.Server, m *call.Method, name func(A) string,
	do func(*keeper, context.Context, A) (R, error)) error {
	return handle(s, m, func(ctx context.Context, a A) (r R, err error) {
		k, err := c.keeper(name(a))
		if err != nil {
			return r, err
		}
		return do(k, ctx, a)
	})
}

func (c *Coordinator) list() ([]fleet.Status, error) {
	if _, err := c.keeper(""); sigma.KindOf(err) == sigma.KindUnavailable {
		return nil, err
	}
	c.mu.Lock()
	ks := slices.Collect(maps.Values(c.keepers))
	c.mu.Unlock()
	all := []fleet.Status{}
	for _, k := range ks {
		if s := k.last.Load(); s != nil {
			brief := *s
			brief.Members = nil
			all = append(all, brief)
		}
	}
	slices.SortFunc(all, func(a, b fleet.Status) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// apply puts a description in force, or tells what that would change.
func (c *Coordinator) apply(ctx context.Context, a fleet.ApplyArg) (r fleet.ApplyReply, err error) {
	if err := a.Spec.Check(); err != nil {
		return r, err
	}
	if !a.Plan { // what is planned may be stored later
		if err := c.exists(ctx, a.Spec.Program); err != nil {
			return r, err
		}
	}
	k, err := c.keeper(a.Spec.Name)
	if err == nil {
		return k.apply(ctx, a)
	}
	if sigma.KindOf(err) != sigma.KindNotFound {
		return r, err
	}
	if a.Generation != 0 {
		return r, changed(a.Spec.Name)
	}
	r = fleet.ApplyReply{Record: fleet.Record{Generation: 1, Revision: 1, Highest: 1, Spec: a.Spec, At: time.Now(),
		By: caller(ctx), What: "made"}, Changes: fleet.Changes(nil, &a.Spec), Made: true}
	if a.Plan {
		return r, nil
	}
	return c.make(ctx, r)
}

// exists reports whether there is a program, so that a wrong path is told at once.
func (c *Coordinator) exists(ctx context.Context, program string) error {
	_, err := c.c.Stat(ctx, program)
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return &sigma.Error{Op: "fleet", Path: program, Kind: sigma.KindNotFound, Msg: "there is no such program",
			Hint: "sigma put FILE " + program + " stores it"}
	}
	return nil // what else is wrong may pass
}

// make makes a fleet: its directory, and last its record, without which there is none.
func (c *Coordinator) make(ctx context.Context, r fleet.ApplyReply) (fleet.ApplyReply, error) {
	name := r.Record.Spec.Name
	k := c.newKeeper(r.Record)
	c.mu.Lock()
	n, taken := len(c.keepers), c.keepers[name] != nil
	if !taken && n < fleet.FleetsMax {
		c.keepers[name] = k
	}
	c.mu.Unlock()
	switch {
	case taken:
		return r, changed(name)
	case n >= fleet.FleetsMax:
		return r, sigma.Errorf("fleet", sigma.KindTooBig, "there are %d fleets in this realm, which is the most", n)
	}
	err := c.c.MkdirAll(ctx, fleet.Members(name), 0o755)
	if err == nil {
		err = k.store(ctx, r.Record)
	}
	if err != nil {
		c.mu.Lock()
		delete(c.keepers, name)
		c.mu.Unlock()
		return r, err
	}
	c.keep(k, nil)
	return r, nil
}

func (c *Coordinator) remove(ctx context.Context, name string) error {
	k, err := c.keeper(name)
	if err != nil {
		return err
	}
	return k.remove(ctx)
}

func changed(name string) error {
	return &sigma.Error{Op: "fleet", Path: fleet.Dir(name), Kind: sigma.KindVersion,
		Msg: "somebody else has changed the fleet meanwhile", Hint: "look at the plan again"}
}

// caller names who called, for the history.
func caller(ctx context.Context) string {
	if p, ok := call.Caller(ctx); ok && p.Proc != "" {
		return string(p.Proc)
	}
	return ""
}
