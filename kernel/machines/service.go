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

// Methods of the service's root file. The machine that calls is the Principal's, stamped from its
// link.
//
//	token     uses, ttl -> text of a new token       tokens    - -> []Token           revoke   TokenID -> -
//	list      skip -> more, []MachineInfo            cordon    name, on -> -          drain    name -> -
//	label     name, []name=value -> -                control   name, on -> -          remove   name, force -> -
//	challenge - -> Challenge                         enrol     Enrolment -> Grant     renew    incarnation, key -> certificate
//	report    []Evidence -> -                        vouch     name, incarnation -> -
//	roster    epoch, skip -> epoch, more, []Member   waits until there is a later one (skip > 0: of the same one)
//	errands   seen -> number, []Errand               waits until there are some for the caller
//	authority - -> PEM with the key                  for machined of another control machine; its sigmad lets nobody else ask
const (
	CallToken     = "token"
	CallTokens    = "tokens"
	CallRevoke    = "revoke"
	CallList      = "list"
	CallCordon    = "cordon"
	CallDrain     = "drain"
	CallLabel     = "label"
	CallControl   = "control"
	CallRemove    = "remove"
	CallChallenge = "challenge"
	CallEnrol     = "enrol"
	CallRenew     = "renew"
	CallReport    = "report"
	CallVouch     = "vouch"
	CallRoster    = "roster"
	CallErrands   = "errands"
	CallAuthority = "authority"
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

func (s *Service) call(ctx context.Context, p sigma.Principal, method string, payload []byte) ([]byte, error) {
	switch method {
	case CallToken, CallTokens, CallRevoke:
		return s.tokens(ctx, method, payload)
	case CallChallenge, CallEnrol, CallRenew:
		return s.enrolments(ctx, p, method, payload)
	case CallReport, CallVouch, CallRoster, CallErrands:
		return s.observers(ctx, p, method, payload)
	case CallList:
		return s.list(ctx, payload)
	case CallAuthority:
		return s.handOver(ctx, p)
	}
	return s.operate(ctx, method, payload)
}

func (s *Service) tokens(ctx context.Context, method string, payload []byte) ([]byte, error) {
	switch method {
	case CallToken:
		var uses uint32
		var ttl time.Duration
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U32(&uses); c.Duration(&ttl) }); err != nil {
			return nil, err
		}
		t := identity.NewToken(s.authority.Fingerprint())
		if err := s.registry.Do(ctx, MakeToken{t.ID(), t.Key(), int(min(uses, TokenUsesMax+1)), ttl}); err != nil {
			return nil, err
		}
		text := t.Text()
		return sigmap.Payload(func(c *sigmap.Coder) { c.Str(&text) })
	case CallRevoke:
		var id identity.TokenID
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str((*string)(&id)) }); err != nil {
			return nil, err
		}
		return nil, s.registry.Do(ctx, RevokeToken{id})
	}
	var list []Token
	if err := s.registry.View(ctx, func(c *Core) { list = c.Tokens() }); err != nil {
		return nil, err
	}
	list = list[:min(len(list), tokensPage)]
	return sigmap.Payload(func(c *sigmap.Coder) { codeTokens(c, &list) })
}

func (s *Service) enrolments(ctx context.Context, p sigma.Principal, method string, payload []byte) ([]byte, error) {
	switch method {
	case CallChallenge:
		ch, err := s.registry.Challenge(ctx)
		return ch[:], err
	case CallEnrol:
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
	var inc sigma.Incarnation
	var key []byte
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64((*uint64)(&inc)); c.Data(&key) }); err != nil {
		return nil, err
	}
	return s.registry.Renew(ctx, identity.Subject{Machine: p.Machine, Incarnation: inc,
		Key: identity.KeyFingerprint(key)}, key)
}

func (s *Service) observers(ctx context.Context, p sigma.Principal, method string, payload []byte) ([]byte, error) {
	switch method {
	case CallReport:
		var es []Evidence
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { CodeEvidence(c, &es) }); err != nil {
			return nil, err
		}
		return nil, s.registry.Do(ctx, Report{p.Machine, es})
	case CallVouch:
		v := Vouch{By: p.Machine}
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
			c.Str((*string)(&v.ID))
			c.U64((*uint64)(&v.Incarnation))
		}); err != nil {
			return nil, err
		}
		return nil, s.registry.Do(ctx, v)
	case CallErrands:
		var seen uint64
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64(&seen) }); err != nil {
			return nil, err
		}
		n, list, err := s.wait(ctx, p.Machine, seen)
		if err != nil {
			return nil, err
		}
		return sigmap.Payload(func(c *sigmap.Coder) { c.U64(&n); codeErrands(c, &list) })
	}
	var epoch uint64
	var skip uint32
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64(&epoch); c.U32(&skip) }); err != nil {
		return nil, err
	}
	if skip == 0 {
		s.say(p.Machine, epoch)
	}
	epoch, more, ms, err := s.page(ctx, epoch, int(skip))
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.U64(&epoch); c.Bool(&more); identity.CodeMembers(c, &ms) })
}

func (s *Service) list(ctx context.Context, payload []byte) ([]byte, error) {
	var skip uint32
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U32(&skip) }); err != nil {
		return nil, err
	}
	var all []sigma.MachineInfo
	if err := s.registry.View(ctx, func(c *Core) { all = c.List() }); err != nil {
		return nil, err
	}
	all = all[min(int(skip), len(all)):]
	n := min(len(all), infosPage)
	more, page := n < len(all), all[:n]
	return sigmap.Payload(func(c *sigmap.Coder) { c.Bool(&more); codeInfos(c, &page) })
}

// handOver gives the authority to machined of another control machine, so that it can take over.
// Who has it can be any machine, so nobody else gets it, and it is nowhere else: not in the store,
// not in a backup.
func (s *Service) handOver(ctx context.Context, p sigma.Principal) ([]byte, error) {
	const op = "machines.Authority"
	allowed := false
	err := s.registry.View(ctx, func(c *Core) {
		m := c.members[p.Machine]
		allowed = m != nil && m.Control && !m.Lost
	})
	switch {
	case err != nil:
		return nil, err
	case !allowed || p.Realm != sigma.SystemRealm || p.Proc != "":
		return nil, sigma.Errorf(op, sigma.KindPermission, "machine %.80s is no control machine", p.Machine)
	}
	return s.authority.Marshal(), nil
}

// operate carries out what an operator asks of one machine. A cordon tells whether the machine acts
// by it already.
func (s *Service) operate(ctx context.Context, method string, payload []byte) ([]byte, error) {
	var id sigma.MachineID
	var on bool
	var labels []string
	err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.Str((*string)(&id))
		switch method {
		case CallCordon, CallControl, CallRemove:
			c.Bool(&on)
		case CallLabel:
			c.Strs(&labels)
		}
	})
	var e Event
	switch method {
	case CallCordon:
		e = Cordon{id, on}
	case CallDrain:
		e = DrainStart{id}
	case CallControl:
		e = Control{id, on}
	case CallRemove:
		e = Remove{id, on}
	case CallLabel:
		m, lerr := parseLabels(labels, true)
		if err == nil {
			err = lerr
		}
		e = Label{id, m}
	default:
		return nil, treeserver.NoMethod("machines", method)
	}
	if err != nil {
		return nil, err
	}
	if off, ok := e.(Control); ok && !off.On {
		if err := s.leaveNames(ctx, off); err != nil {
			return nil, err
		}
	}
	if gone, ok := e.(Remove); ok {
		if err := s.registry.Do(ctx, GiveUp(gone)); err != nil {
			return nil, err
		}
	}
	epoch, err := s.registry.publish(ctx, e)
	if err != nil || method != CallCordon {
		return nil, err
	}
	acts := s.acts(ctx, id, epoch)
	return sigmap.Payload(func(c *sigmap.Coder) { c.Bool(&acts) })
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
