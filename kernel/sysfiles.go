package kernel

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/initd"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/eventlog"
	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
	"sigmaos.dev/treekit"
)

// nameRoster is /sys/roster: the machines there are, for everybody. Addresses and what else only
// operators need is not in it.

// rosterMax is how long machined may take; then what this machine knows itself is told. Its answer
// is good for memoFor, so that tenants who look all the time cost it one call a second.
const rosterMax = 2 * time.Second

func (r sys) rosterFile() sigma.File {
	return &treekit.Blob{ID: sigma.FileID{Kind: sigma.KindDevice, Path: viewfs.PathID("/sys/" + roles.Roster)},
		Name: roles.Roster, Perm: 0o444, Content: r.tree.k.rosterText}
}

// rosterText is one line a machine: name, state, and key=value words.
func (k *Kernel) rosterText(context.Context) ([]byte, error) {
	var b strings.Builder
	for _, m := range k.rosterInfos() {
		b.WriteString(rosterLine(&m))
	}
	return []byte(b.String()), nil
}

// rosterInfos is what machined said last, or what this machine knows itself. Nobody changes it.
func (k *Kernel) rosterInfos() []sigma.MachineInfo {
	if !k.cluster.Registered() {
		return k.ownRoster()
	}
	infos, _ := memo.Recall(k.memo, roles.Roster, func() ([]sigma.MachineInfo, error) {
		ctx, cancel := context.WithTimeout(k.life.ctx,
			rosterMax) // not of who asks: one who gives up would have the others told less
		defer cancel()
		infos, err := k.askMachines(ctx)
		if err != nil || len(infos) == 0 {
			infos = k.ownRoster()
		}
		return infos, nil
	})
	return infos
}

// ownRoster is what this machine knows itself.
func (k *Kernel) ownRoster() (out []sigma.MachineInfo) {
	alive := k.cluster.Alive()
	for _, m := range alive {
		out = append(out, sigma.MachineInfo{ID: m, State: sigma.MachineAlive})
	}
	if k.cluster.Registered() {
		for _, m := range k.cluster.Identity().Roster().Members() {
			if !slices.Contains(alive, m.Machine) {
				out = append(out, sigma.MachineInfo{ID: m.Machine})
			}
		}
	}
	return out
}

func (k *Kernel) askMachines(ctx context.Context) ([]sigma.MachineInfo, error) {
	c, err := k.reach.Dial(ctx, services.Machined)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	root, err := cluster.Callee(ctx, c, services.Machined)
	if err != nil {
		return nil, err
	}
	return machines.NewClient(root).List(ctx)
}

func rosterLine(m *sigma.MachineInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", m.ID, m.State)
	if m.CPU > 0 {
		fmt.Fprintf(&b, " cpu=%d memory=%d", m.CPU, uint64(m.Memory))
	}
	for _, w := range []struct {
		is   bool
		word string
	}{{m.Control, "control"}, {m.Cordoned, "cordoned"}, {m.Draining, "draining"}} {
		if w.is {
			b.WriteString(" " + w.word)
		}
	}
	for _, l := range slices.Sorted(maps.Keys(m.Labels)) {
		fmt.Fprintf(&b, " label.%s=%s", l, m.Labels[l])
	}
	return b.String() + "\n"
}

// usageMachines are all that are members, whether they are there or not, in order.
func (k *Kernel) usageMachines() []sigma.MachineID {
	out := []sigma.MachineID{k.cfg.Machine}
	for _, m := range k.rosterInfos() {
		out = append(out, m.ID)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isService says whether who asks is this machine's service of that name.
func (t *tree) isService(name string) bool {
	s := t.k.services.Of(t.principal)
	return s != nil && s.Name == name
}

// pass makes handlers of methods that a service answers.
func (k *Kernel) pass(service string, methods ...string) map[string]handler {
	out := map[string]handler{}
	for _, method := range methods {
		out[method] = func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			reply, err := k.reach.AskService(ctx, service, method, payload)
			return reply, nil, err
		}
	}
	return out
}

// machinesFile is /sys/machines: what operators ask about machines, passed on to the machined that
// decides. What the machines themselves say to machined does not come this way, and an operator
// does not get what machined alone may have: the authority. Everybody may read which machines there
// are.
func (r sys) machinesFile() sigma.File {
	k := r.tree.k
	file := r.machineLines()
	if !r.tree.principal.System {
		if r.realm == sigma.SystemRealm && r.tree.isService(services.Machined) {
			file.Answering(r.callable(sigmap.FileMachines, k.pass(services.Machined, machines.CallAuthority)))
		}
		return file
	}
	methods := k.pass(services.Machined, machines.CallToken, machines.CallTokens, machines.CallRevoke,
		machines.CallList,
		machines.CallCordon, machines.CallDrain, machines.CallLabel, machines.CallControl, machines.CallRemove)
	methods[machines.CallMembership] = func(context.Context, []byte) ([]byte, []*os.File, error) {
		m := k.membership()
		reply, err := sigmap.Payload(func(c *sigmap.Coder) { machines.CodeMembership(c, &m) })
		return reply, nil, err
	}
	return file.Answering(r.callable(sigmap.FileMachines, methods))
}

// namesFile is /sys/names: calls of the leading named about its members and who may write.
func (r sys) namesFile() sigma.File {
	return r.callable(sigmap.FileNames, r.tree.k.pass(services.Named, sigmap.CallMembers, sigmap.CallMemberAdd,
		sigmap.CallMemberRemove, sigmap.CallExpel, sigmap.CallAdmit,
		sigmap.CallSnapshotOpen, sigmap.CallSnapshotRead, sigmap.CallSnapshotClose))
}

// membership is what this machine knows of its place in the system.
func (k *Kernel) membership() machines.Membership {
	if !k.cluster.Registered() {
		return machines.Membership{Address: k.cfg.Address}
	}
	return machines.Describe(k.cluster.Identity(), k.cfg.Address, k.cluster.IsSilent)
}

// mayOwn says whether the session may make and revoke credentials of its realm: the provider's may,
// and those with the role owner, which roleFile sees to.
func (r sys) mayOwn() bool {
	return r.realm != sigma.SystemRealm && (r.tree.principal.System && r.tree.principal.Proc == "" && !r.tree.far ||
		r.tree.granted != nil && r.tree.granted.Role >= sigma.RoleOwner)
}

// credentialsFile is /sys/credentials: the credentials of the session's realm, a line each, and
// calls to make and revoke them.
func (r sys) credentialsFile() sigma.File {
	owned := func() error {
		if r.mayOwn() {
			return nil
		}
		return sigma.Errorf("kernel.credentials", sigma.KindPermission,
			"credentials are the provider's and of owners of the realm")
	}
	owner := func(f func(context.Context, sigma.RealmID, *guests.Granted, []byte) ([]byte, error)) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			if err := owned(); err != nil {
				return nil, nil, err
			}
			reply, err := f(ctx, r.realm, r.tree.granted, payload)
			return reply, nil, err
		}
	}
	x := r.tree.k.guests
	return r.sysState(sigmap.FileCredentials, func(ctx context.Context) ([]byte, error) {
		if err := owned(); err != nil {
			return nil, err
		}
		all, err := x.All(ctx, r.realm)
		if err != nil {
			return nil, err
		}
		out := make([]state.Credential, len(all))
		for i, c := range all {
			out[i] = state.OfCredential(r.realm, c)
		}
		return state.Lines(out)
	}).Answering(r.callable(sigmap.FileCredentials, map[string]handler{sigmap.CallCreate: owner(x.Create),
		sigmap.CallCredentialRevoke: owner(x.Revoke)}))
}

// initFile is /sys/init: what is registered in the realm, a line each; calls of who registers; and
// of the leader of initd.
func (r sys) initFile() sigma.File {
	x := r.tree.k.registrations
	change := func(f func(context.Context, sigma.RealmID, []byte) error) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			return nil, nil, f(ctx, r.realm, payload)
		}
	}
	lead := func(f func(context.Context, []byte) ([]byte, error)) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			reply, err := f(ctx, payload)
			return reply, nil, err
		}
	}
	methods := map[string]handler{sigmap.CallInitAdd: change(x.Add), sigmap.CallInitRemove: change(x.Remove),
		sigmap.CallInitRestart: change(x.Restart)}
	if r.realm == sigma.SystemRealm && r.tree.isService(services.Lcsched) {
		methods = map[string]handler{initd.CallLook: lead(x.Look), initd.CallSpawn: lead(x.Spawn),
			initd.CallStop: lead(x.Stop)}
	}
	return r.sysState(sigmap.FileInit, func(ctx context.Context) ([]byte, error) { return x.Lines(ctx, r.realm) }).
		Answering(r.callable(sigmap.FileInit, methods))
}

// mayKnow says which events the session is told of: a tenant of its realm's; the provider of the
// system's and of the realm's that it works in, or in that of the system of all.
func (r sys) mayKnow() eventlog.Asked {
	p := r.tree.principal.System
	return eventlog.Asked{System: p, All: p && r.realm == sigma.SystemRealm, Realm: r.realm}
}

// eventsFile is /sys/events, and the call events.
func (r sys) eventsFile() sigma.File {
	k, q := r.tree.k, r.mayKnow()
	calls := map[string]handler{sigmap.CallEvents: func(ctx context.Context, payload []byte) ([]byte, []*os.File,
		error) {
		lines, err := k.history.EventsCall(ctx, q, payload)
		return lines, nil, err
	}}
	return k.history.EventsFile(q).Answering(r.callable(sigmap.FileEvents, calls))
}

// decisionsFile is /sys/decisions: a tenant is told of its own realm, the provider of the realm
// that it works in, and in that of the system of all. Schedulers note in it what they decide.
func (r sys) decisionsFile() sigma.File {
	k, of := r.tree.k, r.realm
	if of == sigma.SystemRealm && r.tree.principal.System {
		of = ""
	}
	f := k.history.DecisionsFile(of)
	if r.realm == sigma.SystemRealm && k.services.Of(r.tree.principal) != nil {
		return f.Answering(r.callable(sigmap.FileDecisions, map[string]handler{sigmap.CallNote: k.history.NoteCall}))
	}
	return f
}

// shownTo says which connections who reads may know of: the provider of all, a tenant of those that
// its realm has an end of.
func (r sys) shownTo(c *dialproxy.Connection) bool {
	return r.tree.principal.System || c.Endpoint.Realm == r.realm || c.From.Realm == r.realm
}

// connectionsFile is /sys/connections: which connections procs of this machine have.
func (r sys) connectionsFile() sigma.File {
	return r.sysState(roles.Connections, func(ctx context.Context) ([]byte, error) {
		return state.Lines(r.tree.k.talk.Connections(ctx, r.shownTo))
	})
}

// trafficFile is /sys/traffic: a tenant is told of its own realm, the provider of the realm that it
// works in, and in that of the system of all.
func (r sys) trafficFile() sigma.File {
	of := r.realm
	if of == sigma.SystemRealm && r.tree.principal.System {
		of = ""
	}
	return r.sysState(roles.Traffic, func(ctx context.Context) ([]byte, error) {
		return r.tree.k.talk.Traffic(ctx, of)
	})
}

// distancesFile is /sys/distances.
func (r sys) distancesFile() sigma.File {
	return r.sysState(roles.Distances, r.tree.k.talk.Distances)
}

// logCall is the call log: the latest things that happened to connections.
func (r sys) logCall(context.Context, []byte) ([]byte, []*os.File, error) {
	if r.tree.view != nil {
		return nil, nil, sigma.Errorf("kernel.log", sigma.KindPermission,
			"a proc with a view is not told of others' connections")
	}
	text, err := state.Lines(r.tree.k.talk.Log(r.shownTo))
	return text, nil, err
}
