// Package kernel puts sigmad together: it serves each proc's tree on its file descriptor 3, carries
// out what schedd decides, keeps the boot set running, and connects the realm's root at named with
// ux, /proc and /sys (architecture §4).
//
// It parses hostile bytes and holds no privilege: every act that needs one is the launcher's. It
// assumes that named, besched and s3d are in the boot set or run on a control machine. Users:
// cmd/sigmad.
//
// It has no lock. procs.Table's may be held when it is told of procs (carry), and under it those of
// kernel/placement, kernel/eventlog and decision.Log.Note are taken. Those of the packages below
// stand in their comments. None is held across a call to another process.
package kernel

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/kernel/accounts"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/history"
	"sigmaos.dev/kernel/incoming"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/outside"
	"sigmaos.dev/kernel/past"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/quotas"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/realms"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/roster"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/sessions"

	"sigmaos.dev/kernel/binfs"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/sigmap"
)

// Version is what sigma version prints.
const Version = "0.1.0-dev"

// Config says what a machine has.
type Config struct {
	Machine  sigma.MachineID
	Keeper   *launch.Keeper     // gives the control sockets of launchers
	Programs []services.Program // the boot set; empty on an ordinary machine of several
	Data     string             // directory that is the kernel's own
	UIDBase  uint32             // first of the uids that belong to this instance (docs/internals/launcher-protocol.md)
	UIDs     uint32             // how many they are; 0 = 2^20
	Memory   sigma.Bytes        // for best-effort procs; 0 = three quarters of the host's
	CPU      sigma.MilliCPU     // what the machine offers; 0 = the host's
	// Listener is where other machines connect to this one, and Address what they are told of it;
	// nil and "" = there are no others.
	Listener net.Listener
	Address  string
	// RealmSocket is where programs with a credential of a realm connect; nil = nowhere. Run closes
	// it.
	RealmSocket *net.UnixListener
	Labels      map[string]string // the machine's failure domain and whatever else its owner says of it
	// Connects has the Keeper make TCP connections; else they are made here.
	Connects bool
	Etcd     *sigmap.Etcd // where named keeps the names; nil = in an etcd of its own
	Join     *Join        // how the machine becomes a member of a system; nil = it is one already, or founds one
	// AllowWeaken lets an environment entry SIGMA_WEAKEN=bits of a descriptor take protections off
	// that proc. The launcher must allow it too. Tests only.
	AllowWeaken bool
	// Rootless says that an ordinary user started the launcher: the admin sockets are also for the
	// group of the data directory, by which that user reaches them.
	Rootless bool
	// ProgramsMax bounds the bytes of programs that are kept on disk; 0 = a tenth of the disk, 8
	// GiB at most. Mount, if not nil, lets programs start before all their bytes are here.
	ProgramsMax sigma.Bytes
	Mount       *binfs.Mount
	// Encrypt has all that goes to other machines and comes from them encrypted, at the price of
	// sigmad's processor time for it: no direct connections are made.
	Encrypt bool

	// Deaths is how often sigmad or the launcher of this machine has died of late, as the keeper
	// counts: it is told as an event. 0 at a start of the machine.
	Deaths int
	// StoreDelay is added to each message between sigmad and the object store, in each direction.
	// Benches and tests only.
	StoreDelay time.Duration
	Log        *slog.Logger
	Ready      func() // called once, when the boot set is up and the admin socket listens
	// Waits is told what the boot waits for, in one line for people, when that changes, "" when
	// nothing is known any more, and whether it is that too few control machines answer; nil =
	// nobody asks. Not after Ready, but for a call that is being made.
	Waits func(what string, missing bool)
}

// Join says how a machine becomes a member.
type Join = cluster.Join

// Kernel is one running sigmad: the parts that something is done with while it runs (making has the
// others), and what joins them.
type Kernel struct {
	cfg      Config
	life     life
	sessions *sessions.Sessions
	incoming *incoming.Incoming
	memo     *memo.Memo
	meters   meters

	// Procs of this machine and others.
	procs    *procs.Table
	launcher *launchers.Launchers
	placing  *placement.Placement
	bin      programs
	runner   *runner.Runner
	past     *past.Past
	remote   *remote.Remote

	// The machine among others, its services, and connections of procs.
	cluster  *cluster.Cluster
	reach    *reach.Reach
	roster   *roster.Roster
	services *services.Set
	outside  *outside.Outside
	proxy    *dialproxy.Proxy
	connect  *connect.Connect

	// Realms.
	realms   *realms.Realms
	quotas   *quotas.Quotas
	guests   *guests.Guests
	accounts *accounts.Accounts
	history  *history.History
}

// meters count what realms use.
type meters struct {
	ledger  *meter.Ledger
	copies  *meter.Copies
	turns   *treeserver.Turns
	worked  *meter.Works
	traffic *meter.Traffic
	passed  *inflight.Account // descriptors that procs and services have not received
}

// programs are those of procs: what is here of them, and who has others.
type programs struct {
	*binfs.Cache
	holders *runner.Holders
}

// life is the time from the start of sigmad to its end.
type life struct {
	sync.WaitGroup // all that is waited for before Run returns

	start     time.Time
	startMono time.Duration      // the same moment on the launcher's clock
	ctx       context.Context    // Run's
	down      context.CancelFunc // ends Run
	adopted   func(n int)        // says that what ran before this sigmad is known: n procs
	known     chan struct{}      // closed then
	inherited int                // procs that ran before this sigmad; after known is closed
	whole     atomic.Bool        // all parts of the Kernel have begun
}

// New checks the configuration and prepares the machine's parts. Nothing runs yet.
func New(cfg Config) (*Kernel, error) {
	if err := cfg.Machine.Check(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.UIDs == 0 {
		cfg.UIDs = 1 << 20
	}
	if cfg.CPU == 0 {
		cfg.CPU = sigma.MilliCPU(1000 * runtime.NumCPU())
	}
	if cfg.Memory == 0 {
		total, err := services.MachineMemory()
		if err != nil {
			return nil, err
		}
		cfg.Memory = total / 4 * 3
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return nil, sigma.Wrap("kernel.New", "", os.NewSyscallError("getrlimit", err))
	}
	k := &Kernel{cfg: cfg, meters: meters{passed: inflight.New(int(min(files.Cur, 1<<20)))},
		memo: &memo.Memo{}, realms: realms.New(),
		life: life{start: time.Now(), startMono: runner.Monotonic(), known: make(chan struct{})}}
	k.proxy = dialproxy.New(cfg.Machine, k.meters.passed)
	var first sync.Once
	k.life.adopted = func(n int) { first.Do(func() { k.life.inherited = n; close(k.life.known) }) }
	if err := (&making{Kernel: k}).make(); err != nil {
		return nil, err
	}
	return k, nil
}

// treeOfPages gives the tree from which programs are fetched on that ran before this sigmad. Their
// procs page from the first moment on, and wait until there is one.
func (k *Kernel) treeOfPages(realm sigma.RealmID) (binfs.Tree, error) {
	if !k.life.whole.Load() {
		return nil, sigma.Errorf("kernel.Tree", sigma.KindUnavailable, "sigmad is starting")
	}
	return k.realms.Tree(realm)
}

// Program is one of the boot set.
type Program = services.Program

// Run boots the machine and serves until ctx ends, Down is called, or the keeper is gone. Before it
// returns, services were asked to end in an orderly way.
func (k *Kernel) Run(ctx context.Context) error {
	asked, down := context.WithCancel(ctx)
	defer down()
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	k.life.ctx, k.life.down = ctx, down
	for _, begin := range []func(context.Context){k.memo.Begin, k.sessions.Begin, k.procs.Begin, k.services.Begin,
		k.cluster.Begin, k.reach.Begin, k.past.Begin, k.runner.Begin, k.remote.Begin, k.guests.Begin, k.outside.Begin,
		k.connect.Begin} {
		begin(ctx)
	}
	k.life.whole.Store(true)
	defer context.AfterFunc(asked, func() { k.cluster.Leave(); stop() })()
	events := make(chan error, 1)
	work := context.WithoutCancel(ctx) // launcher events are needed until the services have ended
	work, stopWork := context.WithCancel(work)
	defer stopWork()
	go func() { events <- k.launcher.Run(work) }()

	for _, run := range []func(context.Context){k.placing.Run, k.remote.Run, k.realms.Run, k.guests.Run,
		k.accounts.Keep, k.history.Decisions.Run, k.past.Run, k.accounts.Tell} {
		k.life.Go(func() { run(ctx) })
	}
	booted := make(chan error, 1)
	k.life.Go(func() { booted <- booting{k}.boot(ctx) })
	defer k.quotas.Scratch.Close()
	defer k.bin.Close()
	defer k.meters.passed.Close()
	for {
		select {
		case err := <-booted:
			if err != nil {
				return err
			}
			k.cfg.Log.Info("machine is up", "machine", k.cfg.Machine, "memory", k.cfg.Memory.String(), "boot",
				time.Since(k.life.start).Round(time.Millisecond).String())
			message := ""
			if k.cfg.Deaths > 0 {
				message = fmt.Sprintf("death %d of sigmad or launcher of late", k.cfg.Deaths)
			}
			k.history.TellDaemon(report.EventDaemonStarted, "sigmad", message)
			if k.cfg.Ready != nil {
				k.cfg.Ready()
			}
		case err := <-events:
			return err
		case <-ctx.Done():
			k.services.ShutDown()
			k.settle()
			return nil
		}
	}
}

// Down ends Run: when the procs that run here have had their grace, or now.
func (k *Kernel) Down(now bool) {
	if now {
		k.cluster.Hasten()
	}
	k.life.down()
}

// settleMax is how long sessions may take to end once the services have.
const settleMax = 2 * time.Second

// settle waits for what still runs, as far as it ends by itself.
func (k *Kernel) settle() {
	over := make(chan struct{})
	go func() { k.life.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(settleMax):
		k.cfg.Log.Warn("sessions did not end in time")
	}
}
