package runner

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

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
