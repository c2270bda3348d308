package cluster

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/session"
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

// Self is this machine in its present life. Its incarnation is 0 before it is registered, and
// between the end of a life and the next.
func (x *Cluster) Self() identity.Subject {
	if !x.Registered() || x.own.between.Load() {
		return identity.Subject{Machine: x.cfg.Self.Machine}
	}
	return x.id.Self()
}

// Registered says whether this machine has an identity. Only who has seen that, or Config.Ready,
// may use x.id and x.node.
func (x *Cluster) Registered() bool {
	select {
	case <-x.enrolled:
		return true
	default:
		return false
	}
}

// Become makes this machine a member, as far as that must come before its services are started. It
// returns whether it is one in a life that goes on; if not, there is still to be registered
// (enter).
// inherited is how many procs run here since before this sigmad.
func (x *Cluster) Become(ctx context.Context, inherited int) (alive bool, err error) {
	m := x.own
	member, err := m.keeper.load()
	if err != nil {
		return false, err
	}
	if !member {
		if x.cfg.Join == nil {
			return false, nil
		}
		return true, x.joinSystem(ctx)
	}
	os.Remove(filepath.Join(x.cfg.Data, JoinFile)) // the machine has joined, only this was left to be done
	now := m.keeper.get()
	if err := x.begin(now.grant(), true); err != nil {
		return false, err
	}
	self := x.id.Self()
	if inherited > 0 && time.Now().Before(self.NotAfter) {
		x.cfg.Log.Info("the machine's life goes on", "machine", self.Machine, "incarnation", self.Incarnation, "procs",
			inherited)
		return true, nil
	}
	if inherited > 0 {
		x.cfg.Log.Warn("the machine's life has ended with its certificate", "machine", self.Machine, "incarnation",
			self.Incarnation)
		if err := x.endLife(ctx); err != nil {
			return false, err
		}
	}
	m.setBetween(true)
	x.cfg.Go(func() { x.tellWaits(ctx) }) // until the boot is over
	if x.cfg.Runs(Machined) {
		// if none of the others can, control machines need each other's links before anybody can be
		// registered
		others := len(now.Control) - len(x.unheard(ctx, now.Control)) - 1
		if others < x.majority(len(now.Control)) { // they cannot without this one
			return false, nil
		}
		within, cancel := context.WithTimeout(ctx, registerElsewhere)
		defer cancel()
		return x.tryRegister(within, false) == nil, nil
	}
	return true, x.registerAnew(ctx, true)
}

// joinSystem joins the system with a token. Its errors are the system's own words.
func (x *Cluster) joinSystem(ctx context.Context) error {
	const op = "kernel.join"
	j := x.cfg.Join
	token, err := identity.ParseToken(j.Token)
	if err != nil {
		return err
	}
	now := x.own.keeper.get()
	key, err := now.PrivateKey()
	if err != nil {
		return err
	}
	var grant *identity.Grant
	for {
		grant, _, err = link.Enrol(ctx, link.Join{Address: j.Address, Token: &token, Key: key, Ask: x.Enrolment(),
			Connect: x.cfg.Links.Connect})
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindBusy &&
			kind != sigma.KindStale { // others are being registered just now, or an answer was lost
			break
		}
		if !retry.Pause(ctx, registerAgain) {
			return err
		}
	}
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	if err := x.begin(grant, true); err != nil {
		return err
	}
	if err := x.own.keeper.change(func(x *Kept) {
		x.Certificate, x.Authorities, x.Control, x.Joined = grant.Certificate, grant.Authorities, grant.Control, true
	}); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(x.cfg.Data, JoinFile)); err != nil && !os.IsNotExist(err) {
		return sigma.Wrap(op, JoinFile, err)
	}
	self := x.id.Self()
	x.cfg.Log.Info("the machine has joined", "machine", self.Machine, "system", self.System, "incarnation",
		self.Incarnation, "at", j.Address)
	return nil
}

// Enter founds the system, or registers this control machine anew, when its services run.
func (x *Cluster) Enter(ctx context.Context) error {
	if x.Registered() {
		return x.registerAnew(ctx, true)
	}
	now := x.own.keeper.get()
	key, err := now.PrivateKey()
	if err != nil {
		return err
	}
	var grant *identity.Grant
	for {
		err = x.WithMachined(ctx, x.cfg.Self.Machine, func(ctx context.Context, c *machines.Client) (err error) {
			grant, err = c.Found(ctx, x.Enrolment(), key)
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
		if !retry.Pause(ctx, registerAgain/4) {
			return err
		}
	}
	if err := x.begin(grant, false); err != nil {
		return err
	}
	self := x.id.Self()
	x.cfg.Log.Info("the system was founded", "machine", self.Machine, "system", self.System, "incarnation",
		self.Incarnation)
	return nil
}

// Enrolment is what this machine says of itself.
func (x *Cluster) Enrolment() identity.Enrolment {
	e := x.cfg.Self
	e.Clock = time.Now()
	return e
}

// begin makes this machine's identity and its end of links of what was granted, and takes other
// machines' links from then on.
func (x *Cluster) begin(g *identity.Grant, known bool) error {
	now := x.own.keeper.get()
	key, err := now.PrivateKey()
	if err != nil {
		return err
	}
	id, err := identity.New(identity.Config{Key: key, Certificate: g.Certificate, Authorities: g.Authorities,
		Roster: g.Roster()})
	if err != nil {
		return err
	}
	if self := id.Self(); self.Machine != x.cfg.Self.Machine {
		return &sigma.Error{Op: "kernel.begin", Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf("the data directory is that of machine %s, and this machine is to be %s", self.Machine,
				x.cfg.Self.Machine), Hint: "give it its name: --machine " + string(self.Machine)}
	}
	if !known {
		if err := x.keepGrant(g); err != nil {
			return err
		}
	}
	cfg := x.cfg.Links
	cfg.Identity, cfg.Enrol = id, enroller{x}
	node, err := link.New(cfg)
	if err != nil {
		return err
	}
	x.Enrol(id, node)
	x.cfg.Go(func() { node.Watch(x.ctx) })
	x.cfg.Enrolled()
	if x.cfg.Listener != nil {
		x.cfg.Go(func() {
			if err := node.Listen(x.ctx, x.cfg.Listener); err != nil {
				x.cfg.Log.Error("other machines cannot connect any more", "err", err)
			}
		})
	}
	return nil
}

func (x *Cluster) keepGrant(g *identity.Grant) error {
	return x.own.keeper.change(func(x *Kept) {
		x.Certificate, x.Authorities = g.Certificate, g.Authorities
		if len(g.Control) > 0 {
			x.Control = g.Control
		}
	})
}

// registerAnew begins a new life. Nothing of the one before may run. It asks the machined of this
// machine and those of the control machines, again and again until ctx ends; this machine's last
// unless it boots, since a machine that was declared lost does not decide.
func (x *Cluster) registerAnew(ctx context.Context, boot bool) error {
	var said error
	for wait := registerAgain; ; wait = min(2*wait, registerLater) {
		err := x.tryRegister(ctx, boot)
		if err == nil {
			return nil
		}
		if boot && !x.cfg.Runs(Machined) && forGood(err) { // it does not become better by itself
			return err
		}
		if said == nil || said.Error() != err.Error() {
			x.cfg.Log.Warn("the machine is not registered", "machine", x.cfg.Self.Machine, "err", err)
		}
		said = err
		if !retry.Pause(ctx, wait) {
			return said
		}
	}
}

// tryRegister begins a new life if a machined can be asked now.
func (x *Cluster) tryRegister(ctx context.Context, boot bool) error {
	grant, err := x.registerOnce(ctx, boot)
	x.noteRefusal(err)
	if err == nil {
		err = x.id.Install(grant.Certificate)
	}
	if err == nil {
		err = x.keepGrant(grant)
	}
	if err != nil {
		return err
	}
	x.own.setBetween(false)
	x.own.move()
	x.own.following.Lock() // for a roster that comes just now may cordon it
	x.cfg.Admit(x.Cordoned())
	x.own.following.Unlock()
	self := x.id.Self()
	x.cfg.Log.Info("the machine is registered", "machine", self.Machine, "incarnation", self.Incarnation)
	return nil
}

// registerOnce asks each control machine once. The error is that of the one that knows best: who
// refuses knows more than who does not answer.
func (x *Cluster) registerOnce(ctx context.Context, boot bool) (*identity.Grant, error) {
	now := x.own.keeper.get()
	key, err := now.PrivateKey()
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
		if x.cfg.Runs(Machined) {
			if err := x.WithMachined(ctx, x.cfg.Self.Machine, func(ctx context.Context,
				c *machines.Client) (err error) {
				grant, err = x.enrolAt(ctx, c, key)
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
		for _, m := range x.unheard(ctx, now.Control) {
			silent[m.Machine] = true
			note(sigma.Errorf("kernel.register", sigma.KindUnavailable, "control machine %s does not answer at %s",
				m.Machine, m.Address))
		}
	}
	for _, m := range now.Control {
		if m.Machine == x.cfg.Self.Machine || m.Address == "" || silent[m.Machine] || ctx.Err() != nil {
			continue
		}
		within, cancel := context.WithTimeout(ctx, registerMost)
		grant, _, err := link.Enrol(within, link.Join{Address: m.Address, Authority: now.Authority(), Key: key,
			Ask: x.Enrolment(), Connect: x.cfg.Links.Connect})
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
func (x *Cluster) enrolAt(ctx context.Context, c link.Enroller, key ed25519.PrivateKey) (*identity.Grant, error) {
	e := x.Enrolment()
	var err error
	if e.Challenge, err = c.Challenge(ctx); err != nil {
		return nil, err
	}
	e.System = x.id.Self().System
	if err := e.Sign(key, nil); err != nil {
		return nil, err
	}
	return c.Enrol(ctx, &e)
}

// WithMachined calls the machined of one machine.
func (x *Cluster) WithMachined(ctx context.Context, m sigma.MachineID,
	f func(context.Context, *machines.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, registerMost)
	defer cancel()
	s, err := x.cfg.Dial(ctx, m)
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
	c, err := Callee(ctx, s, Machined)
	return machines.NewClient(c), err
}

// Callee attaches to a service's root, which is called.
func Callee(ctx context.Context, s *session.Client, service string) (sigma.Caller, error) {
	root, err := s.Attach(ctx, "")
	if err != nil {
		return nil, err
	}
	c, ok := root.(sigma.Caller)
	if !ok {
		root.Close()
		return nil, sigma.Errorf("kernel.ask", sigma.KindUnsupported, "%s answers no calls", service)
	}
	return c, nil
}

// Judge asks the machined that decides, wherever it is. f is called again if another decides
// meanwhile.
func (x *Cluster) Judge(ctx context.Context, f func(context.Context, *machines.Client) error) error {
	s, err := x.cfg.Reach(ctx, func(ctx context.Context, s *session.Client) error {
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
type enroller struct{ x *Cluster }

// booting is an error while this control machine has not begun its own life. If others boot too,
// and ask it before they start their part of the control plane, each would wait for the others; and
// links with it are made anew when its life begins.
func (e enroller) booting() error {
	if !e.x.cfg.Runs(Machined) || e.x.own.started.Load() && !e.x.own.between.Load() {
		return nil
	}
	return sigma.Errorf("kernel.enrol", sigma.KindUnavailable, "control machine %s is booting itself",
		e.x.cfg.Self.Machine)
}

// Challenge implements link.Enroller.
func (e enroller) Challenge(ctx context.Context) (ch identity.Challenge, err error) {
	if err := e.booting(); err != nil {
		return ch, err
	}
	err = e.x.Judge(ctx, func(ctx context.Context, c *machines.Client) (err error) {
		ch, err = c.Challenge(ctx)
		return err
	})
	return ch, err
}

// Enrol implements link.Enroller.
func (e enroller) Enrol(ctx context.Context, q *identity.Enrolment) (g *identity.Grant, err error) {
	err = e.x.Judge(ctx, func(ctx context.Context, c *machines.Client) (err error) {
		g, err = c.Enrol(ctx, q)
		return err
	})
	return g, err
}
