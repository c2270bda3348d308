package reach

import (
	"context"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// At is another machine's sigmad, to be called.
func (x *Reach) At(m sigma.MachineID) sigma.Caller {
	return sigmap.Via(func(ctx context.Context, method string, payload []byte) ([]byte, error) {
		c, err := x.Peer(ctx, m)
		if err != nil {
			return nil, err
		}
		reply, files, err := c.Call(ctx, method, payload, nil)
		session.CloseFiles(files)
		return reply, err
	})
}

// Insist is At that makes a call again and again until there is an answer, the life is over, or its
// context ends.
func (x *Reach) Insist(to sigma.Life) sigma.Caller {
	at := x.At(to.Machine)
	return sigmap.Via(func(ctx context.Context, method string, payload []byte) ([]byte, error) {
		for wait := RetryMin; ; wait = min(2*wait, RetryMax) {
			within, cancel := context.WithTimeout(ctx, CallMax)
			reply, _, err := at.Call(within, method, payload, nil)
			cancel()
			if err == nil || x.Over(to) || ctx.Err() != nil {
				return reply, err
			}
			x.cfg.Log.Debug("another machine does not answer", "machine", to.Machine, "method", method, "err", err)
			if !retry.Pause(ctx, wait) {
				return nil, err
			}
		}
	})
}

// Times of calls of other machines' sigmads.
const (
	// AnswerMax is longer than the loss of a machine takes to be known.
	AnswerMax = 3 * time.Second
	// CallMax is for what another machine answers at once; its loss is known long before.
	CallMax  = 10 * time.Second
	RetryMin = 20 * time.Millisecond  // between attempts; doubled up to RetryMax
	RetryMax = 500 * time.Millisecond // between attempts
)

// Over says whether a life of a machine is over, as far as is known here.
func (x *Reach) Over(l sigma.Life) bool {
	over := false
	x.cfg.Procs.With(func(v procs.View) { over = v.Over(l) })
	return over
}

// AskService calls the root of a service, of the one that decides or leads, and waits a while if
// there is none now. KindUnavailable means that nothing was done.
func (x *Reach) AskService(ctx context.Context, service, method string, payload []byte) (reply []byte, err error) {
	var lost error // it may have been done, so it is not asked again
	s, err := x.Find(ctx, service, func(ctx context.Context, c *session.Client) error {
		root, err := cluster.Callee(ctx, c, service)
		if err != nil {
			return err
		}
		if reply, _, err = root.Call(ctx, method, payload, nil); sigma.KindOf(err) == sigma.KindLost {
			lost, err = err, nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.Close()
	return reply, lost
}

// Until does something again while nobody answers.
func Until(ctx context.Context, do func() error) error {
	for {
		err := do()
		switch sigma.KindOf(err) {
		case sigma.KindUnavailable, sigma.KindLost, sigma.KindTimeout, sigma.KindBusy:
			if err == nil {
				return nil
			}
		default:
			return err
		}
		if !retry.Pause(ctx, services.RestartMin) {
			return err
		}
	}
}

// FindElsewhere is reach without this machine's own service, which does not run yet.
func (x *Reach) FindElsewhere(ctx context.Context, name string,
	use func(context.Context, *session.Client) error) (*session.Client, sigma.MachineID, error) {
	err := error(sigma.Errorf("kernel.boot", sigma.KindUnavailable, "no control machine answers for %s", name))
	for _, m := range alive(x.cfg.Cluster.Identity().Roster().Members()) {
		if !m.Control || m.Machine == x.cfg.Machine {
			continue
		}
		c, derr := x.reachAt(ctx, m.Machine, name, true)
		if derr == nil {
			if derr = use(ctx, c); derr == nil {
				return c, m.Machine, nil
			}
			c.Close()
		}
		err = derr
	}
	return nil, "", err
}

// Root is the root of a service, to be called: the service is found anew for each call, which is
// made once.
func (x *Reach) Root(service string) sigma.Caller {
	return sigmap.Via(func(ctx context.Context, method string, payload []byte) ([]byte, error) {
		var root sigma.Caller
		s, err := x.Find(ctx, service, func(ctx context.Context, s *session.Client) (err error) {
			root, err = cluster.Callee(ctx, s, service)
			return err
		})
		if err != nil {
			return nil, err
		}
		defer s.Close()
		reply, files, err := root.Call(ctx, method, payload, nil)
		session.CloseFiles(files)
		return reply, err
	})
}

// Realms asks named which realms there are.
func (x *Reach) Realms(ctx context.Context) ([]sigma.RealmInfo, error) {
	return sigmap.ListRealms(ctx, x.Root(services.Named))
}
