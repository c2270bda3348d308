package kernel

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// world is a system of some machines in this process, over loopback, with real identities. The
// roster is one for all.
type world struct {
	t        *testing.T
	roster   *identity.Roster
	machines map[sigma.MachineID]*machine

	mu      sync.Mutex
	epoch   uint64            // mu
	members []identity.Member // mu
}

// part says what one machine of a world is.
type part struct {
	name     sigma.MachineID
	control  bool
	encrypt  bool
	services []string
	before   func(*machine) // nil, or what is done before it runs
}

// newWorld starts machines, one after another.
func newWorld(t *testing.T, parts ...part) *world {
	t.Helper()
	a, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, roster: identity.NewRoster(), machines: map[sigma.MachineID]*machine{}}
	lns, ids := map[sigma.MachineID]net.Listener{}, map[sigma.MachineID]*identity.Identity{}
	for i, p := range parts {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		key := identity.NewKey()
		pub := key.Public().(ed25519.PublicKey)
		life := sigma.Incarnation(i + 1)
		der, err := a.Issue(time.Now(), identity.Subject{Machine: p.name, Incarnation: life, Epoch: 1}, pub)
		if err != nil {
			t.Fatal(err)
		}
		id, err := identity.New(identity.Config{Key: key, Certificate: der, Authorities: [][]byte{a.Certificate()},
			Roster: w.roster})
		if err != nil {
			t.Fatal(err)
		}
		lns[p.name], ids[p.name] = ln, id
		w.members = append(w.members, identity.Member{Machine: p.name, Key: identity.KeyFingerprint(pub),
			Address: ln.Addr().String(), Incarnation: life, Control: p.control})
	}
	w.change(func(*identity.Member) {})
	for _, p := range parts {
		w.machines[p.name] = w.boot(p, lns[p.name], ids[p.name])
	}
	return w
}

func (w *world) boot(p part, ln net.Listener, id *identity.Identity) *machine {
	return bootAs(w.t, Config{Machine: p.name, Join: &Join{}}, func(m *machine) {
		if p.before != nil {
			p.before(m)
		}
		cfg := link.Config{Identity: id, Authorise: m.k.incoming.Authorise, Serve: m.k.incoming.Serve,
			Reserve: m.k.connect.Reserve, Batch: m.k.connect.TakeBatch, Connect: m.dial}
		if p.encrypt {
			cfg.Reserve = nil
		}
		node, err := link.New(cfg)
		if err != nil {
			w.t.Fatal(err)
		}
		m.k.cluster.Enrol(id, node)

		ctx, stop := context.WithCancel(context.Background())
		var all sync.WaitGroup
		all.Go(func() { node.Watch(ctx) })
		all.Go(func() { m.k.connect.WatchConnections(ctx) })
		all.Go(func() {
			if err := node.Listen(ctx, ln); err != nil {
				w.t.Error(err)
			}
		})
		w.t.Cleanup(func() { stop(); all.Wait() })
	}, p.services...)
}

// change makes a new roster.
func (w *world) change(each func(*identity.Member)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.members {
		each(&w.members[i])
	}
	w.epoch++
	w.roster.Set(w.epoch, slices.Clone(w.members))
}

// lose ends a machine's life, as the roster says.
func (w *world) lose(m sigma.MachineID) {
	w.change(func(x *identity.Member) { x.Lost = x.Lost || x.Machine == m })
}

// proc is the root of a program's session as p.
func (m *machine) proc(p sigma.Principal) sigma.File {
	m.t.Helper()
	c, _ := m.session(p)
	root, err := c.Attach(m.t.Context(), "")
	if err != nil {
		m.t.Fatal(err)
	}
	return root
}

// session is a program's session as p. end closes it and waits until it is over.
func (m *machine) session(p sigma.Principal) (c *session.Client, end func()) {
	m.t.Helper()
	p.Machine = m.k.cfg.Machine
	ours, theirs, err := session.Pair()
	if err != nil {
		m.t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { defer close(over); m.k.sessions.Serve(m.k.life.ctx, ours, p) }()
	if c, err = session.Dial(m.t.Context(), theirs); err != nil {
		m.t.Fatal(err)
	}
	end = func() { c.Close(); <-over }
	m.t.Cleanup(end)
	return c, end
}

// standby is a name server that answers only while it leads.
type standby struct {
	sigma.Tree
	m *machine
}

func (s standby) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	if s.m.leads != nil && !s.m.leads() {
		return nil, sigma.Errorf("test", sigma.KindUnavailable, "named of another machine leads")
	}
	return s.Tree.Attach(ctx, p, name)
}

// service is the session of a service of the boot set.
func (m *machine) service(name string) sigma.File {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.running {
		if p.name == name {
			return p.root
		}
	}
	m.t.Fatal(errors.New("no such service"))
	return nil
}
