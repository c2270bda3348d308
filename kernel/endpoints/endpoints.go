// Package endpoints is what is called and read of connections in /sys: /sys/endpoints, by which
// programs listen, dial and accept, and /sys/connections, /sys/traffic and /sys/distances. It has
// no lock. Users: kernel/sysfs.
package endpoints

import (
	"context"
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

// ofService makes a handler of a method that is told which service calls, nil for other callers.
func (r scope) ofService(f func(context.Context, *services.Service, []byte) ([]byte, []*os.File,
	error)) computed.Handler {
	return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
		return f(ctx, r.Services.Of(r.Principal), payload)
	}
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
	c := computed.Calls(sigmap.FileEndpoints, r.Calls(r.Scope))
	c.Prompt = func(method string, payload []byte) bool {
		var e sigma.Endpoint
		if method == sigmap.CallPool {
			var ask sigmap.PoolAsk
			return sigmap.Parse(payload, func(c *sigmap.Coder) {
				c.PoolAsk(&ask)
			}) == nil && ask.Endpoint.Machine == r.Machine
		}
		return method == sigmap.CallDial && r.View == nil && sigmap.Parse(payload, func(c *sigmap.Coder) {
			c.Endpoint(&e)
			c.Last(func() { var rings bool; c.Bool(&rings) })
		}) == nil && e.Machine == r.Machine
	}
	return c
}

// Calls are the methods of /sys/endpoints.
func (x *Endpoints) Calls(s sessions.Scope) map[string]computed.Handler {
	r := scope{x, s}
	who := r.Principal
	who.Realm = r.Realm
	text := func(do func(s string) (*os.File, error)) computed.Handler { // the request is one string
		return func(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
			var s string
			err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&s) })
			if err != nil {
				return nil, nil, err
			}
			return passed(do(s))
		}
	}
	return map[string]computed.Handler{
		sigmap.CallListen: r.listenCall,
		sigmap.CallPool:   r.poolCall,
		sigmap.CallAccept: func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			var l sigma.EndpointID
			var rings bool
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
				c.Str((*string)(&l))
				c.Last(func() { c.Bool(&rings) })
			}); err != nil {
				return nil, nil, err
			}
			f, from, ticket, err := r.Proxy.Accept(ctx, who, l)
			if err != nil {
				return nil, nil, err
			}
			reply, err := sigmap.Payload(func(c *sigmap.Coder) {
				if c.Principal(&from); rings {
					c.Str((*string)(&ticket))
				}
			})
			return reply, withMemory(f, r.Proxy.Early(who, ticket, rings)), err
		},
		sigmap.CallRing: text(func(s string) (*os.File, error) { return r.Proxy.Ring(who, dialproxy.Ticket(s)) }),

		sigmap.CallEndRing: text(func(s string) (*os.File, error) {
			return nil, r.Proxy.EndRing(who, dialproxy.Ticket(s))
		}),

		sigmap.CallMeter:      r.meterCall,
		sigmap.CallDialStream: r.dialStreamCall,
		sigmap.CallEtcd:       r.ofService(r.Outside.EtcdCall),
		sigmap.CallDialEtcd:   r.ofService(r.Outside.DialEtcdCall),
		sigmap.CallDialServer: r.ofService(r.Outside.DialServerCall),
		sigmap.CallDial: func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			var e sigma.Endpoint
			var rings bool
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
				c.Endpoint(&e)
				c.Last(func() { c.Bool(&rings) })
			}); err != nil {
				return nil, nil, err
			}
			if v := r.View; v != nil {
				if err := v.MayDial(e); err != nil {
					return nil, nil, err
				}
			}
			f, ticket, err := r.Connect.DialEndpoint(ctx, who, e)
			if err != nil {
				return nil, nil, err
			}
			var reply []byte
			if rings {
				reply, err = sigmap.Payload(func(c *sigmap.Coder) { c.Str((*string)(&ticket)) })
			}
			return reply, withMemory(f, r.Proxy.Early(who, ticket, rings)), err
		},
		sigmap.CallClose: text(func(s string) (*os.File, error) {
			return nil, r.Proxy.Close(who, sigma.EndpointID(s))
		}),

		sigmap.CallRevoke: r.revokeCall,
		sigmap.CallLog:    r.logCall,
	}
}

// listenCall is the call listen.
func (r scope) listenCall(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
	who := r.Principal
	who.Realm = r.Realm
	var form sigma.ConnForm
	var pushed bool
	var again sigma.EndpointID
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.Str((*string)(&form))
		c.Last(func() { c.Bool(&pushed) })
		c.Last(func() { c.Str((*string)(&again)) })
	}); err != nil {
		return nil, nil, err
	}
	s := r.Services.Of(who)
	public := s != nil && reach.OfRealms(s.Name)
	var e sigma.Endpoint
	var err error
	if again != "" {
		e, err = r.Proxy.ListenAgain(who, again, form, public)
	} else {
		e, err = r.Proxy.Listen(who, form, public)
	}
	if err != nil {
		return nil, nil, err
	}
	var files []*os.File
	if pushed {
		socket, pump, err := r.Proxy.Push(who, e.ID)
		switch {
		case err == nil:
			r.Go(pump)
			files = []*os.File{socket}
		case sigma.KindOf(err) != sigma.KindBusy: // or it asks for each connection
			r.Proxy.Close(who, e.ID)
			return nil, nil, err
		}
	}
	if s != nil {
		s.Listening(e)
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Endpoint(&e) })
	return reply, files, err
}

// poolCall is the call pool.
func (r scope) poolCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	who := r.Principal
	who.Realm = r.Realm
	var ask sigmap.PoolAsk
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.PoolAsk(&ask) }); err != nil {
		return nil, nil, err
	}
	if r.View != nil { // it may change, and what was made in advance would not know
		return nil, nil, sigma.Errorf("kernel.Pool", sigma.KindUnsupported,
			"for a proc with a view no connections are made in advance")
	}
	if ask.Endpoint.Machine != r.Machine {
		grant, files, err := r.Connect.PoolAway(ctx, who, ask)
		if err != nil {
			return nil, nil, err
		}
		reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.PoolGrant(grant) })
		return reply, files, err
	}
	b, err := r.Proxy.Pool(who, ask)
	if err != nil {
		return nil, nil, err
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.PoolGrant(&b.Grant) })
	return reply, b.Files, err
}

// passed is a reply of a file, if there is one.
func passed(f *os.File, err error) ([]byte, []*os.File, error) {
	if f == nil || err != nil {
		return nil, nil, err
	}
	return nil, []*os.File{f}, nil
}

// withMemory is what is passed of a connection.
func withMemory(sock, memory *os.File) []*os.File {
	if memory == nil {
		return []*os.File{sock}
	}
	return []*os.File{sock, memory}
}

// dialStreamCall is the call dial-stream.
func (r scope) dialStreamCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var m sigma.MachineID
	var name string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.MachineID(&m); c.Str(&name) }); err != nil {
		return nil, nil, err
	}
	return passed(r.Connect.DialStream(ctx, r.Principal, m, name))
}

// revokeCall is the call revoke.
func (r scope) revokeCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var e sigma.Endpoint
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Endpoint(&e) }); err != nil {
		return nil, nil, err
	}
	return nil, nil, r.Connect.Revoke(ctx, r.Principal, e)
}

// meterCall is the call meter.
func (r scope) meterCall(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
	if err := sigmap.Parse(payload, func(*sigmap.Coder) {}); err != nil {
		return nil, nil, err
	}
	who := r.Principal
	who.Realm = r.Realm
	return passed(r.Traffic.GiveMeter(who, time.Now()))
}

// logCall is the call log: the latest things that happened to connections.
func (r scope) logCall(context.Context, []byte) ([]byte, []*os.File, error) {
	if r.View != nil {
		return nil, nil, sigma.Errorf("kernel.log", sigma.KindPermission,
			"a proc with a view is not told of others' connections")
	}
	text, err := report.Lines(r.Talk.Log(r.shownTo))
	return text, nil, err
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
