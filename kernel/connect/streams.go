package connect

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

const (
	// to one machine, that are under way for procs at once: half of what link allows, so that the
	// rest is the system's
	tenantDials = 8
	realmDials  = 64 // of one realm that are under way or wait for their turn
	// connections of one realm's procs to other machines; each costs three file descriptors and two
	// goroutines here
	relaysOfRealm = 1024
	relaysOfAll   = 4096
)

// DialEndpoint connects who to an endpoint and returns who's end. Of another machine's endpoints
// that machine has the last word; a stream between procs is a TCP connection of their own, unless
// one of the machines encrypts; what is left sigmad relays, and ends both sides when the link is
// lost. Programs outside have it relayed, since nobody could take a socket of theirs back.
func (x *Connect) DialEndpoint(ctx context.Context, who sigma.Principal, e sigma.Endpoint) (*os.File, dialproxy.Ticket,
	error) {
	if e.Machine == x.cfg.Machine {
		return x.cfg.Proxy.Dial(who, e)
	}
	if e.Realm != who.Realm && e.Realm != sigma.SystemRealm && !who.System { // as dialproxy says it
		return nil, "", &sigma.Error{Op: "kernel.Dial", Kind: sigma.KindPermission,
			Msg: "the endpoint belongs to another realm"}
	}
	if !x.cfg.Cluster.Registered() {
		return nil, "", &sigma.Error{Op: "kernel.Dial", Kind: sigma.KindUnavailable,
			Msg: "the endpoint is on machine " + string(e.Machine) +
				", and this machine is not registered with its system yet"}
	}
	to := link.Target{Kind: link.ToEndpoint, Name: e.String()}
	typ := syscall.SOCK_SEQPACKET
	switch {
	case e.Form == sigma.FormStream && who.Proc != "":
		f, err := x.dialStraight(ctx, who, e, to)
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
	f, err := x.dialRelay(ctx, who, e.Machine, to, typ)
	return f, "", err
}

// dialStraight makes a direct connection and notes it.
func (x *Connect) dialStraight(ctx context.Context, who sigma.Principal, e sigma.Endpoint, to link.Target) (*os.File,
	error) {
	member, _ := x.cfg.Cluster.Identity().Roster().Member(e.Machine)
	x.hearTCPEnds(x.ctx)
	conn, err := x.DialDirect(ctx, who, e.Machine, to)
	if err != nil {
		return nil, err
	}
	x.markDirect(who.Proc, conn)
	f, err := FileOf(conn)
	if err != nil {
		return nil, sigma.Wrap("kernel.Dial", "", err)
	}
	if err := x.cfg.Proxy.Dialled(who, e, sigma.Life{Machine: e.Machine, Incarnation: member.Incarnation}, "tcp",
		f); err != nil {
		f.Close()
		return nil, err
	}
	x.cfg.Traffic.Follow(who.Realm, who.Proc, f)
	x.Recheck()
	return f, nil
}

// DialStream connects a service of the system with itself on another machine.
func (x *Connect) DialStream(ctx context.Context, who sigma.Principal, m sigma.MachineID, name string) (*os.File,
	error) {
	const op = "kernel.DialStream"
	s := x.cfg.Services.Of(who)
	if s == nil || s.Name != name {
		return nil, sigma.Errorf(op, sigma.KindPermission, "only the service %.80q may connect with itself", name)
	}
	if m == x.cfg.Machine {
		e, there := s.Listens(true)
		if !there {
			return nil, sigma.Errorf(op, sigma.KindUnavailable, "%s takes no streams here yet", name)
		}
		f, _, err := x.cfg.Proxy.Dial(x.cfg.Cluster.Provider(), e)
		return f, err
	}
	if _, err := x.cfg.Cluster.AwaitNode(ctx); err != nil {
		return nil, err
	}
	return x.dialRelay(ctx, x.cfg.Cluster.Provider(), m, link.Target{Kind: link.ToStream, Name: name},
		syscall.SOCK_STREAM)
}

// dialRelay makes a link for who and passes on what comes over a socket whose other end it returns.
func (x *Connect) dialRelay(ctx context.Context, who sigma.Principal, m sigma.MachineID, to link.Target,
	typ int) (*os.File, error) {
	done, err := x.dials.relay(who.Realm)
	if err != nil {
		return nil, err
	}
	l, err := x.dialFor(ctx, m, to, who)
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
	if err := x.relayed(who, to, theirs); err != nil {
		done()
		l.Close()
		ours.Close()
		theirs.Close()
		return nil, err
	}
	x.cfg.Traffic.Begin(who)
	x.cfg.Go(func() {
		defer done()
		x.Join(x.ctx, l, ours, who)
	})
	return theirs, nil
}

// relayed notes a relayed connection of a proc to an endpoint.
func (x *Connect) relayed(who sigma.Principal, to link.Target, f *os.File) error {
	e, err := sigma.ParseEndpoint(to.Name)
	if to.Kind != link.ToEndpoint || err != nil || who.Proc == "" || e.Realm == sigma.SystemRealm {
		return nil
	}
	return x.cfg.Proxy.Dialled(who, e, sigma.Life{}, "relay", f) // it ends with its link
}

// dialFor makes a link for who, when it is who's turn.
func (x *Connect) dialFor(ctx context.Context, m sigma.MachineID, to link.Target, who sigma.Principal) (*link.Link,
	error) {
	done, err := x.turnOf(ctx, m, who)
	if err != nil {
		return nil, err
	}
	defer done()
	return x.cfg.Cluster.Node().Dial(ctx, m, to, who)
}

// turnOf waits until who may dial. Procs take turns, so that those of one realm keep neither
// another's nor the system itself from a machine: a dial may cost both machines a handshake.
func (x *Connect) turnOf(ctx context.Context, m sigma.MachineID, who sigma.Principal) (done func(), err error) {
	if who.System || who.Realm == sigma.SystemRealm {
		return func() {}, nil
	}
	if _, known := x.cfg.Cluster.Identity().Roster().Member(m); !known {
		return nil, sigma.Errorf("kernel.Dial", sigma.KindNotFound, "machine %.80q is not known here", string(m))
	}
	return x.dials.turn(ctx, m, who.Realm)
}

// turn waits until a proc of realm may dial m.
func (x *dials) turn(ctx context.Context, m sigma.MachineID, realm sigma.RealmID) (done func(), err error) {
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
func (x *dials) relay(realm sigma.RealmID) (done func(), err error) {
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

// Join connects a link with a socket of this machine, of which it takes what the one says to the
// other. It owns both. What passes is counted for who; of nobody for the zero Principal.
func (x *Connect) Join(ctx context.Context, l *link.Link, file *os.File, who sigma.Principal) {
	defer l.Close()
	u, err := session.UnixConn(file)
	if err != nil {
		return
	}
	defer u.Close()
	if u.LocalAddr().Network() == "unixpacket" {
		link.Bridge(ctx, session.NewStreamConn(counted{l, x, who}), session.NewPacketConn(u, true))
		return
	}
	link.Relay(ctx, counted{l, x, who}, u)
}

// counted is a link of which what passes is counted for somebody of this machine.
type counted struct {
	*link.Link
	all *Connect
	who sigma.Principal
}

// Read implements net.Conn.
func (c counted) Read(b []byte) (int, error) {
	n, err := c.Link.Read(b)
	c.count(0, n)
	return n, err
}

// Write implements net.Conn.
func (c counted) Write(b []byte) (int, error) {
	n, err := c.Link.Write(b)
	c.count(n, 0)
	return n, err
}

func (c counted) count(out, in int) {
	if c.who.Realm != "" {
		c.all.cfg.Traffic.Crossed(time.Now(), c.who.Realm, c.who.Proc, uint64(max(out, 0)), uint64(max(in, 0)))
	}
}

// dials counts what procs have under way to other machines, and what is relayed for them.
type dials struct {
	mu      sync.Mutex
	relays  map[sigma.RealmID]int             // mu
	relayed int                               // mu; sum of relays
	asking  map[sigma.RealmID]int             // mu; dials of procs
	turns   map[sigma.MachineID]chan struct{} // mu; tenantDials places for each machine that procs dialled
}

func newDials() *dials {
	return &dials{relays: map[sigma.RealmID]int{}, asking: map[sigma.RealmID]int{},
		turns: map[sigma.MachineID]chan struct{}{}}
}

// Relayed counts the connections that are relayed for procs, and the realms that have some.
func (x *Connect) Relayed() (connections, realms int) {
	x.dials.mu.Lock()
	defer x.dials.mu.Unlock()
	return x.dials.relayed, len(x.dials.relays)
}
