// Package reach is how a machine's sigmad finds the services of its system, wherever they run, and
// calls the sigmads of other machines, with each of which it keeps a session. It also says what of
// this machine others may reach, and counts their links. Users: kernel.
//
// Locks: Reach.mu. It is taken under no other lock, and nothing is called under it.
package reach

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"sync"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// What other machines may reach here by link.ToService, besides the services of the boot set.
const (
	TargetSigmad = "sigmad" // what this machine has of a realm (attachAt)
	TargetPeer   = "peer"   // the calls of sigmads among themselves
)

// Links of one machine that are open here at a time. link bounds all of them together; these keep
// one purpose from using up what another needs.
const (
	servingMost    = 2048 // of what has a number for each realm or each proc
	ServingFew     = 64   // of what a machine needs one of, and now and then another
	servingStreams = 64
	servingBeats   = 16
	keptOfMachine  = 2048 // sessions that are kept to one machine
)

// Call answers calls of other machines' sigmads, which have been admitted. A call's context ends
// with its session.
type Call = sigmap.Handler[identity.Subject]

// On makes a Call.
func On[Q, R any](m sigmap.Method[Q, R], f func(context.Context, Q) (R, error)) Call {
	return sigmap.On(m, func(_ identity.Subject, ctx context.Context, q Q) (R, error) { return f(ctx, q) })
}

// From makes a Call that depends on who makes it.
func From[Q, R any](m sigmap.Method[Q, R], f func(ctx context.Context, from identity.Subject, q Q) (R, error)) Call {
	return sigmap.On(m, func(from identity.Subject, ctx context.Context, q Q) (R, error) { return f(ctx, from, q) })
}

// Answer lets other machines' sigmads make calls. It is for before Begin.
func (x *Reach) Answer(cs ...Call) { maps.Copy(x.calls, sigmap.Table(cs...)) }

// Config is what a Reach needs of its user.
type Config struct {
	Machine  sigma.MachineID
	Log      *slog.Logger
	Cluster  *cluster.Cluster
	Services *services.Set
	Procs    *procs.Table
	Go       func(func()) // begins what is waited for before the program ends
}

// Reach finds services, and keeps sessions with other machines' sigmads. Safe for concurrent use.
type Reach struct {
	cfg   Config
	ctx   context.Context                   // set by Begin
	calls sigmap.Handlers[identity.Subject] // complete before Begin

	mu      sync.Mutex
	serving map[serving]int            // mu
	kept    map[farKey]*farSession     // mu
	notes   chan struct{}              // mu; closed and replaced with each change of last
	last    map[string]sigma.MachineID // mu; which machine's service of a name was reached last
	// mu; where another machine's s3d and dbd listen, as long as that is certain
	stores map[string]sigma.Endpoint
	// mu; where the object store listened when that was asked last, latest first
	told [toldMax]sigma.Endpoint
}

// New makes what has reached nothing yet.
func New(cfg Config) *Reach {
	x := &Reach{cfg: cfg, serving: map[serving]int{}, kept: map[farKey]*farSession{}, notes: make(chan struct{}),
		last: map[string]sigma.MachineID{}, stores: map[string]sigma.Endpoint{}}
	x.calls = sigmap.Table(On(callService, x.serviceHere), On(callServiceOver, x.serviceOver),
		On(callServiceUnused, x.serviceUnused))
	return x
}

// Begin sets the context of sessions that are kept. It is called before there is one.
func (x *Reach) Begin(ctx context.Context) { x.ctx = ctx }

// serving is what is counted of one machine's links.
type serving struct {
	machine sigma.MachineID
	kind    link.TargetKind
	name    string // of a service
}

// MayReach says whether a principal of another machine may reach such a target at all. Machines act
// for the provider towards services and each other; procs reach endpoints, for which dialproxy has
// the last word, and what a machine has of their own realm.
func MayReach(from sigma.Principal, to link.Target) error {
	const op = "kernel.mayReach"
	machine := from.System && from.Proc == "" && from.Realm.Check() == nil
	proc := !from.System && from.Proc != "" && from.Realm.Check() == nil
	switch {
	case !machine && !proc:
		return sigma.Errorf(op, sigma.KindPermission,
			"the link is made for nobody: neither for a machine nor for a proc")
	case to.Kind == link.ToEndpoint:
		return nil
	case to.Kind == link.ToService && to.Name == TargetSigmad:
		return nil
	case !machine:
		return sigma.Errorf(op, sigma.KindPermission, "a proc may not reach the %s of another machine", to.String())
	case to.Kind == link.ToBeat, to.Kind == link.ToDirect, to.Kind == link.ToStream && to.Name == services.Named:
		return nil
	case to.Kind == link.ToService:
		if _, ok := services.DatabaseRealm(to.Name); ok || placement.IsBesched(to.Name) {
			return nil
		}
		switch to.Name {
		case services.Named, services.Lcsched, services.S3, services.Machined, TargetPeer:
			return nil
		}
	}
	return sigma.Errorf(op, sigma.KindNotFound, "machines have no %s", to.String())
}

// Count counts a link until done is called.
func (x *Reach) Count(m sigma.MachineID, to link.Target) (done func(), err error) {
	s, most := serving{machine: m, kind: to.Kind}, servingMost
	switch {
	case to.Kind == link.ToBeat, to.Kind == link.ToDirect:
		most = servingBeats
	case to.Kind == link.ToStream:
		most = servingStreams
	case to.Kind == link.ToService:
		s.name = to.Name
		if to.Name == TargetPeer || placement.IsBesched(to.Name) || to.Name == services.Lcsched ||
			to.Name == services.Machined {
			most = ServingFew
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.serving[s] >= most {
		return nil, sigma.Errorf("kernel.links", sigma.KindBusy, "machine %s has %d links to the %s here", m, most,
			to.String())
	}
	x.serving[s]++
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.serving[s]--; x.serving[s] == 0 {
			delete(x.serving, s)
		}
	}, nil
}

// CallsOf is what a machine may call here.
func (x *Reach) CallsOf(from identity.Subject) peerTree { return peerTree{x, from} }

// peerTree is what another machine's sigmad calls: one callable file.
type peerTree struct {
	x    *Reach
	from identity.Subject
}

// Attach implements sigma.Tree.
func (t peerTree) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return treeserver.Methods(TargetPeer, 1, t.from, t.x.calls), nil
}

// Call implements sigma.Caller, for what this machine asks itself.
func (t peerTree) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	session.CloseFiles(files)
	m, ok := t.x.calls[method]
	if !ok {
		return nil, nil, treeserver.NoMethod(TargetPeer, method)
	}
	return m.Call(t.from, ctx, payload)
}

// Sessions counts the sessions with other machines that are kept.
func (x *Reach) Sessions() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.kept)
}

// Serving counts the links of a machine to a service that are open here.
func (x *Reach) Serving(m sigma.MachineID, service string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.serving[serving{m, link.ToService, service}]
}
