package machines

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// Pages of answers, such that each fits one message.
const (
	infosPage   = 20  // of at most 2.5 KiB
	membersPage = 120 // of at most 400 bytes
	tokensPage  = 500
	// of one machine that it has not fetched; more would be about machines it can as well be asked
	// about later
	errandsMax = 64
)

// Errand is something that the judge wants a machine to do.
type Errand struct {
	Try   sigma.MachineID // reach for this machine, and vouch for it if it answers; "" = none
	Drain bool            // ask this machine's own procs to go
}

// ServiceConfig is what a Service is made of.
type ServiceConfig struct {
	Core      Config
	Authority *identity.Authority
	Store     Store
	Names     Names // nil = it need not know
	Log       *slog.Logger
}

// Names is the store of names, of which each control machine holds a part.
type Names interface {
	Fence
	// RemoveMember takes a machine's part away; KindNotFound if it has none.
	RemoveMember(ctx context.Context, m sigma.MachineID) error
}

// Service is a judge that is asked by calls: a tree whose root is one callable file, for the
// provider's programs. Safe for concurrent use.
type Service struct {
	registry  *Registry
	authority *identity.Authority
	names     Names

	mu      sync.Mutex
	roster  Publish                         // mu
	changed chan struct{}                   // mu; closed and replaced with each roster
	errands map[sigma.MachineID]*errandList // mu
	known   map[sigma.MachineID]uint64      // mu; the epoch that each machine acts by, as far as it said
	said    chan struct{}                   // mu; closed and replaced when one of these is another
}

// cordonMost is how long it is waited until a machine acts by what was said of it.
const cordonMost = 2 * time.Second

// errandList is what a machine has not fetched yet. A fetch that got lost is repeated: the list is
// emptied by the next one, which names it.
type errandList struct {
	number uint64
	list   []Errand
	added  chan struct{} // closed and replaced when there is more
}

var _ sigma.Tree = (*Service)(nil)

// NewService makes the service. Nothing runs yet.
func NewService(now time.Time, cfg ServiceConfig) (*Service, error) {
	s := &Service{authority: cfg.Authority, names: cfg.Names, changed: make(chan struct{}),
		errands: map[sigma.MachineID]*errandList{}, known: map[sigma.MachineID]uint64{}, said: make(chan struct{})}
	var err error
	s.registry, err = NewRegistry(now, RegistryConfig{Core: cfg.Core, Authority: cfg.Authority, Store: cfg.Store,
		Act: s.act, Fence: cfg.Names, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	s.roster = s.registry.core.Roster()
	return s, nil
}

// Run judges until ctx ends or something cannot be saved.
func (s *Service) Run(ctx context.Context) error { return s.registry.Run(ctx) }

// Registry is what the service asks, for the founding of a system.
func (s *Service) Registry() *Registry { return s.registry }

// act makes effects known to whoever waits for them. Lost needs no word of its own: the roster
// shows that a life is over.
func (s *Service) act(f Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f := f.(type) {
	case Publish:
		s.roster = f
		close(s.changed)
		s.changed = make(chan struct{})
		maps.DeleteFunc(s.errands, func(id sigma.MachineID, l *errandList) bool {
			gone := !slices.ContainsFunc(f.Members, func(m identity.Member) bool { return m.Machine == id && !m.Lost })
			if gone {
				close(l.added)
			}
			return gone
		})
		maps.DeleteFunc(s.known, func(id sigma.MachineID, _ uint64) bool {
			return !slices.ContainsFunc(f.Members, func(m identity.Member) bool { return m.Machine == id })
		})
	case Probe:
		for _, h := range f.Helpers {
			s.addLocked(h, Errand{Try: f.ID})
		}
	case Drain:
		s.addLocked(f.ID, Errand{Drain: true})
	}
}

func (s *Service) listLocked(m sigma.MachineID) *errandList {
	l := s.errands[m]
	if l == nil {
		l = &errandList{added: make(chan struct{})}
		s.errands[m] = l
	}
	return l
}

func (s *Service) addLocked(m sigma.MachineID, e Errand) {
	l := s.listLocked(m)
	if len(l.list) < errandsMax && !slices.Contains(l.list, e) {
		l.list = append(l.list, e)
		l.number++
		close(l.added)
		l.added = make(chan struct{})
	}
}

// wait gives a machine its errands when there are some. seen is the number that came with those it
// has.
func (s *Service) wait(ctx context.Context, m sigma.MachineID, seen uint64) (uint64, []Errand, error) {
	for {
		s.mu.Lock()
		if !slices.ContainsFunc(s.roster.Members, func(x identity.Member) bool { return x.Machine == m && !x.Lost }) {
			s.mu.Unlock()
			return 0, nil, sigma.Errorf("machines.Errands", sigma.KindStale, "machine %.80s is no live member", m)
		}
		l := s.listLocked(m)
		if seen == l.number {
			l.list = nil
		}
		if len(l.list) > 0 {
			n, list := l.number, slices.Clone(l.list)
			s.mu.Unlock()
			return n, list, nil
		}
		added := l.added
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return 0, nil, sigma.Wrap("machines.Errands", "", ctx.Err())
		case <-added:
		}
	}
}

// say takes note that a machine acts by a roster: it asks for a later one.
func (s *Service) say(m sigma.MachineID, epoch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch <= s.known[m] || epoch > s.roster.Epoch || !slices.ContainsFunc(s.roster.Members,
		func(x identity.Member) bool {
			return x.Machine == m
		}) {
		return
	}
	s.known[m] = epoch
	close(s.said)
	s.said = make(chan struct{})
}

// acts waits until a machine acts by the roster of an epoch (0: the present one) or a later one, or
// is no more; false if it does not say so in time. Of one that is lost nothing is expected.
func (s *Service) acts(ctx context.Context, id sigma.MachineID, epoch uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, cordonMost)
	defer cancel()
	for {
		s.mu.Lock()
		i := slices.IndexFunc(s.roster.Members, func(x identity.Member) bool { return x.Machine == id })
		if i < 0 || s.roster.Members[i].Lost {
			s.mu.Unlock()
			return true
		}
		if epoch == 0 {
			epoch = s.roster.Epoch
		}
		done, changed, said := s.known[id] >= epoch, s.changed, s.said
		s.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-said:
		case <-ctx.Done():
			return false
		}
	}
}

// page gives a part of the roster that is later than epoch.
func (s *Service) page(ctx context.Context, epoch uint64, skip int) (uint64, bool, []identity.Member, error) {
	for {
		s.mu.Lock()
		r, changed := s.roster, s.changed
		s.mu.Unlock()
		switch {
		case skip > 0 && r.Epoch != epoch:
			return 0, false, nil, sigma.Errorf("machines.Roster", sigma.KindVersion, "the roster has changed meanwhile")
		case skip > 0 || r.Epoch > epoch:
			rest := r.Members[min(skip, len(r.Members)):]
			n := min(len(rest), membersPage)
			return r.Epoch, n < len(rest), rest[:n], nil
		}
		select {
		case <-ctx.Done():
			return 0, false, nil, sigma.Wrap("machines.Roster", "", ctx.Err())
		case <-changed:
		}
	}
}

// attach gives the provider's programs, and nobody else, a file whose calls are answered.
func attach(p sigma.Principal, call func(context.Context, sigma.Principal, string, []byte) ([]byte, error)) (sigma.File,
	error) {
	if !p.System {
		return nil, sigma.Errorf("machines.Attach", sigma.KindPermission, "membership is the machines' own business")
	}
	return treeserver.Answers("machines", func(ctx context.Context, method string, payload []byte) ([]byte, error) {
		return call(ctx, p, method, payload)
	}), nil
}

// Attach implements sigma.Tree; only the provider's programs may.
func (s *Service) Attach(_ context.Context, p sigma.Principal, _ string) (sigma.File, error) {
	return attach(p, s.call)
}

// call answers a call of the root file.
func (s *Service) call(ctx context.Context, p sigma.Principal, method string, payload []byte) ([]byte, error) {
	m, ok := methods[method]
	if !ok {
		return nil, treeserver.NoMethod("machines", method)
	}
	reply, _, err := m.Call(asker{s, p}, ctx, payload)
	return reply, err
}

// asker is who asks a Service.
type asker struct {
	*Service
	p sigma.Principal
}

var methods = sigmap.Table(
	sigmap.On(CallToken, asker.token),
	sigmap.On(CallTokens, func(s asker, ctx context.Context, _ sigmap.None) (list []Token, err error) {
		err = s.registry.View(ctx, func(c *Core) { list = c.Tokens() })
		return list[:min(len(list), tokensPage)], err
	}),
	onEvent(CallRevoke, func(_ asker, id identity.TokenID) Event { return RevokeToken{id} }),
	sigmap.On(CallChallenge, func(s asker, ctx context.Context, _ sigmap.None) (identity.Challenge, error) {
		return s.registry.Challenge(ctx)
	}),
	sigmap.On(CallEnrol, asker.enrol),
	sigmap.On(CallRenew, func(s asker, ctx context.Context, r renewal) ([]byte, error) {
		return s.registry.Renew(ctx, identity.Subject{Machine: s.p.Machine, Incarnation: r.incarnation,
			Key: identity.KeyFingerprint(r.key)}, r.key)
	}),
	onEvent(CallReport, func(s asker, es []Evidence) Event { return Report{s.p.Machine, es} }),
	onEvent(CallVouch, func(s asker, v Vouch) Event { v.By = s.p.Machine; return v }),
	sigmap.On(CallRoster, asker.rosterPage),
	sigmap.On(CallErrands, func(s asker, ctx context.Context, seen uint64) (p errandsPage, err error) {
		p.number, p.list, err = s.wait(ctx, s.p.Machine, seen)
		return p, err
	}),
	sigmap.On(CallList, asker.list),
	sigmap.On(CallAuthority, asker.handOver),
	sigmap.On(CallCordon, func(s asker, ctx context.Context, e Cordon) (acts bool, err error) {
		epoch, err := s.registry.publish(ctx, e)
		if err != nil {
			return false, err
		}
		return s.acts(ctx, e.ID, epoch), nil
	}),
	sigmap.Do(CallDrain, func(s asker, ctx context.Context, id sigma.MachineID) error {
		return s.publish(ctx, DrainStart{id})
	}),
	sigmap.Do(CallLabel, func(s asker, ctx context.Context, l labelling) error {
		m, err := parseLabels(l.labels, true)
		if err != nil {
			return err
		}
		return s.publish(ctx, Label{l.id, m})
	}),
	sigmap.Do(CallControl, func(s asker, ctx context.Context, e Control) error {
		if !e.On {
			if err := s.leaveNames(ctx, e); err != nil {
				return err
			}
		}
		return s.publish(ctx, e)
	}),
	sigmap.Do(CallRemove, func(s asker, ctx context.Context, e Remove) error {
		if err := s.registry.Do(ctx, GiveUp(e)); err != nil {
			return err
		}
		return s.publish(ctx, e)
	}),
)

// onEvent makes the handler of a method that is one event.
func onEvent[Q any](m sigmap.Method[Q, sigmap.None], of func(asker, Q) Event) sigmap.Handler[asker] {
	return sigmap.Do(m, func(s asker, ctx context.Context, q Q) error { return s.registry.Do(ctx, of(s, q)) })
}

// publish carries out what an operator asks of one machine.
func (s *Service) publish(ctx context.Context, e Event) error {
	_, err := s.registry.publish(ctx, e)
	return err
}

func (s asker) token(ctx context.Context, a tokenAsk) (string, error) {
	t := identity.NewToken(s.authority.Fingerprint())
	err := s.registry.Do(ctx, MakeToken{t.ID(), t.Key(), int(min(a.uses, TokenUsesMax+1)), a.ttl})
	return t.Text(), err
}

func (s asker) enrol(ctx context.Context, payload []byte) ([]byte, error) {
	e, err := identity.ParseEnrolment(payload)
	if err != nil {
		return nil, err
	}
	g, err := s.registry.Enrol(ctx, e)
	if err != nil {
		return nil, err
	}
	return g.Encode()
}

func (s asker) rosterPage(ctx context.Context, a rosterAsk) (p rosterPage, err error) {
	if a.skip == 0 {
		s.say(s.p.Machine, a.epoch)
	}
	p.epoch, p.more, p.members, err = s.page(ctx, a.epoch, int(a.skip))
	return p, err
}

func (s asker) list(ctx context.Context, skip uint32) (l listed, err error) {
	err = s.registry.View(ctx, func(c *Core) { l.page = c.List() })
	l.page = l.page[min(int(skip), len(l.page)):]
	n := min(len(l.page), infosPage)
	l.more, l.page = n < len(l.page), l.page[:n]
	return l, err
}

// handOver gives the authority to machined of another control machine, so that it can take over.
// Who has it can be any machine, so nobody else gets it, and it is nowhere else: not in the store,
// not in a backup.
func (s asker) handOver(ctx context.Context, _ sigmap.None) ([]byte, error) {
	const op = "machines.Authority"
	allowed := false
	err := s.registry.View(ctx, func(c *Core) {
		m := c.members[s.p.Machine]
		allowed = m != nil && m.Control && !m.Lost
	})
	switch {
	case err != nil:
		return nil, err
	case !allowed || s.p.Realm != sigma.SystemRealm || s.p.Proc != "":
		return nil, sigma.Errorf(op, sigma.KindPermission, "machine %.80s is no control machine", s.p.Machine)
	}
	return s.authority.Marshal(), nil
}

// leaveNames takes a machine's part of the store of names away, which comes before it stops to be a
// control machine: then nothing is left behind if it fails.
func (s *Service) leaveNames(ctx context.Context, e Control) error {
	if s.names == nil {
		return nil
	}
	var refused error
	if err := s.registry.View(ctx, func(c *Core) { refused = c.mayControl(e) }); err != nil {
		return err
	}
	if refused != nil {
		return refused
	}
	if err := s.names.RemoveMember(ctx, e.ID); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return sigma.Wrap("machines.Control", "", err)
	}
	return nil
}
