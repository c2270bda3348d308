package machines

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// DaemonConfig is what machined runs with.
type DaemonConfig struct {
	Self      sigma.MachineID
	Namespace sigma.Namespace // of the system realm
	Path      string          // of the state in it; its directory must exist
	// Authority gets the authority when this machine becomes the judge. fresh says that the system
	// has no machine yet, so that one may be made. KindNotFound: this machine does not have it.
	Authority func(fresh bool) (*identity.Authority, error)
	// Fetch asks the judge's machined for the authority, and keeps it; an heir without cannot
	// become the judge. nil = it has it otherwise.
	Fetch func(ctx context.Context) error
	// Forget removes the authority from this machine, which has ceased to be a control machine; nil
	// = it stays.
	Forget func() error
	Names  Names  // nil = the store of names need not know
	Timing Timing // zero = DefaultTiming
	Log    *slog.Logger
}

// Daemon is machined on one control machine: the judge, if the state says so or nobody is, else an
// heir. Its tree answers as Service does; an heir takes reports and tells who the judge is. Safe
// for concurrent use.
type Daemon struct {
	cfg DaemonConfig
	ear *Ear

	mu      sync.Mutex
	service *Service        // mu; nil unless this is the judge
	judge   sigma.MachineID // mu; who is, if not this machine
	seen    *Publish        // mu; the roster of the state, while this is an heir whose judge is silent
	heir    *Heir           // mu; nil unless this is one
	turned  chan struct{}   // mu; closed and replaced when one of these changes
}

var _ sigma.Tree = (*Daemon)(nil)

// daemonPause is between attempts to read the state while the store cannot be reached.
const daemonPause = 250 * time.Millisecond

// A machine that becomes a control machine asks for the authority every readyPause for readyWithin,
// and every daemonPause then. If the judge's machine goes down before, it cannot take over.
const (
	readyPause  = 25 * time.Millisecond
	readyWithin = 10 * time.Second
)

// NewDaemon makes one. Nothing runs yet.
func NewDaemon(cfg DaemonConfig) (*Daemon, error) {
	if err := cfg.Self.Check(); err != nil {
		return nil, err
	}
	if cfg.Namespace == nil || cfg.Authority == nil || cfg.Path == "" {
		return nil, sigma.Errorf("machines.NewDaemon", sigma.KindInvalid,
			"the configuration lacks a name space, a path or an authority")
	}
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Daemon{cfg: cfg, ear: NewEar(), turned: make(chan struct{})}, nil
}

// Run is the judge or an heir, in turn, until ctx ends.
func (d *Daemon) Run(ctx context.Context) {
	control := false // this machine has been one
	for ctx.Err() == nil {
		state, judge, err := Look(ctx, d.cfg.Namespace, d.cfg.Path)
		if err == nil {
			control = d.holds(state, control)
		}
		switch {
		case sigma.KindOf(err) == sigma.KindNotFound || err == nil && judge == d.cfg.Self:
			err = d.preside(ctx, state, "", nil)
		case err == nil:
			if heir := d.inherit(ctx, state, judge); heir != nil {
				err = d.preside(ctx, state, judge, heir)
			} else {
				d.become(nil, nil, "")
			}
		}
		if err != nil && ctx.Err() == nil {
			d.cfg.Log.Warn("this machine does not decide about membership", "machine", d.cfg.Self, "err", err)
			retry.Pause(ctx, daemonPause)
		}
	}
}

// holds says whether this machine is a control machine; if it was one and is none any more, the
// authority is not its to have.
func (d *Daemon) holds(state State, before bool) bool {
	at := slices.IndexFunc(state.Members, func(m Member) bool { return m.ID == d.cfg.Self })
	if at < 0 {
		return before
	}
	now := state.Members[at].Control
	if before && !now && d.cfg.Forget != nil {
		err := d.cfg.Forget()
		d.cfg.Log.Info("this machine has given up the authority", "machine", d.cfg.Self, "err", err)
	}
	return now
}

// preside takes over and is the judge until another is, or the state cannot be saved.
func (d *Daemon) preside(ctx context.Context, seen State, former sigma.MachineID, heir *Heir) error {
	defer d.become(nil, nil, "")
	authority, err := d.cfg.Authority(len(seen.Members) == 0)
	if err != nil {
		return err
	}
	store, state, err := d.takeOver(ctx, former, heir)
	if err != nil {
		return err
	}
	if err := reconcile(ctx, d.cfg.Names, d.cfg.Self, state); err != nil {
		return err
	}
	d.mu.Lock() // the heir's
	s, err := NewService(time.Now(), ServiceConfig{Authority: authority, Store: store, Log: d.cfg.Log,
		Names: d.cfg.Names, Core: Config{Self: d.cfg.Self, Remote: true, Timing: d.cfg.Timing, State: state,
			Heard: d.ear.Heard(), Heir: heir}})
	d.mu.Unlock()
	if err != nil {
		return err
	}
	d.cfg.Log.Info("this machine decides about membership", "machine", d.cfg.Self, "after", former)
	d.become(s, nil, "")
	return s.Run(ctx)
}

// takeOver takes over the state. It may take long, since who led the names is often lost together
// with the judge; the heir goes on to take reports, so that the judge knows at once who is silent.
func (d *Daemon) takeOver(ctx context.Context, former sigma.MachineID, heir *Heir) (*FileStore, State, error) {
	if heir == nil {
		return TakeOver(ctx, d.cfg.Namespace, d.cfg.Path, d.cfg.Self, former)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() {
		tick := time.NewTicker(d.cfg.Timing.Tick)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				d.mu.Lock()
				heir.Tick(now)
				d.mu.Unlock()
			}
		}
	})
	for try := 1; ; try++ {
		store, state, err := TakeOver(ctx, d.cfg.Namespace, d.cfg.Path, d.cfg.Self, former)
		switch sigma.KindOf(err) {
		case sigma.KindUnavailable, sigma.KindLost, sigma.KindTimeout:
		default:
			return store, state, err
		}
		if !retry.Pause(ctx, d.cfg.Timing.Tick) {
			return nil, State{}, err
		}
		d.mu.Lock()
		silent := heir.unheard(time.Now())
		d.mu.Unlock()
		if !silent || try == saveTries {
			return nil, State{}, err
		}
	}
}

// inherit waits as an heir until the state changes (nil), or the judge's machine is silent.
func (d *Daemon) inherit(ctx context.Context, state State, judge sigma.MachineID) *Heir {
	h, err := NewHeir(time.Now(), Config{Self: d.cfg.Self, Timing: d.cfg.Timing, State: state, Heard: d.ear.Heard()},
		judge)
	if err != nil {
		return nil
	}
	d.become(nil, h, judge) // and it stays one while it takes over
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { defer close(changed); d.awaitChange(ctx, state.Epoch, judge) })
	beside.Go(func() { d.getReady(ctx) })
	defer beside.Wait()
	defer cancel()
	tick := time.NewTicker(d.cfg.Timing.Tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			return nil
		case now := <-tick.C:
			d.mu.Lock()
			silent := h.Tick(now)
			if d.seen == nil &&
				h.unheard(now) { // it may have died before it told all what it saved, such as who is an observer
				p := h.core.Roster()
				d.seen = &p
				close(d.turned)
				d.turned = make(chan struct{})
			}
			d.mu.Unlock()
			if silent {
				return h
			}
		}
	}
}

// getReady sees to it that this machine has the authority, without which it could not take over.
// The judge refuses it until this machine is a control machine.
func (d *Daemon) getReady(ctx context.Context) {
	if d.cfg.Fetch == nil {
		return
	}
	begun := time.Now()
	for said := ""; ctx.Err() == nil; {
		if _, err := d.cfg.Authority(false); sigma.KindOf(err) != sigma.KindNotFound {
			return
		}
		err := d.cfg.Fetch(ctx)
		if err == nil {
			d.cfg.Log.Info("this machine has the authority and can take over", "machine", d.cfg.Self)
			return
		}
		if err.Error() != said && ctx.Err() == nil && sigma.KindOf(err) != sigma.KindPermission {
			said = err.Error()
			d.cfg.Log.Warn("this machine has no authority and cannot take over", "machine", d.cfg.Self, "err", err)
		}
		if time.Since(begun) < readyWithin {
			retry.Pause(ctx, readyPause)
		} else {
			retry.Pause(ctx, daemonPause)
		}
	}
}

// awaitChange returns when the state names another judge or another epoch, so that the heir knows
// new machines. What changes otherwise does not concern it. A store that cannot be read says
// nothing.
func (d *Daemon) awaitChange(ctx context.Context, epoch uint64, judge sigma.MachineID) {
	tick := time.NewTicker(d.cfg.Timing.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if st, now, err := Look(ctx, d.cfg.Namespace, d.cfg.Path); err == nil && (now != judge || st.Epoch != epoch) {
			return
		}
	}
}

func (d *Daemon) become(s *Service, h *Heir, judge sigma.MachineID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.service, d.heir, d.judge, d.seen = s, h, judge, nil
	close(d.turned)
	d.turned = make(chan struct{})
}

// Attach implements sigma.Tree; only the provider's programs may.
func (d *Daemon) Attach(_ context.Context, p sigma.Principal, _ string) (sigma.File, error) {
	return attach(p, d.call)
}

func (d *Daemon) call(ctx context.Context, p sigma.Principal, method string, payload []byte) ([]byte, error) {
	if m, ok := daemonMethods[method]; ok {
		reply, _, err := m.Call(daemonAsker{d, p}, ctx, payload)
		return reply, err
	}
	s, err := d.decided(ctx, method == CallErrands.Name)
	if err != nil {
		return nil, err
	}
	return s.call(ctx, p, method, payload)
}

// daemonAsker is who asks a Daemon.
type daemonAsker struct {
	*Daemon
	p sigma.Principal
}

// daemonMethods are what a Daemon answers also while it does not decide, and CallFound.
var daemonMethods = sigmap.Table(sigmap.On(CallCertify, daemonAsker.certify), sigmap.Do(CallReport, daemonAsker.report),
	sigmap.On(CallRoster, daemonAsker.roster), sigmap.On(CallFound, daemonAsker.found))

// report notes what was heard, for whoever this machine is, or will be.
func (d daemonAsker) report(ctx context.Context, es []Evidence) error {
	now := time.Now()
	for _, e := range es {
		d.ear.Hear(e.ID, e.Incarnation, now.Add(-e.Age))
	}
	d.mu.Lock()
	heir := d.heir
	if heir != nil {
		heir.Report(now, Report{d.p.Machine, es})
	}
	d.mu.Unlock()
	if heir != nil {
		return nil
	}
	s, err := d.decided(ctx, false)
	if err != nil {
		return err
	}
	return s.registry.Do(ctx, Report{d.p.Machine, es})
}

// decided gives the service, if this machine is the judge.
func (d *Daemon) decided(ctx context.Context, wait bool) (*Service, error) {
	s, judge := d.decides(ctx, wait)
	switch {
	case s == nil && judge != "":
		return nil, &sigma.Error{Op: "machines.Daemon", Kind: sigma.KindUnavailable,
			Msg: "machine " + string(judge) + " decides about membership"}
	case s == nil:
		return nil, &sigma.Error{Op: "machines.Daemon", Kind: sigma.KindUnavailable,
			Msg: "it is not known yet who decides about membership", Hint: "try again in a moment"}
	}
	return s, nil
}

// decides gives the service, if this machine is the judge, else who is. Who waits for news is not
// sent away: when this machine takes over it is told at once.
func (d *Daemon) decides(ctx context.Context, wait bool) (*Service, sigma.MachineID) {
	for {
		d.mu.Lock()
		s, judge, turned := d.service, d.judge, d.turned
		d.mu.Unlock()
		if s != nil || !wait || ctx.Err() != nil {
			return s, judge
		}
		select {
		case <-turned:
		case <-ctx.Done():
		}
	}
}

// roster answers CallRoster: the judge with its own; an heir waits until it is the judge, or until
// the judge is silent, and then gives what was saved last, if that is later than what the caller
// knows.
func (d daemonAsker) roster(ctx context.Context, a rosterAsk) (p rosterPage, err error) {
	for {
		d.mu.Lock()
		s, seen, turned := d.service, d.seen, d.turned
		d.mu.Unlock()
		switch {
		case s != nil:
			return asker{s, d.p}.rosterPage(ctx, a)
		case seen != nil && (seen.Epoch > a.epoch || a.skip > 0 && seen.Epoch == a.epoch):
			rest := seen.Members[min(int(a.skip), len(seen.Members)):]
			rest = rest[:min(len(rest), membersPage)]
			return rosterPage{seen.Epoch, int(a.skip)+len(rest) < len(seen.Members), rest}, nil
		case a.skip > 0:
			return p, sigma.Errorf("machines.Roster", sigma.KindVersion, "the roster has changed meanwhile")
		}
		select {
		case <-turned:
		case <-ctx.Done():
			return p, sigma.Wrap("machines.Roster", "", ctx.Err())
		}
	}
}

// found makes the first machine of what it says of itself.
func (d daemonAsker) found(ctx context.Context, payload []byte) ([]byte, error) {
	s, err := d.decided(ctx, false)
	if err != nil {
		return nil, err
	}
	e, err := identity.ParseEnrolment(payload)
	if err != nil {
		return nil, err
	}
	if self := d.cfg.Self; d.p.Machine != self || e.Machine != self {
		return nil, sigma.Errorf("machines.Found", sigma.KindPermission, "a system is founded by its first machine")
	}
	labels, err := parseLabels(e.Labels, false)
	if err != nil {
		return nil, err
	}
	g, err := s.registry.Found(ctx, Request{ID: e.Machine, Key: identity.KeyFingerprint(e.Key), Address: e.Address,
		Version: e.Version, Labels: labels, CPU: e.CPU, Memory: e.Memory}, e.Key)
	if err != nil {
		return nil, err
	}
	return g.Encode()
}

// Found founds the system of the machined that is asked, as its own machine. e says what the
// machine offers; it is signed here so that its form is that of every enrolment.
func (c *Client) Found(ctx context.Context, e identity.Enrolment, key ed25519.PrivateKey) (*identity.Grant, error) {
	if e.System == "" {
		e.System = sigma.SystemID("aaaaaaaaaaaaaaaa") // it has no name yet that this machine could know
	}
	if err := e.Sign(key, nil); err != nil {
		return nil, err
	}
	payload, err := e.Encode()
	if err != nil {
		return nil, err
	}
	reply, err := CallFound.Ask(ctx, c.root, payload)
	if err != nil {
		return nil, err
	}
	return identity.ParseGrant(reply)
}
