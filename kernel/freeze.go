package kernel

import (
	"context"
	"fmt"
	"syscall"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// freeze stops a proc that is here, or lets it go on.
func (k *Kernel) freeze(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, on bool) error {
	const op = "kernel.freeze"
	p, ok := k.procs.Proc(realm, id)
	if !ok {
		return procs.Unknown(id)
	}
	state, launched, l := p.State, p.Launch, k.launcher.Now()
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
	no, err := k.launcher.Freeze(ctx, l, launched, on, func() {
		k.procs.Step(schedd.Froze{ID: id, On: on})
		k.keep(realm, id)
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
