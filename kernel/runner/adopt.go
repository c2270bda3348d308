package runner

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/proclog"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// procConn is our end of a proc's session. The launcher may have a copy of it, so closing it does
// not end the connection by itself.
type procConn struct {
	session.Conn
	u *net.UnixConn
}

// RecvBut implements session.Foreseer.
func (c *procConn) RecvBut(idle func()) ([]byte, []*os.File, error) {
	return session.RecvBut(c.Conn, idle)
}

// Close ends the connection.
func (c *procConn) Close() error {
	c.u.CloseRead()
	c.u.CloseWrite()
	return c.Conn.Close()
}

// keepAge is how long a proc runs before it is made to outlive sigmad: longer than short ones live,
// which so pay nothing for it.
const keepAge = 50 * time.Millisecond

// unkept are procs that do not outlive sigmad yet.
type unkept struct {
	mu    sync.Mutex
	procs []*child    // mu; oldest first; those that have ended too
	timer *time.Timer // mu; nil = not set
}

// keepLater has the proc kept when it is old enough.
func (x *Runner) keepLater(c *child) {
	c.began = time.Now()
	x.unkept.mu.Lock()
	defer x.unkept.mu.Unlock()
	x.unkept.procs = append(x.unkept.procs, c)
	if x.unkept.timer == nil {
		x.unkept.timer = time.AfterFunc(keepAge, x.keepGrown)
	}
}

func (x *Runner) keepGrown() {
	y := &x.unkept
	y.mu.Lock()
	limit, n := time.Now().Add(-keepAge), 0
	for n < len(y.procs) && !y.procs[n].began.After(limit) {
		n++
	}
	old := y.procs[:n:n]
	y.procs = y.procs[n:]
	if len(y.procs) > 0 {
		y.timer.Reset(y.procs[0].began.Sub(limit))
	} else {
		y.procs, y.timer = nil, nil
	}
	y.mu.Unlock()
	for _, c := range old {
		c.keep()
	}
}

// keep has the proc outlive this sigmad.
func (c *child) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.out.Lend(func(out int) {
		c.err.Lend(func(err int) {
			if c.conn == nil {
				c.x.Keep(c.who.Realm, c.who.Proc, out, err, c.ours)
				return
			}
			raw, rerr := c.conn.u.SyscallConn()
			if rerr == nil {
				raw.Control(func(fd uintptr) { c.x.Keep(c.who.Realm, c.who.Proc, out, err, int(fd)) })
			}
		})
	})
}

// Label is what this sigmad tells its successor of a proc.
type Label struct {
	Info sigma.ProcInfo
	gid  uint32
	said *sigma.Status
	home sigma.Life // of a guest
	view *view.Table
	kin  []sigma.ProcID
}

// Code encodes or decodes a label.
func (l *Label) Code(c *sigmap.Coder) {
	said := l.said != nil
	c.ProcInfo(&l.Info)
	c.U32(&l.gid)
	if c.Bool(&said); said {
		if l.said == nil {
			l.said = new(sigma.Status)
		}
		c.Status(l.said)
	}
	c.Str((*string)(&l.home.Machine))
	c.U64((*uint64)(&l.home.Incarnation))
	view.Code(c, &l.view)
	c.ProcIDs(&l.kin)
}

// Keep tells the launcher what a successor will know of a proc, and hands it what the successor
// needs: the ends of its output and of its session. Without them it only renews the label. If it
// fails the proc dies with sigmad.
func (x *Runner) Keep(realm sigma.RealmID, id sigma.ProcID, fds ...int) {
	gid := x.groups.of(realm)
	x.keeping.Lock()
	defer x.keeping.Unlock()
	p, known := x.cfg.Procs.Proc(realm, id)
	l := x.cfg.Launcher.Now()
	if !known || p.State != sigma.ProcRunning || l == nil {
		return
	}
	what, launched := Label{p.ProcInfo, gid, p.Said(), p.Home, p.View, p.Kin}, p.Launch
	for i := range fds {
		if fds[i] < 0 { // what it prints there is complete
			fds[i] = x.ended
		}
	}
	b, err := sigmap.Payload(what.Code)
	if err == nil && len(b) > launch.LabelMax && what.said != nil {
		short := *what.said
		short.Data, what.said = nil, &short
		b, err = sigmap.Payload(what.Code)
	}
	if err == nil {
		if err = l.Keep(launched, b, fds...); err == nil && len(fds) > 0 {
			x.Timings.Kept.Add(1)
		}
	}
	if err != nil && sigma.KindOf(err) != sigma.KindLost {
		x.cfg.Log.Debug("a proc would not outlive sigmad", "proc", id, "err", err)
	}
}

// atEnd makes a pipe that has ended.
func atEnd() (int, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, os.NewSyscallError("pipe2", err)
	}
	unix.Close(p[1])
	return p[0], nil
}

// Adopt takes over a proc that a sigmad before this one had started: it is known again, memory is
// charged, its session begins anew and its output is stored on. It reports whether the proc is one
// that anybody can find.
func (x *Runner) Adopt(e launch.Adopted) bool {
	var what Label
	err := sigmap.Parse(e.Label, what.Code)
	if n := len(e.FDs); err == nil && n != 0 && n != 3 {
		err = sigma.Errorf("kernel.adopt", sigma.KindInvalid, "%d descriptors", n)
	}
	if err != nil { // a bug of one of the two sigmads
		x.cfg.Log.Error("a proc of a former sigmad is not understood", "launch", e.ID, "err", err)
		for _, fd := range e.FDs {
			unix.Close(fd)
		}
		return false
	}
	realm, id := what.Info.Realm, what.Info.ID
	if len(e.FDs) == 0 && x.cfg.Past.Has(id) { // more is known than that it ended
		x.cfg.Past.EndsAgain(id)
		return true
	}
	c := &child{x: x, launch: e.ID, release: func() {}, who: sigma.Principal{Realm: realm, Proc: id,
		Machine: x.cfg.Machine}, view: what.view, kin: what.kin, outW: -1, errW: -1, ours: -1, theirs: -1}
	var out, errs int
	if len(e.FDs) > 0 {
		out, errs, c.ours = e.FDs[0], e.FDs[1], e.FDs[2]
	} else { // its end comes next
		out, _ = atEnd()
		errs, _ = atEnd()
	}
	x.groups.take(realm, what.gid)
	x.cfg.Launcher.RegisterAs(e.ID, c.event)
	x.cfg.Procs.Step(schedd.Adopted{Info: what.Info, Launch: e.ID, Said: what.said, View: what.view, Kin: what.kin,
		Home: what.home})
	l, _ := x.cfg.Procs.Logs(realm, id)
	for _, log := range []*proclog.Log{l.Out, l.Err} {
		if err := log.Resume(); err != nil {
			x.cfg.Log.Warn("what a proc printed before is lost", "proc", id, "err", err)
		}
	}
	c.out, c.err = x.outputs.Adopt(l.Out, out), x.outputs.Adopt(l.Err, errs)
	x.outputs.Begin(c.out, c.err)
	if c.ours >= 0 {
		c.mu.Lock()
		c.serveLocked(true)
		c.mu.Unlock()
		x.Timings.Kept.Add(1)
	}
	return true
}

// Freeze stops a proc that is here, or lets it go on.
func (x *Runner) Freeze(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, on bool) error {
	const op = "kernel.freeze"
	p, ok := x.cfg.Procs.Proc(realm, id)
	if !ok {
		return procs.Unknown(id)
	}
	state, launched, l := p.State, p.Launch, x.cfg.Launcher.Now()
	switch {
	case state != sigma.ProcRunning && !on:
		return nil // it is not frozen
	case state == sigma.ProcEnded:
		return &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: fmt.Sprintf("proc %s has ended", id),
			Hint: "sigma ps lists the procs that run"}
	case state != sigma.ProcRunning:
		return &sigma.Error{Op: op, Kind: sigma.KindBusy, Msg: fmt.Sprintf("proc %s has not started", id),
			Hint: "try again when it runs"}
	case l == nil:
		return sigma.Errorf(op, sigma.KindUnavailable, "the launcher is being restarted")
	}
	no, err := x.cfg.Launcher.Freeze(ctx, l, launched, on, func() {
		x.cfg.Procs.Step(schedd.Froze{ID: id, On: on})
		x.Keep(realm, id)
	})
	switch {
	case err != nil:
		return err
	case no == syscall.ESRCH:
		return sigma.Errorf(op, sigma.KindInvalid, "proc %s has ended, or ends just now", id)
	case no != 0:
		return &sigma.Error{Op: op, Kind: sigma.KindOther, Msg: fmt.Sprintf("proc %s cannot be frozen or thawed", id),
			Hint: "run sigma doctor on the machine", Err: no}
	}
	return nil
}

// Usage is zero for a proc that is not known any more: who asks about many cannot help that.
func (x *Runner) Usage(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (sigma.Usage, error) {
	var u sigma.Usage
	var launched uint64
	known, running := false, false
	x.cfg.Procs.With(func(v procs.View) {
		p := v.Proc(realm, id)
		if known = p != nil; !known {
			return
		}
		u, launched, running = p.Usage, p.Launch, p.State == sigma.ProcRunning
		if !p.Away() {
			u.Output = v.Output(id)
		}
		if running {
			u.Traffic = x.cfg.Traffic.Look(time.Now(), id)
		}
	})
	if !known || !running {
		return u, nil
	}
	l := x.cfg.Launcher.Now()
	if l == nil { // it died, and the proc with it
		return u, nil
	}
	m, err := x.cfg.Launcher.Meter(ctx, l, launched)
	if err != nil {
		return sigma.Usage{}, err
	}
	u.UserTime, u.SystemTime, u.Memory, u.MemoryPeak, u.Tasks = m.User, m.Sys, m.Memory, m.MemoryPeak, m.Tasks
	return u, nil
}
