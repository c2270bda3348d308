package kernel

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/output"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// Limits of each proc that its descriptor does not choose.
const (
	pidsMax    = 512
	noFileMax  = 4096
	fetchLimit = time.Minute // for a program's bytes to come
)

// step applies an event and carries out its effects.
func (k *Kernel) step(e schedd.Event) {
	k.mu.Lock()
	k.stepLocked(e)
	for _, s := range k.unlock() {
		k.sessions.Go(func() { k.startProc(s) })
	}
}

// unlock releases Kernel.mu and returns the procs to be started, which is the caller's task.
func (k *Kernel) unlock() []start {
	starts := k.starts
	k.starts = nil
	k.mu.Unlock()
	return starts
}

func (k *Kernel) stepLocked(e schedd.Event) {
	for _, f := range k.core.Step(time.Now(), e) {
		k.applyLocked(f)
	}
}

// applyLocked carries out one effect; nothing in it blocks. Procs that are to be started are noted
// in Kernel.starts.
func (k *Kernel) applyLocked(f schedd.Effect) {
	switch f := f.(type) {
	case schedd.Enqueue:
		if f.Proc.Class == sigma.LatencyCritical {
			k.reserved.enqueue(f.Proc)
			break
		}
		k.sched.enqueue(f.Proc)
	case schedd.Dequeue:
		if f.Class == sigma.LatencyCritical {
			k.reserved.cancel(f.ID)
			break
		}
		k.sched.cancel(f.Shard, f.ID)
	case schedd.Unreserved:
		k.reserved.release(f.ID)
	case schedd.Unfit:
		k.reserved.decline(f.ID)
	case schedd.Start:
		ctx, cancel := context.WithTimeout(k.ctx, fetchLimit)
		k.fetching[f.Proc.ID] = cancel
		k.starts = append(k.starts, start{ctx, *f.Proc, k.newLogsLocked(f.Proc.Realm, f.Proc.ID)})
	case schedd.Abandon:
		if cancel := k.fetching[f.ID]; cancel != nil {
			cancel()
		}
	case schedd.Kill:
		go func(id sigma.ProcID, launch uint64) {
			k.proxy.CloseListeners(id)
			k.kill(launch)
		}(f.Proc.ID, f.Proc.Launch)
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
		k.tellProcLocked(f.ID)
		if p := k.core.Find(f.ID); p != nil && p.Ended() {
			k.past.note(p.Realm, p.ID)
		}
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
		k.past.archive.Forget(f.ID)
		if l := k.logs[f.ID]; l != nil {
			delete(k.logs, f.ID)
			if l.out.InMemory() && l.err.InMemory() {
				l.remove()
			} else {
				go l.remove()
			}
		}
	case schedd.Timed:
		k.metrics.timed(&f.Timing)
	case schedd.Room:
		k.sched.room()
	case schedd.Decided:
		k.decisions.Note(f.Record)
	case schedd.Owed:
		k.owe(f.ID, f.Home)
	case schedd.Take:
		k.sessions.Go(func() { k.take(f.ID, f.Home) })
	case schedd.Decline:
		k.sessions.Go(func() { k.decline(f.ID, f.Home) })
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
	dir := k.logsDir()
	l := &procLogs{out: output.New(filepath.Join(dir, string(id)+".out"), b),
		err: output.New(filepath.Join(dir, string(id)+".err"), b)}
	l.both = output.Merge(l.out, l.err)
	k.logs[id] = l
	return l
}

// logsDir is where logs are that are not in memory.
func (k *Kernel) logsDir() string { return filepath.Join(k.cfg.Data, "logs") }

// sweepLogs removes the logs of procs that nobody remembers.
func (k *Kernel) sweepLogs() {
	files, err := os.ReadDir(k.logsDir())
	if err != nil && !os.IsNotExist(err) {
		k.cfg.Log.Warn("logs of former procs are not removed", "err", err)
	}
	for _, f := range files {
		id, _, _ := strings.Cut(f.Name(), ".")
		k.mu.Lock()
		known := k.logs[sigma.ProcID(id)] != nil || k.past.archive.Has(sigma.ProcID(id))
		k.mu.Unlock()
		if !known {
			os.Remove(filepath.Join(k.logsDir(), f.Name()))
		}
	}
}

func (k *Kernel) noticeLocked(id sigma.ProcID) chan struct{} {
	ch := k.notice[id]
	if ch == nil {
		ch = make(chan struct{})
		k.notice[id] = ch
	}
	return ch
}

// gid is the realm's group: of the upper half of the range, below which are the uids that the
// launcher chooses.
func (k *Kernel) gid(realm sigma.RealmID) uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	g, ok := k.gids[realm]
	if !ok {
		g = k.cfg.UIDBase + k.cfg.UIDs/2
		for _, taken := range k.gids { // those of adopted procs were given by another sigmad
			g = max(g, taken+1)
		}
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

// waitProc waits for a proc of a realm that is known here. It may become unknown meanwhile.
func (k *Kernel) waitProc(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, u until) (sigma.ProcInfo, error) {
	for {
		k.mu.Lock()
		p := k.core.Proc(realm, id)
		if p == nil {
			k.mu.Unlock()
			return sigma.ProcInfo{}, unknownProc(id)
		}
		if u.is(p) {
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
	return &sigma.Error{Op: "kernel", Kind: sigma.KindNotFound, Msg: "no proc " + string(id[:min(len(id), 64)]),
		Hint: "sigma ps -a lists the realm's procs"}
}

// weaken reads which protections a test wants off (launcher-protocol.md); 0 unless the machine was
// started for that.
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
