package kernel

import (
	"context"
	"time"

	"sigmaos.dev/schedd"
)

const (
	drainGrace = 30 * time.Second // that a proc is given to go when its machine is drained
	drainAgain = time.Second      // what was on its way here when the drain began is asked, too
	endsAgain  = 10 * time.Millisecond
)

// drain asks all procs that run here to go, as long as the machine is being drained. Nobody starts
// them elsewhere but who spawned them.
func (k *Kernel) drain() {
	if !k.own.drains.CompareAndSwap(false, true) {
		return
	}
	defer k.own.drains.Store(false)
	for said := false; draining(k.members(), k.cfg.Machine) && k.ctx.Err() == nil; said = true {
		if !said {
			k.cfg.Log.Info("the machine is drained", "machine", k.cfg.Machine, "procs", k.procs.Running())
		}
		k.procs.Step(schedd.Drained{Grace: drainGrace, Why: "machine " + string(k.cfg.Machine) + " is drained"})
		sleep(k.ctx, drainAgain)
	}
}

// endLife ends what a life that is over has here, and returns when that is gone: it must not act
// on.
func (k *Kernel) endLife(ctx context.Context) error {
	k.own.setBetween(true)
	for {
		k.procs.Step(schedd.Reborn{})
		if k.procs.Running() == 0 {
			break
		}
		if sleep(ctx, endsAgain); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for _, m := range k.members() { // sessions with other machines were made in that life
		if m.Machine != k.cfg.Machine {
			k.node.Drop(m.Machine)
		}
	}
	return nil
}

// setBetween begins or ends the time between two lives.
func (m *membership) setBetween(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.between.Store(on)
	if on {
		m.end()
	} else if m.present.Err() != nil {
		m.present, m.end = context.WithCancel(context.Background())
	}
}

// present is a context that ends with this machine's present life.
func (k *Kernel) present() context.Context {
	m := k.own
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.present
}
