package connect

import (
	"context"
	"net"
	"os"
	"sync"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
)

// Direct connections (docs/adr/0020) are TCP connections between a program here and something of
// another machine, with no sigmad on their way. Two things can be at their far end: the listener of
// an endpoint of FormStream, to which the socket goes, and what a sigmad itself serves by such
// (Connect.Services), for bytes that would be slow in messages. How to add one of the latter:
//
//   - put a Service under its name into Connect.Services, before Run. It gets the
//     socket, and who is at the other end: a proc of a realm, or a sigmad that acts for one
//     (System, and the realm). That much is authenticated; what they may have is for it to judge.
//     It owns the socket, speaks as it likes, sets its own deadlines, and returns when it is done.
//   - on the other machine, dialDirect(ctx, who, m, link.Target{Kind: link.ToService, Name: name})
//     gives the other end. For a proc, fileOf makes of it what an answer can carry: from then on
//     the proc speaks for itself.
//   - dialDirect answers KindUnsupported if either machine was started with --encrypt (or is
//     older): do it over a link then.

// Service serves a direct connection. ctx ends with the kernel.
type Service func(ctx context.Context, d link.Direct, conn *net.TCPConn)

// Reserve is link.Config.Reserve: it says who of another machine has a direct connection to what
// here.
func (x *Connect) Reserve(d link.Direct) (link.Place, error) {
	const op = "kernel.direct"
	machine := d.From.System && d.From.Proc == "" && d.From.Realm.Check() == nil
	proc := !d.From.System && d.From.Proc != "" && d.From.Realm.Check() == nil
	switch {
	case !machine && !proc:
		return nil, sigma.Errorf(op, sigma.KindPermission,
			"the connection is made for nobody: neither for a machine nor for a proc")
	case d.Target.Kind == link.ToEndpoint:
		e, err := x.EndpointHere(d.Target)
		if err != nil {
			return nil, err
		}
		p, err := x.cfg.Proxy.Reserve(d.From, e, d.Peer.Life())
		if err != nil {
			return nil, err
		}
		x.hearTCPEnds(x.ctx)
		return listenerPlace{p, x, e}, nil
	}
	serve := x.Services[d.Target.Name]
	if serve == nil {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "machine %s serves no direct connections to the %s",
			x.cfg.Machine, d.Target)
	}
	done, err := x.cfg.Count(d.Peer.Machine, d.Target)
	if err != nil {
		return nil, err
	}
	return &servicePlace{all: x, d: d, serve: serve, done: sync.OnceFunc(done)}, nil
}

// EndpointHere is the endpoint that a target names, of this machine.
func (x *Connect) EndpointHere(to link.Target) (sigma.Endpoint, error) {
	e, err := sigma.ParseEndpoint(to.Name)
	if err == nil && e.Machine != x.cfg.Machine {
		err = sigma.Errorf("kernel.links", sigma.KindInvalid, "the endpoint is one of machine %s", e.Machine)
	}
	return e, err
}

// listenerPlace is one in the backlog of a listener.
type listenerPlace struct {
	*dialproxy.Place
	all *Connect
	e   sigma.Endpoint
}

// Take implements link.Place.
func (p listenerPlace) Take(conn *net.TCPConn) {
	p.all.markDirect(p.Endpoint().Proc, conn)
	f, err := FileOf(conn)
	if err != nil {
		p.Close()
		return
	}
	p.all.cfg.Traffic.Follow(p.e.Realm, p.e.Proc, f) // before the proc can close it
	p.Give(f)
	p.all.Recheck()
}

// servicePlace is one at a Service.
type servicePlace struct {
	all   *Connect
	d     link.Direct
	serve Service
	done  func()
}

// Take implements link.Place. It runs within the link's Listen, for which the kernel waits.
func (p *servicePlace) Take(conn *net.TCPConn) {
	p.all.cfg.Go(func() {
		defer p.done()
		defer conn.Close()
		p.serve(p.all.ctx, p.d, conn)
	})
}

// Close implements link.Place.
func (p *servicePlace) Close() error {
	p.done()
	return nil
}

// DialDirect connects who with a target of machine m by a TCP connection of their own, in the
// clear, which that machine knows to be who's. It is the caller's. KindUnsupported: that cannot be,
// but a link can.
func (x *Connect) DialDirect(ctx context.Context, who sigma.Principal, m sigma.MachineID, to link.Target) (*net.TCPConn,
	error) {
	done, err := x.turnOf(ctx, m, who)
	if err != nil {
		return nil, err
	}
	defer done()
	return x.cfg.Cluster.Node().DialDirect(ctx, m, to, who)
}

// markDirect has what a proc here says on a direct connection go before other traffic, if it is
// latency-critical. Its peer's answers go as the peer's class says.
func (x *Connect) markDirect(proc sigma.ProcID, conn *net.TCPConn) {
	if x.isUrgent(proc) {
		link.TrafficLatencyCritical.Mark(conn)
	}
}

// isUrgent says whether a proc is one of this machine that is latency-critical.
func (x *Connect) isUrgent(proc sigma.ProcID) bool {
	p, ok := x.cfg.Procs.Find(proc)
	return ok && p.Class == sigma.LatencyCritical
}

// FileOf makes a socket one that can be passed, and closes conn.
func FileOf(conn *net.TCPConn) (*os.File, error) {
	defer conn.Close()
	return conn.File()
}
