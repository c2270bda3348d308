package kernel

import (
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sigmaos.dev/kernel/accounts"
	"sigmaos.dev/kernel/binfs"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/endpoints"
	"sigmaos.dev/kernel/farfile"
	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/history"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/incoming"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/metrics"
	"sigmaos.dev/kernel/outside"
	"sigmaos.dev/kernel/past"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/procfs"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/quotas"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/realms"
	"sigmaos.dev/kernel/registrations"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/rootfs"
	"sigmaos.dev/kernel/roster"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/kernel/sysfs"
	"sigmaos.dev/kernel/talk"
	"sigmaos.dev/kernel/uxfs"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// making makes the parts of a Kernel, those that need others after these. What a part needs of one
// that is made later it is given as a function.
type making struct {
	*Kernel
	logs          string // directory of logs that are not in memory
	shares        *shares.Groups
	far           *farfile.Far
	talk          *talk.Talk
	registrations *registrations.Registrations
	root          *rootfs.FS
}

func (k *making) make() error {
	k.logs = filepath.Join(k.cfg.Data, "logs")
	k.procs = procs.NewTable(procs.Config{Machine: k.cfg.Machine, Memory: k.cfg.Memory, LogsDir: k.logs,
		Carry: k.carry, MaySpawn: k.realms.MayEnter,
		Launch: func(s procs.Start) { k.life.Go(func() { k.runner.Start(s) }) }})
	k.shares = shares.New()
	k.launcher = launchers.New(k.launchersConfig())
	k.makeMeters()
	k.cluster = cluster.New(k.clusterConfig())
	k.placing = k.newPlacement()
	if err := k.makeServices(); err != nil {
		return err
	}
	if err := k.makeProcs(); err != nil {
		return err
	}
	k.makeRealms()
	k.makeSessions()
	k.reach.Answer(reach.On(connect.PeerRevoke, k.connect.RevokeHere), reach.From(connect.PeerBegun, k.connect.Begun),
		reach.From(cluster.PeerLeave, k.cluster.PeerLeaves), reach.On(talk.PeerTraffic, k.talk.TrafficHere),
		reach.On(talk.PeerDistances, k.talk.DistancesHere), reach.On(talk.PeerTouch, talk.Touch))
	return nil
}

func (k *making) makeMeters() {
	var err error
	if k.meters.ledger, err = meter.OpenLedger(k.cfg.Data, k.life.start); err != nil {
		k.cfg.Log.Warn("the usage of realms cannot be read and begins anew", "err", err)
	}
	if k.meters.copies, err = meter.OpenCopies(k.cfg.Data); err != nil {
		k.cfg.Log.Warn("what other machines told of the usage of realms cannot be read and begins anew", "err", err)
	}
	k.meters.turns, k.meters.worked = treeserver.NewTurns(), meter.NewWorks()
	k.meters.traffic = meter.NewTraffic(k.meters.ledger)
}

// makeServices makes what finds, starts and connects services and machines.
func (k *making) makeServices() (err error) {
	if k.services, err = services.New(services.Config{Machine: k.cfg.Machine, Programs: k.cfg.Programs,
		Data: k.cfg.Data, UIDBase: k.cfg.UIDBase, Member: isMember(k.cfg), StoreDelay: k.cfg.StoreDelay,
		Start: k.life.start, Log: k.cfg.Log, Launcher: k.launcher, Proxy: k.proxy, Worked: k.meters.worked,
		Known: k.life.known, External: func() bool { return k.outside.HasEtcd() }, Go: k.life.Go,
		Serve: func(ctx context.Context, conn session.Conn, p sigma.Principal) { k.sessions.Serve(ctx, conn, p) },
		Tell:  func(what, name, message string) { k.history.TellDaemon(what, name, message) },
		Charge: func(now, before time.Time, service string, done sigma.Work) {
			k.accounts.CountDone(now, before, service, done)
		}}); err != nil {
		return err
	}
	k.reach = reach.New(reach.Config{Machine: k.cfg.Machine, Log: k.cfg.Log, Cluster: k.cluster, Services: k.services,
		Procs: k.procs, Go: k.life.Go})
	k.roster = &roster.Roster{Machine: k.cfg.Machine, Memo: k.memo, Cluster: k.cluster, Reach: k.reach}
	k.history = history.New(history.Config{Machine: k.cfg.Machine, Data: k.cfg.Data, Log: k.cfg.Log, Procs: k.procs,
		Cluster: k.cluster, Reach: k.reach, Machines: k.roster.Machines})
	cfg := connect.Config{Machine: k.cfg.Machine, Log: k.cfg.Log, Launcher: k.launcher, Cluster: k.cluster,
		Procs: k.procs, Services: k.services, Proxy: k.proxy, Traffic: k.meters.traffic, Go: k.life.Go,
		At: k.reach.At, Count: k.reach.Count}
	of := outside.Config{Data: k.cfg.Data, Etcd: k.cfg.Etcd, Services: k.services, Reach: k.reach, Go: k.life.Go,
		HasRealm: k.realms.HasRealm}
	if k.cfg.Connects {
		cfg.Keeper, of.Connect = k.cfg.Keeper, k.cfg.Keeper.Connect
	}
	k.connect = connect.New(cfg)
	k.far = &farfile.Far{Cluster: k.cluster, Reach: k.reach, Connect: k.connect}
	k.talk = talk.New(talk.Config{Machine: k.cfg.Machine, Proxy: k.proxy, Connect: k.connect,
		Traffic: k.meters.traffic, Cluster: k.cluster, Machines: k.roster.Machines, At: k.reach.At})
	if k.quotas, err = quotas.New(quotas.Config{Machine: k.cfg.Machine, Data: k.cfg.Data, Start: k.life.start,
		Log: k.cfg.Log, Memo: k.memo, Go: k.life.Go, Names: k.realms.Named, Self: k.cluster.Self,
		Realms: k.reach.Realms}); err != nil {
		return err
	}
	k.outside, err = outside.New(of)
	return err
}

// makeProcs makes what runs procs, and finds those of others.
func (k *making) makeProcs() (err error) {
	k.past = past.Open(past.Config{Data: k.cfg.Data, LogsDir: k.logs, Log: k.cfg.Log, Procs: k.procs,
		Realms: k.reach.Realms, Go: k.life.Go})
	k.bin.holders = runner.NewHolders(k.cfg.Machine, k.cluster, k.reach)
	if k.bin.Cache, err = binfs.New(binfs.Config{Dir: filepath.Join(k.cfg.Data, "bin"), Max: k.cfg.ProgramsMax,
		Mount: k.cfg.Mount, Log: k.cfg.Log, Peers: k.bin.holders, Tree: k.treeOfPages}); err != nil {
		return err
	}
	k.bin.holders.Keep(k.bin.Cache)
	if k.runner, err = runner.New(runner.Config{Machine: k.cfg.Machine, AllowWeaken: k.cfg.AllowWeaken,
		FirstGroup: k.cfg.UIDBase + k.cfg.UIDs/2, Start: k.life.start, StartMono: k.life.startMono, Log: k.cfg.Log,
		Procs: k.procs, Launcher: k.launcher, Placing: k.placing, Shares: k.shares, Past: k.past, Proxy: k.proxy,
		Programs: k.bin.Cache, Holders: k.bin.holders, Ledger: k.meters.ledger, Traffic: k.meters.traffic,
		Go: k.life.Go, Tree: k.realms.Tree,
		Serve: func(ctx context.Context, conn session.Conn, who sigma.Principal, v *view.Table, kin []sigma.ProcID,
			adopted bool) {
			k.sessions.ServeProc(ctx, conn, who, v, kin, adopted)
		}}); err != nil {
		return err
	}
	k.remote = remote.New(remote.Config{Machine: k.cfg.Machine, StartMono: k.life.startMono, Log: k.cfg.Log,
		Procs: k.procs, Cluster: k.cluster, Reach: k.reach, Runner: k.runner, Holders: k.bin.holders,
		Known: k.life.known, Go: k.life.Go, Doubt: k.realms.Doubt,
		Caps: func(realm sigma.RealmID, id sigma.ProcID) (sigmap.Caps, error) {
			return k.sessions.Caps(realm, id)
		}})
	k.registrations = registrations.New(registrations.Config{Machine: k.cfg.Machine, Procs: k.procs,
		Cluster: k.cluster, Reach: k.reach, Past: k.past, Runner: k.runner, Remote: k.remote, Names: k.systemNames,
		Enter: k.realms.MayAttach, HasRealm: k.realms.HasRealm,
		Views: func(ctx context.Context, by sigma.Principal, ds []sigma.Descriptor) ([]*view.Table, error) {
			return sessions.Scope{Session: k.sessions.Of(by), Realm: by.Realm}.ViewsOf(ctx, ds)
		}})
	return nil
}

// makeRealms makes what keeps accounts of realms, and makes and removes them.
func (k *making) makeRealms() {
	k.accounts = accounts.New(accounts.Config{Machine: k.cfg.Machine, CPU: k.cfg.CPU, Start: k.life.start,
		Log: k.cfg.Log, Procs: k.procs, Launcher: k.launcher, Services: k.services, Cluster: k.cluster, Reach: k.reach,
		Runner: k.runner, Connect: k.connect, Placing: k.placing, Shares: k.shares, Ledger: k.meters.ledger,
		Copies: k.meters.copies, Traffic: k.meters.traffic, Worked: k.meters.worked, Turns: k.meters.turns,
		Memo: k.memo, Machines: k.roster.Machines})
	k.realms.Take(realms.Config{Machine: k.cfg.Machine, CPU: k.cfg.CPU, Memory: k.cfg.Memory, Log: k.cfg.Log,
		Memo: k.memo, Procs: k.procs, Cluster: k.cluster, Reach: k.reach, Launcher: k.launcher, Proxy: k.proxy,
		Placing: k.placing, Shares: k.shares, Turns: k.meters.turns, History: k.history, Past: k.past,
		Remote: k.remote, Accounts: k.accounts, Quotas: k.quotas, Outside: k.outside, Registrations: k.registrations,
		Roster: k.roster.Infos,
		Root: func(p sigma.Principal) sigma.File {
			return k.root.Root(sessions.Scope{Session: k.sessions.Of(p), Realm: p.Realm})
		},
		EndSessions: func(ctx context.Context, realm sigma.RealmID, but any) error {
			return k.sessions.End(ctx, realm, but)
		},
		IsAttached: func(realm sigma.RealmID) bool { return k.sessions.IsAttached(realm) }})
}

// makeSessions makes what programs and other machines are served.
func (k *making) makeSessions() {
	k.sessions = sessions.New(sessions.Config{Machine: k.cfg.Machine, Log: k.cfg.Log, Passed: k.meters.passed,
		Turns: k.meters.turns, Traffic: k.meters.traffic, Proxy: k.proxy, Procs: k.procs, Cluster: k.cluster,
		Services: k.services, Connect: k.connect, Quotas: k.quotas, Remote: k.remote, Realms: k.realms,
		Root:   func(s sessions.Scope) sigma.File { return k.root.Root(s) },
		Shared: func(s sessions.Scope) sigma.File { return k.root.Shared(s) }})
	k.guests = guests.New(guests.Config{Log: k.cfg.Log, Reach: k.reach, Cluster: k.cluster, Go: k.life.Go,
		MayLog: k.sessions.MayLog, Serve: k.sessions.ServeGuest})
	k.incoming = &incoming.Incoming{Machine: k.cfg.Machine, Proxy: k.proxy, Services: k.services, Cluster: k.cluster,
		Reach: k.reach, Connect: k.connect, Traffic: k.meters.traffic, Sessions: k.sessions}
	k.root = &rootfs.FS{Reach: k.reach, Realms: k.realms,
		UX: &uxfs.FS{Machine: k.cfg.Machine, Cluster: k.cluster, Quotas: k.quotas, Far: k.far},
		Proc: &procfs.FS{Machine: k.cfg.Machine, Procs: k.procs, Cluster: k.cluster, Runner: k.runner,
			Remote: k.remote, Far: k.far, Memo: k.memo},
		Sys: &sysfs.FS{Machine: k.cfg.Machine, CPU: k.cfg.CPU, Version: Version, Address: k.cfg.Address,
			Log: k.cfg.Log, Memo: k.memo, Procs: k.procs, Runner: k.runner, Remote: k.remote, Cluster: k.cluster,
			Reach: k.reach, Roster: k.roster, Services: k.services, Placing: k.placing, Realms: k.realms,
			Registrations: k.registrations, Guests: k.guests, Accounts: k.accounts, History: k.history,
			Outside: k.outside, Down: k.Down,
			Endpoints: &endpoints.Endpoints{Machine: k.cfg.Machine, Proxy: k.proxy, Services: k.services,
				Connect: k.connect, Outside: k.outside, Talk: k.talk, Traffic: k.meters.traffic, Go: k.life.Go},
			Metrics: &metrics.Metrics{Procs: k.procs, Runner: k.runner, Programs: k.bin.Cache, Shares: k.shares,
				Cluster: k.cluster, Reach: k.reach, Connect: k.connect, Realms: k.realms, Traffic: k.meters.traffic,
				Worked: k.meters.worked}}}
}

// launchersConfig says what is done when launchers come and go.
func (k *making) launchersConfig() launchers.Config {
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
		Died:    func() { k.history.TellDaemon(report.EventDaemonEnded, launchers.Name, "") },
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

// systemNames is the kernel's own view of the names of the system's realm, where records of initd
// are.
func (k *Kernel) systemNames(ctx context.Context) (*resolve.Tree, error) {
	n, err := k.realms.System(ctx)
	if err != nil {
		return nil, err
	}
	return resolve.New(resolve.Config{Machine: k.cfg.Machine, Root: n}), nil
}

// newPlacement makes the machine's part in placing procs.
func (k *making) newPlacement() *placement.Placement {
	return placement.New(placement.Config{Machine: k.cfg.Machine, Memory: k.cfg.Memory, CPU: k.cfg.CPU, Log: k.cfg.Log,
		Procs: k.procs, Cluster: k.cluster, Known: k.life.known, Realms: k.realms.ListAt, Bescheds: k.bescheds,
		Labels: k.labels, Limits: k.shares.Known,
		DialAt: func(ctx context.Context, m sigma.MachineID, service string) (*session.Client, error) {
			return k.reach.DialAt(ctx, m, service)
		},
		Reach: func(ctx context.Context, service string,
			use func(context.Context, *session.Client) error) (*session.Client, error) {
			return k.reach.Find(ctx, service, use)
		},
		Usage: func(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (sigma.Usage, error) {
			return k.runner.Usage(ctx, realm, id)
		},
		Unscheduled: func(p *schedd.Proc) { k.history.NoteUnscheduled(p) },
		Refused:     func(id sigma.ProcID, why string) { k.history.TellRefused(id, why) }})
}

// bescheds are the control machines that live.
func (k *Kernel) bescheds() (now map[sigma.MachineID]bool, changed <-chan struct{}) {
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
	for _, m := range k.roster.Infos() {
		if m.ID == k.cfg.Machine && len(m.Labels) > 0 {
			return m.Labels
		}
	}
	return k.cfg.Labels
}

// clusterConfig is what the cluster needs of the kernel.
func (k *making) clusterConfig() cluster.Config {
	links := link.Config{Log: k.cfg.Log,
		Serve:     func(ctx context.Context, l *link.Link) { k.incoming.Serve(ctx, l) },
		Authorise: func(l *link.Link) error { return k.incoming.Authorise(l) },
		Reserve:   func(d link.Direct) (link.Place, error) { return k.connect.Reserve(d) },
		Batch: func(d link.Direct, b link.Batch, conns []*net.TCPConn) error {
			return k.connect.TakeBatch(d, b, conns)
		}}
	if k.cfg.Connects {
		links.Connect, links.ConnectAll = k.cfg.Keeper.Connect, k.cfg.Keeper.ConnectAll
	}
	if k.cfg.Encrypt {
		links.Reserve = nil
	}
	self := identity.Enrolment{Machine: k.cfg.Machine, Address: k.cfg.Address, CPU: k.cfg.CPU, Memory: k.cfg.Memory,
		Version: Version}
	for _, name := range slices.Sorted(maps.Keys(k.cfg.Labels)) {
		self.Labels = append(self.Labels, name+"="+k.cfg.Labels[name])
	}
	return cluster.Config{Self: self, Data: k.cfg.Data, Join: k.cfg.Join, Listener: k.cfg.Listener, Links: links,
		External: k.cfg.Etcd != nil, Log: k.cfg.Log, Waits: k.cfg.Waits, Procs: k.procs, Go: k.life.Go,
		Runs: func(service string) bool { return k.services.Local(service) != nil },
		Dial: func(ctx context.Context, m sigma.MachineID) (*session.Client, error) {
			return k.reach.DialAt(ctx, m, services.Machined)
		},
		Reach: func(ctx context.Context, use func(context.Context, *session.Client) error) (*session.Client, error) {
			return k.reach.Find(ctx, services.Machined, use)
		},
		Enrolled: func() { k.life.Go(func() { k.connect.WatchConnections(k.life.ctx) }) },
		Changed:  func(before, after []identity.Member) { k.history.TellMembers(before, after) },
		Admit:    func(closed bool) { k.placing.Close(closed) },
		Vacant:   func(ctx context.Context) bool { return k.placing.AwaitClosed(ctx) },
		Owes:     func() bool { return k.sessions.OweAnswers() },
		TellLeave: func(ctx context.Context, m sigma.MachineID) error {
			return cluster.PeerLeave.Tell(ctx, k.reach.At(m), sigmap.None{})
		}}
}

// carry carries out an effect of schedd as far as it concerns more than the proc itself. Nothing in
// it blocks.
func (k *Kernel) carry(core *schedd.Core, f schedd.Effect) {
	switch f := f.(type) {
	case schedd.Kill:
		go func(id sigma.ProcID, launch uint64) {
			k.proxy.CloseListeners(id)
			k.launcher.Kill(launch)
		}(f.Proc.ID, f.Proc.Launch)
	case schedd.Notice:
		if f.Signal != 0 {
			go k.launcher.Signal(f.Proc.Launch, f.Signal)
		}
	case schedd.Wake:
		if p := core.Find(f.ID); p != nil {
			k.history.TellProc(p)
			if p.Ended() {
				k.past.Note(p.Realm, p.ID)
			}
		}
	case schedd.Forget:
		k.past.Drop(f.ID)
	case schedd.Timed:
		k.runner.Timings.Count(&f.Timing)
	case schedd.Decided:
		k.history.Decisions.Note(f.Record)
	case schedd.Owed:
		k.remote.Owe(f.ID, f.Home)
	case schedd.Take:
		k.life.Go(func() { k.remote.Take(f.ID, f.Home) })
	case schedd.Decline:
		k.life.Go(func() { k.remote.Decline(f.ID, f.Home) })
	default:
		k.placing.Carry(f)
	}
}
