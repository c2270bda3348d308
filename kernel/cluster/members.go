package cluster

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
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

// Members is the roster as now known, by name: who is a member and in which life. It is empty
// before one came.
func (x *Cluster) Members() []identity.Member {
	if !x.Registered() || !x.id.Roster().Complete() {
		return nil
	}
	return x.id.Roster().Members()
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

// Live does what a member does, in one life after another, until ctx ends.
func (x *Cluster) Live(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { x.attendAll(ctx) })
	all.Go(func() {
		x.id.KeepFresh(ctx, x.renew, func(err error) {
			x.cfg.Log.Warn("the certificate was not renewed", "expires", x.id.Self().NotAfter, "err", err)
		})
	})
	all.Go(func() { x.expire(ctx) })
	for ctx.Err() == nil {
		why := x.liveOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		self := x.id.Self()
		x.own.lives.Add(1)
		x.cfg.Log.Warn("the machine's life was ended; it ends its procs", "machine", self.Machine, "incarnation",
			self.Incarnation, "err", why)
		if x.endLife(ctx) != nil || x.registerAnew(ctx, false) != nil {
			return
		}
	}
}

// liveOnce beats until this life is over, and returns why.
func (x *Cluster) liveOnce(ctx context.Context) error {
	select {
	case <-x.own.over: // of the life before
	default:
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	all.Go(func() { x.beat(ctx) })
	x.lookAtSelf()
	select {
	case why := <-x.own.over:
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

// Controls lists the control machines but for this one.
func (x *Cluster) Controls() (out []sigma.MachineID) {
	for _, m := range x.id.Roster().Members() {
		if m.Control && m.Machine != x.cfg.Self.Machine {
			out = append(out, m.Machine)
		}
	}
	return out
}

// beat tells the control machines that this one lives.
func (x *Cluster) beat(ctx context.Context) {
	machines.NewBeater(machines.BeaterConfig{Timing: x.own.timing, Controls: x.Controls, Dial: x.dialBeat,
		Over: x.own.isOver, Silent: x.Silent}).Run(ctx)
}

// Silent ends the sessions with a control machine that does not answer, so that whoever waits there
// asks another. If there is no other to ask they are kept: it may be slow, or the way to it.
func (x *Cluster) Silent(m sigma.MachineID, silent bool) {
	x.own.mu.Lock()
	x.own.silent[m] = silent
	x.own.mu.Unlock()
	if !silent {
		x.cfg.Log.Info("a control machine answers again", "machine", m)
		return
	}
	x.cfg.Log.Warn("a control machine does not answer", "machine", m)
	if x.cfg.Runs(Named) || slices.ContainsFunc(x.Controls(), func(o sigma.MachineID) bool {
		return o != m && !x.IsSilent(o)
	}) {
		x.node.Drop(m)
	}
}

// IsSilent says whether a control machine has not answered this one for a while. It may be alive
// all the same.
func (x *Cluster) IsSilent(m sigma.MachineID) bool {
	x.own.mu.Lock()
	defer x.own.mu.Unlock()
	return x.own.silent[m]
}

func (x *Cluster) dialBeat(ctx context.Context, m sigma.MachineID) (net.Conn, error) {
	l, err := x.node.Dial(ctx, m, link.Target{Kind: link.ToBeat, Name: "beat"}, x.Provider())
	if err != nil {
		return nil, err // not l, which would be no nil interface
	}
	return l, nil
}

// Hear answers another machine's beats, and notes them for the judge.
func (x *Cluster) Hear(ctx context.Context, l *link.Link) {
	machines.Observe(ctx, l, func(at time.Time) { x.own.ear.Hear(l.Peer.Machine, l.Peer.Incarnation, at) })
}

// renew gets a fresh certificate for this life, and writes it down.
func (x *Cluster) renew(ctx context.Context) (der []byte, err error) {
	now := x.own.keeper.get()
	key, err := now.PrivateKey()
	if err != nil {
		return nil, err
	}
	self := x.id.Self()
	err = x.Judge(ctx, func(ctx context.Context, c *machines.Client) (err error) {
		der, err = c.Renew(ctx, self.Incarnation, key.Public().(ed25519.PublicKey))
		return err
	})
	if err != nil {
		return nil, err
	}
	x.cfg.Log.Info("the certificate was renewed", "machine", self.Machine)
	return der, x.own.keeper.change(func(x *Kept) { x.Certificate = der })
}

// expire ends the life with its certificate, unless this machine is alone: nobody then could have
// taken it for lost.
func (x *Cluster) expire(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if self := x.id.Self(); time.Now().After(self.NotAfter) && len(x.Members()) > 1 && !x.own.between.Load() {
			x.own.isOver(sigma.Errorf("kernel.live", sigma.KindStale,
				"the certificate expired at %v, and nobody renewed it", self.NotAfter))
		}
	}
}

// attendAll keeps company with the machined of each control machine.
func (x *Cluster) attendAll(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	running := map[sigma.MachineID]context.CancelFunc{}
	for {
		changed := x.id.Roster().Changed()
		wanted := map[sigma.MachineID]bool{}
		for _, m := range x.id.Roster().Members() {
			wanted[m.Machine] = m.Control
		}
		wanted[x.cfg.Self.Machine] = x.cfg.Runs(Machined) // the roster may not know yet
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
				all.Go(func() { x.attend(own, m) })
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
func (x *Cluster) attend(ctx context.Context, m sigma.MachineID) {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, sessionMost)
		s, err := x.cfg.Dial(within, m)
		var c *machines.Client
		if err == nil {
			if c, err = machinedOf(within, s); err != nil {
				s.Close()
			}
		}
		cancel()
		if err != nil {
			retry.Pause(ctx, registerAgain)
			continue
		}
		own, end := context.WithCancel(ctx)
		stop := context.AfterFunc(own, s.Close)
		var all sync.WaitGroup
		for _, work := range []func(context.Context, *machines.Client) error{x.takeRoster, x.runErrands, x.report} {
			all.Go(func() {
				defer end()
				if err := work(own, c); err != nil && own.Err() == nil {
					x.cfg.Log.Debug("machined is asked again", "machine", m, "err", err)
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
		retry.Pause(ctx, registerAgain)
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
			retry.Pause(ctx, heirPause)
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
func (x *Cluster) takeRoster(ctx context.Context, c *machines.Client) error {
	acts := uint64(0) // the epoch that it acts by, as far as it is known
	return patient(ctx, func(ctx context.Context) error {
		x.own.following.Lock()
		has := x.id.Roster().Epoch()
		x.own.following.Unlock()
		if x.cfg.Vacant(ctx) {
			acts = has
		}
		epoch, members, err := c.Roster(ctx, acts)
		if err != nil {
			return err
		}
		x.setRoster(epoch, members)
		x.lookAtSelf()
		return nil
	})
}

// lookAtSelf ends this machine's life if the roster says so.
func (x *Cluster) lookAtSelf() {
	if why := x.ended(); why != nil && !x.own.between.Load() {
		x.own.isOver(why)
	}
}

// ended says whether this machine's life is over, as the roster has it.
func (x *Cluster) ended() error {
	const op = "kernel.live"
	self, roster := x.id.Self(), x.id.Roster()
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
func (x *Cluster) setRoster(epoch uint64, members []identity.Member) {
	m := x.own
	m.following.Lock()
	defer m.following.Unlock()
	if !x.id.Roster().Set(epoch, members) {
		return
	}
	before, after := m.told, x.id.Roster().Members()
	m.told = after
	x.logChanges(before, after)
	x.cfg.Changed(before, after)
	if err := m.keeper.setControl(after); err != nil {
		x.cfg.Log.Error("the control machines could not be noted", "err", err)
	}
	x.cfg.Admit(x.Cordoned())
	if draining(after, x.cfg.Self.Machine) && !draining(before, x.cfg.Self.Machine) {
		x.cfg.Go(x.drain)
	}
}

func draining(ms []identity.Member, id sigma.MachineID) bool {
	return slices.ContainsFunc(ms, func(m identity.Member) bool { return m.Machine == id && m.Draining })
}

// Cordoned says whether this machine is to get no new procs: because an operator said so, it is
// going to be stopped, or its life was ended.
func (x *Cluster) Cordoned() bool {
	if x.own.leaves() {
		return true
	}
	if !x.Registered() {
		return false
	}
	m, _ := x.id.Roster().Member(x.cfg.Self.Machine)
	return m.Cordoned || m.Draining || x.own.between.Load()
}

// logChanges says what became of other machines.
func (x *Cluster) logChanges(before, after []identity.Member) {
	old := map[sigma.MachineID]identity.Member{}
	for _, m := range before {
		old[m.Machine] = m
	}
	for _, m := range after {
		was, known := old[m.Machine]
		delete(old, m.Machine)
		switch {
		case !known || was.Incarnation < m.Incarnation && !m.Lost:
			x.cfg.Log.Info("a machine is there", "machine", m.Machine, "incarnation", m.Incarnation, "address",
				m.Address, "control", m.Control, "lost", m.Lost)
		case m.Lost && !was.Lost:
			x.cfg.Log.Warn("the life of a machine is over", "event", x.own.lostOrLeft(m), "machine", m.Machine,
				"incarnation", m.Incarnation)
		case was.Control != m.Control:
			x.cfg.Log.Info("the control machines are others", "machine", m.Machine, "control", m.Control)
		}
	}
	for id := range old {
		x.cfg.Log.Warn("a machine was removed", "machine", id)
	}
}

// report tells one machined whom this machine heard, if it is a control machine.
func (x *Cluster) report(ctx context.Context, c *machines.Client) error {
	tick := time.NewTicker(x.own.timing.Interval)
	defer tick.Stop()
	for {
		if m, ok := x.id.Roster().Member(x.cfg.Self.Machine); ok && m.Control && !m.Lost {
			within, cancel := context.WithTimeout(ctx, reportMost)
			err := c.Report(within, x.own.ear.Evidence(time.Now(), x.own.timing))
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
func (x *Cluster) runErrands(ctx context.Context, c *machines.Client) error {
	var seen uint64
	return patient(ctx, func(ctx context.Context) error {
		number, list, err := c.Errands(ctx, seen)
		if err != nil {
			return err
		}
		seen = number
		for _, e := range list {
			if e.Try != "" {
				x.cfg.Go(func() { x.vouch(c, e.Try) })
			}
			if e.Drain && x.Cordoned() { // else the roster is still to come, which has it done
				x.cfg.Go(x.drain)
			}
		}
		return nil
	})
}

// vouch tries a machine, and vouches for it if it answers.
func (x *Cluster) vouch(c *machines.Client, m sigma.MachineID) {
	member, ok := x.id.Roster().Member(m)
	if !ok || m == x.cfg.Self.Machine {
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, x.own.timing.Suspect)
	defer cancel()
	err := machines.Try(ctx, func(ctx context.Context) (net.Conn, error) { return x.dialBeat(ctx, m) })
	if err == nil {
		err = c.Vouch(ctx, m, member.Incarnation)
	}
	if err != nil {
		x.cfg.Log.Info("a machine that the judge does not hear was tried", "machine", m, "err", err)
	}
}

// Alive lists the machines that are not lost, this one among them, by name.
func (x *Cluster) Alive() []sigma.MachineID {
	out := []sigma.MachineID{x.cfg.Self.Machine}
	if x.Registered() {
		for _, m := range x.id.Roster().Members() {
			if !m.Lost && m.Machine != x.cfg.Self.Machine {
				out = append(out, m.Machine)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Member finds another machine of the system.
func (x *Cluster) Member(m sigma.MachineID) (identity.Member, bool) {
	if !x.Registered() {
		return identity.Member{}, false
	}
	return x.id.Roster().Member(m)
}

// Provider is the principal of what this machine does for itself.
func (x *Cluster) Provider() sigma.Principal {
	return sigma.Principal{Realm: sigma.SystemRealm, Machine: x.cfg.Self.Machine, System: true}
}

// AwaitNode waits a while for this machine to be a member.
func (x *Cluster) AwaitNode(ctx context.Context) (*link.Node, error) {
	if x.Registered() {
		return x.node, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reconnectMax)
	defer cancel()
	select {
	case <-x.enrolled:
		return x.node, nil
	case <-ctx.Done():
		return nil, &sigma.Error{Op: "kernel.links", Kind: sigma.KindUnavailable,
			Msg: "this machine is not registered with its system yet", Hint: "sigma doctor says why"}
	}
}

// Life is this machine's present one.
func (x *Cluster) Life() sigma.Life {
	s := x.Self()
	return sigma.Life{Machine: s.Machine, Incarnation: s.Incarnation}
}

// AwaitLife waits until this machine has a life, which is what a session with a scheduler is for,
// and returns whether it has one; not if ctx ends. A machine that founds nothing itself and is no
// member yet reaches no scheduler, so it need not wait.
func (x *Cluster) AwaitLife(ctx context.Context) bool {
	for {
		moved := x.own.moves() // before the look
		if x.Life().Incarnation != 0 || !x.Registered() && !x.cfg.Runs(Machined) {
			return true
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return false
		}
	}
}

// Others lists the machines that are alive, without this one.
func (x *Cluster) Others() (out []sigma.MachineID) {
	return slices.DeleteFunc(x.Alive(), func(m sigma.MachineID) bool { return m == x.cfg.Self.Machine })
}

// Presently is a context that ends with this sigmad, and with the machine's present life.
func (x *Cluster) Presently() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(x.ctx)
	stop := context.AfterFunc(x.present(), cancel)
	return ctx, func() { stop(); cancel() }
}
