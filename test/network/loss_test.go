//go:build system

package network

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/netlab"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// cluster is a system without procs: links, beats and a judge, each machine in its namespace.
type cluster struct {
	t        *testing.T
	ctx      context.Context
	lab      *netlab.Lab
	registry *machines.Registry
	known    identity.Fingerprint // of the authority
	all      sync.WaitGroup
	hosts    []*host

	mu    sync.Mutex
	lost  []machines.Lost // mu
	trust []*identity.Roster
}

type host struct {
	c    *cluster
	name sigma.MachineID
	net  *netlab.Machine
	key  ed25519.PrivateKey
	stop context.CancelFunc
	over chan error
}

const port = 7700

func (h *host) address() string { return fmt.Sprintf("%s:%d", h.net.Addr, port) }

// newCluster founds a system on the first machine and has the others join over the network.
func newCluster(t *testing.T, n int) *cluster {
	ctx, stop := context.WithCancel(t.Context())
	c := &cluster{t: t, ctx: ctx, lab: newLab(t, n)}
	t.Cleanup(func() { stop(); c.all.Wait() })
	root, err := memfs.New(memfs.Config{}).Attach(ctx, sigma.Principal{System: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	store, state, err := machines.TakeOver(ctx, resolve.New(resolve.Config{Root: root}), "/machines", "m1", "")
	if err != nil {
		t.Fatal(err)
	}
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.known = authority.Fingerprint()
	c.registry, err = machines.NewRegistry(time.Now(),
		machines.RegistryConfig{Core: machines.Config{Self: "m1", State: state}, Authority: authority, Store: store,
			Act: c.act})
	if err != nil {
		t.Fatal(err)
	}
	c.all.Go(func() {
		if err := c.registry.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		c.hosts = append(c.hosts, &host{c: c, name: sigma.MachineID(fmt.Sprint("m", i+1)), net: c.lab.Machine(i),
			key: identity.NewKey(), over: make(chan error, 1)})
	}
	first := c.hosts[0]
	pub := first.key.Public().(ed25519.PublicKey)
	g, err := c.registry.Found(ctx, machines.Request{ID: "m1", Key: identity.KeyFingerprint(pub),
		Address: first.address()}, pub)
	if err != nil {
		t.Fatal(err)
	}
	first.start(g)
	token := identity.NewToken(authority.Fingerprint())
	if err := c.registry.Do(ctx, machines.MakeToken{ID: token.ID(), Key: token.Key(), Uses: n}); err != nil {
		t.Fatal(err)
	}
	for _, h := range c.hosts[1:] {
		h.enrol(&token)
	}
	return c
}

// enrol registers the machine over the network and starts it.
func (h *host) enrol(token *identity.Token) {
	h.c.t.Helper()
	g, _, err := link.Enrol(h.c.ctx, link.Join{Address: h.c.hosts[0].address(), Authority: h.c.known, Token: token,
		Key: h.key, Ask: identity.Enrolment{Machine: h.name, Address: h.address()},
		Connect: func(ctx context.Context, address string) (net.Conn, error) {
			return h.net.Dial(ctx, "tcp4", address)
		}})
	if err != nil {
		h.c.t.Fatal(err)
	}
	h.start(g)
}

// start runs what a machine's sigmad will: its end of links, beats to the control machine, answers
// to beats.
func (h *host) start(g *identity.Grant) {
	c := h.c
	c.t.Helper()
	roster := g.Roster()
	c.mu.Lock()
	c.trust = append(c.trust, roster)
	c.mu.Unlock()
	id, err := identity.New(identity.Config{Key: h.key, Certificate: g.Certificate, Authorities: g.Authorities,
		Roster: roster})
	if err != nil {
		c.t.Fatal(err)
	}
	node, err := link.New(link.Config{Identity: id, Enrol: c.registry, Connect: func(ctx context.Context,
		address string) (net.Conn, error) {
		return h.net.Dial(ctx, "tcp4", address)
	},
		Serve: func(ctx context.Context, l *link.Link) {
			machines.Observe(ctx, l, func(time.Time) {
				c.registry.Do(ctx, machines.Heard{ID: l.Peer.Machine, Incarnation: l.Peer.Incarnation})
			})
		}})
	if err != nil {
		c.t.Fatal(err)
	}
	ln, err := h.net.Listen(port)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(c.ctx)
	var mine sync.WaitGroup
	h.stop = func() { stop(); mine.Wait() }
	c.all.Go(func() { <-ctx.Done(); mine.Wait() })
	beater := machines.NewBeater(machines.BeaterConfig{
		Controls: func() (out []sigma.MachineID) {
			for _, m := range roster.Members() {
				if m.Control && m.Machine != h.name {
					out = append(out, m.Machine)
				}
			}
			return out
		},
		Dial: func(ctx context.Context, m sigma.MachineID) (net.Conn, error) {
			return node.Dial(ctx, m, link.Target{Kind: link.ToBeat, Name: "beat"}, sigma.Principal{System: true})
		},
		Over: func(err error) { h.over <- err }})
	for _, run := range []func(){func() {
		node.Listen(ctx, ln)
	}, func() { node.Watch(ctx) }, func() { beater.Run(ctx) }} {
		mine.Go(run)
	}
	c.registry.View(c.ctx, func(core *machines.Core) { c.act(core.Roster()) })
}

// act is the judge's arm: rosters go to all machines, as if there were a way for them that no cut
// affects.
func (c *cluster) act(f machines.Effect) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch f := f.(type) {
	case machines.Lost:
		c.lost = append(c.lost, f)
	case machines.Publish:
		for _, r := range c.trust {
			r.Set(f.Epoch, f.Members)
		}
	}
}

func (c *cluster) lostNames() (out []sigma.MachineID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lost {
		out = append(out, l.ID)
	}
	slices.Sort(out)
	return out
}

// Goal: of five machines one that is cut off and one that dies are declared lost and no other,
// however slow; the one that was cut off learns it when it is back, and registers again.
func TestLoss(t *testing.T) {
	c := newCluster(t, 5)
	judge, cut, dead, slow := c.hosts[0], c.hosts[1], c.hosts[2], c.hosts[3]
	c.lab.Both(judge.net, slow.net, netlab.Rule{Delay: 300 * time.Millisecond})
	c.lab.Set(cut.net, judge.net, netlab.Rule{Cut: true}) // one way is enough
	dead.stop()
	until(t, "the loss of two machines", func() bool { return len(c.lostNames()) >= 2 })
	if got := c.lostNames(); !slices.Equal(got, []sigma.MachineID{"m2", "m3"}) {
		t.Fatalf("lost are %v", got)
	}
	c.lab.Heal()
	if err := <-cut.over; sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("the machine that is back is told %v", err)
	}
	cut.stop()
	var before, after machines.Publish
	c.registry.View(c.ctx, func(core *machines.Core) { before = core.Roster() })
	cut.enrol(nil)
	c.registry.View(c.ctx, func(core *machines.Core) { after = core.Roster() })
	if b, a := before.Members[1], after.Members[1]; !b.Lost || a.Lost || a.Incarnation <= b.Incarnation ||
		!after.Members[2].Lost {
		t.Errorf("it was %+v and is %+v", b, a)
	}
}
