package kernel

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/binfs"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/launch"
	"sigmaos.dev/nowait"
	"sigmaos.dev/output"
	"sigmaos.dev/readiness"
	"sigmaos.dev/schedd"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/view"
)

// startNowMax procs are started by the request that spawned them; of more, the others are started
// while it is answered.
const startNowMax = 4

// startSpawned starts what a Spawn placed here. Programs that are at hand are started at once and
// one after the other: each costs some ten microseconds, less than to wake somebody for it. Others
// are fetched first, for which nobody waits here.
func (k *Kernel) startSpawned(starts []procs.Start) {
	var warm []procs.Start
	for _, s := range starts {
		if tree, err := k.tree(s.Proc.Realm); err == nil && len(s.Proc.Kin) == 0 &&
			tree.Warm(s.Proc.Descriptor.Program) {
			warm = append(warm, s)
		} else {
			k.sessions.Go(func() { k.startProc(s) })
		}
	}
	now := min(len(warm), startNowMax)
	for _, s := range warm[:now] {
		k.startProc(s)
	}
	if warm = warm[now:]; len(warm) > 0 {
		k.sessions.Go(func() {
			for _, s := range warm {
				k.startProc(s)
			}
		})
	}
}

// startProc fetches the program and asks the launcher for the proc (architecture §5, point 3).
func (k *Kernel) startProc(s procs.Start) {
	err := k.tryStart(s.Ctx, &s.Proc, s.Logs)
	k.procs.Answered(s.Proc.ID)
	if err != nil {
		s.Logs.End()
		k.metrics.failed.Add(1)
		k.procs.Step(schedd.NotLaunched{ID: s.Proc.ID, Err: err})
	}
}

func (k *Kernel) tryStart(ctx context.Context, p *schedd.Proc, l *procs.Logs) error {
	tree, err := k.tree(p.Realm)
	if err != nil {
		return err
	}
	if p.Guest() {
		k.holders.hint(p.Realm, p.Descriptor.Program, p.Home.Machine)
	}
	var from binfs.Tree = tree
	if len(p.Kin) > 0 { // who spawned it has a view
		from = tree.Strict()
	}
	program, release, err := k.bin.Open(ctx, p.Realm, from, p.Descriptor.Program)
	if sigma.KindOf(err) == sigma.KindCanceled &&
		ctx.Err() == nil { // by no caller, but by the end of a service's session
		err = sigma.Errorf("kernel.startProc", sigma.KindUnavailable,
			"%s: the service that has it ended while it was looked up", p.Descriptor.Program)
	}
	if err != nil {
		return err
	}
	tree.Opened(p.Descriptor.Program)
	c, err := k.newChild(p, l, release)
	if err != nil {
		release()
		return sigma.Wrap("kernel.startProc", "", err)
	}
	profile := launch.ProfileSigma
	if p.Descriptor.Profile == sigma.ProfileLinux {
		profile = launch.ProfileLinux
	}
	req := launch.Request{ID: c.launch, Weaken: k.weaken(p.Descriptor.Env), Profile: profile, GID: k.groups.of(p.Realm),
		PidsMax: pidsMax, Memory: p.Memory, CPUShares: shares.WeightOf(p.Class, p.Descriptor.CPU), NoFile: noFileMax,
		Group: k.groupFor(p), Args: append([]string{p.Name}, p.Descriptor.Args...), Program: program,
		Env: append([]string{"SIGMA_PROC_ID=" + string(p.ID), "SIGMA_REALM=" + string(p.Realm),
			"SIGMA_MACHINE=" + string(k.cfg.Machine), "SIGMA_CLASS=" + p.Class.String()}, environment(p.Descriptor)...),
		Passed: []launch.Passed{{FD: c.outW, Target: 1}, {FD: c.errW, Target: 2}, {FD: c.theirs, Target: 3}}}
	k.procs.Step(schedd.LaunchAsked{ID: p.ID, Launch: c.launch})
	err = k.launcher.Start(ctx, req)
	nowait.Close(c.outW)
	nowait.Close(c.errW)
	if err != nil {
		k.launcher.Unregister(c.launch)
		c.end()
		c.finish()
		release()
		return err
	}
	k.outputs.Begin(c.out, c.err)
	c.listen()
	return nil
}

// groupFor is the cgroup that a proc is started in, which has what it is to have.
func (k *Kernel) groupFor(p *schedd.Proc) string {
	var reserved sigma.MilliCPU
	k.procs.With(func(v procs.View) { reserved = v.ReservedBy(p.Realm) })
	return k.shares.Uses(k.launcher.Now(), p.Realm, p.Class, reserved)
}

// child is the kernel's side of a proc that the launcher was asked for.
type child struct {
	k          *Kernel
	who        sigma.Principal
	view       *view.Table // nil = it sees all of its realm
	kin        []sigma.ProcID
	launch     uint64
	memory     sigma.Bytes // its limit
	class      sigma.Class
	name       string
	release    func()         // lets go of the program, which stays in the cache as long as the proc runs it
	out, err   *output.Stream // what it prints
	began      time.Time      // when it was launched; of keepLater
	outW, errW int            // theirs, until the launcher has them; it makes their stdin /dev/null

	// A proc that says nothing on its file descriptor 3 costs an entry in a table; its session
	// begins with the first message. Until then we keep the proc's end open too, so that its end is
	// not reported here: the launcher's word of that comes anyway.
	mu           sync.Mutex
	ended        bool             // mu
	ours, theirs int              // mu; the socket pair; -1 once closed, or the session's
	silent       *readiness.Watch // mu; nil before, and once there is a session
	conn         *procConn        // mu; of the session
}

// newChild makes what a proc is born with, and takes the launcher's events about it.
func (k *Kernel) newChild(p *schedd.Proc, l *procs.Logs, release func()) (*child, error) {
	c := &child{k: k, release: release, memory: p.Memory, class: p.Class, name: p.Name, view: p.View, kin: p.Kin,
		who: sigma.Principal{Realm: p.Realm, Proc: p.ID, Machine: k.cfg.Machine}, outW: -1, errW: -1}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK,
		0) // neither end blocks
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	c.ours, c.theirs = pair[0], pair[1]
	if c.out, c.outW, err = k.outputs.Open(l.Out); err == nil {
		if c.err, c.errW, err = k.outputs.Open(l.Err); err != nil {
			nowait.Close(c.outW)
			c.out.Drain()
		}
	}
	if err != nil {
		c.end()
		return nil, err
	}
	c.launch = k.launcher.Register(c.event)
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
	if c.silent, err = c.k.ready.Add(c.ours, c.speaks); err != nil {
		c.k.cfg.Log.Warn("cannot wait for a silent proc", "realm", c.who.Realm, "proc", c.who.Proc, "err", err)
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
	c.k.procs.Step(schedd.Spoke{ID: c.who.Proc})
}

// serveLocked begins the session. That of an adopted proc may have been another sigmad's.
func (c *child) serveLocked(adopted bool) {
	if c.theirs >= 0 {
		nowait.Close(c.theirs)
	}
	u, err := session.UnixConn(os.NewFile(uintptr(c.ours), "proc"))
	c.ours, c.theirs = -1, -1
	if err != nil {
		c.k.cfg.Log.Warn("cannot serve a proc", "realm", c.who.Realm, "proc", c.who.Proc, "err", err)
		return
	}
	conn := &procConn{session.NewPacketConn(u, false), u}
	c.conn = conn
	c.k.sessions.Go(func() {
		c.k.serveAs(c.k.ctx, conn, newProcTree(c), adopted)
		c.mu.Lock()
		ended := c.ended
		c.mu.Unlock()
		if ended { // what its last requests made
			c.k.proxy.CloseProc(c.who.Proc)
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
			nowait.Close(*fd)
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
	k, id := c.k, c.who.Proc
	switch e := e.(type) {
	case launch.Started:
		k.metrics.started.Add(1)
		k.ledger.Started(time.Now(), c.who.Realm, id, c.name, c.memory, c.class)
		k.procs.Step(schedd.Launched{ID: id, Cloned: k.wallTime(e.Cloned), Contained: k.wallTime(e.Contained),
			Executed: k.wallTime(e.Executed)})
		k.keepLater(c)
		return
	case launch.Failed:
		k.metrics.failed.Add(1)
		c.end()
		k.procs.Step(schedd.NotLaunched{ID: id, Err: e.Err()})
		c.release()
		go c.finish()
	case launch.Exited:
		c.gone(schedd.Gone{ID: id, Exit: e})
	case launch.Lost:
		c.gone(schedd.LauncherDied{ID: id})
	}
	k.launcher.Unregister(e.ProcID())
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
	c.k.metrics.exited.Add(1)
	c.mu.Lock()
	c.ended = true // before, so that whatever is made after this is closed with the session
	c.mu.Unlock()
	c.k.proxy.CloseProc(c.who.Proc)
	carried := c.k.traffic.End(time.Now(), c.who.Proc)
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
	k := c.k
	k.procs.End(c.who.Realm, c.who.Proc, e, func(p *schedd.Proc) {
		k.placing.Ended(p)
		k.ledger.Uses(time.Now(), p.ID, p.Usage.UserTime+p.Usage.SystemTime, true)
	})
}

// wallTime turns the launcher's CLOCK_MONOTONIC into a time.
func (k *Kernel) wallTime(mono time.Duration) time.Time {
	now := time.Now()
	return now.Add(mono - k.startMono - now.Sub(k.start))
}

// monotonic is CLOCK_MONOTONIC, which Go does not tell.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
