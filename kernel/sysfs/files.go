package sysfs

import (
	"context"
	"os"
	"runtime"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/eventlog"
	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func (r scope) machineCalls() map[string]computed.Handler {
	provider := func(h computed.Handler) computed.Handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			if !r.Principal.System {
				return nil, nil, sigma.Errorf("kernel.machine", sigma.KindPermission, "only the provider may ask this")
			}
			return h(ctx, payload)
		}
	}
	return map[string]computed.Handler{
		sigmap.CallServer:   provider(r.Outside.SetCall),
		sigmap.CallSetStore: provider(r.Outside.SetStoreCall),
		sigmap.CallStores:   provider(r.Outside.StoresCall),
		sigmap.CallStatus: provider(computed.Answer(func(ctx context.Context, _ []byte) ([]byte, error) {
			ss := r.Services.Status(ctx)
			return sigmap.Payload(func(c *sigmap.Coder) { c.Services(&ss) })
		})),
		sigmap.CallUsage: provider(computed.Answer(func(ctx context.Context, _ []byte) ([]byte, error) {
			us := r.Accounts.ServicesUsage(ctx)
			return sigmap.Payload(func(c *sigmap.Coder) { c.Usages(&us) })
		})),
		sigmap.CallLeave: provider(r.Cluster.LeaveCall),
		sigmap.CallDown: provider(computed.Answer(func(_ context.Context, payload []byte) ([]byte, error) {
			var now bool
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Bool(&now) }); err != nil {
				return nil, err
			}
			time.AfterFunc(10*time.Millisecond, func() { r.Down(now) }) // after the answer is on its way
			return nil, nil
		})),
	}
}

// pass makes handlers of methods that a service answers.
func (r scope) pass(service string, methods ...string) map[string]computed.Handler {
	out := map[string]computed.Handler{}
	for _, method := range methods {
		out[method] = computed.Answer(func(ctx context.Context, payload []byte) ([]byte, error) {
			return r.Reach.AskService(ctx, service, method, payload)
		})
	}
	return out
}

// machinesFile is /sys/machines: what operators ask about machines, passed on to the machined that
// decides. What the machines themselves say to machined does not come this way, and an operator
// does not get what machined alone may have: the authority. Everybody may read which machines there
// are.
func (r scope) machinesFile() sigma.File {
	file := r.machineLines()
	if !r.Principal.System {
		if r.Realm == sigma.SystemRealm && r.IsService(services.Machined) {
			file.Answering(computed.Calls(sigmap.FileMachines,
				r.pass(services.Machined, machines.CallAuthority.Name)))
		}
		return file
	}
	methods := r.pass(services.Machined, machines.CallToken.Name, machines.CallTokens.Name,
		machines.CallRevoke.Name, machines.CallList.Name, machines.CallCordon.Name, machines.CallDrain.Name,
		machines.CallLabel.Name, machines.CallControl.Name, machines.CallRemove.Name)
	methods[machines.CallMembership.Name] = computed.Answer(func(context.Context, []byte) ([]byte, error) {
		m := machines.Membership{Address: r.Address}
		if r.Cluster.Registered() {
			m = machines.Describe(r.Cluster.Identity(), r.Address, r.Cluster.IsSilent)
		}
		return sigmap.Payload(func(c *sigmap.Coder) { machines.CallMembership.Reply(c, &m) })
	})
	return file.Answering(computed.Calls(sigmap.FileMachines, methods))
}

// namesFile is /sys/names: calls of the leading named about its members and who may write.
func (r scope) namesFile() sigma.File {
	return computed.Calls(sigmap.FileNames, r.pass(services.Named, sigmap.CallMembers, sigmap.CallMemberAdd,
		sigmap.CallMemberRemove, sigmap.CallExpel, sigmap.CallAdmit,
		sigmap.CallSnapshotOpen, sigmap.CallSnapshotRead, sigmap.CallSnapshotClose))
}

// mayOwn says whether the session may make and revoke credentials of its realm: the provider's may,
// and those with the role owner, which roleFile sees to.
func (r scope) mayOwn() bool {
	return r.Realm != sigma.SystemRealm && (r.Principal.System && r.Principal.Proc == "" && !r.Scope.Far ||
		r.Granted != nil && r.Granted.Role >= sigma.RoleOwner)
}

// credentialsFile is /sys/credentials: the credentials of the session's realm, a line each, and
// calls to make and revoke them.
func (r scope) credentialsFile() sigma.File {
	owned := func() error {
		if r.mayOwn() {
			return nil
		}
		return sigma.Errorf("kernel.credentials", sigma.KindPermission,
			"credentials are the provider's and of owners of the realm")
	}
	owner := func(f func(context.Context, sigma.RealmID, *guests.Granted, []byte) ([]byte, error)) computed.Handler {
		return computed.Answer(func(ctx context.Context, payload []byte) ([]byte, error) {
			if err := owned(); err != nil {
				return nil, err
			}
			return f(ctx, r.Realm, r.Granted, payload)
		})
	}
	x := r.Guests
	return computed.Sys(sigmap.FileCredentials, func(ctx context.Context) ([]byte, error) {
		if err := owned(); err != nil {
			return nil, err
		}
		all, err := x.All(ctx, r.Realm)
		if err != nil {
			return nil, err
		}
		out := make([]report.Credential, len(all))
		for i, c := range all {
			out[i] = report.OfCredential(r.Realm, c)
		}
		return report.Lines(out)
	}).Answering(computed.Calls(sigmap.FileCredentials, map[string]computed.Handler{sigmap.CallCreate: owner(x.Create),
		sigmap.CallCredentialRevoke: owner(x.Revoke)}))
}

// initFile is /sys/init: what is registered in the realm, a line each; calls of who registers; and
// of the leader of initd.
func (r scope) initFile() sigma.File {
	x := r.Registrations
	change := func(f func(context.Context, sigma.RealmID, []byte) error) computed.Handler {
		return computed.Answer(func(ctx context.Context, payload []byte) ([]byte, error) {
			return nil, f(ctx, r.Realm, payload)
		})
	}
	methods := map[string]computed.Handler{sigmap.CallInitAdd: change(x.Add), sigmap.CallInitRemove: change(x.Remove),
		sigmap.CallInitRestart: change(x.Restart)}
	if r.Realm == sigma.SystemRealm && r.IsService(services.Lcsched) {
		methods = map[string]computed.Handler{initd.CallLook.Name: computed.On(initd.CallLook, x.Look),
			initd.CallSpawn.Name: computed.On(initd.CallSpawn, x.Spawn),
			initd.CallStop.Name:  computed.On(initd.CallStop, x.Stop)}
	}
	return computed.Sys(sigmap.FileInit, func(ctx context.Context) ([]byte, error) { return x.Lines(ctx, r.Realm) }).
		Answering(computed.Calls(sigmap.FileInit, methods))
}

// eventsFile is /sys/events, and the call events. A tenant is told of its realm's; the provider of
// the system's and of the realm's that it works in, or in that of the system of all.
func (r scope) eventsFile() sigma.File {
	p := r.Principal.System
	q := eventlog.Asked{System: p, All: p && r.Realm == sigma.SystemRealm, Realm: r.Realm}
	return r.History.EventsFile(q).Answering(computed.Calls(sigmap.FileEvents,
		map[string]computed.Handler{sigmap.CallEvents: computed.Answer(func(ctx context.Context,
			payload []byte) ([]byte, error) {
			return r.History.EventsCall(ctx, q, payload)
		})}))
}

// decisionsFile is /sys/decisions: a tenant is told of its own realm, the provider of the realm
// that it works in, and in that of the system of all. Schedulers note in it what they decide.
func (r scope) decisionsFile() sigma.File {
	of := r.Realm
	if of == sigma.SystemRealm && r.Principal.System {
		of = ""
	}
	f := r.History.DecisionsFile(of)
	if r.Realm == sigma.SystemRealm && r.Services.Of(r.Principal) != nil {
		return f.Answering(computed.Calls(sigmap.FileDecisions,
			map[string]computed.Handler{decision.CallNote.Name: r.History.NoteCall}))
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
