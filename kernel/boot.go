package kernel

import (
	"context"
	"crypto/ed25519"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// booting is what is done once, when sigmad starts.
type booting struct{ *Kernel }

// boot makes this machine a member, starts the services, makes what must exist, and opens the admin
// sockets.
func (k booting) boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, services.BootMax)
	defer cancel()
	select {
	case <-k.life.known:
		// what runs here decides whether a life goes on, and no launch must have the number of one
		// that is adopted
	case <-ctx.Done():
		return sigma.Errorf("kernel.boot", sigma.KindUnavailable, "there is no launcher")
	}
	alive, given := true, k.cluster.Registered() // the latter by a test
	if !given {
		var err error
		if alive, err = k.cluster.Become(ctx, k.life.inherited); err != nil {
			return err
		}
	}
	if alive && !given && k.cluster.Registered() {
		k.life.Go(func() { k.cluster.Live(k.life.ctx) })
	}
	if err := k.startServices(ctx); err != nil {
		return err
	}
	if !alive && k.services.Local(services.Machined) != nil {
		if err := k.cluster.Enter(ctx); err != nil {
			return err
		}
		k.life.Go(func() { k.cluster.Live(k.life.ctx) })
	}
	if k.services.Local(services.Named) != nil && !k.cluster.Kept().Joined { // it founded the system
		err := k.realms.For(nil).Create(ctx, sigma.DefaultRealm)
		if err != nil && sigma.KindOf(err) != sigma.KindExists {
			return err
		}
	}
	k.past.Recall(ctx)
	return k.listenAdmin()
}

// startServices starts the boot set and waits until it serves.
func (k booting) startServices(ctx context.Context) error {
	if err := k.joinNames(ctx); err != nil {
		return err
	}
	k.cluster.Starts(true)
	for _, s := range k.services.List() {
		k.life.Go(func() { s.Supervise(k.life.ctx) })
	}
	if k.cluster.Registered() && k.services.Local(services.Machined) != nil &&
		time.Now().After(k.cluster.Identity().Self().NotAfter) {
		k.life.Go(func() { k.certify(ctx) })
	}
	for _, s := range k.services.List() {
		if err := s.WaitReady(ctx); err != nil {
			return sigma.Errorf("kernel.boot", sigma.KindUnavailable, "%s did not come up: %v", s.Name, err)
		}
	}
	return k.takeControl(ctx)
}

// certify has this control machine's own machined certify it, when its certificate has expired and
// nobody could be asked for another: the control machines may need links with each other before any
// of them can be registered.
func (k booting) certify(ctx context.Context) {
	err := reach.Until(ctx, func() error {
		return k.cluster.WithMachined(ctx, k.cfg.Machine, func(ctx context.Context, c *machines.Client) error {
			now := k.cluster.Kept()
			key, err := now.PrivateKey()
			if err != nil {
				return err
			}
			der, err := c.Certify(ctx, k.cluster.Identity().Self(), key.Public().(ed25519.PublicKey))
			if err != nil {
				return err
			}
			return k.cluster.Identity().Install(der)
		})
	})
	if err != nil {
		k.cfg.Log.Warn("this control machine's certificate has expired, and its machined makes no other", "err", err)
		return
	}
	k.cfg.Log.Info("this control machine's certificate had expired; its machined made another", "machine",
		k.cfg.Machine)
}

// joinNames makes this machine's named a member of the store of names, if it joined as a control
// machine; what comes of that is an argument of named at each start.
func (k booting) joinNames(ctx context.Context) error {
	s := k.services.Local(services.Named)
	now := k.cluster.Kept()
	if s == nil || !now.Joined {
		return nil
	}
	if now.Names == "" {
		var text string
		err := reach.Until(ctx, func() error {
			c, _, err := k.reach.FindElsewhere(ctx, services.Named, func(ctx context.Context,
				c *session.Client) (err error) {
				text, err = memberAdd(ctx, c, k.cfg.Machine)
				return err
			})
			if err == nil {
				c.Close()
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := k.cluster.Keep(func(x *cluster.Kept) { x.Names = text }); err != nil {
			return err
		}
		now.Names = text
	}
	if strings.HasPrefix(now.Names, sigmap.EtcdPrefix) {
		return k.outside.ToldEtcd(now.Names)
	}
	s.Args = []string{"--initial", now.Names}
	return nil
}

func memberAdd(ctx context.Context, c *session.Client, m sigma.MachineID) (text string, err error) {
	root, err := cluster.Callee(ctx, c, services.Named)
	if err != nil {
		return "", err
	}
	return sigmap.CallMemberAdd.Ask(ctx, root, m)
}

// takeControl has a machine that joined as one count as a control machine, now that its part of the
// store of names is there. It does so once: a machine from which an operator has taken control
// stays an ordinary one.
func (k booting) takeControl(ctx context.Context) error {
	now := k.cluster.Kept()
	if !now.Joined || k.services.Local(services.Machined) == nil {
		return nil
	}
	if slices.ContainsFunc(now.Control, func(m identity.Member) bool { return m.Machine == k.cfg.Machine }) {
		return k.noteRuled(now)
	}
	if now.Ruled {
		k.cfg.Log.Warn(
			"this machine was a control machine until an operator decided otherwise (sigma machine control); to make "+
				"it one again, remove it and let it join anew", "machine", k.cfg.Machine)
		return nil
	}
	err := reach.Until(ctx, func() error {
		return k.cluster.Judge(ctx, func(ctx context.Context, c *machines.Client) error {
			return c.Control(ctx, k.cfg.Machine, true)
		})
	})
	for err == nil { // this machine counts as an observer now, so it must know that it is one
		changed := k.cluster.Identity().Roster().Changed()
		if m, ok := k.cluster.Identity().Roster().Member(k.cfg.Machine); ok && m.Control {
			return k.noteRuled(now)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err = sigma.Errorf("kernel.boot", sigma.KindUnavailable,
				"the machines have not heard that this one is a control machine")
		}
	}
	return err
}

func (k booting) noteRuled(now cluster.Kept) error {
	if now.Ruled {
		return nil
	}
	return k.cluster.Keep(func(x *cluster.Kept) { x.Ruled = true })
}
