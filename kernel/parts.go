package kernel

import (
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/accounts"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/realms"
	"sigmaos.dev/kernel/registrations"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/talk"
	"sigmaos.dev/launch"
	"sigmaos.dev/link"
	"sigmaos.dev/namespace"
	"sigmaos.dev/schedd"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
	"sigmaos.dev/view"
)

// servicesConfig is what the services need of the kernel.
func (k *Kernel) servicesConfig() services.Config {
	return services.Config{Machine: k.cfg.Machine, Programs: k.cfg.Programs, Data: k.cfg.Data, UIDBase: k.cfg.UIDBase,
		Member: isMember(k.cfg), StoreDelay: k.cfg.StoreDelay, Start: k.life.start, Log: k.cfg.Log,
		Launcher: k.launcher, Proxy: k.proxy, Worked: k.meters.worked, Known: k.life.known,
		External: func() bool { return k.outside.HasEtcd() },
		Go:       k.sessions.Go,
		Serve:    k.serve, Tell: k.tellDaemon,
		Charge: func(now, before time.Time, service string, done sigma.Work) {
			k.accounts.CountDone(now, before, service, done)
		}}
}

// runnerConfig is what the runner of procs needs of the kernel.
func (k *Kernel) runnerConfig() runner.Config {
	return runner.Config{Machine: k.cfg.Machine, AllowWeaken: k.cfg.AllowWeaken,
		FirstGroup: k.cfg.UIDBase + k.cfg.UIDs/2, Start: k.life.start, StartMono: k.life.startMono, Log: k.cfg.Log,
		Procs: k.procs, Launcher: k.launcher, Placing: k.placing, Shares: k.shares, Past: k.past, Proxy: k.proxy,
		Programs: k.bin, Holders: k.holders, Ledger: k.meters.ledger, Traffic: k.meters.traffic, Go: k.sessions.Go,
		Tree:  k.realms.Tree,
		Serve: k.serveProc}
}

// accountsConfig is what the accounts need of the kernel.
func (k *Kernel) accountsConfig() accounts.Config {
	return accounts.Config{Machine: k.cfg.Machine, CPU: k.cfg.CPU, Start: k.life.start, Log: k.cfg.Log, Procs: k.procs,
		Launcher: k.launcher, Services: k.services, Cluster: k.cluster, Reach: k.reach, Runner: k.runner,
		Connect: k.connect, Placing: k.placing, Shares: k.shares, Ledger: k.meters.ledger, Copies: k.meters.copies,
		Traffic: k.meters.traffic, Worked: k.meters.worked, Turns: k.meters.turns, Memo: k.memo,
		Machines: k.usageMachines}
}

// realmsConfig is what realms need of the kernel.
func (k *Kernel) realmsConfig() realms.Config {
	return realms.Config{Machine: k.cfg.Machine, CPU: k.cfg.CPU, Memory: k.cfg.Memory, Log: k.cfg.Log, Memo: k.memo,
		Procs: k.procs, Cluster: k.cluster, Reach: k.reach, Launcher: k.launcher, Placing: k.placing,
		Shares: k.shares, Turns: k.meters.turns, History: k.history, Past: k.past, Remote: k.remote,
		Accounts: k.accounts,
		Quotas:   k.quotas, Outside: k.outside, Registrations: k.registrations, Roster: k.rosterInfos, Root: k.rootOf,
		EndSessions: k.endSessions, IsAttached: k.isAttached}
}

// launchersConfig says what is done when launchers come and go.
func (k *Kernel) launchersConfig() launchers.Config {
	return launchers.Config{Keeper: k.cfg.Keeper, Log: k.cfg.Log,
		Adopt: func(e launch.Adopted) bool { return k.runner.Adopt(e) },
		Prepare: func(l *launch.Launcher) {
			k.past.RecallEnded()
			k.past.SweepLogs()
			k.shares.Classes(l, k.cfg.CPU)
		},
		Begun: func(inherited int) {
			k.placing.Launcher(true)
			k.life.adopted(inherited)
		},
		Ended:   func() { k.placing.Launcher(false) },
		Died:    func() { k.tellDaemon(state.EventDaemonEnded, launchers.Name, "") },
		Yielded: func(e launch.Yielded) { k.shares.Yielded(e) }}
}

// isMember says that other machines may have the services that this one lacks.
func isMember(cfg Config) bool {
	if cfg.Join != nil {
		return true
	}
	_, err := os.Stat(filepath.Join(cfg.Data, "identity"))
	return err == nil
}

// registrationsConfig is what registrations need of the kernel.
func (k *Kernel) registrationsConfig() registrations.Config {
	return registrations.Config{Machine: k.cfg.Machine, Procs: k.procs, Cluster: k.cluster, Reach: k.reach,
		Past: k.past, Runner: k.runner, Remote: k.remote, Names: k.systemNames, Enter: k.realms.MayAttach,
		HasRealm: k.realms.HasRealm,
		Views: func(ctx context.Context, by sigma.Principal, ds []sigma.Descriptor) ([]*view.Table, error) {
			return (&root{tree: &tree{k: k, principal: by}, realm: by.Realm}).viewsOf(ctx, ds)
		}}
}

// systemNames is the kernel's own view of the names of the system's realm, where records of initd
// are.
func (k *Kernel) systemNames(ctx context.Context) (*namespace.Tree, error) {
	n, err := k.realms.System(ctx)
	if err != nil {
		return nil, err
	}
	return namespace.New(namespace.Config{Machine: k.cfg.Machine, Root: n}), nil
}

func (k *Kernel) newTalk() *talk.Talk {
	return talk.New(talk.Config{Machine: k.cfg.Machine, Proxy: k.proxy, Connect: k.connect, Traffic: k.meters.traffic,
		Cluster: k.cluster, Machines: k.usageMachines, Ask: k.reach.Ask})
}

// placingSystem is what placement knows of this machine and others.
type placingSystem struct{ k *Kernel }

var _ placement.System = placingSystem{}

// Bescheds are the control machines that live.
func (p placingSystem) Bescheds() (now map[sigma.MachineID]bool, changed <-chan struct{}) {
	k := p.k
	changed = k.cluster.Enrolled()
	if k.cluster.Registered() {
		changed = k.cluster.Identity().Roster().Changed() // before the look
	}
	now = map[sigma.MachineID]bool{}
	for _, m := range k.reach.Candidates(services.Besched) {
		now[m] = true
	}
	return now, changed
}

// labels are those that the roster has of this machine, or what it was given itself.
func (k *Kernel) labels() map[string]string {
	for _, m := range k.rosterInfos() {
		if m.ID == k.cfg.Machine && len(m.Labels) > 0 {
			return m.Labels
		}
	}
	return k.cfg.Labels
}

// DialAt implements System.
func (p placingSystem) DialAt(ctx context.Context, m sigma.MachineID, service string) (*session.Client, error) {
	return p.k.reach.DialAt(ctx, m, service)
}

// Reach implements System.
func (p placingSystem) Reach(ctx context.Context, service string, use func(context.Context,
	*session.Client) error) (*session.Client, error) {
	return p.k.reach.Find(ctx, service, use)
}

// Life implements System.
func (p placingSystem) Life() sigma.Life { return p.k.cluster.Life() }

// AwaitLife implements System.
func (p placingSystem) AwaitLife(ctx context.Context) bool { return p.k.cluster.AwaitLife(ctx) }

// LifeMayChange implements System.
func (p placingSystem) LifeMayChange() <-chan struct{} { return p.k.cluster.Moves() }

// Others implements System.
func (p placingSystem) Others() []sigma.MachineID { return p.k.cluster.Others() }

// Closed implements System.
func (p placingSystem) Closed() bool { return p.k.cluster.Cordoned() }

// Labels implements System.
func (p placingSystem) Labels() map[string]string { return p.k.labels() }

// newPlacement makes the machine's part in placing procs.
func (k *Kernel) newPlacement() *placement.Placement {
	return placement.New(placement.Config{Machine: k.cfg.Machine, Memory: k.cfg.Memory, CPU: k.cfg.CPU, Log: k.cfg.Log,
		Procs: k.procs, System: placingSystem{k}, Known: k.life.known, Realms: k.realms.ListAt,
		Usage: func(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (sigma.Usage, error) {
			return k.runner.Usage(ctx, realm, id)
		},
		Limits: k.shares.Known, Unscheduled: func(p *schedd.Proc) { k.history.NoteUnscheduled(p) },
		Refused: func(id sigma.ProcID, why string) { k.history.TellRefused(id, why) }})
}

// clusterConfig is what the cluster needs of the kernel.
func (k *Kernel) clusterConfig() cluster.Config {
	links := link.Config{Serve: k.serveLink, Authorise: k.authorise, Reserve: k.reserve, Batch: k.takeBatch,
		Connect: k.cfg.Connect, ConnectAll: k.cfg.ConnectAll, Log: k.cfg.Log}
	if k.cfg.Encrypt {
		links.Reserve = nil
	}
	self := identity.Enrolment{Machine: k.cfg.Machine, Address: k.cfg.Address, CPU: k.cfg.CPU, Memory: k.cfg.Memory,
		Version: Version}
	for _, name := range slices.Sorted(maps.Keys(k.cfg.Labels)) {
		self.Labels = append(self.Labels, name+"="+k.cfg.Labels[name])
	}
	return cluster.Config{Self: self, Data: k.cfg.Data, Join: k.cfg.Join, Listener: k.cfg.Listener, Links: links,
		External: k.cfg.Etcd != nil, Log: k.cfg.Log, Waits: k.cfg.Waits, Procs: k.procs, Go: k.sessions.Go,
		Runs: func(service string) bool { return k.services.Local(service) != nil },
		Dial: func(ctx context.Context, m sigma.MachineID) (*session.Client, error) {
			return k.reach.DialAt(ctx, m, services.Machined)
		},
		Reach: func(ctx context.Context, use func(context.Context, *session.Client) error) (*session.Client, error) {
			return k.reach.Find(ctx, services.Machined, use)
		},
		Enrolled: func() { k.sessions.Go(func() { k.connect.WatchConnections(k.life.ctx) }) },
		Changed:  func(before, after []identity.Member) { k.history.TellMembers(before, after) },
		Admit:    k.placing.Close, Vacant: k.placing.AwaitClosed, Owes: k.owesAnswers,
		TellLeave: func(ctx context.Context, m sigma.MachineID) error {
			return k.reach.Ask(ctx, m, cluster.PeerLeave, nil,
				nil)
		}}
}

// reserve and takeBatch are link.Config's; connect is there when there are links.
func (k *Kernel) reserve(d link.Direct) (link.Place, error) { return k.connect.Reserve(d) }

func (k *Kernel) takeBatch(d link.Direct, b link.Batch, conns []*net.TCPConn) error {
	return k.connect.TakeBatch(d, b, conns)
}

// connectConfig is what connections with other machines need of the kernel.
func (k *Kernel) connectConfig() connect.Config {
	cfg := connect.Config{Machine: k.cfg.Machine, Log: k.cfg.Log, Launcher: k.launcher, Cluster: k.cluster,
		Procs: k.procs, Services: k.services, Proxy: k.proxy, Traffic: k.meters.traffic, Go: k.sessions.Go,
		Ask: k.reach.Ask, Count: k.reach.Count}
	if k.cfg.Connect != nil { // else the keeper makes no sockets
		cfg.Keeper = k.cfg.Keeper
	}
	return cfg
}
