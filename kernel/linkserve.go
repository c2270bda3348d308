package kernel

import (
	"context"
	"maps"
	"os"
	"sync"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/talk"
	"sigmaos.dev/link"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

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

// authorise is link.Config.Authorise: it says who of another machine reaches what here, and opens
// it, so that a refusal is in words.
func (k *Kernel) authorise(l *link.Link) error {
	if err := reach.MayReach(l.From, l.Target); err != nil {
		return err
	}
	done, err := k.reach.Count(l.Peer.Machine, l.Target)
	if err != nil {
		return err
	}
	o := &opened{done: done}
	if o.file, err = k.openTarget(l.From, l.Target); err != nil {
		o.Close()
		return err
	}
	l.Held = o
	return nil
}

// openTarget connects somebody of another machine with what the target names; nil for what sigmad
// serves itself.
func (k *Kernel) openTarget(from sigma.Principal, to link.Target) (*os.File, error) {
	const op = "kernel.links"
	switch to.Kind {
	case link.ToEndpoint:
		e, err := k.connect.EndpointHere(to)
		if err != nil {
			return nil, err
		}
		f, _, err := k.proxy.Dial(from, e)
		return f, err
	case link.ToBeat, link.ToDirect:
		return nil, nil
	case link.ToService:
		if to.Name == reach.TargetSigmad || to.Name == reach.TargetPeer {
			return nil, nil
		}
	}
	s := k.services.Local(to.Name)
	if s == nil {
		return nil, sigma.Errorf(op, sigma.KindNotFound, "machine %s runs no %s", k.cfg.Machine, to.Name)
	}
	s.Ask()
	e, running := s.Listens(to.Kind == link.ToStream)
	if !running {
		return nil, sigma.Errorf(op, sigma.KindUnavailable, "%s of machine %s is being started", s.Name, k.cfg.Machine)
	}
	f, _, err := k.proxy.Dial(from, e)
	return f, err
}

// serveLink is link.Config.Serve: it does for a link what authorise agreed to.
func (k *Kernel) serveLink(ctx context.Context, l *link.Link) {
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
		if e, err := k.connect.EndpointHere(l.Target); l.Target.Kind == link.ToEndpoint && err == nil {
			who = sigma.Principal{Realm: e.Realm, Proc: e.Proc}
		}
		k.meters.traffic.Begin(who) // it may have no meter
		k.connect.Join(ctx, l, file, who)
	case l.Target.Kind == link.ToBeat:
		k.cluster.Hear(ctx, l)
	case l.Target.Name == reach.TargetPeer:
		treekit.Serve(ctx, l.Session(), treekit.Config{Tree: k.reach.CallsOf(l.Peer), Principal: l.From,
			Events: k.serveEvents(l.From)})
	case l.Target.Name == reach.TargetSigmad:
		k.serveAs(ctx, l.Session(), &tree{k: k, principal: l.From, far: true}, false)
	}
}

// attachFar is Attach for another machine's sigmad: what this machine has of one realm, to be read,
// and its scratch storage. Nothing else of a realm's root is shown, or there would be two ways to
// everything, and two machines could ask each other in a circle.
func (t *tree) attachFar(name string) (sigma.File, error) {
	realm := t.principal.Realm
	if name != "" && sigma.RealmID(name) != realm {
		return nil, sigma.Errorf("kernel.Attach", sigma.KindPermission, "the link is made for the realm %s", realm)
	}
	t.k.sessions.mu.Lock()
	defer t.k.sessions.mu.Unlock()
	if err := t.k.realms.MayAttach(realm); err != nil {
		return nil, err
	}
	t.realms[realm] = true
	r := &root{tree: t, realm: realm}
	shown := map[string]func() sigma.File{sigma.NameUX: r.uxDir, sigma.NameProc: procRoot{r}.dir}
	return &computed.Dir{Path: "/",
		Names: func(context.Context) (names []string, err error) {
			for n := range shown {
				names = append(names, n)
			}
			return names, nil
		},
		Child: func(_ context.Context, name string) (sigma.File, error) {
			if f := shown[name]; f != nil {
				return f(), nil
			}
			return nil, &sigma.Error{Op: "kernel.attachFar", Path: "/" + name, Kind: sigma.KindNotFound,
				Msg: "a machine shows others only ux and proc"}
		}}, nil
}

// registerPeerCalls adds the methods about procs to what other machines may call.
func (k *Kernel) registerPeerCalls() {
	maps.Copy(k.reach.Calls, map[string]reach.Call{connect.PeerRevoke: k.connect.RevokeCall,
		connect.PeerBegun: k.connect.PeerBegun, cluster.PeerLeave: k.cluster.PeerLeave,
		talk.PeerTraffic: k.talk.PeerTraffic, talk.PeerDistances: k.talk.PeerDistances, talk.PeerTouch: talk.Touch})
}
