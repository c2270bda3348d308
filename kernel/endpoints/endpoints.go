// Package endpoints is what is called and read of connections in /sys: /sys/endpoints, by which
// programs listen, dial and accept, and /sys/connections, /sys/traffic and /sys/distances. It has
// no lock. Users: kernel/sysfs.
package endpoints

import (
	"context"
	"iter"
	"maps"
	"os"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/outside"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/kernel/talk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Endpoints is what connects programs.
type Endpoints struct {
	Machine  sigma.MachineID
	Proxy    *dialproxy.Proxy
	Services *services.Set
	Connect  *connect.Connect
	Outside  *outside.Outside
	Talk     *talk.Talk
	Traffic  *meter.Traffic
	Go       func(func()) // begins what is waited for before the program ends
}

// scope is Endpoints for a session.
type scope struct {
	*Endpoints
	sessions.Scope
}

// endpointsPage endpoints are told at a time.
const endpointsPage = 256

// File is /sys/endpoints: the calls of who listens and dials, and lines of who listens at
// this machine. Who has an endpoint's text can dial it, so that is not told.
func (x *Endpoints) File(s sessions.Scope) sigma.File {
	r := scope{x, s}
	of, own := r.Realm, r.Principal.Proc
	if r.Principal.System {
		of = ""
	}
	page := func(_ context.Context, after sigma.EndpointID) (text []byte, last sigma.EndpointID, more bool, err error) {
		var all []dialproxy.Listening
		if all, more = r.Proxy.After(of, after, endpointsPage); len(all) > 0 {
			last = all[len(all)-1].Endpoint.ID
		}
		out := []report.Endpoint{}
		for _, l := range all {
			if e := l.Endpoint; r.View == nil || r.Granted != nil || e.Proc == own {
				out = append(out, report.Endpoint{Realm: string(e.Realm), Machine: string(e.Machine),
					Proc: string(e.Proc), Form: string(e.Form), Waiting: l.Waiting})
			}
		}
		text, err = report.Lines(out)
		return text, last, more, err
	}
	return computed.LinesFile("/sys/"+sigmap.FileEndpoints, sigmap.FileEndpoints, 0o444,
		page).Answering(r.endpointsCallable())
}

// endpointsCallable answers a dial to an endpoint of this machine at once, and one for connections
// in advance: dialproxy does not wait.
func (r scope) endpointsCallable() sigma.File {
	c := computed.Calls(sigmap.FileEndpoints, r, methods)
	c.Prompt = func(method string, payload []byte) bool {
		switch {
		case method == sigmap.CallPool.Name:
			ask, err := sigmap.CallPool.Parse(payload)
			return err == nil && ask.Endpoint.Machine == r.Machine
		case method == sigmap.CallDial.Name && r.View == nil:
			ask, err := sigmap.CallDial.Parse(payload)
			return err == nil && ask.To.Machine == r.Machine
		}
		return false
	}
	return c
}

// methods are those of /sys/endpoints.
var methods = sigmap.Table(
	sigmap.OnFiles(sigmap.CallListen, scope.listen), sigmap.OnFiles(sigmap.CallAccept, scope.accept),
	sigmap.OnFiles(sigmap.CallDial, scope.dial), sigmap.OnFiles(sigmap.CallPool, scope.pool),
	sigmap.Do(sigmap.CallClose, func(r scope, _ context.Context, id sigma.EndpointID) error {
		return r.Proxy.Close(r.who(), id)
	}),
	sigmap.Do(sigmap.CallRevoke, func(r scope, ctx context.Context, e sigma.Endpoint) error {
		return r.Connect.Revoke(ctx, r.Principal, e)
	}),
	sigmap.On(sigmap.CallLog, scope.log),
	onFile(sigmap.CallRing, func(r scope, _ context.Context, ticket string) (*os.File, error) {
		return r.Proxy.Ring(r.who(), dialproxy.Ticket(ticket))
	}),
	sigmap.Do(sigmap.CallEndRing, func(r scope, _ context.Context, ticket string) error {
		return r.Proxy.EndRing(r.who(), dialproxy.Ticket(ticket))
	}),
	onFile(sigmap.CallMeter, func(r scope, _ context.Context, _ sigmap.None) (*os.File, error) {
		return r.Traffic.GiveMeter(r.who(), time.Now())
	}),
	onFile(sigmap.CallDialStream, func(r scope, ctx context.Context, a sigmap.StreamAsk) (*os.File, error) {
		return r.Connect.DialStream(ctx, r.Principal, a.Machine, a.Service)
	}),
	sigmap.On(sigmap.CallEtcd, func(r scope, _ context.Context, _ sigmap.None) (*sigmap.Etcd, error) {
		return r.Outside.EtcdFor(r.Services.Of(r.Principal))
	}),
	onFile(sigmap.CallDialEtcd, func(r scope, ctx context.Context, name string) (*os.File, error) {
		return r.Outside.DialEtcd(ctx, r.Services.Of(r.Principal), name)
	}),
	onFile(sigmap.CallDialServer, func(r scope, ctx context.Context, to sigmap.ServerName) (*os.File, error) {
		return r.Outside.DialServer(ctx, r.Services.Of(r.Principal), to)
	}),
)

// Methods are the names of the methods of /sys/endpoints.
func Methods() iter.Seq[string] { return maps.Keys(methods) }

// onFile makes a handler of a method that is answered with one file.
func onFile[Q any](m sigmap.Method[Q, sigmap.None],
	f func(scope, context.Context, Q) (*os.File, error)) sigmap.Handler[scope] {
	return sigmap.OnFiles(m, func(r scope, ctx context.Context, q Q) (none sigmap.None, files []*os.File, err error) {
		file, err := f(r, ctx, q)
		if err == nil {
			files = []*os.File{file}
		}
		return none, files, err
	})
}

// who is the session's principal in the realm that it works in.
func (r scope) who() sigma.Principal {
	who := r.Principal
	who.Realm = r.Realm
	return who
}

func (r scope) accept(ctx context.Context, a sigmap.AcceptAsk) (got sigmap.Accepted, files []*os.File, err error) {
	f, from, ticket, err := r.Proxy.Accept(ctx, r.who(), a.ID)
	if err != nil {
		return got, nil, err
	}
	got = sigmap.Accepted{From: from, Shared: sigmap.Shared{Rings: a.Rings, Ticket: string(ticket)}}
	return got, withMemory(f, r.Proxy.Early(r.who(), ticket, a.Rings)), nil
}

func (r scope) dial(ctx context.Context, a sigmap.DialAsk) (shared sigmap.Shared, files []*os.File, err error) {
	if v := r.View; v != nil {
		if err := v.MayDial(a.To); err != nil {
			return shared, nil, err
		}
	}
	f, ticket, err := r.Connect.DialEndpoint(ctx, r.who(), a.To)
	if err != nil {
		return shared, nil, err
	}
	shared = sigmap.Shared{Rings: a.Rings, Ticket: string(ticket)}
	return shared, withMemory(f, r.Proxy.Early(r.who(), ticket, a.Rings)), nil
}

func (r scope) listen(_ context.Context, a sigmap.ListenAsk) (e sigma.Endpoint, files []*os.File, err error) {
	who := r.who()
	s := r.Services.Of(who)
	public := s != nil && reach.OfRealms(s.Name)
	if a.Again != "" {
		e, err = r.Proxy.ListenAgain(who, a.Again, a.Form, public)
	} else {
		e, err = r.Proxy.Listen(who, a.Form, public)
	}
	if err != nil {
		return e, nil, err
	}
	if a.Pushed {
		socket, pump, err := r.Proxy.Push(who, e.ID)
		switch {
		case err == nil:
			r.Go(pump)
			files = []*os.File{socket}
		case sigma.KindOf(err) != sigma.KindBusy: // or it asks for each connection
			r.Proxy.Close(who, e.ID)
			return e, nil, err
		}
	}
	if s != nil {
		s.Listening(e)
	}
	return e, files, nil
}

func (r scope) pool(ctx context.Context, ask sigmap.PoolAsk) (grant sigmap.PoolGrant, files []*os.File, err error) {
	if r.View != nil { // it may change, and what was made in advance would not know
		return grant, nil, sigma.Errorf("kernel.Pool", sigma.KindUnsupported,
			"for a proc with a view no connections are made in advance")
	}
	if ask.Endpoint.Machine != r.Machine {
		far, files, err := r.Connect.PoolAway(ctx, r.who(), ask)
		if err != nil {
			return grant, nil, err
		}
		return *far, files, nil
	}
	b, err := r.Proxy.Pool(r.who(), ask)
	if err != nil {
		return grant, nil, err
	}
	return b.Grant, b.Files, nil
}

// withMemory is what is passed of a connection.
func withMemory(sock, memory *os.File) []*os.File {
	if memory == nil {
		return []*os.File{sock}
	}
	return []*os.File{sock, memory}
}

// log gives the latest things that happened to connections.
func (r scope) log(context.Context, sigmap.None) ([]byte, error) {
	if r.View != nil {
		return nil, sigma.Errorf("kernel.log", sigma.KindPermission,
			"a proc with a view is not told of others' connections")
	}
	return report.Lines(r.Talk.Log(r.shownTo))
}

// shownTo says which connections who reads may know of: the provider of all, a tenant of those that
// its realm has an end of.
func (r scope) shownTo(c *dialproxy.Connection) bool {
	return r.Principal.System || c.Endpoint.Realm == r.Realm || c.From.Realm == r.Realm
}

// ConnectionsFile is /sys/connections: which connections procs of this machine have.
func (x *Endpoints) ConnectionsFile(s sessions.Scope) sigma.File {
	r := scope{x, s}
	return computed.Sys(roles.Connections, func(ctx context.Context) ([]byte, error) {
		return report.Lines(r.Talk.Connections(ctx, r.shownTo))
	})
}

// TrafficFile is /sys/traffic: a tenant is told of its own realm, the provider of the realm that it
// works in, and in that of the system of all.
func (x *Endpoints) TrafficFile(s sessions.Scope) sigma.File {
	r := scope{x, s}
	of := r.Realm
	if of == sigma.SystemRealm && r.Principal.System {
		of = ""
	}
	return computed.Sys(roles.Traffic, func(ctx context.Context) ([]byte, error) {
		return r.Talk.Traffic(ctx, of)
	})
}

// DistancesFile is /sys/distances.
func (x *Endpoints) DistancesFile() sigma.File {
	return computed.Sys(roles.Distances, x.Talk.Distances)
}
