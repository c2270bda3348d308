// Package runner runs the procs that were placed at a machine: it has their programs fetched and
// asks the launcher for them, serves what they say and stores what they print, hears of their ends,
// and takes over those of a sigmad before this one. What becomes of procs is decided by schedd
// (kernel/procs), what their sessions show is the user's (Config.Serve). Users: kernel.
//
// Locks: Runner.keeping, under which procs.Table's is taken; child.mu, unkept.mu, realmGroups.mu
// and Holders.mu.
package runner

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/binfs"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/past"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/proclog"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/progtree"
	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/poller"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/session"
)

// Config is what a Runner needs of its user.
type Config struct {
	Machine     sigma.MachineID
	AllowWeaken bool          // descriptors may take protections off their procs; tests only
	FirstGroup  uint32        // the groups of realms are this and those after it
	Start       time.Time     // of sigmad
	StartMono   time.Duration // the same moment on the launcher's clock
	Log         *slog.Logger
	Procs       *procs.Table
	Launcher    *launchers.Launchers
	Placing     *placement.Placement
	Shares      *shares.Groups
	Past        *past.Past
	Proxy       *dialproxy.Proxy
	Programs    *binfs.Cache
	Holders     *Holders
	Ledger      *meter.Ledger
	Traffic     *meter.Traffic
	Go          func(func()) // begins what is waited for before the program ends
	// Tree is a realm's tree, in which programs are found.
	Tree func(realm sigma.RealmID) (*progtree.Tree, error)
	// Serve answers a proc's session until it ends. v is nil if the proc sees all of its realm; kin
	// are its ancestors with views. The connection of an adopted proc may have been another
	// sigmad's.
	Serve func(ctx context.Context, conn session.Conn, who sigma.Principal, v *view.Table, kin []sigma.ProcID,
		adopted bool)
}

// Runner is the procs that run at a machine. Safe for concurrent use.
type Runner struct {
	cfg     Config
	ctx     context.Context // set by Begin
	Timings Timings
	groups  realmGroups
	outputs *proclog.Collector
	ready   *poller.Set // procs that are silent
	unkept  unkept
	ended   int        // the read end of a pipe whose writers have ended
	keeping sync.Mutex // makes looking at a proc and telling the launcher of it one act
}

// New makes the runner of a machine that runs nothing yet.
func New(cfg Config) (*Runner, error) {
	x := &Runner{cfg: cfg, groups: realmGroups{first: cfg.FirstGroup, gids: map[sigma.RealmID]uint32{}}}
	var err error
	if x.ended, err = atEnd(); err != nil {
		return nil, sigma.Wrap("kernel.New", "", err)
	}
	if x.ready, err = poller.New(); err != nil {
		return nil, err
	}
	x.outputs = proclog.NewCollector(x.ready)
	return x, nil
}

// Begin sets the context of procs' sessions, and begins to listen for procs that are silent. It is
// called before the first proc is started.
func (x *Runner) Begin(ctx context.Context) {
	x.ctx = ctx
	x.cfg.Go(x.ready.Run)
	context.AfterFunc(ctx, x.ready.Close)
}

// startNowMax procs are started by the request that spawned them; of more, the others are started
// while it is answered.
const startNowMax = 4

// Spawned starts what a Spawn placed here. Programs that are at hand are started at once and
// one after the other: each costs some ten microseconds, less than to wake somebody for it. Others
// are fetched first, for which nobody waits here.
func (x *Runner) Spawned(starts []procs.Start) {
	var warm []procs.Start
	for _, s := range starts {
		if tree, err := x.cfg.Tree(s.Proc.Realm); err == nil && len(s.Proc.Kin) == 0 &&
			tree.Warm(s.Proc.Descriptor.Program) {
			warm = append(warm, s)
		} else {
			x.cfg.Go(func() { x.Start(s) })
		}
	}
	now := min(len(warm), startNowMax)
	for _, s := range warm[:now] {
		x.Start(s)
	}
	if warm = warm[now:]; len(warm) > 0 {
		x.cfg.Go(func() {
			for _, s := range warm {
				x.Start(s)
			}
		})
	}
}

// Start fetches the program and asks the launcher for the proc (architecture §5, point 3).
func (x *Runner) Start(s procs.Start) {
	err := x.tryStart(s.Ctx, &s.Proc, s.Logs)
	x.cfg.Procs.Answered(s.Proc.ID)
	if err != nil {
		s.Logs.End()
		x.Timings.Failed.Add(1)
		x.cfg.Procs.Step(schedd.NotLaunched{ID: s.Proc.ID, Err: err})
	}
}

func (x *Runner) tryStart(ctx context.Context, p *schedd.Proc, l *procs.Logs) error {
	tree, err := x.cfg.Tree(p.Realm)
	if err != nil {
		return err
	}
	if p.Guest() {
		x.cfg.Holders.Hint(p.Realm, p.Descriptor.Program, p.Home.Machine)
	}
	var from binfs.Tree = tree
	if len(p.Kin) > 0 { // who spawned it has a view
		from = tree.Strict()
	}
	program, release, err := x.cfg.Programs.Open(ctx, p.Realm, from, p.Descriptor.Program)
	if sigma.KindOf(err) == sigma.KindCanceled &&
		ctx.Err() == nil { // by no caller, but by the end of a service's session
		err = sigma.Errorf("kernel.startProc", sigma.KindUnavailable,
			"%s: the service that has it ended while it was looked up", p.Descriptor.Program)
	}
	if err != nil {
		return err
	}
	tree.Opened(p.Descriptor.Program)
	c, err := x.newChild(p, l, release)
	if err != nil {
		release()
		return sigma.Wrap("kernel.startProc", "", err)
	}
	profile := launch.ProfileSigma
	if p.Descriptor.Profile == sigma.ProfileLinux {
		profile = launch.ProfileLinux
	}
	req := launch.Request{ID: c.launch, Weaken: x.weaken(p.Descriptor.Env), Profile: profile, GID: x.groups.of(p.Realm),
		PidsMax: PidsMax, Memory: p.Memory, CPUShares: shares.WeightOf(p.Class, p.Descriptor.CPU), NoFile: NoFileMax,
		Group: x.groupFor(p), Args: append([]string{p.Name}, p.Descriptor.Args...), Program: program,
		Env: append([]string{"SIGMA_PROC_ID=" + string(p.ID), "SIGMA_REALM=" + string(p.Realm),
			"SIGMA_MACHINE=" + string(x.cfg.Machine), "SIGMA_CLASS=" + p.Class.String()}, environment(p.Descriptor)...),
		Passed: []launch.Passed{{FD: c.outW, Target: 1}, {FD: c.errW, Target: 2}, {FD: c.theirs, Target: 3}}}
	x.cfg.Procs.Step(schedd.LaunchAsked{ID: p.ID, Launch: c.launch})
	err = x.cfg.Launcher.Start(ctx, req)
	rawio.Close(c.outW)
	rawio.Close(c.errW)
	if err != nil {
		x.cfg.Launcher.Unregister(c.launch)
		c.end()
		c.finish()
		release()
		return err
	}
	x.outputs.Begin(c.out, c.err)
	c.listen()
	return nil
}

// groupFor is the cgroup that a proc is started in, which has what it is to have.
func (x *Runner) groupFor(p *schedd.Proc) string {
	var reserved sigma.MilliCPU
	x.cfg.Procs.With(func(v procs.View) { reserved = v.ReservedBy(p.Realm) })
	return x.cfg.Shares.Uses(x.cfg.Launcher.Now(), p.Realm, p.Class, reserved)
}

// child is the kernel's side of a proc that the launcher was asked for.
type child struct {
	x          *Runner
	who        sigma.Principal
	view       *view.Table // nil = it sees all of its realm
	kin        []sigma.ProcID
	launch     uint64
	memory     sigma.Bytes // its limit
	class      sigma.Class
	name       string
	release    func()          // lets go of the program, which stays in the cache as long as the proc runs it
	out, err   *proclog.Stream // what it prints
	began      time.Time       // when it was launched; of keepLater
	outW, errW int             // theirs, until the launcher has them; it makes their stdin /dev/null

	// A proc that says nothing on its file descriptor 3 costs an entry in a table; its session
	// begins with the first message. Until then we keep the proc's end open too, so that its end is
	// not reported here: the launcher's word of that comes anyway.
	mu           sync.Mutex
	ended        bool          // mu
	ours, theirs int           // mu; the socket pair; -1 once closed, or the session's
	silent       *poller.Watch // mu; nil before, and once there is a session
	conn         *procConn     // mu; of the session
}

// newChild makes what a proc is born with, and takes the launcher's events about it.
func (x *Runner) newChild(p *schedd.Proc, l *procs.Logs, release func()) (*child, error) {
	c := &child{x: x, release: release, memory: p.Memory, class: p.Class, name: p.Name, view: p.View, kin: p.Kin,
		who: sigma.Principal{Realm: p.Realm, Proc: p.ID, Machine: x.cfg.Machine}, outW: -1, errW: -1}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK,
		0) // neither end blocks
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	c.ours, c.theirs = pair[0], pair[1]
	if c.out, c.outW, err = x.outputs.Open(l.Out); err == nil {
		if c.err, c.errW, err = x.outputs.Open(l.Err); err != nil {
			rawio.Close(c.outW)
			c.out.Drain()
		}
	}
	if err != nil {
		c.end()
		return nil, err
	}
	c.launch = x.cfg.Launcher.Register(c.event)
	return c, nil
}

// listen waits for the first message.
func (c *child) listen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	var err error
	if c.silent, err = c.x.ready.Add(c.ours, c.speaks); err != nil {
		c.x.cfg.Log.Warn("cannot wait for a silent proc", "realm", c.who.Realm, "proc", c.who.Proc, "err", err)
		c.serveLocked(false)
	}
}

// speaks begins the session.
func (c *child) speaks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.conn != nil {
		return
	}
	c.silent.Remove()
	c.silent = nil
	c.serveLocked(false)
	c.x.cfg.Procs.Step(schedd.Spoke{ID: c.who.Proc})
}

// serveLocked begins the session. That of an adopted proc may have been another sigmad's.
func (c *child) serveLocked(adopted bool) {
	if c.theirs >= 0 {
		rawio.Close(c.theirs)
	}
	u, err := session.UnixConn(os.NewFile(uintptr(c.ours), "proc"))
	c.ours, c.theirs = -1, -1
	if err != nil {
		c.x.cfg.Log.Warn("cannot serve a proc", "realm", c.who.Realm, "proc", c.who.Proc, "err", err)
		return
	}
	conn := &procConn{session.NewPacketConn(u, false), u}
	c.conn = conn
	c.x.cfg.Go(func() {
		c.x.cfg.Serve(c.x.ctx, conn, c.who, c.view, c.kin, adopted)
		c.mu.Lock()
		ended := c.ended
		c.mu.Unlock()
		if ended { // what its last requests made
			c.x.cfg.Proxy.CloseProc(c.who.Proc)
		}
	})
}

// end closes the proc's session, or what would have become one.
func (c *child) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.silent != nil {
		c.silent.Remove()
		c.silent = nil
	}
	for _, fd := range []*int{&c.ours, &c.theirs} {
		if *fd >= 0 {
			rawio.Close(*fd)
			*fd = -1
		}
	}
	if c.conn != nil {
		c.conn.Close() // a session that outlives its proc has nobody at the other end
	}
}

// finish stores the last of the proc's output, however long that takes.
func (c *child) finish() {
	c.out.Drain()
	c.err.Drain()
}

// event turns what the launcher says into what schedd knows.
func (c *child) event(e launch.Event) {
	x, id := c.x, c.who.Proc
	switch e := e.(type) {
	case launch.Started:
		x.Timings.Started.Add(1)
		x.cfg.Ledger.Started(time.Now(), c.who.Realm, id, c.name, c.memory, c.class)
		x.cfg.Procs.Step(schedd.Launched{ID: id, Cloned: x.wallTime(e.Cloned), Contained: x.wallTime(e.Contained),
			Executed: x.wallTime(e.Executed)})
		x.keepLater(c)
		return
	case launch.Failed:
		x.Timings.Failed.Add(1)
		c.end()
		x.cfg.Procs.Step(schedd.NotLaunched{ID: id, Err: e.Err()})
		c.release()
		go c.finish()
	case launch.Exited:
		c.gone(schedd.Gone{ID: id, Exit: e})
	case launch.Lost:
		c.gone(schedd.LauncherDied{ID: id})
	}
	x.cfg.Launcher.Unregister(e.ProcID())
}

// environment is what the proc's spawner gave, with the trace that it belongs to by the name that
// other programs know.
func environment(d sigma.Descriptor) []string {
	if d.TraceParent == "" {
		return d.Env
	}
	return append([]string{"TRACEPARENT=" + d.TraceParent}, d.Env...)
}

// gone ends what a proc had. Its end is told when its output is complete.
func (c *child) gone(e schedd.Event) {
	c.x.Timings.Exited.Add(1)
	c.mu.Lock()
	c.ended = true // before, so that whatever is made after this is closed with the session
	c.mu.Unlock()
	c.x.cfg.Proxy.CloseProc(c.who.Proc)
	carried := c.x.cfg.Traffic.End(time.Now(), c.who.Proc)
	if g, ok := e.(schedd.Gone); ok {
		g.Traffic = carried
		e = g
	}
	c.release()
	c.end()
	if out, err := c.out.End(), c.err.End(); out && err {
		c.tellGone(e)
	} else { // not here, where the launcher's other events wait
		go func() { c.finish(); c.tellGone(e) }()
	}
}

func (c *child) tellGone(e schedd.Event) {
	x := c.x
	x.cfg.Procs.End(c.who.Realm, c.who.Proc, e, func(p *schedd.Proc) {
		x.cfg.Placing.Ended(p)
		x.cfg.Ledger.Uses(time.Now(), p.ID, p.Usage.UserTime+p.Usage.SystemTime, true)
	})
}

// wallTime turns the launcher's CLOCK_MONOTONIC into a time.
func (x *Runner) wallTime(mono time.Duration) time.Time {
	now := time.Now()
	return now.Add(mono - x.cfg.StartMono - now.Sub(x.cfg.Start))
}

// Monotonic is CLOCK_MONOTONIC, which Go does not tell.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// Limits of each proc that its descriptor does not choose.
const (
	PidsMax   = 512
	NoFileMax = 4096
)

// realmGroups are the groups (gids) of realms: of the upper half of the instance's range, below
// which are the uids that the launcher chooses. Safe for concurrent use.
type realmGroups struct {
	first uint32 // of the upper half
	mu    sync.Mutex
	gids  map[sigma.RealmID]uint32 // mu
}

// of is the group of a realm.
func (x *realmGroups) of(realm sigma.RealmID) uint32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	g, ok := x.gids[realm]
	if !ok {
		g = x.first
		for _, taken := range x.gids { // those of adopted procs were given by another sigmad
			g = max(g, taken+1)
		}
		x.gids[realm] = g
	}
	return g
}

// take notes the group that a former sigmad gave to a realm, unless the realm has one.
func (x *realmGroups) take(realm sigma.RealmID, gid uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.gids[realm]; !ok {
		x.gids[realm] = gid
	}
}

// weaken reads which protections a test wants off (launcher-protocol.md); 0 unless the machine was
// started for that.
func (x *Runner) weaken(env []string) uint32 {
	if !x.cfg.AllowWeaken {
		return 0
	}
	for _, e := range env {
		if bits, ok := strings.CutPrefix(e, "SIGMA_WEAKEN="); ok {
			n, err := strconv.ParseUint(bits, 10, 32)
			if err == nil {
				return uint32(n)
			}
		}
	}
	return 0
}

// Timings counts what the machine did; /sys/metrics prints them in the Prometheus text format.
type Timings struct {
	Started, Failed, Exited, Kept atomic.Uint64
	phases                        [sigma.PhaseCount]histogram
	total                         histogram
}

// bounds of the histograms' buckets: from what a hand-over takes to what is an outage.
var bounds = [...]time.Duration{10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond,
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 10 * time.Second}

// histogram counts durations. Prometheus's own would bring its registry and protobuf into sigmad
// for these lines. Safe for concurrent use, without a lock: what is read while others count may
// lack some of what they add.
type histogram struct {
	buckets [len(bounds) + 1]atomic.Uint64
	sum     atomic.Uint64 // ns
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(uint64(d))
}

// Count counts the phases of a start.
func (m *Timings) Count(t *sigma.Timing) {
	for p := range t {
		m.phases[p].observe(t[p])
	}
	m.total.observe(t.Total())
}

// write prints the histogram under a name and a label, which is empty or as in phase="exec".
func (h *histogram) write(b *strings.Builder, name, label string) {
	joint := label
	if label != "" {
		joint = label + ","
		label = "{" + label + "}"
	}
	count := uint64(0)
	for i := range h.buckets {
		count += h.buckets[i].Load()
		bound := "+Inf"
		if i < len(bounds) {
			bound = strconv.FormatFloat(bounds[i].Seconds(), 'g', -1, 64)
		}
		fmt.Fprintf(b, "%s_bucket{%sle=%q} %d\n", name, joint, bound, count)
	}
	fmt.Fprintf(b, "%s_sum%s %g\n%s_count%s %d\n", name, label, time.Duration(h.sum.Load()).Seconds(), name, label,
		count)
}

// Text prints how long starts took, and their phases.
func (m *Timings) Text(b *strings.Builder) {
	const start, phase = "sigma_schedd_start_seconds", "sigma_schedd_start_phase_seconds"
	fmt.Fprintf(b, "# TYPE %s histogram\n", start)
	m.total.write(b, start, "")
	fmt.Fprintf(b, "# TYPE %s histogram\n", phase)
	for p := range sigma.PhaseCount {
		m.phases[p].write(b, phase, fmt.Sprintf("phase=%q", p))
	}
}
