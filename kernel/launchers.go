package kernel

import (
	"context"
	"syscall"

	"sigmaos.dev/launch"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// launchers works with one launcher after another until ctx ends or the keeper is gone. What one ran has died with it.
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
			k.shares.classes(l, k.cpu())
			k.mu.Lock()
			k.launcher = l
			close(k.comes)
			k.mu.Unlock()
			k.sched.launches(true)
			k.adopted(inherited)
			err = l.Run(ctx, k.launchEvent)
		}
		k.mu.Lock()
		if k.launcher != nil {
			k.launcher, k.comes = nil, make(chan struct{})
		}
		lost := k.children
		k.children = map[uint64]func(launch.Event){}
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
			k.tellDaemon(state.EventDaemonEnded, "launcher", "")
		}
	}
}

// launch asks the launcher for what is registered as r.ID, when there is one. Unless an error comes back, there will be an event.
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
				return &sigma.Error{Op: "kernel.launch", Kind: sigma.KindUnavailable, Msg: "there is no launcher", Err: ctx.Err()}
			}
		default:
			err := l.Start(r)
			if sigma.KindOf(err) == sigma.KindLost { // it died, and nothing was started: the event comes as soon as that is seen
				err = nil
			}
			return err
		}
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
	delete(k.children, id)
}

func (k *Kernel) launchEvent(e launch.Event) {
	if k.answered(e) {
		return
	}
	k.mu.Lock()
	handle := k.children[e.ProcID()]
	k.mu.Unlock()
	if handle != nil {
		handle(e)
	}
}
