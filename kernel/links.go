package kernel

import (
	"context"
	"os"
	"sync"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/link"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// What other machines may reach here by link.ToService, besides the services of the boot set.
const (
	targetSigmad = "sigmad" // what this machine has of a realm (attachAt)
	targetPeer   = "peer"   // the calls of sigmads among themselves
)

// Links of one machine that are open here at a time. link bounds all of them together; these keep
// one purpose from using up what another needs.
const (
	servingMost    = 2048 // of what has a number for each realm or each proc
	servingFew     = 64   // of what a machine needs one of, and now and then another
	servingStreams = 64
	servingBeats   = 16
	keptOfMachine  = 2048 // sessions that are kept to one machine
)

// peerCall answers a call of another machine's sigmad, which has been admitted as from. ctx ends
// with its session.
type peerCall func(ctx context.Context, from identity.Subject, payload []byte) ([]byte, error)

// links is what this machine has to do with others. Its mu is taken under no other lock, and
// nothing is called under it.
type links struct {
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

// serving is what is counted of one machine's links.
type serving struct {
	machine sigma.MachineID
	kind    link.TargetKind
	name    string // of a service
}

func newLinks() *links {
	return &links{serving: map[serving]int{}, kept: map[farKey]*farSession{}, notes: make(chan struct{}),
		last: map[string]sigma.MachineID{}, stores: map[string]sigma.Endpoint{}}
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

// authorise is link.Config.Authorise: it says who of another machine reaches what here, and opens
// it, so that a refusal is in words.
func (k *Kernel) authorise(l *link.Link) error {
	if err := mayReach(l.From, l.Target); err != nil {
		return err
	}
	done, err := k.links.count(l.Peer.Machine, l.Target)
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

// mayReach says whether a principal of another machine may reach such a target at all. Machines act
// for the provider towards services and each other; procs reach endpoints, for which dialproxy has
// the last word, and what a machine has of their own realm.
func mayReach(from sigma.Principal, to link.Target) error {
	const op = "kernel.mayReach"
	machine := from.System && from.Proc == "" && from.Realm.Check() == nil
	proc := !from.System && from.Proc != "" && from.Realm.Check() == nil
	switch {
	case !machine && !proc:
		return sigma.Errorf(op, sigma.KindPermission,
			"the link is made for nobody: neither for a machine nor for a proc")
	case to.Kind == link.ToEndpoint:
		return nil
	case to.Kind == link.ToService && to.Name == targetSigmad:
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
		case services.Named, services.Lcsched, services.S3, services.Machined, targetPeer:
			return nil
		}
	}
	return sigma.Errorf(op, sigma.KindNotFound, "machines have no %s", to.String())
}

// count counts a link until done is called.
func (x *links) count(m sigma.MachineID, to link.Target) (done func(), err error) {
	s, most := serving{machine: m, kind: to.Kind}, servingMost
	switch {
	case to.Kind == link.ToBeat, to.Kind == link.ToDirect:
		most = servingBeats
	case to.Kind == link.ToStream:
		most = servingStreams
	case to.Kind == link.ToService:
		s.name = to.Name
		if to.Name == targetPeer || placement.IsBesched(to.Name) || to.Name == services.Lcsched ||
			to.Name == services.Machined {
			most = servingFew
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
		if to.Name == targetSigmad || to.Name == targetPeer {
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
		k.traffic.Begin(who) // it may have no meter
		k.connect.Join(ctx, l, file, who)
	case l.Target.Kind == link.ToBeat:
		k.cluster.Hear(ctx, l)
	case l.Target.Name == targetPeer:
		treekit.Serve(ctx, l.Session(), treekit.Config{Tree: peerTree{k, l.Peer}, Principal: l.From,
			Events: k.serveEvents(l.From)})
	case l.Target.Name == targetSigmad:
		k.serveAs(ctx, l.Session(), &tree{k: k, principal: l.From, far: true}, false)
	}
}

// peerTree is what another machine's sigmad calls: one callable file.
type peerTree struct {
	k    *Kernel
	from identity.Subject
}

// Attach implements sigma.Tree.
func (t peerTree) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return treekit.Answers(targetPeer, t.call), nil
}

func (t peerTree) call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	f := t.k.peerCalls[method]
	if f == nil {
		return nil, treekit.NoMethod(targetPeer, method)
	}
	return f(ctx, t.from, payload)
}

// Call implements sigma.Caller, for what this machine asks itself.
func (t peerTree) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	session.CloseFiles(files)
	reply, err := t.call(ctx, method, payload)
	return reply, nil, err
}

// attachFar is Attach for another machine's sigmad: what this machine has of one realm, to be read,
// and its scratch storage. Nothing else of a realm's root is shown, or there would be two ways to
// everything, and two machines could ask each other in a circle.
func (t *tree) attachFar(name string) (sigma.File, error) {
	realm := t.principal.Realm
	if name != "" && sigma.RealmID(name) != realm {
		return nil, sigma.Errorf("kernel.Attach", sigma.KindPermission, "the link is made for the realm %s", realm)
	}
	t.k.mu.Lock()
	defer t.k.mu.Unlock()
	if err := t.k.removed(realm); err != nil {
		return nil, err
	}
	t.realms[realm] = true
	r := &root{tree: t, realm: realm}
	shown := map[string]func() sigma.File{sigma.NameUX: r.uxDir, sigma.NameProc: r.procDir}
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
