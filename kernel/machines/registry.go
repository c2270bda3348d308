package machines

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// Store keeps what must survive the judge. Implementations refuse (KindStale) what a judge says
// after another took over.
type Store interface {
	// Save carries out Save and Drop effects, in order, and returns when they are durable.
	Save(ctx context.Context, effects []Effect) error
}

// RegistryConfig is what a Registry is made of.
type RegistryConfig struct {
	Core      Config
	Authority *identity.Authority
	Store     Store
	// Act carries out the effects that are not the Store's, in order. It must not block for long:
	// no beat is judged meanwhile.
	Act func(Effect)
	// Fence keeps a machine whose life is over from the store of names, before anybody hears of its
	// end, and lets one that has registered in again. nil = nothing does.
	Fence Fence
	Log   *slog.Logger
}

// Fence is the store of names, as far as it must know who is alive. Both calls may come twice.
type Fence interface {
	// Expel ends a machine's sessions and leases there and refuses it until Admit.
	Expel(ctx context.Context, m sigma.MachineID) error
	// Admit lets it in.
	Admit(ctx context.Context, m sigma.MachineID) error
}

// fenceMax is how long one call of a Fence may take: longer than the election of another leader
// there.
const fenceMax = 5 * time.Second

// Registry is the shell around a Core: it checks proofs, saves, certifies, and lets time pass. If
// it cannot save it ends, since what it knows and what is known would differ; whoever takes over
// begins with what was saved. Safe for concurrent use.
type Registry struct {
	cfg        RegistryConfig
	core       *Core // Run's
	challenges *identity.Challenges
	requests   chan request
	over       chan struct{} // closed when Run has ended
}

// request is something for Run to do.
type request struct {
	do   func(now time.Time) ([]Effect, error)
	done chan result // has room for one
}

type result struct {
	effects []Effect
	err     error
}

// NewRegistry checks the configuration. Nothing runs yet.
func NewRegistry(now time.Time, cfg RegistryConfig) (*Registry, error) {
	if cfg.Authority == nil || cfg.Store == nil {
		return nil, sigma.Errorf("machines.NewRegistry", sigma.KindInvalid,
			"the configuration lacks an authority or a store")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	core, err := New(now, cfg.Core)
	if err != nil {
		return nil, err
	}
	return &Registry{cfg: cfg, core: core, challenges: identity.NewChallenges(), requests: make(chan request),
		over: make(chan struct{})}, nil
}

// Run judges until ctx ends (nil) or something cannot be saved.
func (r *Registry) Run(ctx context.Context) error {
	defer close(r.over)
	tick := time.NewTicker(r.core.timing.Tick)
	defer tick.Stop()
	if _, err := r.carryOut(ctx, r.core.tick); err != nil { // what an heir knows is decided at once
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := r.carryOut(ctx, r.core.tick); err != nil {
				return err
			}
		case q := <-r.requests:
			effects, err := q.do(time.Now())
			if err != nil { // the asker's mistake; nothing has changed
				q.done <- result{nil, err}
				continue
			}
			effects, err = r.carryOut(ctx, func(time.Time) []Effect { return effects })
			q.done <- result{effects, err}
			if err != nil {
				return err
			}
		}
	}
}

// carryOut saves first and acts then.
func (r *Registry) carryOut(ctx context.Context, step func(now time.Time) []Effect) ([]Effect, error) {
	effects := step(time.Now())
	var keep, rest []Effect
	for _, f := range effects {
		switch f.(type) {
		case SaveEpoch, SaveMember, DropMember, SaveToken, DropToken:
			keep = append(keep, f)
		default:
			rest = append(rest, f)
		}
	}
	if len(keep) > 0 {
		if err := r.cfg.Store.Save(ctx, keep); err != nil {
			return nil, sigma.Wrap("machines.Registry", "", err)
		}
	}
	for _, f := range rest {
		if err := r.fence(ctx, f); err != nil {
			return nil, err
		}
		if r.cfg.Act != nil {
			r.cfg.Act(f)
		}
	}
	return rest, nil
}

// fence tells the store of names about a life's end or begin. Who cannot tell it must not decide:
// whoever does next begins with reconcile.
func (r *Registry) fence(ctx context.Context, f Effect) error {
	switch f := f.(type) {
	case Lost:
		r.cfg.Log.Info("machine is lost", "machine", f.ID, "incarnation", uint64(f.Incarnation), "fence",
			uint64(f.Fence), "why", f.Why)
		return r.tell(ctx, f.ID, true)
	case Certify:
		return r.tell(ctx, f.Member.ID, false)
	}
	return nil
}

func (r *Registry) tell(ctx context.Context, m sigma.MachineID, lost bool) error {
	return tell(ctx, r.cfg.Fence, r.cfg.Core.Self, m, lost)
}

func tell(ctx context.Context, names Fence, self, m sigma.MachineID, lost bool) error {
	if names == nil ||
		m == self {
		// this judge asks by way of its machine: its sessions ended with its former life, and
		// nobody has expelled it, or it could not ask
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fenceMax)
	defer cancel()
	do := names.Admit
	if lost {
		do = names.Expel
	}
	return sigma.Wrap("machines.Registry", "", do(ctx, m))
}

// reconcile tells the store of names about all lives, since the judge before may have died between
// saving and telling. It is called before a judge decides anything.
func reconcile(ctx context.Context, names Fence, self sigma.MachineID, state State) error {
	var all errgroup.Group
	all.SetLimit(reconcileMost)
	for _, m := range state.Members {
		all.Go(func() error { return tell(ctx, names, self, m.ID, m.Lost) })
	}
	return all.Wait()
}

// reconcileMost is how many machines the store of names is told about at once.
const reconcileMost = 8

// ask has Run do something and waits for it. The outcome is unknown (KindLost) if Run ends
// meanwhile.
func (r *Registry) ask(ctx context.Context, do func(now time.Time) ([]Effect, error)) ([]Effect, error) {
	q := request{do, make(chan result, 1)}
	select {
	case r.requests <- q:
	case <-r.over:
		return nil, sigma.Errorf("machines.Registry", sigma.KindUnavailable,
			"this machine no longer decides about membership")
	case <-ctx.Done():
		return nil, sigma.Wrap("machines.Registry", "", ctx.Err())
	}
	select {
	case got := <-q.done:
		return got.effects, got.err
	case <-r.over:
		select {
		case got := <-q.done:
			return got.effects, got.err
		default:
		}
		return nil, sigma.Errorf("machines.Registry", sigma.KindLost, "the decision about membership was broken off")
	}
}

// Do takes an operator's or observer's event.
func (r *Registry) Do(ctx context.Context, e Event) error {
	_, err := r.publish(ctx, e)
	return err
}

// publish does as Do does, and says which roster came of it; 0 if none.
func (r *Registry) publish(ctx context.Context, e Event) (epoch uint64, err error) {
	effects, err := r.ask(ctx, func(now time.Time) ([]Effect, error) { return r.core.Step(now, e) })
	for _, f := range effects {
		if p, ok := f.(Publish); ok {
			epoch = p.Epoch
		}
	}
	return epoch, err
}

// View runs look while nothing changes. It must not keep the core.
func (r *Registry) View(ctx context.Context, look func(*Core)) error {
	_, err := r.ask(ctx, func(time.Time) ([]Effect, error) { look(r.core); return nil, nil })
	return err
}

// Challenge implements link.Enroller.
func (r *Registry) Challenge(context.Context) (identity.Challenge, error) {
	return r.challenges.New(time.Now()), nil
}

// Found makes the first machine of the system and its certificate.
func (r *Registry) Found(ctx context.Context, q Request, key []byte) (*identity.Grant, error) {
	effects, err := r.ask(ctx, func(now time.Time) ([]Effect, error) { return r.core.Step(now, Found{q}) })
	if err != nil {
		return nil, err
	}
	return r.grant(effects, key)
}

// Enrol implements link.Enroller: it checks every proof, then has the core decide.
func (r *Registry) Enrol(ctx context.Context, e *identity.Enrolment) (*identity.Grant, error) {
	now := time.Now()
	if err := e.CheckKey(r.cfg.Authority.System(), now); err != nil {
		return nil, err
	}
	labels, err := parseLabels(e.Labels, false)
	if err != nil {
		return nil, err
	}
	if err := r.challenges.Use(now, e.Challenge); err != nil {
		return nil, err
	}
	q := Request{ID: e.Machine, Key: identity.KeyFingerprint(e.Key), Address: e.Address, Version: e.Version,
		Labels: labels, CPU: e.CPU, Memory: e.Memory}
	effects, err := r.ask(ctx, func(now time.Time) ([]Effect, error) {
		return r.core.Step(now, Enrol{q, e.Token, e.Token != "" && e.CheckToken(r.core.TokenKey(e.Token))})
	})
	if err != nil {
		return nil, err
	}
	return r.grant(effects, e.Key)
}

func (r *Registry) grant(effects []Effect, key []byte) (*identity.Grant, error) {
	g := &identity.Grant{Authorities: [][]byte{r.cfg.Authority.Certificate()}}
	var err error
	for _, f := range effects {
		switch f := f.(type) {
		case Publish:
			g.Control = nil
			for _, m := range f.Members {
				if m.Control {
					g.Control = append(g.Control, m)
				}
			}
		case Certify:
			g.Certificate, err = r.cfg.Authority.Issue(time.Now(), identity.Subject{Machine: f.Member.ID,
				Incarnation: f.Member.Incarnation, Epoch: f.Epoch}, key)
		}
	}
	return g, err
}

// Renew certifies a life that goes on once more. The peer is who its link says, and key is the one
// it showed.
func (r *Registry) Renew(ctx context.Context, peer identity.Subject, key []byte) ([]byte, error) {
	if identity.KeyFingerprint(key) != peer.Key {
		return nil, sigma.Errorf("machines.Renew", sigma.KindPermission,
			"a certificate is renewed for the same key only")
	}
	var epoch uint64
	if _, err := r.ask(ctx, func(time.Time) ([]Effect, error) {
		epoch = r.core.epoch
		return nil, r.core.MayRenew(peer)
	}); err != nil {
		return nil, err
	}
	return r.cfg.Authority.Issue(time.Now(), identity.Subject{Machine: peer.Machine, Incarnation: peer.Incarnation,
		Epoch: epoch}, key)
}

// parseLabels reads name=value; empty says whether the value may be.
func parseLabels(list []string, empty bool) (map[string]string, error) {
	labels := make(map[string]string, len(list))
	for _, l := range list {
		name, value, ok := strings.Cut(l, "=")
		if _, twice := labels[name]; !ok || value == "" && !empty || twice {
			return nil, &sigma.Error{Op: "machines.Enrol", Kind: sigma.KindInvalid,
				Msg: "labels are name=value, each name once", Hint: "as in zone=a"}
		}
		labels[name] = value
	}
	return labels, nil
}
