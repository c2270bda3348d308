package cluster

import (
	"context"
	"time"

	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma/retry"
)

const (
	drainGrace = 30 * time.Second // that a proc is given to go when its machine is drained
	drainAgain = time.Second      // what was on its way here when the drain began is asked, too
	endsAgain  = 10 * time.Millisecond
)

// drain asks all procs that run here to go, as long as the machine is being drained. Nobody starts
// them elsewhere but who spawned them.
func (x *Cluster) drain() {
	if !x.own.drains.CompareAndSwap(false, true) {
		return
	}
	defer x.own.drains.Store(false)
	for said := false; draining(x.Members(), x.cfg.Self.Machine) && x.ctx.Err() == nil; said = true {
		if !said {
			x.cfg.Log.Info("the machine is drained", "machine", x.cfg.Self.Machine, "procs", x.cfg.Procs.Running())
		}
		x.cfg.Procs.Step(schedd.Drained{Grace: drainGrace,
			Why: "machine " + string(x.cfg.Self.Machine) + " is drained"})
		retry.Pause(x.ctx, drainAgain)
	}
}

// endLife ends what a life that is over has here, and returns when that is gone: it must not act
// on.
func (x *Cluster) endLife(ctx context.Context) error {
	x.own.setBetween(true)
	for {
		x.cfg.Procs.Step(schedd.Reborn{})
		if x.cfg.Procs.Running() == 0 {
			break
		}
		if !retry.Pause(ctx, endsAgain) {
			return ctx.Err()
		}
	}
	for _, m := range x.Members() { // sessions with other machines were made in that life
		if m.Machine != x.cfg.Self.Machine {
			x.node.Drop(m.Machine)
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
func (x *Cluster) present() context.Context {
	m := x.own
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.present
}
