package kernel

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/link"
	"sigmaos.dev/machines"
	"sigmaos.dev/sigma"
)

// What a member does all its life: it beats to the control machines, follows the roster, does what
// the judge asks of it and keeps its certificate fresh; a control machine also tells all machineds
// whom it hears. When the life is over it ends what it runs, is registered anew, and goes on.

// membership is this machine's. Its mu is taken under no other lock, and nothing is called under
// it.
type membership struct {
	keeper identityKeeper
	ear    *machines.Ear
	timing machines.Timing

	between atomic.Bool           // a life is over and the next has not begun; changed by setBetween
	started atomic.Bool           // its part of the control plane, if it has one, is being started or runs
	drains  atomic.Bool           // drain is under way
	lives   atomic.Uint64         // that ended
	refusal atomic.Pointer[error] // why this machine is not registered, if it is refused; changed by noteRefusal

	vacant func(ctx context.Context) bool // placement.Placement.AwaitClosed

	over chan error // takes one: why the present life is over

	mu      sync.Mutex
	present context.Context            // mu; ends with the present life
	end     context.CancelFunc         // mu; of present
	silent  map[sigma.MachineID]bool   // mu
	left    map[sigma.MachineID]leaver // mu; lives whose machine said that it is being stopped; one of each member
	moved   chan struct{}              // mu; closed and replaced when the roster changed: maybe this is another life
	leaving time.Time                  // mu; until when this machine takes no procs, for it is going to be stopped
	now     atomic.Bool                // and its procs are not waited for

	following sync.Mutex        // makes a change of the roster and telling of it one act
	told      []identity.Member // following; the roster that was told of last
}

func newMembership(dir string) *membership {
	m := &membership{keeper: identityKeeper{dir: dir}, ear: machines.NewEar(), timing: machines.DefaultTiming(),
		over: make(chan error, 1), moved: make(chan struct{}), silent: map[sigma.MachineID]bool{},
		left: map[sigma.MachineID]leaver{}}
	m.present, m.end = context.WithCancel(context.Background())
	return m
}

// move says that the roster changed.
func (m *membership) move() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.moved)
	m.moved = make(chan struct{})
}

func (m *membership) moves() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moved
}

// members is the roster as now known, by name: who is a member and in which life. It is empty
// before one came.
func (k *Kernel) members() []identity.Member {
	if !k.registered() || !k.id.Roster().Complete() {
		return nil
	}
	return k.id.Roster().Members()
}

// Waits of the loops.
const (
	// that one call for a roster or errands waits, so that a machined that does not decide any more
	// is noticed
	rosterMost  = 20 * time.Second
	heirPause   = 500 * time.Millisecond // before a machined that does not decide is asked again
	reportMost  = time.Second
	sessionMost = 3 * time.Second // to be connected with a machined
)

// live does what a member does, in one life after another, until ctx ends.
func (k *Kernel) live(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { k.attendAll(ctx) })
	all.Go(func() {
		k.id.KeepFresh(ctx, k.renew, func(err error) {
			k.cfg.Log.Warn("the certificate was not renewed", "expires", k.id.Self().NotAfter, "err", err)
		})
	})
	all.Go(func() { k.expire(ctx) })
	for ctx.Err() == nil {
		why := k.liveOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		self := k.id.Self()
		k.own.lives.Add(1)
		k.cfg.Log.Warn("the machine's life was ended; it ends its procs", "machine", self.Machine, "incarnation",
			self.Incarnation, "err", why)
		if k.endLife(ctx) != nil || k.registerAnew(ctx, false) != nil {
			return
		}
	}
}

// liveOnce beats until this life is over, and returns why.
func (k *Kernel) liveOnce(ctx context.Context) error {
	select {
	case <-k.own.over: // of the life before
	default:
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	all.Go(func() { k.beat(ctx) })
	k.lookAtSelf()
	select {
	case why := <-k.own.over:
		return why
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isOver has the present life ended.
func (m *membership) isOver(why error) {
	select {
	case m.over <- why:
	default:
	}
}

// controls lists the control machines but for this one.
func (k *Kernel) controls() (out []sigma.MachineID) {
	for _, m := range k.id.Roster().Members() {
		if m.Control && m.Machine != k.cfg.Machine {
			out = append(out, m.Machine)
		}
	}
	return out
}

// beat tells the control machines that this one lives.
func (k *Kernel) beat(ctx context.Context) {
	machines.NewBeater(machines.BeaterConfig{Timing: k.own.timing, Controls: k.controls, Dial: k.dialBeat,
		Over: k.own.isOver, Silent: k.silent}).Run(ctx)
}

// silent ends the sessions with a control machine that does not answer, so that whoever waits there
// asks another. If there is no other to ask they are kept: it may be slow, or the way to it.
func (k *Kernel) silent(m sigma.MachineID, silent bool) {
	k.own.mu.Lock()
	k.own.silent[m] = silent
	k.own.mu.Unlock()
	if !silent {
		k.cfg.Log.Info("a control machine answers again", "machine", m)
		return
	}
	k.cfg.Log.Warn("a control machine does not answer", "machine", m)
	if k.local(serviceNamed) != nil || slices.ContainsFunc(k.controls(), func(o sigma.MachineID) bool {
		return o != m && !k.isSilent(o)
	}) {
		k.node.Drop(m)
	}
}

// isSilent says whether a control machine has not answered this one for a while. It may be alive
// all the same.
func (k *Kernel) isSilent(m sigma.MachineID) bool {
	k.own.mu.Lock()
	defer k.own.mu.Unlock()
	return k.own.silent[m]
}

func (k *Kernel) dialBeat(ctx context.Context, m sigma.MachineID) (net.Conn, error) {
	l, err := k.node.Dial(ctx, m, link.Target{Kind: link.ToBeat, Name: "beat"}, k.provider())
	if err != nil {
		return nil, err // not l, which would be no nil interface
	}
	return l, nil
}

// hear answers another machine's beats, and notes them for the judge.
func (k *Kernel) hear(ctx context.Context, l *link.Link) {
	machines.Observe(ctx, l, func(at time.Time) { k.own.ear.Hear(l.Peer.Machine, l.Peer.Incarnation, at) })
}

// renew gets a fresh certificate for this life, and writes it down.
func (k *Kernel) renew(ctx context.Context) (der []byte, err error) {
	now := k.own.keeper.get()
	key, err := now.key()
	if err != nil {
		return nil, err
	}
	self := k.id.Self()
	err = k.judge(ctx, func(ctx context.Context, c *machines.Client) (err error) {
		der, err = c.Renew(ctx, self.Incarnation, key.Public().(ed25519.PublicKey))
		return err
	})
	if err != nil {
		return nil, err
	}
	k.cfg.Log.Info("the certificate was renewed", "machine", self.Machine)
	return der, k.own.keeper.change(func(x *kept) { x.Certificate = der })
}

// expire ends the life with its certificate, unless this machine is alone: nobody then could have
// taken it for lost.
func (k *Kernel) expire(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if self := k.id.Self(); time.Now().After(self.NotAfter) && len(k.members()) > 1 && !k.own.between.Load() {
			k.own.isOver(sigma.Errorf("kernel.live", sigma.KindStale,
				"the certificate expired at %v, and nobody renewed it", self.NotAfter))
		}
	}
}

// attendAll keeps company with the machined of each control machine.
func (k *Kernel) attendAll(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	running := map[sigma.MachineID]context.CancelFunc{}
	for {
		changed := k.id.Roster().Changed()
		wanted := map[sigma.MachineID]bool{}
		for _, m := range k.id.Roster().Members() {
			wanted[m.Machine] = m.Control
		}
		wanted[k.cfg.Machine] = k.local(serviceMachined) != nil // the roster may not know yet
		for m, stop := range running {
			if !wanted[m] {
				stop()
				delete(running, m)
			}
		}
		for m := range wanted {
			if wanted[m] && running[m] == nil {
				own, stop := context.WithCancel(ctx)
				running[m] = stop
				all.Go(func() { k.attend(own, m) })
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range running {
				stop()
			}
			return
		case <-changed:
		}
	}
}

// attend keeps a session to the machined of one control machine. Which of them decides is not
// asked: the others say no.
func (k *Kernel) attend(ctx context.Context, m sigma.MachineID) {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, sessionMost)
		s, err := k.dialAt(within, m, serviceMachined)
		var c *machines.Client
		if err == nil {
			if c, err = machinedOf(within, s); err != nil {
				s.Close()
			}
		}
		cancel()
		if err != nil {
			sleep(ctx, registerAgain)
			continue
		}
		own, end := context.WithCancel(ctx)
		stop := context.AfterFunc(own, s.Close)
		var all sync.WaitGroup
		for _, work := range []func(context.Context, *machines.Client) error{k.takeRoster, k.runErrands, k.report} {
			all.Go(func() {
				defer end()
				if err := work(own, c); err != nil && own.Err() == nil {
					k.cfg.Log.Debug("machined is asked again", "machine", m, "err", err)
				}
			})
		}
		select {
		case <-s.Done():
		case <-own.Done():
		}
		end()
		all.Wait()
		stop()
		s.Close()
		sleep(ctx, registerAgain)
	}
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// patient makes calls that wait for news until one fails for another reason than that there are
// none, or that this machined does not decide.
func patient(ctx context.Context, call func(context.Context) error) error {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, rosterMost)
		err := call(within)
		cancel()
		switch sigma.KindOf(err) {
		case sigma.KindTimeout, sigma.KindCanceled:
		case sigma.KindUnavailable, sigma.KindStale: // an heir, or it has not heard of this machine's life yet
			sleep(ctx, heirPause)
		default:
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// takeRoster takes the roster from one machined. To ask for a later one says that this machine acts
// by the one that it has, so that is not asked for before it does.
func (k *Kernel) takeRoster(ctx context.Context, c *machines.Client) error {
	acts := uint64(0) // the epoch that it acts by, as far as it is known
	return patient(ctx, func(ctx context.Context) error {
		k.own.following.Lock()
		has := k.id.Roster().Epoch()
		k.own.following.Unlock()
		if k.own.vacant(ctx) {
			acts = has
		}
		epoch, members, err := c.Roster(ctx, acts)
		if err != nil {
			return err
		}
		k.setRoster(epoch, members)
		k.lookAtSelf()
		return nil
	})
}

// lookAtSelf ends this machine's life if the roster says so.
func (k *Kernel) lookAtSelf() {
	if why := k.ended(); why != nil && !k.own.between.Load() {
		k.own.isOver(why)
	}
}

// ended says whether this machine's life is over, as the roster has it.
func (k *Kernel) ended() error {
	const op = "kernel.live"
	self, roster := k.id.Self(), k.id.Roster()
	if roster.Epoch() < self.Epoch {
		return nil // it is older than this life
	}
	m, ok := roster.Member(self.Machine)
	switch {
	case !ok || m.Key != self.Key:
		return &sigma.Error{Op: op, Kind: sigma.KindStale, Msg: fmt.Sprintf("machine %s was removed from the system",
			self.Machine),
			Hint: "to take it in again, make a token (sigma token create) and let it join with a fresh data directory"}
	case m.Incarnation > self.Incarnation, m.Incarnation == self.Incarnation && m.Lost:
		return sigma.Errorf(op, sigma.KindStale, "the life %d of machine %s was ended", self.Incarnation, self.Machine)
	}
	return nil
}

// setRoster takes over a roster and tells everybody who wants to know.
func (k *Kernel) setRoster(epoch uint64, members []identity.Member) {
	m := k.own
	m.following.Lock()
	defer m.following.Unlock()
	if !k.id.Roster().Set(epoch, members) {
		return
	}
	before, after := m.told, k.id.Roster().Members()
	m.told = after
	k.logChanges(before, after)
	k.tellMembers(before, after)
	if err := m.keeper.setControl(after); err != nil {
		k.cfg.Log.Error("the control machines could not be noted", "err", err)
	}
	k.placing.Close(k.cordoned())
	if draining(after, k.cfg.Machine) && !draining(before, k.cfg.Machine) {
		k.sessions.Go(k.drain)
	}
}

func draining(ms []identity.Member, id sigma.MachineID) bool {
	return slices.ContainsFunc(ms, func(m identity.Member) bool { return m.Machine == id && m.Draining })
}

// cordoned says whether this machine is to get no new procs: because an operator said so, it is
// going to be stopped, or its life was ended.
func (k *Kernel) cordoned() bool {
	if k.own.leaves() {
		return true
	}
	if !k.registered() {
		return false
	}
	m, _ := k.id.Roster().Member(k.cfg.Machine)
	return m.Cordoned || m.Draining || k.own.between.Load()
}

// logChanges says what became of other machines.
func (k *Kernel) logChanges(before, after []identity.Member) {
	old := map[sigma.MachineID]identity.Member{}
	for _, m := range before {
		old[m.Machine] = m
	}
	for _, m := range after {
		was, known := old[m.Machine]
		delete(old, m.Machine)
		switch {
		case !known || was.Incarnation < m.Incarnation && !m.Lost:
			k.cfg.Log.Info("a machine is there", "machine", m.Machine, "incarnation", m.Incarnation, "address",
				m.Address, "control", m.Control, "lost", m.Lost)
		case m.Lost && !was.Lost:
			k.cfg.Log.Warn("the life of a machine is over", "event", k.own.lostOrLeft(m), "machine", m.Machine,
				"incarnation", m.Incarnation)
		case was.Control != m.Control:
			k.cfg.Log.Info("the control machines are others", "machine", m.Machine, "control", m.Control)
		}
	}
	for id := range old {
		k.cfg.Log.Warn("a machine was removed", "machine", id)
	}
}

// report tells one machined whom this machine heard, if it is a control machine.
func (k *Kernel) report(ctx context.Context, c *machines.Client) error {
	tick := time.NewTicker(k.own.timing.Interval)
	defer tick.Stop()
	for {
		if m, ok := k.id.Roster().Member(k.cfg.Machine); ok && m.Control && !m.Lost {
			within, cancel := context.WithTimeout(ctx, reportMost)
			err := c.Report(within, k.own.ear.Evidence(time.Now(), k.own.timing))
			cancel()
			if err != nil && sigma.KindOf(err) != sigma.KindUnavailable { // nobody decides there yet
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// runErrands does what the judge wants of this machine.
func (k *Kernel) runErrands(ctx context.Context, c *machines.Client) error {
	var seen uint64
	return patient(ctx, func(ctx context.Context) error {
		number, list, err := c.Errands(ctx, seen)
		if err != nil {
			return err
		}
		seen = number
		for _, e := range list {
			if e.Try != "" {
				k.sessions.Go(func() { k.vouch(c, e.Try) })
			}
			if e.Drain && k.cordoned() { // else the roster is still to come, which has it done
				k.sessions.Go(k.drain)
			}
		}
		return nil
	})
}

// vouch tries a machine, and vouches for it if it answers.
func (k *Kernel) vouch(c *machines.Client, m sigma.MachineID) {
	member, ok := k.id.Roster().Member(m)
	if !ok || m == k.cfg.Machine {
		return
	}
	ctx, cancel := context.WithTimeout(k.ctx, k.own.timing.Suspect)
	defer cancel()
	err := machines.Try(ctx, func(ctx context.Context) (net.Conn, error) { return k.dialBeat(ctx, m) })
	if err == nil {
		err = c.Vouch(ctx, m, member.Incarnation)
	}
	if err != nil {
		k.cfg.Log.Info("a machine that the judge does not hear was tried", "machine", m, "err", err)
	}
}
