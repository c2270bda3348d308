package kernel

import (
	"context"
	"net"
	"os"
	"sync"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/link"
	"sigmaos.dev/sigma"
)

// Direct connections (docs/adr/0020) are TCP connections between a program here and something of
// another machine, with no sigmad on their way. Two things can be at their far end: the listener of
// an endpoint of FormStream, to which the socket goes, and what a sigmad itself serves by such
// (Kernel.directServices), for bytes that would be slow in messages. How to add one of the latter:
//
//   - put a directService under its name into Kernel.directServices, before Run. It gets the
//     socket, and who is at the other end: a proc of a realm, or a sigmad that acts for one
//     (System, and the realm). That much is authenticated; what they may have is for it to judge.
//     It owns the socket, speaks as it likes, sets its own deadlines, and returns when it is done.
//   - on the other machine, dialDirect(ctx, who, m, link.Target{Kind: link.ToService, Name: name})
//     gives the other end. For a proc, fileOf makes of it what an answer can carry: from then on
//     the proc speaks for itself.
//   - dialDirect answers KindUnsupported if either machine was started with --encrypt (or is
//     older): do it over a link then.

// directService serves a direct connection. ctx ends with the kernel.
type directService func(ctx context.Context, d link.Direct, conn *net.TCPConn)

// reserve is link.Config.Reserve: it says who of another machine has a direct connection to what
// here.
func (k *Kernel) reserve(d link.Direct) (link.Place, error) {
	const op = "kernel.direct"
	machine := d.From.System && d.From.Proc == "" && d.From.Realm.Check() == nil
	proc := !d.From.System && d.From.Proc != "" && d.From.Realm.Check() == nil
	switch {
	case !machine && !proc:
		return nil, sigma.Errorf(op, sigma.KindPermission,
			"the connection is made for nobody: neither for a machine nor for a proc")
	case d.Target.Kind == link.ToEndpoint:
		e, err := k.endpointHere(d.Target)
		if err != nil {
			return nil, err
		}
		p, err := k.proxy.Reserve(d.From, e, d.Peer.Life())
		if err != nil {
			return nil, err
		}
		k.hearTCPEnds(k.ctx)
		return listenerPlace{p, k, e}, nil
	}
	serve := k.directServices[d.Target.Name]
	if serve == nil {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "machine %s serves no direct connections to the %s",
			k.cfg.Machine, d.Target)
	}
	done, err := k.links.count(d.Peer.Machine, d.Target)
	if err != nil {
		return nil, err
	}
	return &servicePlace{k: k, d: d, serve: serve, done: sync.OnceFunc(done)}, nil
}

// endpointHere is the endpoint that a target names, of this machine.
func (k *Kernel) endpointHere(to link.Target) (sigma.Endpoint, error) {
	e, err := sigma.ParseEndpoint(to.Name)
	if err == nil && e.Machine != k.cfg.Machine {
		err = sigma.Errorf("kernel.links", sigma.KindInvalid, "the endpoint is one of machine %s", e.Machine)
	}
	return e, err
}

// listenerPlace is one in the backlog of a listener.
type listenerPlace struct {
	*dialproxy.Place
	k *Kernel
	e sigma.Endpoint
}

// Take implements link.Place.
func (p listenerPlace) Take(conn *net.TCPConn) {
	p.k.markDirect(p.Endpoint().Proc, conn)
	f, err := fileOf(conn)
	if err != nil {
		p.Close()
		return
	}
	p.k.traffic.Follow(p.e.Realm, p.e.Proc, f) // before the proc can close it
	p.Give(f)
	p.k.recheck()
}

// servicePlace is one at a directService.
type servicePlace struct {
	k     *Kernel
	d     link.Direct
	serve directService
	done  func()
}

// Take implements link.Place. It runs within the link's Listen, for which the kernel waits.
func (p *servicePlace) Take(conn *net.TCPConn) {
	p.k.sessions.Go(func() {
		defer p.done()
		defer conn.Close()
		p.serve(p.k.ctx, p.d, conn)
	})
}

// Close implements link.Place.
func (p *servicePlace) Close() error {
	p.done()
	return nil
}

// dialDirect connects who with a target of machine m by a TCP connection of their own, in the
// clear, which that machine knows to be who's. It is the caller's. KindUnsupported: that cannot be,
// but a link can.
func (k *Kernel) dialDirect(ctx context.Context, who sigma.Principal, m sigma.MachineID, to link.Target) (*net.TCPConn,
	error) {
	done, err := k.turnOf(ctx, m, who)
	if err != nil {
		return nil, err
	}
	defer done()
	return k.cluster.Node().DialDirect(ctx, m, to, who)
}

// markDirect has what a proc here says on a direct connection go before other traffic, if it is
// latency-critical. Its peer's answers go as the peer's class says.
func (k *Kernel) markDirect(proc sigma.ProcID, conn *net.TCPConn) {
	if k.isUrgent(proc) {
		link.TrafficLatencyCritical.Mark(conn)
	}
}

// isUrgent says whether a proc is one of this machine that is latency-critical.
func (k *Kernel) isUrgent(proc sigma.ProcID) bool {
	p, ok := k.procs.Find(proc)
	return ok && p.Class == sigma.LatencyCritical
}

// fileOf makes a socket one that can be passed, and closes conn.
func fileOf(conn *net.TCPConn) (*os.File, error) {
	defer conn.Close()
	return conn.File()
}
