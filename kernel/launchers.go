package kernel

import (
	"context"
	"syscall"
	"time"

	"sigmaos.dev/launch"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// launchers works with one launcher after another until ctx ends or the keeper is gone. What one
// ran has died with it.
func (k *Kernel) launchers(ctx context.Context) error {
	stop := context.AfterFunc(ctx, k.keeper.Close)
	defer stop()
	for {
		l, err := k.keeper.Next()
		if err != nil {
			return err
		}
		var unknown []uint64
		inherited := 0
		err = l.Adopt(func(e launch.Event) {
			if a, ok := e.(launch.Adopted); !ok {
				k.launchEvent(e)
			} else if !k.adopt(a) {
				unknown = append(unknown, a.ID)
			} else {
				inherited++
			}
		})
		if err == nil {
			for _, id := range unknown {
				l.Kill(id)
			}
			k.recallTold()
			k.sweepLogs()
			k.shares.classes(l, k.cpu())
			k.mu.Lock()
			k.launcher = l
			k.launched = sigmap.Service{Name: serviceLauncher, State: "running", Since: l.Since(), Restarts: l.Before()}
			close(k.comes)
			k.mu.Unlock()
			k.sched.launches(true)
			k.adopted(inherited)
			err = l.Run(ctx, k.launchEvent)
		}
		k.mu.Lock()
		if k.launcher != nil {
			k.launcher, k.comes = nil, make(chan struct{})
			k.launched.State, k.launched.Since = "restarting", time.Now()
		}
		lost := k.children
		k.children = map[uint64]func(launch.Event){}
		for id := range k.awaited {
			k.answeredLocked(id)
		}
		k.mu.Unlock()
		k.sched.launches(false)
		for id, handle := range lost {
			if handle != nil { // else it is just being registered, and asked for later
				handle(launch.Lost{ID: id})
			}
		}
		if sigma.KindOf(err) != sigma.KindLost {
			return err
		}
		if ctx.Err() == nil {
			k.cfg.Log.Warn("the launcher died", "lost", len(lost))
			k.tellDaemon(state.EventDaemonEnded, serviceLauncher, "")
		}
	}
}

// startMax is how long the launcher may take to say whether something was started. It needs
// milliseconds, and some seconds when it is asked for thousands of procs at once.
const startMax = time.Minute

// launch asks the launcher for what is registered as r.ID, when there is one. Unless an error comes
// back, there will be an event: after Kernel.startMax it is launch.Failed.
func (k *Kernel) launch(ctx context.Context, r launch.Request) error {
	for {
		k.mu.Lock()
		l, comes, waited := k.launcher, k.comes, k.children[r.ID] != nil
		k.mu.Unlock()
		switch {
		case !waited: // its launcher died before it was asked
			return nil
		case l == nil:
			select {
			case <-comes:
			case <-ctx.Done():
				return &sigma.Error{Op: "kernel.launch", Kind: sigma.KindUnavailable, Msg: "there is no launcher",
					Err: ctx.Err()}
			}
		default:
			k.mu.Lock()
			k.awaited[r.ID] = time.AfterFunc(k.startMax, func() { k.giveUp(r.ID) })
			k.mu.Unlock()
			err := l.Start(r)
			if err != nil {
				k.mu.Lock()
				k.answeredLocked(r.ID)
				k.mu.Unlock()
			}
			if sigma.KindOf(err) == sigma.KindLost {
				// it died, and nothing was started: the event comes as soon as that is seen
				err = nil
			}
			return err
		}
	}
}

// answeredLocked notes that nobody waits any more for the launcher's word of a start.
func (k *Kernel) answeredLocked(id uint64) {
	if t := k.awaited[id]; t != nil {
		t.Stop()
		delete(k.awaited, id)
	}
}

// giveUp ends the wait for a start that the launcher does not answer. Should it start later, it is
// killed: the launcher takes requests in order.
func (k *Kernel) giveUp(id uint64) {
	k.mu.Lock()
	handle, waits := k.children[id], k.awaited[id] != nil
	if waits {
		delete(k.awaited, id)
		delete(k.children, id)
	}
	k.mu.Unlock()
	if waits && handle != nil {
		k.cfg.Log.Error("the launcher does not answer", "launch", id, "after", k.startMax.String())
		k.kill(id)
		handle(launch.Failed{ID: id, Step: "launcher", Errno: syscall.ETIMEDOUT})
	}
}

func (k *Kernel) kill(id uint64) {
	if l := k.living(); l != nil {
		l.Kill(id)
	}
}

func (k *Kernel) signal(id uint64, s syscall.Signal) {
	if l := k.living(); l != nil {
		l.Signal(id, s)
	}
}

func (k *Kernel) living() *launch.Launcher {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.launcher
}

// register takes the events of a launch; unregister ends that.
func (k *Kernel) register(handle func(launch.Event)) uint64 {
	id := k.nextLaunch.Add(1)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.children[id] = handle
	return id
}

func (k *Kernel) unregister(id uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answeredLocked(id)
	delete(k.children, id)
}

func (k *Kernel) launchEvent(e launch.Event) {
	if k.answered(e) {
		return
	}
	k.mu.Lock()
	handle := k.children[e.ProcID()]
	k.answeredLocked(e.ProcID())
	k.mu.Unlock()
	if handle != nil {
		handle(e)
	}
}
