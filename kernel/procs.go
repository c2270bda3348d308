package kernel

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/launch"
	"sigmaos.dev/output"
	"sigmaos.dev/schedd"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// Limits of each proc that its descriptor does not choose.
const (
	pidsMax    = 512
	noFileMax  = 4096
	cpuShares  = 1024
	fetchLimit = time.Minute     // for a program's bytes to come
	logLimit   = 5 * time.Second // for the last output of a proc that has ended to be stored
)

// step applies an event and carries out its effects.
func (k *Kernel) step(e schedd.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stepLocked(e)
}

func (k *Kernel) stepLocked(e schedd.Event) {
	for _, f := range k.core.Step(time.Now(), e) {
		k.applyLocked(f)
	}
}

// applyLocked carries out one effect; nothing in it blocks.
func (k *Kernel) applyLocked(f schedd.Effect) {
	switch f := f.(type) {
	case schedd.Enqueue:
		k.sched.enqueue(f.Proc.ID, f.Proc.Realm, f.Proc.Memory)
	case schedd.Dequeue:
		k.sched.cancel(f.ID)
	case schedd.Start:
		p := *f.Proc
		l := k.newLogsLocked(p.Realm, p.ID)
		ctx, cancel := context.WithTimeout(k.ctx, fetchLimit)
		k.fetching[p.ID] = cancel
		k.sessions.Go(func() { k.startProc(ctx, &p, l) })
	case schedd.Abandon:
		if cancel := k.fetching[f.ID]; cancel != nil {
			cancel()
		}
	case schedd.Kill:
		go k.kill(f.Proc.Launch)
	case schedd.Notice:
		ch := k.noticeLocked(f.Proc.ID) // stays closed, so that a later WaitEvict returns at once
		select {
		case <-ch:
		default:
			close(ch)
		}
		if f.Signal != 0 {
			go k.signal(f.Proc.Launch, f.Signal)
		}
	case schedd.Wake:
		if ch := k.wake[f.ID]; ch != nil {
			close(ch)
			delete(k.wake, f.ID)
		}
	case schedd.Timer:
		if t := k.timers[f.ID]; t != nil {
			t.Reset(time.Until(f.At))
			break
		}
		k.timers[f.ID] = time.AfterFunc(time.Until(f.At), func() { k.step(schedd.TimerFired{ID: f.ID}) })
	case schedd.Forget:
		if l := k.logs[f.ID]; l != nil {
			delete(k.logs, f.ID)
			go func() { l.out.Remove(); l.err.Remove() }()
		}
	case schedd.Room:
		k.sched.room()
	}
}

// endedLocked drops what only a proc that has not ended needs.
func (k *Kernel) endedLocked(id sigma.ProcID) {
	if t := k.timers[id]; t != nil {
		t.Stop()
		delete(k.timers, id)
	}
	delete(k.notice, id)
}

// newLogsLocked makes a proc's logs, unless somebody who looked early made them.
func (k *Kernel) newLogsLocked(realm sigma.RealmID, id sigma.ProcID) *procLogs {
	if l := k.logs[id]; l != nil {
		return l
	}
	b := k.budgets[realm]
	if b == nil {
		b = new(output.Budget)
		k.budgets[realm] = b
	}
	dir := filepath.Join(k.cfg.Data, "logs")
	l := &procLogs{output.New(filepath.Join(dir, string(id)+".out"), b), output.New(filepath.Join(dir, string(id)+".err"), b)}
	k.logs[id] = l
	return l
}

func (k *Kernel) noticeLocked(id sigma.ProcID) chan struct{} {
	ch := k.notice[id]
	if ch == nil {
		ch = make(chan struct{})
		k.notice[id] = ch
	}
	return ch
}

// startProc fetches the program and asks the launcher for the proc (architecture §5, point 3).
func (k *Kernel) startProc(ctx context.Context, p *schedd.Proc, l *procLogs) {
	err := k.tryStart(ctx, p, l)
	k.mu.Lock()
	k.fetching[p.ID]()
	delete(k.fetching, p.ID)
	k.mu.Unlock()
	if err != nil {
		l.out.End()
		l.err.End()
		k.metrics.failed.Add(1)
		k.step(schedd.NotLaunched{ID: p.ID, Err: err})
	}
}

func (k *Kernel) tryStart(ctx context.Context, p *schedd.Proc, l *procLogs) error {
	tree, err := k.tree(p.Realm)
	if err != nil {
		return err
	}
	program, release, err := k.bin.Open(ctx, p.Realm, tree, p.Descriptor.Program)
	if err != nil {
		return err
	}
	files, err := newProcFiles()
	if err != nil {
		release()
		return sigma.Wrap("kernel.startProc", "", err)
	}
	files.program = release
	defer files.closeTheirs()
	who := sigma.Principal{Realm: p.Realm, Proc: p.ID, Machine: k.cfg.Machine}
	started := make(chan struct{})
	id := k.register(nil)
	k.mu.Lock()
	k.children[id] = func(e launch.Event) { k.procEvent(p.ID, id, started, files, e) }
	k.mu.Unlock()
	req := launch.Request{ID: id, Weaken: k.weaken(p.Descriptor.Env), Profile: launch.ProfileSigma, GID: k.gid(p.Realm), PidsMax: pidsMax, Memory: p.Memory, CPUShares: cpuShares, NoFile: noFileMax,
		Group: string(p.Realm) + "/" + p.Class.String(), Args: append([]string{p.Name}, p.Descriptor.Args...), Program: program,
		Env:    append([]string{"SIGMA_PROC_ID=" + string(p.ID), "SIGMA_REALM=" + string(p.Realm), "SIGMA_MACHINE=" + string(k.cfg.Machine), "SIGMA_CLASS=" + p.Class.String()}, p.Descriptor.Env...),
		Passed: []launch.Passed{{File: files.outW, Target: 1}, {File: files.errW, Target: 2}, {File: files.system, Target: 3}}}
	k.step(schedd.LaunchAsked{ID: p.ID, Launch: id})
	if err := k.launch(ctx, req); err != nil {
		k.unregister(id)
		files.closeOurs()
		release()
		return err
	}
	k.sessions.Go(func() { k.serve(k.ctx, files.conn, who) })
	left := new(atomic.Int32)
	left.Store(2)
	keep := func(l *output.Log, r *os.File) { // ends with the proc, which may outlive Run
		l.Copy(r)
		r.Close()
		if left.Add(-1) == 0 {
			close(files.logged)
		}
	}
	go keep(l.out, files.outR)
	go keep(l.err, files.errR)
	files.closeTheirs()
	select {
	case <-started:
	case <-k.ctx.Done():
	}
	return nil
}

// procEvent turns what the launcher says into what schedd knows.
func (k *Kernel) procEvent(id sigma.ProcID, launchID uint64, started chan struct{}, files *procFiles, e launch.Event) {
	switch e := e.(type) {
	case launch.Started:
		k.metrics.started.Add(1)
		k.step(schedd.Launched{ID: id, Contained: wallTime(e.Contained), Executed: wallTime(e.Executed)})
		close(started)
		return
	case launch.Failed:
		k.metrics.failed.Add(1)
		k.step(schedd.NotLaunched{ID: id, Err: e.Err()})
		files.conn.Close()
		files.program()
		close(started)
	case launch.Exited:
		k.procGone(id, files, schedd.Gone{ID: id, Exit: e})
	case launch.Lost:
		k.procGone(id, files, schedd.LauncherDied{ID: id})
		select {
		case <-started:
		default:
			close(started)
		}
	}
	k.unregister(launchID)
}

// procGone ends what a proc had. Its end is told when its output is complete, which is not waited for here, where the launcher's other events wait.
func (k *Kernel) procGone(id sigma.ProcID, files *procFiles, e schedd.Event) {
	k.metrics.exited.Add(1)
	k.proxy.CloseProc(id)
	files.program()
	files.conn.Close() // a session that outlives its proc has nobody at the other end
	go func() {
		select {
		case <-files.logged: // so that who learns of the end can read all that was written
		case <-time.After(logLimit):
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.stepLocked(e)
		k.endedLocked(id)
	}()
}

// wallTime turns the launcher's CLOCK_MONOTONIC into a time.
func wallTime(mono time.Duration) time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Now()
	}
	return time.Now().Add(mono - time.Duration(ts.Nano()))
}

// procFiles are the two sides of what a proc is born with.
type procFiles struct {
	outW, errW, system *os.File // theirs; the launcher makes their stdin /dev/null
	outR, errR         *os.File // ours
	conn               session.Conn
	logged             chan struct{} // closed when the logs have all that was written
	program            func()        // lets go of the program, which stays in the cache as long as the proc runs it
}

func newProcFiles() (*procFiles, error) {
	f := procFiles{logged: make(chan struct{})}
	var err error
	if f.outR, f.outW, err = os.Pipe(); err == nil {
		f.errR, f.errW, err = os.Pipe()
	}
	var ours *os.File
	if err == nil {
		ours, f.system, err = session.FilePair(syscall.SOCK_SEQPACKET)
	}
	if err == nil {
		u, uerr := session.UnixConn(ours)
		if err = uerr; err == nil {
			f.conn = session.NewPacketConn(u, false)
			return &f, nil
		}
	}
	f.closeTheirs()
	f.closeOurs()
	return nil, err
}

func (f *procFiles) closeTheirs() {
	for _, x := range []*os.File{f.outW, f.errW, f.system} {
		if x != nil {
			x.Close()
		}
	}
}

func (f *procFiles) closeOurs() {
	for _, x := range []*os.File{f.outR, f.errR} {
		if x != nil {
			x.Close()
		}
	}
	if f.conn != nil {
		f.conn.Close()
	}
}

// gid is the realm's group: of the upper half of the range, below which are the uids that the launcher chooses.
func (k *Kernel) gid(realm sigma.RealmID) uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	g, ok := k.gids[realm]
	if !ok {
		g = k.cfg.UIDBase + k.cfg.UIDs/2 + uint32(len(k.gids))
		k.gids[realm] = g
	}
	return g
}

// machineMemory is what sysinfo(2) tells; sigmad has no /proc.
func machineMemory() (sigma.Bytes, error) {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0, os.NewSyscallError("sysinfo", err)
	}
	return sigma.Bytes(si.Totalram) * sigma.Bytes(si.Unit), nil
}

// waitProc waits until done says so of a realm's proc.
func (k *Kernel) waitProc(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, done func(*schedd.Proc) bool) (sigma.ProcInfo, error) {
	for {
		k.mu.Lock()
		p := k.core.Proc(realm, id)
		if p == nil {
			k.mu.Unlock()
			return sigma.ProcInfo{}, unknownProc(id)
		}
		if done(p) {
			defer k.mu.Unlock()
			return p.ProcInfo, nil
		}
		ch := k.wake[id]
		if ch == nil {
			ch = make(chan struct{})
			k.wake[id] = ch
		}
		k.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return sigma.ProcInfo{}, sigma.Wrap("kernel.waitProc", "", ctx.Err())
		}
	}
}

func unknownProc(id sigma.ProcID) error {
	return &sigma.Error{Op: "kernel", Kind: sigma.KindNotFound, Msg: "no proc " + string(id[:min(len(id), 64)]), Hint: "sigma ps -a lists the realm's procs"}
}

// weaken reads which protections a test wants off (launcher-protocol.md); 0 unless the machine was started for that.
func (k *Kernel) weaken(env []string) uint32 {
	if !k.cfg.AllowWeaken {
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
