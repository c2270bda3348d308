package sysfs

import (
	"context"
	"os"
	"runtime"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/eventlog"
	"sigmaos.dev/kernel/history"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/registrations"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

var machineMethods = sigmap.Table(sigmap.Guarded(scope.provider,
	sigmap.Do(sigmap.CallServer, func(r scope, _ context.Context, s sigmap.ServerAt) error {
		return r.Outside.SetServer(s)
	}),
	sigmap.Do(sigmap.CallSetStore, func(r scope, ctx context.Context, s sigmap.StoreAt) error {
		return r.Outside.SetStore(ctx, s)
	}),
	sigmap.On(sigmap.CallStores, func(r scope, ctx context.Context, a sigmap.StoresAsk) ([]byte, error) {
		return sigmap.CallStores.Ask(ctx, r.Reach.Root(services.S3), a)
	}),
	sigmap.On(sigmap.CallStatus, func(r scope, ctx context.Context, _ sigmap.None) ([]sigmap.Service, error) {
		return r.Services.Status(ctx), nil
	}),
	sigmap.On(sigmap.CallServicesUsage, func(r scope, ctx context.Context, _ sigmap.None) ([]sigma.Usage, error) {
		return r.Accounts.ServicesUsage(ctx), nil
	}),
	sigmap.On(sigmap.CallLeave, func(r scope, _ context.Context, evict bool) (sigmap.Leaving, error) {
		return r.Cluster.BeginLeave(evict), nil
	}),
	sigmap.Do(sigmap.CallDown, func(r scope, _ context.Context, now bool) error {
		time.AfterFunc(10*time.Millisecond, func() { r.Down(now) }) // after the answer is on its way
		return nil
	}),
)...)

// provider is an error for others than the provider.
func (r scope) provider() error {
	if !r.Principal.System {
		return sigma.Errorf("kernel.machine", sigma.KindPermission, "only the provider may ask this")
	}
	return nil
}

// passed makes handlers of methods that a service answers.
func passed(service string, methods ...string) (hs []sigmap.Handler[scope]) {
	for _, method := range methods {
		hs = append(hs, sigmap.Handler[scope]{Name: method, Call: func(r scope, ctx context.Context,
			payload []byte) ([]byte, []*os.File, error) {
			reply, err := r.Reach.AskService(ctx, service, method, payload)
			return reply, nil, err
		}})
	}
	return hs
}

var (
	// machinesMethods are what operators ask about machines.
	machinesMethods = sigmap.Table(append(passed(services.Machined, machines.CallToken.Name, machines.CallTokens.Name,
		machines.CallRevoke.Name, machines.CallList.Name, machines.CallCordon.Name, machines.CallDrain.Name,
		machines.CallLabel.Name, machines.CallControl.Name, machines.CallRemove.Name),
		sigmap.On(machines.CallMembership, func(r scope, _ context.Context, _ sigmap.None) (machines.Membership,
			error) {
			if r.Cluster.Registered() {
				return machines.Describe(r.Cluster.Identity(), r.Address, r.Cluster.IsSilent), nil
			}
			return machines.Membership{Address: r.Address}, nil
		}))...)
	authorityMethods = sigmap.Table(passed(services.Machined, machines.CallAuthority.Name)...)
	namesMethods     = sigmap.Table(passed(services.Named, sigmap.CallMembers.Name, sigmap.CallMemberAdd.Name,
		sigmap.CallMemberRemove.Name, sigmap.CallExpel.Name, sigmap.CallAdmit.Name, sigmap.CallSnapshotOpen.Name,
		sigmap.CallSnapshotRead.Name, sigmap.CallSnapshotClose.Name)...)
)

// machinesFile is /sys/machines: what operators ask about machines, passed on to the machined that
// decides. What the machines themselves say to machined does not come this way, and an operator
// does not get what machined alone may have: the authority. Everybody may read which machines there
// are.
func (r scope) machinesFile() sigma.File {
	file := r.machineLines()
	if r.Principal.System {
		return file.Answering(computed.Calls(sigmap.FileMachines, r, machinesMethods))
	}
	if r.Realm == sigma.SystemRealm && r.IsService(services.Machined) {
		file.Answering(computed.Calls(sigmap.FileMachines, r, authorityMethods))
	}
	return file
}

// mayOwn says whether the session may make and revoke credentials of its realm: the provider's may,
// and those with the role owner, which roleFile sees to.
func (r scope) mayOwn() bool {
	return r.Realm != sigma.SystemRealm && (r.Principal.System && r.Principal.Proc == "" && !r.Scope.Far ||
		r.Granted != nil && r.Granted.Role >= sigma.RoleOwner)
}

// owner is an error for whoever may not own.
func (r scope) owner() error {
	if r.mayOwn() {
		return nil
	}
	return sigma.Errorf("kernel.credentials", sigma.KindPermission,
		"credentials are the provider's and of owners of the realm")
}

var credentialsMethods = sigmap.Table(sigmap.Guarded(scope.owner,
	sigmap.On(sigmap.CallCreateCredential, func(r scope, ctx context.Context,
		n sigmap.NewCredential) (sigmap.MadeCredential, error) {
		return r.Guests.Create(ctx, r.Realm, r.Granted, n)
	}),
	sigmap.On(sigmap.CallRevokeCredential, func(r scope, ctx context.Context, name string) ([]string, error) {
		return r.Guests.Revoke(ctx, r.Realm, r.Granted, name)
	}),
)...)

// credentialsFile is /sys/credentials: the credentials of the session's realm, a line each, and
// calls to make and revoke them.
func (r scope) credentialsFile() sigma.File {
	return computed.Sys(sigmap.FileCredentials, func(ctx context.Context) ([]byte, error) {
		if err := r.owner(); err != nil {
			return nil, err
		}
		all, err := r.Guests.All(ctx, r.Realm)
		if err != nil {
			return nil, err
		}
		out := make([]report.Credential, len(all))
		for i, c := range all {
			out[i] = report.OfCredential(r.Realm, c)
		}
		return report.Lines(out)
	}).Answering(computed.Calls(sigmap.FileCredentials, r, credentialsMethods))
}

var (
	initMethods = sigmap.Table(
		sigmap.Do(sigmap.CallInitAdd, func(r scope, ctx context.Context, a sigmap.InitAdd) error {
			return r.Registrations.Add(ctx, r.Realm, a)
		}),
		sigmap.Do(sigmap.CallInitRemove, func(r scope, ctx context.Context, name string) error {
			return r.Registrations.Remove(ctx, r.Realm, name)
		}),
		sigmap.Do(sigmap.CallInitRestart, func(r scope, ctx context.Context, name string) error {
			return r.Registrations.Restart(ctx, r.Realm, name)
		}),
	)
	// leaderMethods are those of the leader of initd.
	leaderMethods = sigmap.Table(sigmap.On(initd.CallLook, (*registrations.Registrations).Look),
		sigmap.Do(initd.CallSpawn, (*registrations.Registrations).Spawn),
		sigmap.Do(initd.CallStop, (*registrations.Registrations).Stop))
)

// initFile is /sys/init: what is registered in the realm, a line each; calls of who registers; and
// of the leader of initd.
func (r scope) initFile() sigma.File {
	x := r.Registrations
	calls := computed.Calls(sigmap.FileInit, r, initMethods)
	if r.Realm == sigma.SystemRealm && r.IsService(services.Lcsched) {
		calls = computed.Calls(sigmap.FileInit, x, leaderMethods)
	}
	return computed.Sys(sigmap.FileInit, func(ctx context.Context) ([]byte, error) { return x.Lines(ctx, r.Realm) }).
		Answering(calls)
}

// asked are the events that the session is told of: a tenant of its realm's; the provider of the
// system's and of the realm's that it works in, or in that of the system of all.
func (r scope) asked() eventlog.Asked {
	p := r.Principal.System
	return eventlog.Asked{System: p, All: p && r.Realm == sigma.SystemRealm, Realm: r.Realm}
}

var eventsMethods = sigmap.Table(sigmap.On(sigmap.CallEvents, func(r scope, ctx context.Context,
	after string) ([]byte, error) {
	return r.History.EventsAfter(ctx, r.asked(), after)
}))

// eventsFile is /sys/events, and the call events.
func (r scope) eventsFile() sigma.File {
	return r.History.EventsFile(r.asked()).Answering(computed.Calls(sigmap.FileEvents, r, eventsMethods))
}

var decisionsMethods = sigmap.Table(sigmap.Do(decision.CallNote, (*history.History).Note))

// decisionsFile is /sys/decisions: a tenant is told of its own realm, the provider of the realm
// that it works in, and in that of the system of all. Schedulers note in it what they decide.
func (r scope) decisionsFile() sigma.File {
	of := r.Realm
	if of == sigma.SystemRealm && r.Principal.System {
		of = ""
	}
	f := r.History.DecisionsFile(of)
	if r.Realm == sigma.SystemRealm && r.Services.Of(r.Principal) != nil {
		return f.Answering(computed.Calls(sigmap.FileDecisions, r.History, decisionsMethods))
	}
	return f
}

// Files of /sys that tell the state of the system, one JSON object a line (docs/reference/paths). A
// tenant is told of its own realm and no other; the provider of all. They are made when they are
// read, nothing is kept for them; what costs a question to another program is remembered for a
// second.

func (r scope) versionFile() sigma.File {
	v := report.Version{Version: r.Version, Machine: string(r.Machine), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	return computed.Sys(roles.Version, func(context.Context) ([]byte, error) { return report.Line(v) })
}

// machineLines gives the content of /sys/machines. It asks machined, and no other machine.
func (r scope) machineLines() *computed.Lines[struct{}] {
	return computed.Sys(sigmap.FileMachines, func(context.Context) ([]byte, error) {
		all := []report.Machine{}
		seen := []report.MachineSeen{}
		for _, m := range r.Roster.Infos() {
			all = append(all, report.OfMachine(m, r.Machine))
			seen = append(seen, all[len(all)-1].MachineSeen)
		}
		if r.Principal.System {
			return report.Lines(all)
		}
		return report.Lines(seen)
	})
}

// queuesFile is /sys/queues: what waits at the scheduler.
func (r scope) queuesFile() sigma.File {
	return computed.Sys(roles.Queues, func(context.Context) ([]byte, error) {
		all, err := memo.Recall(r.Memo, roles.Queues, r.Placing.Queues)
		if err != nil {
			return nil, err
		}
		out := []report.Queue{}
		for _, q := range all {
			if r.Principal.System || q.Realm == r.Realm {
				out = append(out, report.Queue{Realm: string(q.Realm), Waiting: int(q.Jobs), Memory: uint64(q.Memory),
					Shares: q.Shares})
			}
		}
		lc, err := memo.Recall(r.Memo, "queue lc", func(ctx context.Context) ([]lcsched.Waits, error) {
			if r.Services.Local(services.Lcsched) == nil && len(r.Cluster.Others()) == 0 {
				return nil, nil
			}
			return r.Placing.Waiting(ctx)
		})
		if err != nil {
			r.Log.Debug("no lcsched answers", "err", err)
			lc = r.unscheduled()
		}
		for _, w := range lc {
			if r.Principal.System || w.Realm == r.Realm {
				out = append(out, report.Queue{Realm: string(w.Realm), Waiting: 1, Memory: uint64(w.Memory),
					Proc: string(w.ID), Class: sigma.LatencyCritical.String(), Why: w.Why})
			}
		}
		return report.Lines(out)
	})
}

// unscheduledMax procs are told of while nobody places them.
const unscheduledMax = 256

// unscheduled are the latency-critical procs of this home that wait while no lcsched leads.
func (r scope) unscheduled() (ws []lcsched.Waits) {
	r.Procs.With(func(v procs.View) {
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

// utilisationFile is /sys/utilisation: what runs at this machine.
func (r scope) utilisationFile() sigma.File {
	return computed.Sys(roles.Utilisation, func(context.Context) ([]byte, error) {
		var out []byte
		of := []sigma.RealmID{r.Realm}
		if r.Principal.System {
			cpu := r.CPU
			m := report.MachineUse{Machine: string(r.Machine), Cores: float64(cpu) / 1000}
			r.Procs.With(func(v procs.View) {
				m.Running, m.Waiting = v.Running(), v.Queued()
				m.Capacity, m.Free = uint64(v.Capacity()), uint64(v.Free())
				of = v.Realms()
			})
			line, err := report.Line(m)
			if err != nil {
				return nil, err
			}
			out = line
		}
		for _, realm := range of {
			u := r.Realms.Use(realm)
			line, err := report.Line(report.RealmUse{Machine: string(r.Machine), Realm: string(realm),
				Running: u.Running, Waiting: u.Waiting, Limit: uint64(u.Memory)})
			if err != nil {
				return nil, err
			}
			out = append(out, line...)
		}
		return out, nil
	})
}
