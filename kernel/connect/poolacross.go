package connect

import (
	"context"
	"net"
	"os"
	"syscall"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Connections in advance between machines (docs/adr/0036): the sigmad of who dials has a batch made
// with one hello, and both give their procs the ends.

// PeerBegun says which connections of a proc's pool have begun, when no batch is made that would
// say it.
var PeerBegun = sigmap.Method[begun, sigmap.None]{Name: "begun", Request: codeBegun}

type begun struct {
	realm   sigma.RealmID
	proc    sigma.ProcID
	id      sigma.EndpointID
	numbers []uint64
}

func codeBegun(c *sigmap.Coder, b *begun) {
	c.RealmID(&b.realm)
	c.ProcID(&b.proc)
	c.Str((*string)(&b.id))
	link.CodeNumbers(c, &b.numbers)
}

// PoolAway answers the call pool for an endpoint of another machine.
func (x *Connect) PoolAway(ctx context.Context, who sigma.Principal, ask sigmap.PoolAsk) (*sigmap.PoolGrant, []*os.File,
	error) {
	const op = "kernel.Pool"
	if !x.cfg.Cluster.Registered() {
		return nil, nil, sigma.Errorf(op, sigma.KindUnavailable, "this machine is not registered with its system yet")
	}
	e := ask.Endpoint
	a, err := x.cfg.Proxy.AskAway(who, ask)
	if err != nil {
		return nil, nil, err
	}
	if a.Count == 0 {
		if len(a.Begun) > 0 && x.tellBegun(ctx, who, e, a.Begun) {
			x.cfg.Proxy.ToldAway(a)
		}
		return &sigmap.PoolGrant{}, nil, nil
	}
	member, _ := x.cfg.Cluster.Identity().Roster().Member(e.Machine)
	other := sigma.Life{Machine: e.Machine, Incarnation: member.Incarnation}
	files, none, err := x.dialBatch(ctx, who, e, a)
	if err != nil {
		x.cfg.Proxy.FailAway(e, a, none)
		return nil, nil, err
	}
	grant, err := x.cfg.Proxy.TakeAway(ctx, who, e, other, a, files)
	if err != nil {
		session.CloseFiles(files)
		return nil, nil, err
	}
	for _, f := range files {
		x.cfg.Traffic.Follow(who.Realm, who.Proc, f)
	}
	x.Recheck()
	return grant, files, nil
}

// dialBatch makes the connections. none: after an error, that the listener has none of them is
// known.
func (x *Connect) dialBatch(ctx context.Context, who sigma.Principal, e sigma.Endpoint,
	a dialproxy.Away) (files []*os.File, none bool, err error) {
	done, err := x.turnOf(ctx, e.Machine, who)
	if err != nil {
		return nil, true, err
	}
	defer done()
	x.hearTCPEnds(x.ctx)
	b := link.Batch{First: a.First, Line: a.Line, Count: uint8(a.Count), Begun: a.Begun}
	if a.Line {
		b.Count++
	}
	files, err = x.cfg.Cluster.Node().DialBatch(ctx, e.Machine, link.Target{Kind: link.ToEndpoint, Name: e.String()},
		who, b)
	if err == nil && x.isUrgent(who.Proc) {
		for _, f := range files {
			link.TrafficLatencyCritical.Mark(f)
		}
	}
	return files, link.Unsaid(err) || sigma.KindOf(err) == sigma.KindBusy, err
}

// tellBegun tells the listener's machine which connections have begun. What fails to be told is
// told with the next ones, as long as there is the pool.
func (x *Connect) tellBegun(ctx context.Context, who sigma.Principal, e sigma.Endpoint, numbers []uint64) bool {
	err := PeerBegun.Tell(ctx, x.cfg.At(e.Machine), begun{who.Realm, who.Proc, e.ID, numbers})
	if err != nil {
		x.cfg.Log.Debug("another machine was not told which connections have begun", "machine", e.Machine, "err", err)
	}
	return err == nil
}

// Begun answers PeerBegun.
func (x *Connect) Begun(_ context.Context, from identity.Subject, b begun) (none sigmap.None, err error) {
	x.cfg.Proxy.BegunFrom(sigma.Principal{Realm: b.realm, Proc: b.proc, Machine: from.Machine}, b.id, b.numbers)
	return none, nil
}

// TakeBatch is link.Config.Batch: it gives a listener here what another machine had made for one of
// its procs.
func (x *Connect) TakeBatch(d link.Direct, b link.Batch, conns []*net.TCPConn) error {
	const op = "kernel.direct"
	if d.From.System || d.From.Proc == "" || d.From.Realm.Check() != nil {
		return sigma.Errorf(op, sigma.KindPermission, "connections are made in advance for procs only")
	}
	e, err := x.EndpointHere(d.Target)
	if err != nil {
		return err
	}
	x.cfg.Proxy.BegunFrom(d.From, e.ID, b.Begun)
	x.hearTCPEnds(x.ctx)
	urgent := x.isUrgent(e.Proc)
	socks := make([]syscall.Conn, len(conns))
	for i, c := range conns {
		if socks[i] = c; urgent {
			link.TrafficLatencyCritical.Mark(c)
		}
		x.cfg.Traffic.Follow(e.Realm, e.Proc,
			c) // before the proc can close it; if it does not get it, this is forgotten with the socket
	}
	if err := x.cfg.Proxy.PoolFrom(d.From, e, d.Peer.Life(), b.First, b.Line, socks); err != nil {
		return err
	}
	x.Recheck()
	return nil
}

// SweepPools ends what is left of pools with other machines.
func (x *Connect) SweepPools() {
	roster := x.cfg.Cluster.Identity().Roster()
	x.cfg.Proxy.SweepPools(func(l sigma.Life) bool {
		m, known := roster.Member(l.Machine)
		return !known || m.Lost || m.Incarnation != l.Incarnation
	})
}
