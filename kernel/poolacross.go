package kernel

import (
	"context"
	"net"
	"os"
	"syscall"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/identity"
	"sigmaos.dev/link"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// Connections in advance between machines (docs/adr/0036): the sigmad of who dials has a batch made
// with one hello, and both give their procs the ends.

// peerBegun: RealmID, ProcID, EndpointID, numbers -> nothing. Which connections of a proc's pool
// have begun, when no batch is made that would say it.
const peerBegun = "begun"

// poolAway answers the call pool for an endpoint of another machine.
func (k *Kernel) poolAway(ctx context.Context, who sigma.Principal, ask sigmap.PoolAsk) (*sigmap.PoolGrant, []*os.File,
	error) {
	const op = "kernel.Pool"
	if !k.cluster.Registered() {
		return nil, nil, sigma.Errorf(op, sigma.KindUnavailable, "this machine is not registered with its system yet")
	}
	e := ask.Endpoint
	a, err := k.proxy.AskAway(who, ask)
	if err != nil {
		return nil, nil, err
	}
	if a.Count == 0 {
		if len(a.Begun) > 0 && k.tellBegun(ctx, who, e, a.Begun) {
			k.proxy.ToldAway(a)
		}
		return &sigmap.PoolGrant{}, nil, nil
	}
	member, _ := k.cluster.Identity().Roster().Member(e.Machine)
	other := sigma.Life{Machine: e.Machine, Incarnation: member.Incarnation}
	files, none, err := k.dialBatch(ctx, who, e, a)
	if err != nil {
		k.proxy.FailAway(e, a, none)
		return nil, nil, err
	}
	grant, err := k.proxy.TakeAway(ctx, who, e, other, a, files)
	if err != nil {
		session.CloseFiles(files)
		return nil, nil, err
	}
	for _, f := range files {
		k.traffic.Follow(who.Realm, who.Proc, f)
	}
	k.recheck()
	return grant, files, nil
}

// dialBatch makes the connections. none: after an error, that the listener has none of them is
// known.
func (k *Kernel) dialBatch(ctx context.Context, who sigma.Principal, e sigma.Endpoint,
	a dialproxy.Away) (files []*os.File, none bool, err error) {
	done, err := k.turnOf(ctx, e.Machine, who)
	if err != nil {
		return nil, true, err
	}
	defer done()
	k.hearTCPEnds(k.ctx)
	b := link.Batch{First: a.First, Line: a.Line, Count: uint8(a.Count), Begun: a.Begun}
	if a.Line {
		b.Count++
	}
	files, err = k.cluster.Node().DialBatch(ctx, e.Machine, link.Target{Kind: link.ToEndpoint, Name: e.String()},
		who, b)
	if err == nil && k.isUrgent(who.Proc) {
		for _, f := range files {
			link.TrafficLatencyCritical.Mark(f)
		}
	}
	return files, link.Unsaid(err) || sigma.KindOf(err) == sigma.KindBusy, err
}

// tellBegun tells the listener's machine which connections have begun. What fails to be told is
// told with the next ones, as long as there is the pool.
func (k *Kernel) tellBegun(ctx context.Context, who sigma.Principal, e sigma.Endpoint, begun []uint64) bool {
	err := k.ask(ctx, e.Machine, peerBegun, func(c *sigmap.Coder) {
		c.RealmID(&who.Realm)
		c.ProcID(&who.Proc)
		c.Str((*string)(&e.ID))
		link.CodeNumbers(c, &begun)
	}, nil)
	if err != nil {
		k.cfg.Log.Debug("another machine was not told which connections have begun", "machine", e.Machine, "err", err)
	}
	return err == nil
}

// peerBegun answers peerBegun.
func (k *Kernel) peerBegun(_ context.Context, from identity.Subject, payload []byte) ([]byte, error) {
	who := sigma.Principal{Machine: from.Machine}
	var id sigma.EndpointID
	var begun []uint64
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.RealmID(&who.Realm)
		c.ProcID(&who.Proc)
		c.Str((*string)(&id))
		link.CodeNumbers(c, &begun)
	}); err != nil {
		return nil, err
	}
	k.proxy.BegunFrom(who, id, begun)
	return nil, nil
}

// takeBatch is link.Config.Batch: it gives a listener here what another machine had made for one of
// its procs.
func (k *Kernel) takeBatch(d link.Direct, b link.Batch, conns []*net.TCPConn) error {
	const op = "kernel.direct"
	if d.From.System || d.From.Proc == "" || d.From.Realm.Check() != nil {
		return sigma.Errorf(op, sigma.KindPermission, "connections are made in advance for procs only")
	}
	e, err := k.endpointHere(d.Target)
	if err != nil {
		return err
	}
	k.proxy.BegunFrom(d.From, e.ID, b.Begun)
	k.hearTCPEnds(k.ctx)
	urgent := k.isUrgent(e.Proc)
	socks := make([]syscall.Conn, len(conns))
	for i, c := range conns {
		if socks[i] = c; urgent {
			link.TrafficLatencyCritical.Mark(c)
		}
		k.traffic.Follow(e.Realm, e.Proc,
			c) // before the proc can close it; if it does not get it, this is forgotten with the socket
	}
	if err := k.proxy.PoolFrom(d.From, e, d.Peer.Life(), b.First, b.Line, socks); err != nil {
		return err
	}
	k.recheck()
	return nil
}

// sweepPools ends what is left of pools with other machines.
func (k *Kernel) sweepPools() {
	roster := k.cluster.Identity().Roster()
	k.proxy.SweepPools(func(l sigma.Life) bool {
		m, known := roster.Member(l.Machine)
		return !known || m.Lost || m.Incarnation != l.Incarnation
	})
}
