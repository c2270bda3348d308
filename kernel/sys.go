package kernel

import (
	"context"
	"os"
	"slices"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/treekit"
)

// handler is one method of a callable file.
type handler func(ctx context.Context, payload []byte) (reply []byte, files []*os.File, err error)

// sys is /sys of a session's realm.
type sys struct{ *root }

// dir is /sys: the system calls (sigmap/calls.go) and the state of the system (state.go).
func (r sys) dir() sigma.File {
	return &computed.Dir{Path: "/sys",
		Names: func(context.Context) ([]string, error) { return r.sysNames(), nil },
		Child: func(_ context.Context, name string) (sigma.File, error) {
			if slices.Contains(r.sysNames(), name) {
				if f := r.sysFile(name); f != nil {
					if g := r.tree.granted; g != nil {
						f = roles.Limit(f, name, g.Role)
					}
					return f, nil
				}
			}
			return nil, sigma.PathError("kernel.sys", sigma.KindNotFound, sigma.JoinPath(sigma.NameSys, name))
		}}
}

// sysNames are the files of /sys that the session sees: of a proc with a view, what it needs of
// itself, and no more.
func (r sys) sysNames() []string {
	names := append(make([]string, 0, 16), sigmap.FileProcs, sigmap.FileSelf, sigmap.FileEndpoints, roles.Version)
	if r.tree.view == nil || r.tree.granted != nil {
		names = append(names, sigmap.FileInit, sigmap.FileEvents, sigmap.FileDecisions)
		names = append(names, sigmap.FileMachine, sigmap.FileRealms, sigmap.FileMachines, roles.Roster, roles.Queues,
			roles.Utilisation, roles.Load, roles.Usage, roles.UsageProcs, roles.Limits, roles.Connections,
			roles.Traffic, roles.Distances)
	}
	if r.tree.principal.System || r.realm == sigma.SystemRealm && r.tree.isService(services.Machined) {
		names = append(names, sigmap.FileNames)
	}
	if r.tree.principal.System {
		names = append(names, roles.Metrics)
	}
	if r.mayOwn() {
		names = append(names, sigmap.FileCredentials)
	}
	if g := r.tree.granted; g != nil {
		names = slices.DeleteFunc(names, func(n string) bool { return !roles.MayUse(g.Role, n) })
	}
	return names
}

func (r sys) sysFile(name string) sigma.File {
	switch name {
	case sigmap.FileProcs:
		return r.callable(name, r.procsCalls())
	case sigmap.FileSelf:
		return r.callable(name, r.selfCalls())
	case sigmap.FileEndpoints:
		return r.endpointsFile()
	case sigmap.FileMachine:
		return r.callable(name, r.machineCalls())
	case sigmap.FileMachines:
		return r.machinesFile()
	case sigmap.FileRealms:
		return r.realmsFile()
	case sigmap.FileCredentials:
		return r.credentialsFile()
	case sigmap.FileNames:
		return r.namesFile()
	case sigmap.FileInit:
		return r.initFile()
	case sigmap.FileEvents:
		return r.eventsFile()
	case sigmap.FileDecisions:
		return r.decisionsFile()
	case roles.Roster:
		return r.rosterFile()
	case roles.Version:
		return r.versionFile()
	case roles.Queues:
		return r.queuesFile()
	case roles.Connections:
		return r.connectionsFile()
	case roles.Traffic:
		return r.trafficFile()
	case roles.Distances:
		return r.distancesFile()
	case roles.Utilisation:
		return r.utilisationFile()
	case roles.Load:
		return r.tree.k.accounts.LoadFile(r.tree.principal.System)
	case roles.Usage, roles.UsageProcs:
		return r.tree.k.accounts.UsageFile(name, r.realm, r.tree.principal.System)
	case roles.Limits:
		return r.limitsFile()
	case roles.Metrics:
		return &treekit.Blob{ID: sigma.FileID{Kind: sigma.KindDevice, Path: viewfs.PathID("/sys/" + name)}, Name: name,
			Perm: 0o400, Content: metrics{r.tree.k}.text}
	}
	return nil
}

func (r sys) callable(name string, methods map[string]handler) sigma.File {
	return &treekit.Callable{Name: name, ID: viewfs.PathID("/sys/" + name), Handle: func(ctx context.Context,
		method string, payload []byte) ([]byte, []*os.File, error) {
		h := methods[method]
		if h == nil {
			return nil, nil, treekit.NoMethod(name, method)
		}
		return h(ctx, payload)
	}}
}

// aboutProc makes a handler of a method whose request is one proc of the caller's realm.
func (r sys) aboutProc(need sigma.Rights, f func(ctx context.Context, id sigma.ProcID) ([]byte, error)) handler {
	return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
		var id sigma.ProcID
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id) }); err != nil {
			return nil, nil, err
		}
		if err := r.mayProc(ctx, id, need); err != nil {
			return nil, nil, err
		}
		reply, err := f(ctx, id)
		return reply, nil, err
	}
}

// ofService makes a handler of a method that is told which service calls, nil for other callers.
func (r sys) ofService(f func(context.Context, *services.Service, []byte) ([]byte, []*os.File, error)) handler {
	return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
		return f(ctx, r.tree.k.services.Of(r.tree.principal), payload)
	}
}

func (r sys) procsCalls() map[string]handler {
	k := r.tree.k
	return map[string]handler{
		sigmap.CallSpawn: r.spawn,
		sigmap.CallList:  r.list,
		sigmap.CallUsage: r.usage,
		sigmap.CallCaps:  r.aboutProc(sigma.RightRead, r.capsCall),
		sigmap.CallWaitStart: r.aboutProc(sigma.RightRead, func(ctx context.Context, id sigma.ProcID) ([]byte, error) {
			p, err := k.remote.Await(ctx, r.realm, id, procs.Started)
			if err == nil && p.Times.Started.IsZero() {
				err = &sigma.Error{Op: "kernel.WaitStart", Kind: max(p.Status.Kind, sigma.KindOther),
					Msg: p.Status.Code.String() + ": " + p.Status.Msg}
			}
			return nil, err
		}),
		sigmap.CallWaitExit: r.aboutProc(sigma.RightRead, func(ctx context.Context, id sigma.ProcID) ([]byte, error) {
			p, err := k.remote.Await(ctx, r.realm, id, procs.Ended)
			if err != nil {
				return nil, err
			}
			if (r.tree.principal.Proc == "" || r.tree.granted != nil) && k.cluster.Leaves() {
				r.tree.waited.Store(true)
			}
			return sigmap.Payload(func(c *sigmap.Coder) { c.Status(&p.Status) })
		}),
		sigmap.CallKill: r.aboutProc(sigma.RightWrite, func(ctx context.Context, id sigma.ProcID) ([]byte, error) {
			return nil, k.remote.Tell(ctx, r.realm, id, remote.Kill, 0)
		}),
		sigmap.CallFreeze: r.aboutProc(sigma.RightWrite, func(ctx context.Context, id sigma.ProcID) ([]byte, error) {
			return nil, k.remote.Tell(ctx, r.realm, id, remote.Freeze, 0)
		}),
		sigmap.CallThaw: r.aboutProc(sigma.RightWrite, func(ctx context.Context, id sigma.ProcID) ([]byte, error) {
			return nil, k.remote.Tell(ctx, r.realm, id, remote.Thaw, 0)
		}),
		sigmap.CallEvict: func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			var id sigma.ProcID
			var grace time.Duration
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id); c.Duration(&grace) }); err != nil {
				return nil, nil, err
			}
			if err := r.mayProc(ctx, id, sigma.RightWrite); err != nil {
				return nil, nil, err
			}
			return nil, nil, k.remote.Tell(ctx, r.realm, id, remote.Evict, grace)
		},
	}
}

func (r sys) spawn(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var ds []sigma.Descriptor
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Descriptors(&ds) }); err != nil {
		return nil, nil, err
	}
	if len(ds) > sigma.BurstMax {
		return nil, nil, sigma.Errorf("kernel.Spawn", sigma.KindTooBig, "%d descriptors in one Spawn; %d are allowed",
			len(ds), sigma.BurstMax)
	}
	if r.realm == sigma.SystemRealm {
		return nil, nil, sigma.Errorf("kernel.Spawn", sigma.KindPermission, "procs are not spawned in the realm system")
	}
	ids := make([]sigma.ProcID, len(ds))
	for i := range ds {
		if err := ds[i].Check(); err != nil {
			return nil, nil, err
		}
		ids[i] = sigma.NewProcID()
	}
	k := r.tree.k
	by := r.tree.principal
	by.Realm = r.realm
	if r.tree.granted != nil { // nothing that is spawned is a guest's own
		by.Proc = ""
	}
	views, err := r.viewsOf(ctx, ds)
	if err != nil {
		return nil, nil, err
	}
	starts, err := k.procs.Spawn(r.realm, schedd.Spawned{By: by, IDs: ids, Ds: ds, Views: views, Kin: r.tree.kin()})
	if err != nil {
		return nil, nil, err
	}
	k.runner.Spawned(starts)
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.ProcIDs(&ids) })
	return reply, nil, err
}

func (r sys) selfCalls() map[string]handler {
	k, who := r.tree.k, r.tree.principal
	proc := func(h handler) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			if who.Proc == "" {
				return nil, nil, &sigma.Error{Op: "kernel.self", Kind: sigma.KindPermission,
					Msg: "this program is not a proc"}
			}
			return h(ctx, payload)
		}
	}
	return map[string]handler{
		sigmap.CallInfo: func(context.Context, []byte) ([]byte, []*os.File, error) {
			p := who
			p.Realm = r.realm
			if r.tree.granted != nil {
				p.Proc = ""
			}
			info := sigmap.Info{Principal: p, Version: Version}
			reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Info(&info) })
			return reply, nil, err
		},
		sigmap.CallStarted: proc(func(context.Context, []byte) ([]byte, []*os.File, error) {
			if s := k.services.Of(who); s != nil {
				s.Started(who.Proc)
				return nil, nil, nil
			}
			k.procs.Step(schedd.CalledStarted{ID: who.Proc})
			return nil, nil, nil
		}),
		sigmap.CallWorked: r.ofService(k.accounts.WorkedCall),
		sigmap.CallExited: proc(func(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
			var s sigma.Status
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Status(&s) }); err != nil {
				return nil, nil, err
			}
			if s.Code == sigma.StatusNone || s.Code > sigma.StatusLost {
				return nil, nil, sigma.Errorf("kernel.Exited", sigma.KindInvalid, "status code %d", s.Code)
			}
			if len(s.Data) > sigma.StatusDataMax || len(s.Msg) > 4096 {
				return nil, nil, &sigma.Error{Op: "kernel.Exited", Kind: sigma.KindTooBig, Msg: "status is too big",
					Hint: "write results to a file of the realm and give its path"}
			}
			s.Data = slices.Clone(s.Data)
			s.Kind = sigma.KindOther // a kind says why a proc could not be started, and this one was
			k.procs.Step(schedd.CalledExited{ID: who.Proc, Status: s})
			if !s.OK() || s.Msg != "" || len(s.Data) > 0 { // what its exit code will not say
				k.runner.Keep(r.realm, who.Proc)
			}
			return nil, nil, nil
		}),
		// KindNotFound: a service, or a request that was still on its way when its proc ended.
		sigmap.CallWaitEvict: proc(func(ctx context.Context, _ []byte) ([]byte, []*os.File, error) {
			return nil, nil, k.procs.WaitEvict(ctx, r.realm, who.Proc)
		}),
	}
}

// endpointsCallable answers a dial to an endpoint of this machine at once, and one for connections
// in advance: dialproxy does not wait.
func (r sys) endpointsCallable() sigma.File {
	c := r.callable(sigmap.FileEndpoints, r.endpointCalls()).(*treekit.Callable)
	c.Prompt = func(method string, payload []byte) bool {
		var e sigma.Endpoint
		if method == sigmap.CallPool {
			var ask sigmap.PoolAsk
			return sigmap.Parse(payload, func(c *sigmap.Coder) {
				c.PoolAsk(&ask)
			}) == nil && ask.Endpoint.Machine == r.tree.k.cfg.Machine
		}
		return method == sigmap.CallDial && r.tree.view == nil && sigmap.Parse(payload, func(c *sigmap.Coder) {
			c.Endpoint(&e)
			c.Last(func() { var rings bool; c.Bool(&rings) })
		}) == nil && e.Machine == r.tree.k.cfg.Machine
	}
	return c
}

func (r sys) endpointCalls() map[string]handler {
	k, who := r.tree.k, r.tree.principal
	who.Realm = r.realm
	id := func(payload []byte) (id sigma.EndpointID, err error) {
		err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str((*string)(&id)) })
		return id, err
	}
	return map[string]handler{
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
			f, from, ticket, err := k.proxy.Accept(ctx, who, l)
			if err != nil {
				return nil, nil, err
			}
			reply, err := sigmap.Payload(func(c *sigmap.Coder) {
				if c.Principal(&from); rings {
					c.Str((*string)(&ticket))
				}
			})
			return reply, withMemory(f, k.proxy.Early(who, ticket, rings)), err
		},
		sigmap.CallRing: func(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
			var t dialproxy.Ticket
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str((*string)(&t)) }); err != nil {
				return nil, nil, err
			}
			f, err := k.proxy.Ring(who, t)
			if err != nil {
				return nil, nil, err
			}
			return nil, []*os.File{f}, nil
		},
		sigmap.CallEndRing: func(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
			var t dialproxy.Ticket
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str((*string)(&t)) }); err != nil {
				return nil, nil, err
			}
			return nil, nil, k.proxy.EndRing(who, t)
		},
		sigmap.CallMeter:      r.meterCall,
		sigmap.CallDialStream: r.dialStreamCall,
		sigmap.CallEtcd:       r.ofService(k.outside.EtcdCall),
		sigmap.CallDialEtcd:   r.ofService(k.outside.DialEtcdCall),
		sigmap.CallDialServer: r.ofService(k.outside.DialServerCall),
		sigmap.CallDial: func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			var e sigma.Endpoint
			var rings bool
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
				c.Endpoint(&e)
				c.Last(func() { c.Bool(&rings) })
			}); err != nil {
				return nil, nil, err
			}
			if v := r.tree.view; v != nil {
				if err := v.MayDial(e); err != nil {
					return nil, nil, err
				}
			}
			f, ticket, err := k.connect.DialEndpoint(ctx, who, e)
			if err != nil {
				return nil, nil, err
			}
			var reply []byte
			if rings {
				reply, err = sigmap.Payload(func(c *sigmap.Coder) { c.Str((*string)(&ticket)) })
			}
			return reply, withMemory(f, k.proxy.Early(who, ticket, rings)), err
		},
		sigmap.CallClose: func(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
			l, err := id(payload)
			if err != nil {
				return nil, nil, err
			}
			return nil, nil, k.proxy.Close(who, l)
		},
		sigmap.CallRevoke: r.revokeCall,
		sigmap.CallLog:    r.logCall,
	}
}

// listenCall is the call listen.
func (r sys) listenCall(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
	k, who := r.tree.k, r.tree.principal
	who.Realm = r.realm
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
	s := k.services.Of(who)
	public := s != nil && reach.OfRealms(s.Name)
	var e sigma.Endpoint
	var err error
	if again != "" {
		e, err = k.proxy.ListenAgain(who, again, form, public)
	} else {
		e, err = k.proxy.Listen(who, form, public)
	}
	if err != nil {
		return nil, nil, err
	}
	var files []*os.File
	if pushed {
		socket, pump, err := k.proxy.Push(who, e.ID)
		switch {
		case err == nil:
			k.sessions.Go(pump)
			files = []*os.File{socket}
		case sigma.KindOf(err) != sigma.KindBusy: // or it asks for each connection
			k.proxy.Close(who, e.ID)
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
func (r sys) poolCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	k, who := r.tree.k, r.tree.principal
	who.Realm = r.realm
	var ask sigmap.PoolAsk
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.PoolAsk(&ask) }); err != nil {
		return nil, nil, err
	}
	if r.tree.view != nil { // it may change, and what was made in advance would not know
		return nil, nil, sigma.Errorf("kernel.Pool", sigma.KindUnsupported,
			"for a proc with a view no connections are made in advance")
	}
	if ask.Endpoint.Machine != k.cfg.Machine {
		grant, files, err := k.connect.PoolAway(ctx, who, ask)
		if err != nil {
			return nil, nil, err
		}
		reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.PoolGrant(grant) })
		return reply, files, err
	}
	b, err := k.proxy.Pool(who, ask)
	if err != nil {
		return nil, nil, err
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.PoolGrant(&b.Grant) })
	return reply, b.Files, err
}

// withMemory is what is passed of a connection.
func withMemory(sock, memory *os.File) []*os.File {
	if memory == nil {
		return []*os.File{sock}
	}
	return []*os.File{sock, memory}
}

func (r sys) machineCalls() map[string]handler {
	k := r.tree.k
	provider := func(h handler) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			if !r.tree.principal.System {
				return nil, nil, sigma.Errorf("kernel.machine", sigma.KindPermission, "only the provider may ask this")
			}
			return h(ctx, payload)
		}
	}
	return map[string]handler{
		sigmap.CallServer:   provider(k.outside.SetCall),
		sigmap.CallSetStore: provider(k.outside.SetStoreCall),
		sigmap.CallStores:   provider(k.outside.StoresCall),
		sigmap.CallStatus: provider(func(ctx context.Context, _ []byte) ([]byte, []*os.File, error) {
			ss := k.services.Status(ctx)
			reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Services(&ss) })
			return reply, nil, err
		}),
		sigmap.CallUsage: provider(func(ctx context.Context, _ []byte) ([]byte, []*os.File, error) {
			us := k.accounts.ServicesUsage(ctx)
			reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Usages(&us) })
			return reply, nil, err
		}),
		sigmap.CallLeave: provider(k.cluster.LeaveCall),
		sigmap.CallDown: provider(func(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
			var now bool
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Bool(&now) }); err != nil {
				return nil, nil, err
			}
			time.AfterFunc(10*time.Millisecond, func() { k.Down(now) }) // after the answer is on its way
			return nil, nil, nil
		}),
	}
}

// dialStreamCall is the call dial-stream.
func (r sys) dialStreamCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var m sigma.MachineID
	var name string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.MachineID(&m); c.Str(&name) }); err != nil {
		return nil, nil, err
	}
	f, err := r.tree.k.connect.DialStream(ctx, r.tree.principal, m, name)
	if err != nil {
		return nil, nil, err
	}
	return nil, []*os.File{f}, nil
}

// revokeCall is the call revoke.
func (r sys) revokeCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var e sigma.Endpoint
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Endpoint(&e) }); err != nil {
		return nil, nil, err
	}
	return nil, nil, r.tree.k.connect.Revoke(ctx, r.tree.principal, e)
}
