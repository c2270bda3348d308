// Package incoming answers links of other machines: it says what of this machine each may reach,
// connects it with that, and serves what sigmad itself answers. It has no lock. Users: kernel.
package incoming

import (
	"context"
	"os"
	"sync"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// Incoming is what links of other machines are connected with.
type Incoming struct {
	Machine  sigma.MachineID
	Proxy    *dialproxy.Proxy
	Services *services.Set
	Cluster  *cluster.Cluster
	Reach    *reach.Reach
	Connect  *connect.Connect
	Traffic  *meter.Traffic
	Sessions *sessions.Sessions
}

// opened is what was opened for a link of another machine.
type opened struct {
	file *os.File // nil = nothing but the count
	once sync.Once
	done func()
}

// Close gives it back.
func (o *opened) Close() error {
	o.once.Do(func() {
		if o.file != nil {
			o.file.Close()
		}
		o.done()
	})
	return nil
}

// Authorise is link.Config.Authorise: it says who of another machine reaches what here, and opens
// it, so that a refusal is in words.
func (x *Incoming) Authorise(l *link.Link) error {
	if err := reach.MayReach(l.From, l.Target); err != nil {
		return err
	}
	done, err := x.Reach.Count(l.Peer.Machine, l.Target)
	if err != nil {
		return err
	}
	o := &opened{done: done}
	if o.file, err = x.openTarget(l.From, l.Target); err != nil {
		o.Close()
		return err
	}
	l.Held = o
	return nil
}

// openTarget connects somebody of another machine with what the target names; nil for what sigmad
// serves itself.
func (x *Incoming) openTarget(from sigma.Principal, to link.Target) (*os.File, error) {
	const op = "kernel.links"
	switch to.Kind {
	case link.ToEndpoint:
		e, err := x.Connect.EndpointHere(to)
		if err != nil {
			return nil, err
		}
		f, _, err := x.Proxy.Dial(from, e)
		return f, err
	case link.ToBeat, link.ToDirect:
		return nil, nil
	case link.ToService:
		if to.Name == reach.TargetSigmad || to.Name == reach.TargetPeer {
			return nil, nil
		}
	}
	s := x.Services.Local(to.Name)
	if s == nil {
		return nil, sigma.Errorf(op, sigma.KindNotFound, "machine %s runs no %s", x.Machine, to.Name)
	}
	s.Ask()
	e, running := s.Listens(to.Kind == link.ToStream)
	if !running {
		return nil, sigma.Errorf(op, sigma.KindUnavailable, "%s of machine %s is being started", s.Name, x.Machine)
	}
	f, _, err := x.Proxy.Dial(from, e)
	return f, err
}

// Serve is link.Config.Serve: it does for a link what Authorise agreed to.
func (x *Incoming) Serve(ctx context.Context, l *link.Link) {
	defer l.Close()
	o, ok := l.Held.(*opened)
	if !ok {
		return
	}
	defer o.Close()
	switch {
	case o.file != nil:
		file := o.file
		o.file = nil
		var who sigma.Principal
		if e, err := x.Connect.EndpointHere(l.Target); l.Target.Kind == link.ToEndpoint && err == nil {
			who = sigma.Principal{Realm: e.Realm, Proc: e.Proc}
		}
		x.Traffic.Begin(who) // it may have no meter
		x.Connect.Join(ctx, l, file, who)
	case l.Target.Kind == link.ToBeat:
		x.Cluster.Hear(ctx, l)
	case l.Target.Name == reach.TargetPeer:
		treeserver.Serve(ctx, l.Session(), treeserver.Config{Tree: x.Reach.CallsOf(l.Peer), Principal: l.From,
			Events: x.Sessions.Events(l.From)})
	case l.Target.Name == reach.TargetSigmad:
		x.Sessions.ServeFar(ctx, l.Session(), l.From)
	}
}
