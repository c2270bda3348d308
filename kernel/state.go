package kernel

import (
	"context"
	"runtime"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/besched"
	"sigmaos.dev/dialproxy"
	"sigmaos.dev/lcsched"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
	"sigmaos.dev/treekit"
)

// Files of /sys that tell the state of the system, one JSON object a line (docs/reference/paths). A
// tenant is told of its own realm and no other; the provider of all. They are made when they are
// read, nothing is kept for them; what costs a question to another program is remembered for a
// second.
// endpointsPage endpoints are told at a time.
const endpointsPage = 256

func (r sys) sysState(name string, text func(context.Context) ([]byte, error)) *computed.Lines[struct{}] {
	return computed.File("/sys/"+name, name, 0o444, text)
}

// asked is a context for what several wait for.
func (k *Kernel) asked() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.life.ctx, reach.AnswerMax)
}

func (r sys) versionFile() sigma.File {
	v := state.Version{Version: Version, Machine: string(r.tree.k.cfg.Machine), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	return r.sysState(roles.Version, func(context.Context) ([]byte, error) { return state.Line(v) })
}

// machineLines is what is read of /sys/machines. It asks machined, and no machine.
func (r sys) machineLines() *computed.Lines[struct{}] {
	return r.sysState(sigmap.FileMachines, func(context.Context) ([]byte, error) {
		all := []state.Machine{}
		seen := []state.MachineSeen{}
		for _, m := range r.tree.k.rosterInfos() {
			all = append(all, state.OfMachine(m, r.tree.k.cfg.Machine))
			seen = append(seen, all[len(all)-1].MachineSeen)
		}
		if r.tree.principal.System {
			return state.Lines(all)
		}
		return state.Lines(seen)
	})
}

// realmsFile is /sys/realms: calls of the provider, and lines.
func (r sys) realmsFile() sigma.File {
	k := r.tree.k
	calls := treekit.RealmsFile(sigmap.FileRealms, viewfs.PathID("/sys/"+sigmap.FileRealms), k.realms.For(r.tree),
		r.tree.principal.System)
	return r.sysState(sigmap.FileRealms, func(ctx context.Context) ([]byte, error) {
		infos, err := r.realmInfos(ctx)
		if err != nil {
			return nil, err
		}
		out := make([]state.Realm, len(infos))
		for i := range infos {
			out[i] = state.OfRealm(infos[i])
		}
		return state.Lines(out)
	}).Answering(calls)
}

// realmInfos are the realms that the session is told of: all, or its own.
func (r sys) realmInfos(ctx context.Context) ([]sigma.RealmInfo, error) {
	k := r.tree.k
	if r.tree.principal.System {
		return k.realms.For(r.tree).List(ctx)
	}
	return memo.Recall(k.memo, "realm "+string(r.realm), func() (out []sigma.RealmInfo, err error) {
		all, err := k.realms.List()
		for _, i := range all {
			if i.ID == r.realm {
				out = append(out, i)
			}
		}
		ctx, cancel := k.asked()
		defer cancel()
		k.remote.Count(ctx, out)
		return out, err
	})
}

// queuesFile is /sys/queues: what waits at the scheduler.
func (r sys) queuesFile() sigma.File {
	k := r.tree.k
	return r.sysState(roles.Queues, func(context.Context) ([]byte, error) {
		all, err := memo.Recall(k.memo, roles.Queues, k.askQueues)
		if err != nil {
			return nil, err
		}
		out := []state.Queue{}
		for _, q := range all {
			if r.tree.principal.System || q.Realm == r.realm {
				out = append(out, state.Queue{Realm: string(q.Realm), Waiting: int(q.Jobs), Memory: uint64(q.Memory),
					Shares: q.Shares})
			}
		}
		lc, err := memo.Recall(k.memo, "queue lc", k.askWaits)
		if err != nil {
			k.cfg.Log.Debug("no lcsched answers", "err", err)
			lc = k.unscheduled()
		}
		for _, w := range lc {
			if r.tree.principal.System || w.Realm == r.realm {
				out = append(out, state.Queue{Realm: string(w.Realm), Waiting: 1, Memory: uint64(w.Memory),
					Proc: string(w.ID), Class: sigma.LatencyCritical.String(), Why: w.Why})
			}
		}
		return state.Lines(out)
	})
}

// unscheduledMax procs are told of while nobody places them.
const unscheduledMax = 256

// unscheduled are the latency-critical procs of this home that wait while no lcsched leads.
func (k *Kernel) unscheduled() (ws []lcsched.Waits) {
	k.procs.With(func(v procs.View) {
		for _, realm := range v.Realms() {
			for _, p := range v.After(realm, 0) {
				if p.Class == sigma.LatencyCritical && p.State == sigma.ProcQueued && !p.Guest() &&
					len(ws) < unscheduledMax {
					w := lcsched.Waits{Since: p.Times.Spawned,
						Why: "no lcsched leads: another is being elected, or the control machines have no quorum; " +
							"procs that run go on"}
					w.ID, w.Realm, w.Memory = p.ID, realm, p.Memory
					ws = append(ws, w)
				}
			}
		}
	})
	return ws
}

// askWaits asks the lcsched that leads what waits there.
func (k *Kernel) askWaits() (ws []lcsched.Waits, err error) {
	if k.services.Local(services.Lcsched) == nil && len(k.cluster.Others()) == 0 {
		return nil, nil
	}
	ctx, cancel := k.asked()
	defer cancel()
	return k.placing.Waiting(ctx)
}

// askQueues asks all shards what waits there.
func (k *Kernel) askQueues() ([]besched.Queued, error) {
	ctx, cancel := k.asked()
	defer cancel()
	return k.placing.Queues(ctx)
}

// utilisationFile is /sys/utilisation: what runs at this machine.
func (r sys) utilisationFile() sigma.File {
	k := r.tree.k
	return r.sysState(roles.Utilisation, func(context.Context) ([]byte, error) {
		var out []byte
		of := []sigma.RealmID{r.realm}
		if r.tree.principal.System {
			cpu := k.cfg.CPU
			m := state.MachineUse{Machine: string(k.cfg.Machine), Cores: float64(cpu) / 1000}
			k.procs.With(func(v procs.View) {
				m.Running, m.Waiting = v.Running(), v.Queued()
				m.Capacity, m.Free = uint64(v.Capacity()), uint64(v.Free())
				of = v.Realms()
			})
			line, err := state.Line(m)
			if err != nil {
				return nil, err
			}
			out = line
		}
		for _, realm := range of {
			u := k.useOf(realm)
			line, err := state.Line(state.RealmUse{Machine: string(k.cfg.Machine), Realm: string(realm),
				Running: u.Running, Waiting: u.Waiting, Limit: uint64(u.Memory)})
			if err != nil {
				return nil, err
			}
			out = append(out, line...)
		}
		return out, nil
	})
}

// useOf counts a realm's procs here.
func (k *Kernel) useOf(realm sigma.RealmID) schedd.Use {
	u, _ := memo.Recall(k.memo, "use "+string(realm), func() (u schedd.Use, _ error) {
		k.procs.With(func(v procs.View) { u = v.Use(realm) })
		return u, nil
	})
	return u
}

// endpointsFile is /sys/endpoints: the calls of who listens and dials, and lines of who listens at
// this machine. Who has an endpoint's text can dial it, so that is not told.
func (r sys) endpointsFile() sigma.File {
	k, of, own := r.tree.k, r.realm, r.tree.principal.Proc
	if r.tree.principal.System {
		of = ""
	}
	page := func(_ context.Context, after sigma.EndpointID) (text []byte, last sigma.EndpointID, more bool, err error) {
		var all []dialproxy.Listening
		if all, more = k.proxy.After(of, after, endpointsPage); len(all) > 0 {
			last = all[len(all)-1].Endpoint.ID
		}
		out := []state.Endpoint{}
		for _, l := range all {
			if e := l.Endpoint; r.tree.view == nil || r.tree.granted != nil || e.Proc == own {
				out = append(out, state.Endpoint{Realm: string(e.Realm), Machine: string(e.Machine),
					Proc: string(e.Proc), Form: string(e.Form), Waiting: l.Waiting})
			}
		}
		text, err = state.Lines(out)
		return text, last, more, err
	}
	return computed.LinesFile("/sys/"+sigmap.FileEndpoints, sigmap.FileEndpoints, 0o444,
		page).Answering(r.endpointsCallable())
}

// limitsFile is /sys/limits: what a realm, and each of its procs, may have.
func (r sys) limitsFile() sigma.File {
	k := r.tree.k
	return r.sysState(roles.Limits, func(context.Context) ([]byte, error) {
		infos, err := k.realms.List()
		if err != nil {
			return nil, err
		}
		var out []state.Limit
		for i := range infos {
			if id := infos[i].ID; id == r.realm || r.tree.principal.System && id != sigma.SystemRealm {
				var use *sigma.RealmLimits
				if id == r.realm { // of others it would have to be loaded for that
					u, err := k.quotas.Use(id)
					if err == nil {
						use = &u.Use
					} else if sigma.KindOf(err) != sigma.KindUnsupported {
						return nil, err
					}
				}
				out = append(out, k.limitsOf(&infos[i], use)...)
			}
		}
		return state.Lines(out)
	})
}

// limitsOf lists a realm's limits: of its names, of which it has what names says, if that is known,
// and of its procs at this machine.
func (k *Kernel) limitsOf(i *sigma.RealmInfo, names *sigma.RealmLimits) (out []state.Limit) {
	of := func(n func(*sigma.RealmLimits) uint64) *uint64 {
		if names == nil {
			return nil
		}
		u := n(names)
		return &u
	}
	sessions, handles := k.quotas.Held(i.ID)
	var scratch *uint64 // not known before the realm's files are used
	if n, known := k.quotas.Scratch.Used(i.ID); known {
		scratch = (*uint64)(&n)
	}
	u, live := k.useOf(i.ID), uint64(k.procs.Live(i.ID))
	ended, rings := uint64(u.Ended), uint64(k.proxy.Rings(i.ID))
	for _, l := range []struct {
		limit string
		most  uint64
		used  *uint64
	}{
		{"names", i.Limits.Names, of(func(l *sigma.RealmLimits) uint64 { return l.Names })},
		{"names_bytes", uint64(i.Limits.Bytes), of(func(l *sigma.RealmLimits) uint64 { return uint64(l.Bytes) })},
		{"watches", i.Limits.Watches, of(func(l *sigma.RealmLimits) uint64 { return l.Watches })},
		{"leases", i.Limits.Leases, of(func(l *sigma.RealmLimits) uint64 { return l.Leases })},
		{"sessions", i.Limits.Sessions, &sessions},
		{"handles", i.Limits.Handles, &handles},
		{"scratch_bytes", uint64(k.quotas.Scratch.InForce(i.Limits.Scratch)), scratch},
		{"procs", schedd.QueuedMax, &live},
		{"ended_procs", schedd.EndedMax, &ended},
		{"spawn_procs", sigma.BurstMax, nil},
		{"waiting_connections", dialproxy.WaitingMax, nil},
		{"rings", dialproxy.RingsOfRealm, &rings},
		{"proc_memory_bytes", uint64(k.cfg.Memory), nil},
		{"proc_args_bytes", sigma.ArgsMax, nil},
		{"proc_tasks", runner.PidsMax, nil},
		{"proc_open_files", runner.NoFileMax, nil},
		{"proc_endpoints", dialproxy.ListenersMax, nil},
		{"proc_rings", dialproxy.RingsOfProc, nil},
	} {
		out = append(out, state.Limit{Realm: string(i.ID), Limit: l.limit, Max: l.most, Used: l.used})
	}
	return append(out, k.computeLimits(i)...)
}

// computeLimits lists those limits of processors and memory that a realm has, with what is used of
// them at this machine.
func (k *Kernel) computeLimits(i *sigma.RealmInfo) (out []state.Limit) {
	var held sigma.Bytes
	k.procs.With(func(v procs.View) { _, held = v.Most(i.ID) })
	l, memory := i.Limits, uint64(held)
	for _, x := range []struct {
		limit string
		most  uint64
		used  *uint64
	}{
		{"max_cpu_millis", uint64(l.MaxCPU), nil},
		{"max_memory_bytes", uint64(l.MaxMemory), &memory},
		{"min_cpu_millis", uint64(l.MinCPU), nil},
		{"min_memory_bytes", uint64(l.MinMemory), nil},
		{"reserve_cpu_millis", uint64(l.ReserveCPU), nil},
		{"reserve_memory_bytes", uint64(l.ReserveMemory), nil},
	} {
		if x.most > 0 {
			out = append(out, state.Limit{Realm: string(i.ID), Limit: x.limit, Max: x.most, Used: x.used})
		}
	}
	return out
}
