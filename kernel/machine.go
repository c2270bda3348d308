package kernel

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/link"
	"sigmaos.dev/machines"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// How a machine becomes a member and begins its lives. A machine that founds a system asks its own
// machined; one that joins shows a token to any machine; one that is a member is registered anew by
// its own machined or another's, with its key, when nothing of its former life runs. If something
// does (ADR 11), the life goes on.

const (
	// that a control machine asks the others before it starts its own part of the control plane
	registerElsewhere = 3 * time.Second
	// that one control machine may take to register this one while there are others to ask
	registerMost  = 5 * time.Second
	registerAgain = 100 * time.Millisecond
	registerLater = 2 * time.Second // between attempts when they have failed for long
)

// self is this machine in its present life. Its incarnation is 0 before it is registered, and
// between the end of a life and the next.
func (k *Kernel) self() identity.Subject {
	if !k.registered() || k.own.between.Load() {
		return identity.Subject{Machine: k.cfg.Machine}
	}
	return k.id.Self()
}

// registered says whether this machine has an identity. Only who has seen that, or Config.Ready,
// may use k.id and k.node.
func (k *Kernel) registered() bool {
	select {
	case <-k.enrolled:
		return true
	default:
		return false
	}
}

// become makes this machine a member, as far as that must come before its services are started. It
// returns whether it is one in a life that goes on; if not, there is still to be registered
// (enter).
func (k *Kernel) become(ctx context.Context) (alive bool, err error) {
	m := k.own
	member, err := m.keeper.load()
	if err != nil {
		return false, err
	}
	if !member {
		if k.cfg.Join == nil {
			return false, nil
		}
		return true, k.joinSystem(ctx)
	}
	os.Remove(filepath.Join(k.cfg.Data, joinFile)) // the machine has joined, only this was left to be done
	now := m.keeper.get()
	if err := k.begin(now.grant(), true); err != nil {
		return false, err
	}
	self := k.id.Self()
	if k.inherited > 0 && time.Now().Before(self.NotAfter) {
		k.cfg.Log.Info("the machine's life goes on", "machine", self.Machine, "incarnation", self.Incarnation, "procs",
			k.inherited)
		return true, nil
	}
	if k.inherited > 0 {
		k.cfg.Log.Warn("the machine's life has ended with its certificate", "machine", self.Machine, "incarnation",
			self.Incarnation)
		if err := k.endLife(ctx); err != nil {
			return false, err
		}
	}
	m.setBetween(true)
	k.sessions.Go(func() { k.tellWaits(ctx) }) // until the boot is over
	if k.local(serviceMachined) != nil {
		// if none of the others can, control machines need each other's links before anybody can be
		// registered
		others := len(now.Control) - len(k.unheard(ctx, now.Control)) - 1
		if others < k.majority(len(now.Control)) { // they cannot without this one
			return false, nil
		}
		within, cancel := context.WithTimeout(ctx, registerElsewhere)
		defer cancel()
		return k.tryRegister(within, false) == nil, nil
	}
	return true, k.registerAnew(ctx, true)
}

// joinSystem joins the system with a token. Its errors are the system's own words.
func (k *Kernel) joinSystem(ctx context.Context) error {
	const op = "kernel.join"
	j := k.cfg.Join
	token, err := identity.ParseToken(j.Token)
	if err != nil {
		return err
	}
	now := k.own.keeper.get()
	key, err := now.key()
	if err != nil {
		return err
	}
	var grant *identity.Grant
	for {
		grant, _, err = link.Enrol(ctx, link.Join{Address: j.Address, Token: &token, Key: key, Ask: k.enrolment(),
			Connect: k.cfg.Connect})
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindBusy &&
			kind != sigma.KindStale { // others are being registered just now, or an answer was lost
			break
		}
		select {
		case <-time.After(registerAgain):
		case <-ctx.Done():
			return err
		}
	}
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	if err := k.begin(grant, true); err != nil {
		return err
	}
	if err := k.own.keeper.change(func(x *kept) {
		x.Certificate, x.Authorities, x.Control, x.Joined = grant.Certificate, grant.Authorities, grant.Control, true
	}); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(k.cfg.Data, joinFile)); err != nil && !os.IsNotExist(err) {
		return sigma.Wrap(op, joinFile, err)
	}
	self := k.id.Self()
	k.cfg.Log.Info("the machine has joined", "machine", self.Machine, "system", self.System, "incarnation",
		self.Incarnation, "at", j.Address)
	return nil
}

// enter founds the system, or registers this control machine anew, when its services run.
func (k *Kernel) enter(ctx context.Context) error {
	if k.registered() {
		return k.registerAnew(ctx, true)
	}
	now := k.own.keeper.get()
	key, err := now.key()
	if err != nil {
		return err
	}
	var grant *identity.Grant
	for {
		err = k.withMachined(ctx, k.cfg.Machine, func(ctx context.Context, c *machines.Client) (err error) {
			grant, err = c.Found(ctx, k.enrolment(), key)
			return err
		})
		if err == nil {
			break
		}
		kind := sigma.KindOf(err)
		if kind == sigma.KindExists {
			return &sigma.Error{Op: "kernel.found", Kind: kind,
				Msg: "the data directory holds a system of several machines, and this machine's identity in it is lost",
				Err: err,
				Hint: "restore the file identity of sigmad's data directory from a backup, or let this machine join " +
					"again with a fresh data directory"}
		}
		if kind != sigma.KindUnavailable && kind != sigma.KindLost && kind != sigma.KindTimeout {
			return err
		}
		select {
		case <-time.After(registerAgain / 4):
		case <-ctx.Done():
			return err
		}
	}
	if err := k.begin(grant, false); err != nil {
		return err
	}
	self := k.id.Self()
	k.cfg.Log.Info("the system was founded", "machine", self.Machine, "system", self.System, "incarnation",
		self.Incarnation)
	return nil
}

// enrolment is what this machine says of itself.
func (k *Kernel) enrolment() identity.Enrolment {
	e := identity.Enrolment{Machine: k.cfg.Machine, Address: k.cfg.Address, CPU: k.cfg.CPU, Memory: k.cfg.Memory,
		Version: Version, Clock: time.Now()}
	for _, name := range slices.Sorted(maps.Keys(k.cfg.Labels)) {
		e.Labels = append(e.Labels, name+"="+k.cfg.Labels[name])
	}
	return e
}

// begin makes this machine's identity and its end of links of what was granted, and takes other
// machines' links from then on.
func (k *Kernel) begin(g *identity.Grant, known bool) error {
	now := k.own.keeper.get()
	key, err := now.key()
	if err != nil {
		return err
	}
	id, err := identity.New(identity.Config{Key: key, Certificate: g.Certificate, Authorities: g.Authorities,
		Roster: g.Roster()})
	if err != nil {
		return err
	}
	if self := id.Self(); self.Machine != k.cfg.Machine {
		return &sigma.Error{Op: "kernel.begin", Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf("the data directory is that of machine %s, and this machine is to be %s", self.Machine,
				k.cfg.Machine), Hint: "give it its name: --machine " + string(self.Machine)}
	}
	if !known {
		if err := k.keepGrant(g); err != nil {
			return err
		}
	}
	cfg := link.Config{Identity: id, Serve: k.serveLink, Authorise: k.authorise, Reserve: k.reserve, Batch: k.takeBatch,
		Enrol: enroller{k}, Connect: k.cfg.Connect, ConnectAll: k.cfg.ConnectAll, Log: k.cfg.Log}
	if k.cfg.Encrypt {
		cfg.Reserve = nil
	}
	node, err := link.New(cfg)
	if err != nil {
		return err
	}
	k.id, k.node = id, node
	close(k.enrolled)
	k.sessions.Go(func() { node.Watch(k.ctx) })
	k.sessions.Go(func() { k.watchConnections(k.ctx) })
	if k.cfg.Listener != nil {
		k.sessions.Go(func() {
			if err := node.Listen(k.ctx, k.cfg.Listener); err != nil {
				k.cfg.Log.Error("other machines cannot connect any more", "err", err)
			}
		})
	}
	return nil
}

func (k *Kernel) keepGrant(g *identity.Grant) error {
	return k.own.keeper.change(func(x *kept) {
		x.Certificate, x.Authorities = g.Certificate, g.Authorities
		if len(g.Control) > 0 {
			x.Control = g.Control
		}
	})
}

// registerAnew begins a new life. Nothing of the one before may run. It asks the machined of this
// machine and those of the control machines, again and again until ctx ends; this machine's last
// unless it boots, since a machine that was declared lost does not decide.
func (k *Kernel) registerAnew(ctx context.Context, boot bool) error {
	var said error
	for wait := registerAgain; ; wait = min(2*wait, registerLater) {
		err := k.tryRegister(ctx, boot)
		if err == nil {
			return nil
		}
		if boot && k.local(serviceMachined) == nil && forGood(err) { // it does not become better by itself
			return err
		}
		if said == nil || said.Error() != err.Error() {
			k.cfg.Log.Warn("the machine is not registered", "machine", k.cfg.Machine, "err", err)
		}
		said = err
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return said
		}
	}
}

// tryRegister begins a new life if a machined can be asked now.
func (k *Kernel) tryRegister(ctx context.Context, boot bool) error {
	grant, err := k.registerOnce(ctx, boot)
	k.noteRefusal(err)
	if err == nil {
		err = k.id.Install(grant.Certificate)
	}
	if err == nil {
		err = k.keepGrant(grant)
	}
	if err != nil {
		return err
	}
	k.own.setBetween(false)
	k.own.move()
	k.own.following.Lock() // for a roster that comes just now may cordon it
	k.placing.Close(k.cordoned())
	k.own.following.Unlock()
	self := k.id.Self()
	k.cfg.Log.Info("the machine is registered", "machine", self.Machine, "incarnation", self.Incarnation)
	return nil
}

// registerOnce asks each control machine once. The error is that of the one that knows best: who
// refuses knows more than who does not answer.
func (k *Kernel) registerOnce(ctx context.Context, boot bool) (*identity.Grant, error) {
	now := k.own.keeper.get()
	key, err := now.key()
	if err != nil {
		return nil, err
	}
	var refused, failed error
	note := func(err error) {
		if kind := sigma.KindOf(err); kind == sigma.KindUnavailable || kind == sigma.KindTimeout ||
			kind == sigma.KindLost {
			failed = err
		} else {
			refused = err
		}
	}
	here := func() *identity.Grant {
		var grant *identity.Grant
		if k.local(serviceMachined) != nil {
			if err := k.withMachined(ctx, k.cfg.Machine, func(ctx context.Context, c *machines.Client) (err error) {
				grant, err = k.enrolAt(ctx, c, key)
				return err
			}); err != nil {
				note(err)
				return nil
			}
		}
		return grant
	}
	if boot {
		if grant := here(); grant != nil {
			return grant, nil
		}
	}
	silent := map[sigma.MachineID]bool{}
	if boot && len(now.Control) > 1 { // they would take seconds each, for which who boots waits
		for _, m := range k.unheard(ctx, now.Control) {
			silent[m.Machine] = true
			note(sigma.Errorf("kernel.register", sigma.KindUnavailable, "control machine %s does not answer at %s",
				m.Machine, m.Address))
		}
	}
	for _, m := range now.Control {
		if m.Machine == k.cfg.Machine || m.Address == "" || silent[m.Machine] || ctx.Err() != nil {
			continue
		}
		within, cancel := context.WithTimeout(ctx, registerMost)
		grant, _, err := link.Enrol(within, link.Join{Address: m.Address, Authority: authorityOf(&now), Key: key,
			Ask: k.enrolment(), Connect: k.cfg.Connect})
		cancel()
		if err == nil {
			return grant, nil
		}
		note(err)
	}
	if !boot {
		if grant := here(); grant != nil {
			return grant, nil
		}
	}
	switch {
	case refused != nil:
		return nil, refused
	case failed != nil:
		return nil, failed
	}
	return nil, sigma.Errorf("kernel.register", sigma.KindUnavailable, "no control machine is known")
}

// enrolAt registers this machine with a machined that it can call.
func (k *Kernel) enrolAt(ctx context.Context, c link.Enroller, key ed25519.PrivateKey) (*identity.Grant, error) {
	e := k.enrolment()
	var err error
	if e.Challenge, err = c.Challenge(ctx); err != nil {
		return nil, err
	}
	e.System = k.id.Self().System
	if err := e.Sign(key, nil); err != nil {
		return nil, err
	}
	return c.Enrol(ctx, &e)
}

// withMachined calls the machined of one machine.
func (k *Kernel) withMachined(ctx context.Context, m sigma.MachineID,
	f func(context.Context, *machines.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, registerMost)
	defer cancel()
	s, err := k.dialAt(ctx, m, serviceMachined)
	if err != nil {
		return err
	}
	defer s.Close()
	c, err := machinedOf(ctx, s)
	if err != nil {
		return err
	}
	return f(ctx, c)
}

func machinedOf(ctx context.Context, s *session.Client) (*machines.Client, error) {
	root, err := s.Attach(ctx, "")
	if err != nil {
		return nil, err
	}
	c, ok := root.(sigma.Caller)
	if !ok {
		return nil, sigma.Errorf("kernel.machined", sigma.KindUnsupported, "machined answers no calls")
	}
	return machines.NewClient(c), nil
}

// judge asks the machined that decides, wherever it is. f is called again if another decides
// meanwhile.
func (k *Kernel) judge(ctx context.Context, f func(context.Context, *machines.Client) error) error {
	s, err := k.reach(ctx, serviceMachined, func(ctx context.Context, s *session.Client) error {
		c, err := machinedOf(ctx, s)
		if err != nil {
			return err
		}
		return f(ctx, c)
	})
	if err == nil {
		s.Close()
	}
	return err
}

// enroller takes machines in for the machined that decides.
type enroller struct{ k *Kernel }

// booting is an error while this control machine has not begun its own life. If others boot too,
// and ask it before they start their part of the control plane, each would wait for the others; and
// links with it are made anew when its life begins.
func (e enroller) booting() error {
	if e.k.local(serviceMachined) == nil || e.k.own.started.Load() && !e.k.own.between.Load() {
		return nil
	}
	return sigma.Errorf("kernel.enrol", sigma.KindUnavailable, "control machine %s is booting itself", e.k.cfg.Machine)
}

// Challenge implements link.Enroller.
func (e enroller) Challenge(ctx context.Context) (ch identity.Challenge, err error) {
	if err := e.booting(); err != nil {
		return ch, err
	}
	err = e.k.judge(ctx, func(ctx context.Context, c *machines.Client) (err error) {
		ch, err = c.Challenge(ctx)
		return err
	})
	return ch, err
}

// Enrol implements link.Enroller.
func (e enroller) Enrol(ctx context.Context, q *identity.Enrolment) (g *identity.Grant, err error) {
	err = e.k.judge(ctx, func(ctx context.Context, c *machines.Client) (err error) {
		g, err = c.Enrol(ctx, q)
		return err
	})
	return g, err
}
