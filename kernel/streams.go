package kernel

import (
	"context"
	"os"
	"syscall"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/link"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// dialEndpoint connects who to an endpoint and returns who's end. Of another machine's endpoints
// that machine has the last word; a stream between procs is a TCP connection of their own, unless
// one of the machines encrypts; what is left sigmad relays, and ends both sides when the link is
// lost. Programs outside have it relayed, since nobody could take a socket of theirs back.
func (k *Kernel) dialEndpoint(ctx context.Context, who sigma.Principal, e sigma.Endpoint) (*os.File, dialproxy.Ticket,
	error) {
	if e.Machine == k.cfg.Machine {
		return k.proxy.Dial(who, e)
	}
	if e.Realm != who.Realm && e.Realm != sigma.SystemRealm && !who.System { // as dialproxy says it
		return nil, "", &sigma.Error{Op: "kernel.Dial", Kind: sigma.KindPermission,
			Msg: "the endpoint belongs to another realm"}
	}
	if !k.cluster.Registered() {
		return nil, "", &sigma.Error{Op: "kernel.Dial", Kind: sigma.KindUnavailable,
			Msg: "the endpoint is on machine " + string(e.Machine) +
				", and this machine is not registered with its system yet"}
	}
	to := link.Target{Kind: link.ToEndpoint, Name: e.String()}
	typ := syscall.SOCK_SEQPACKET
	switch {
	case e.Form == sigma.FormStream && who.Proc != "":
		f, err := k.dialStraight(ctx, who, e, to)
		if err == nil {
			return f, "", nil
		}
		if sigma.KindOf(err) != sigma.KindUnsupported {
			return nil, "", unreachable(err, to)
		}
		fallthrough
	case e.Form == sigma.FormStream:
		typ = syscall.SOCK_STREAM
	}
	f, err := k.dialRelay(ctx, who, e.Machine, to, typ)
	return f, "", err
}

// dialStraight makes a direct connection and notes it.
func (k *Kernel) dialStraight(ctx context.Context, who sigma.Principal, e sigma.Endpoint, to link.Target) (*os.File,
	error) {
	member, _ := k.cluster.Identity().Roster().Member(e.Machine)
	k.hearTCPEnds(k.ctx)
	conn, err := k.dialDirect(ctx, who, e.Machine, to)
	if err != nil {
		return nil, err
	}
	k.markDirect(who.Proc, conn)
	f, err := fileOf(conn)
	if err != nil {
		return nil, sigma.Wrap("kernel.Dial", "", err)
	}
	if err := k.proxy.Dialled(who, e, sigma.Life{Machine: e.Machine, Incarnation: member.Incarnation}, "tcp",
		f); err != nil {
		f.Close()
		return nil, err
	}
	k.traffic.Follow(who.Realm, who.Proc, f)
	k.recheck()
	return f, nil
}

// dialStream connects a service of the system with itself on another machine.
func (k *Kernel) dialStream(ctx context.Context, who sigma.Principal, m sigma.MachineID, name string) (*os.File,
	error) {
	const op = "kernel.DialStream"
	s := k.service(who)
	if s == nil || s.name != name {
		return nil, sigma.Errorf(op, sigma.KindPermission, "only the service %.80q may connect with itself", name)
	}
	if m == k.cfg.Machine {
		e, there := s.listens(true)
		if !there {
			return nil, sigma.Errorf(op, sigma.KindUnavailable, "%s takes no streams here yet", name)
		}
		f, _, err := k.proxy.Dial(k.cluster.Provider(), e)
		return f, err
	}
	if _, err := k.cluster.AwaitNode(ctx); err != nil {
		return nil, err
	}
	return k.dialRelay(ctx, k.cluster.Provider(), m, link.Target{Kind: link.ToStream, Name: name}, syscall.SOCK_STREAM)
}

// dialRelay makes a link for who and passes on what comes over a socket whose other end it returns.
func (k *Kernel) dialRelay(ctx context.Context, who sigma.Principal, m sigma.MachineID, to link.Target,
	typ int) (*os.File, error) {
	done, err := k.links.relay(who.Realm)
	if err != nil {
		return nil, err
	}
	l, err := k.dialFor(ctx, m, to, who)
	if err != nil {
		done()
		return nil, unreachable(err, to)
	}
	ours, theirs, err := session.FilePair(typ)
	if err != nil {
		done()
		l.Close()
		return nil, sigma.Wrap("kernel.Dial", "", err)
	}
	if err := k.relayed(who, to, theirs); err != nil {
		done()
		l.Close()
		ours.Close()
		theirs.Close()
		return nil, err
	}
	k.traffic.Begin(who)
	k.sessions.Go(func() {
		defer done()
		k.join(k.ctx, l, ours, who)
	})
	return theirs, nil
}

// relayed notes a relayed connection of a proc to an endpoint.
func (k *Kernel) relayed(who sigma.Principal, to link.Target, f *os.File) error {
	e, err := sigma.ParseEndpoint(to.Name)
	if to.Kind != link.ToEndpoint || err != nil || who.Proc == "" || e.Realm == sigma.SystemRealm {
		return nil
	}
	return k.proxy.Dialled(who, e, sigma.Life{}, "relay", f) // it ends with its link
}

// dialFor makes a link for who, when it is who's turn.
func (k *Kernel) dialFor(ctx context.Context, m sigma.MachineID, to link.Target, who sigma.Principal) (*link.Link,
	error) {
	done, err := k.turnOf(ctx, m, who)
	if err != nil {
		return nil, err
	}
	defer done()
	return k.cluster.Node().Dial(ctx, m, to, who)
}

// turnOf waits until who may dial. Procs take turns, so that those of one realm keep neither
// another's nor the system itself from a machine: a dial may cost both machines a handshake.
func (k *Kernel) turnOf(ctx context.Context, m sigma.MachineID, who sigma.Principal) (done func(), err error) {
	if who.System || who.Realm == sigma.SystemRealm {
		return func() {}, nil
	}
	if _, known := k.cluster.Identity().Roster().Member(m); !known {
		return nil, sigma.Errorf("kernel.Dial", sigma.KindNotFound, "machine %.80q is not known here", string(m))
	}
	return k.links.turn(ctx, m, who.Realm)
}

// turn waits until a proc of realm may dial m.
func (x *links) turn(ctx context.Context, m sigma.MachineID, realm sigma.RealmID) (done func(), err error) {
	x.mu.Lock()
	if x.asking[realm] >= realmDials {
		x.mu.Unlock()
		return nil, sigma.Errorf("kernel.Dial", sigma.KindBusy, "%d procs of realm %s are dialling other machines",
			realmDials, realm)
	}
	x.asking[realm]++
	places := x.turns[m]
	if places == nil {
		places = make(chan struct{}, tenantDials)
		x.turns[m] = places
	}
	x.mu.Unlock()
	leave := func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.asking[realm]--; x.asking[realm] == 0 {
			delete(x.asking, realm)
		}
	}
	select {
	case places <- struct{}{}:
		return func() { <-places; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, sigma.Wrap("kernel.Dial", "", ctx.Err())
	}
}

// unreachable makes a machine that is not there any more what a local endpoint without listener is.
func unreachable(err error, to link.Target) error {
	if to.Kind == link.ToEndpoint && sigma.KindOf(err) == sigma.KindNotFound {
		return &sigma.Error{Op: "kernel.Dial", Kind: sigma.KindUnavailable, Msg: "nobody listens at the endpoint",
			Err: err, Hint: "the proc may have ended; look its name up again"}
	}
	return err
}

// relay counts a connection of a realm to another machine until done is called.
func (x *links) relay(realm sigma.RealmID) (done func(), err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if realm != sigma.SystemRealm && (x.relays[realm] >= relaysOfRealm || x.relayed >= relaysOfAll) {
		return nil, sigma.Errorf("kernel.Dial", sigma.KindBusy,
			"realm %s has %d connections to other machines, all realms %d", realm, x.relays[realm], x.relayed)
	}
	x.relays[realm]++
	x.relayed++
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.relayed--
		if x.relays[realm]--; x.relays[realm] == 0 {
			delete(x.relays, realm)
		}
	}, nil
}

// dialStreamCall is the call dial-stream.
func (r *root) dialStreamCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var m sigma.MachineID
	var name string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.MachineID(&m); c.Str(&name) }); err != nil {
		return nil, nil, err
	}
	f, err := r.tree.k.dialStream(ctx, r.tree.principal, m, name)
	if err != nil {
		return nil, nil, err
	}
	return nil, []*os.File{f}, nil
}
