package link

import (
	"context"
	"crypto/ed25519"
	"net"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// system is a system of some machines in this process, over loopback.
type system struct {
	t         testing.TB
	ctx       context.Context
	authority *identity.Authority
	registry  *machines.Registry
	all       sync.WaitGroup

	mu      sync.Mutex
	hosts   map[sigma.MachineID]*host_ // mu
	refused chan refusedAt
}

// refusedAt is a connection that was not accepted.
type refusedAt struct {
	from string
	err  error
}

// host_ is one machine.
type host_ struct {
	key     ed25519.PrivateKey
	id      *identity.Identity
	node    *Node
	address string
	served  chan *Link
	direct  chan taken
	batches chan batched
	stop    context.CancelFunc
	offset  time.Duration
}

// forgetful keeps nothing: these systems live as long as a test.
type forgetful struct{}

func (forgetful) Save(context.Context, []machines.Effect) error { return nil }

// patient never judges within a test.
func patient() machines.Timing {
	return machines.Timing{Interval: time.Hour, Suspect: 2 * time.Hour, Lost: 4 * time.Hour, Vouched: 8 * time.Hour,
		Report: 3 * time.Hour, Tick: 10 * time.Millisecond}
}

// newSystem founds a system with machine m1.
func newSystem(t testing.TB) *system {
	t.Helper()
	a, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s := &system{t: t, ctx: ctx, authority: a, hosts: map[sigma.MachineID]*host_{}, refused: make(chan refusedAt, 1000)}
	s.registry, err = machines.NewRegistry(time.Now(),
		machines.RegistryConfig{Core: machines.Config{Self: "m1", Timing: patient()}, Authority: a, Store: forgetful{},
			Act: s.act})
	if err != nil {
		t.Fatal(err)
	}
	s.all.Go(func() { s.registry.Run(ctx) })
	t.Cleanup(func() { stop(); s.all.Wait() })
	h, ln := s.listen()
	pub := h.key.Public().(ed25519.PublicKey)
	g, err := s.registry.Found(ctx, machines.Request{ID: "m1", Key: identity.KeyFingerprint(pub), Address: h.address},
		pub)
	if err != nil {
		t.Fatal(err)
	}
	s.start(h, ln, g)
	return s
}

// act gives new rosters to all machines.
func (s *system) act(f machines.Effect) {
	if p, ok := f.(machines.Publish); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range s.hosts {
			h.id.Roster().Set(p.Epoch, p.Members)
		}
	}
}

func (s *system) listen() (*host_, net.Listener) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	return &host_{key: identity.NewKey(), address: ln.Addr().String(), served: make(chan *Link, 16),
		direct: make(chan taken, 64), batches: make(chan batched, 64)}, ln
}

// start runs a machine that has been granted its certificate.
func (s *system) start(h *host_, ln net.Listener, g *identity.Grant) {
	s.t.Helper()
	id, err := identity.New(identity.Config{Key: h.key, Certificate: g.Certificate, Authorities: g.Authorities,
		Roster: g.Roster(), Now: func() time.Time {
			return time.Now().Add(h.offset)
		}})
	if err != nil {
		s.t.Fatal(err)
	}
	h.id = id
	h.node, err = New(Config{Identity: id, Enrol: s.registry, Reserve: h.reserve, Batch: h.takeBatch,
		Serve: func(ctx context.Context, l *Link) {
			select {
			case h.served <- l:
			default:
			}
			<-ctx.Done()
		}, Events: Events{Refused: func(from net.Addr, err error) {
			select {
			case s.refused <- refusedAt{from.String(), err}:
			default:
			}
		}}})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.ctx)
	h.stop = stop
	s.all.Go(func() { h.node.Watch(ctx) })
	if ln != nil {
		s.all.Go(func() {
			if err := h.node.Listen(ctx, ln); err != nil {
				s.t.Error(err)
			}
		})
	}
	s.mu.Lock()
	s.hosts[id.Self().Machine] = h
	s.mu.Unlock()
	s.publish()
}

// publish gives every machine the roster of now.
func (s *system) publish() {
	s.t.Helper()
	if err := s.registry.View(s.ctx, func(c *machines.Core) { s.act(c.Roster()) }); err != nil {
		s.t.Fatal(err)
	}
}

// token makes a token.
func (s *system) token(uses int, ttl time.Duration) identity.Token {
	s.t.Helper()
	tok := identity.NewToken(s.authority.Fingerprint())
	if err := s.registry.Do(s.ctx, machines.MakeToken{ID: tok.ID(), Key: tok.Key(), Uses: uses, TTL: ttl}); err != nil {
		s.t.Fatal(err)
	}
	return tok
}

// ask tries to join through m1.
func (s *system) ask(h *host_, name sigma.MachineID, tok *identity.Token, change func(*Join)) (*identity.Grant, error) {
	j := Join{Address: s.hosts["m1"].address, Authority: s.authority.Fingerprint(), Token: tok, Key: h.key,
		Ask: identity.Enrolment{Machine: name, Address: h.address}}
	if change != nil {
		change(&j)
	}
	g, _, err := Enrol(s.ctx, j)
	return g, err
}

// join adds a machine.
func (s *system) join(name sigma.MachineID) *host_ {
	s.t.Helper()
	tok := s.token(1, time.Minute)
	h, ln := s.listen()
	g, err := s.ask(h, name, &tok, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.start(h, ln, g)
	return h
}

func (s *system) do(e machines.Event) {
	s.t.Helper()
	if err := s.registry.Do(s.ctx, e); err != nil {
		s.t.Fatal(err)
	}
}

func readWelcome(conn net.Conn) (w welcome, err error) {
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	payload, err := readFrame(conn, frameMax)
	if err == nil {
		err = sigmap.Parse(payload, w.code)
	}
	return w, err
}

func answerPayload(a *answer) ([]byte, error) { return sigmap.Payload(a.code) }
