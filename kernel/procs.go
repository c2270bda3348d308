package kernel

import (
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

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
