//go:build system

// Package identity tries, against real sigmads, to be a machine of a system without the right to
// it, or to be another machine than one is. Each attempt has a control that shows that it would
// have worked with the right credential. What needs no real machine is tried in
// kernel/link/identity_test.go. It needs root and /dev/net/tun.
package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

const testMax = 5 * time.Minute

// world is a system of two real machines, m1, which founded it, and m2. The test itself is other
// machines, which use m2's network.
type world struct {
	t      *testing.T
	ctx    context.Context
	m1, m2 *testenv.Machine
	system sigma.SystemID
	known  [][]byte // authorities, DER

	all       sync.WaitGroup
	names     int
	tried     int
	succeeded int
}

// TestIdentity is all attempts, in one system.
func TestIdentity(t *testing.T) {
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 2})
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	w := &world{t: t, ctx: ctx, m1: c.Machine(0), m2: c.Machine(1)}
	defer w.all.Wait()
	defer cancel()
	w.tryTokens()
	w.tryRequests()
	w.tryCertificates()
	w.tryHellos()
	w.tryCalls()
	w.tryOperator()
	w.tryTenant()
	w.tryStrangers()
	w.tryRemoved()
	fmt.Printf("identity: %d tried, %d succeeded\n", w.tried, w.succeeded)
	if w.tried < 20 {
		t.Errorf("only %d attempts were made", w.tried)
	}
}

// try makes an attempt, which must fail in the words of want, after its control, which must not.
func (w *world) try(what string, control, attempt func() error, want string) {
	w.t.Helper()
	if err := control(); err != nil {
		w.t.Errorf("%s: the control fails too: %v", what, err)
	}
	w.tried++
	err := attempt()
	switch {
	case err == nil:
		w.succeeded++
		w.t.Errorf("%s: it succeeded", what)
	case !strings.Contains(err.Error(), want):
		w.t.Errorf("%s: it failed with %q, want %q", what, err, want)
	}
}

// soon repeats an attempt until it is refused in the words of want: what was decided must reach
// m1's sigmad first.
func (w *world) soon(attempt func() error, want string) func() error {
	return func() (err error) {
		for end := time.Now().Add(20 * time.Second * testenv.Slow()); time.Now().Before(end) &&
			w.ctx.Err() == nil; <-time.After(10 * time.Millisecond) {
			if err = attempt(); err != nil && strings.Contains(err.Error(), want) {
				return err
			}
		}
		return err
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// cli runs a command on m1 that has to succeed.
func (w *world) cli(args ...string) string {
	w.t.Helper()
	return strings.TrimSpace(w.m1.Must(w.t, args...))
}

func (w *world) token(args ...string) identity.Token {
	w.t.Helper()
	tok, err := identity.ParseToken(w.cli(append([]string{"token", "create"}, args...)...))
	w.must(err)
	return tok
}

// name gives one that no machine has had.
func (w *world) name() sigma.MachineID {
	w.names++
	return sigma.MachineID(fmt.Sprint("x", w.names))
}

// connect makes a TCP connection from where m2 is.
func (w *world) connect(ctx context.Context, address string) (net.Conn, error) {
	return w.m2.Net.Dial(ctx, "tcp", address)
}

// enrol asks m1 to be taken in.
func (w *world) enrol(tok *identity.Token, name sigma.MachineID, key ed25519.PrivateKey,
	change func(*link.Join)) (*identity.Grant, error) {
	j := link.Join{Address: w.m1.Address(), Token: tok, Key: key, Connect: w.connect,
		Ask: identity.Enrolment{Machine: name, Address: w.m2.Net.Addr.String() + ":9", CPU: 1000, Memory: sigma.GiB,
			Version: "test"}}
	if tok == nil && len(w.known) > 0 {
		j.Authority = sha256.Sum256(w.known[0])
	}
	if change != nil {
		change(&j)
	}
	g, met, err := link.Enrol(w.ctx, j)
	if err == nil {
		w.system, w.known = met.System, g.Authorities
	}
	return g, err
}

// peer is a machine of the system that the test is.
type peer struct {
	w    *world
	name sigma.MachineID
	key  ed25519.PrivateKey
	cert []byte
	id   *identity.Identity
	node *link.Node
}

// join takes a machine in that the test is. It beats, so it stays alive.
func (w *world) join() *peer {
	w.t.Helper()
	tok, key, name := w.token(), identity.NewKey(), w.name()
	g, err := w.enrol(&tok, name, key, nil)
	w.must(err)
	p := w.peer(name, key, g)
	p.beat("m1")
	return p
}

// beat keeps p alive for the control machines that it beats to.
func (p *peer) beat(controls ...sigma.MachineID) {
	b := machines.NewBeater(machines.BeaterConfig{Controls: func() []sigma.MachineID {
		return controls
	}, Dial: func(ctx context.Context, m sigma.MachineID) (net.Conn, error) {
		return p.node.Dial(ctx, m, link.Target{Kind: link.ToBeat, Name: "beat"}, provider)
	}})
	p.w.all.Go(func() { b.Run(p.w.ctx) })
}

// peer is a machine with what was granted.
func (w *world) peer(name sigma.MachineID, key ed25519.PrivateKey, g *identity.Grant) *peer {
	w.t.Helper()
	p := &peer{w: w, name: name, key: key, cert: g.Certificate}
	var err error
	p.id, err = identity.New(identity.Config{Key: key, Certificate: g.Certificate, Authorities: g.Authorities,
		Roster: g.Roster()})
	w.must(err)
	p.node, err = link.New(link.Config{Identity: p.id, Connect: w.connect, Serve: func(_ context.Context,
		l *link.Link) {
		l.Close()
	}})
	w.must(err)
	return p
}

// provider is on whose behalf machines talk to each other.
var provider = sigma.Principal{Realm: sigma.SystemRealm, System: true}

// machined calls m1's machined.
func (p *peer) machined(f func(*machines.Client) error) error {
	l, err := p.node.Dial(p.w.ctx, "m1", link.Target{Kind: link.ToService, Name: "machined"}, provider)
	if err != nil {
		return err
	}
	s, err := session.Dial(p.w.ctx, l.Session())
	if err != nil {
		return err
	}
	defer s.Close()
	root, err := s.Attach(p.w.ctx, "")
	if err != nil {
		return err
	}
	return f(machines.NewClient(root.(sigma.Caller)))
}

// reach says whether p is admitted as a machine.
func (p *peer) reach() error {
	return p.machined(func(c *machines.Client) error { return second(c.List(p.w.ctx)) })
}

func second[T any](_ T, err error) error { return err }

// stolen is the identity that m2 keeps, read as only root on m2 can.
func (w *world) stolen() (key ed25519.PrivateKey, g *identity.Grant) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.m2.DataDir, "sigmad", "identity"))
	w.must(err)
	var kept struct {
		Key         string
		Certificate []byte
		Authorities [][]byte
		Control     []identity.Member
	}
	w.must(json.Unmarshal(text, &kept))
	key, err = identity.ParseKey([]byte(kept.Key))
	w.must(err)
	return key, &identity.Grant{Certificate: kept.Certificate, Authorities: kept.Authorities, Control: kept.Control}
}

// hello is what a machine says first, as bytes: the test must be able to say what no honest machine
// does.
type hello struct {
	least, most uint16
	clock       time.Time
	from        sigma.Principal
	kind        link.TargetKind
	name        string
}

func (h hello) payload() ([]byte, error) {
	return sigmap.Payload(func(c *sigmap.Coder) {
		magic := uint32(0x314b4e4c)
		c.U32(&magic)
		c.U16(&h.least)
		c.U16(&h.most)
		c.Time(&h.clock)
		c.RealmID(&h.from.Realm)
		c.ProcID(&h.from.Proc)
		c.MachineID(&h.from.Machine)
		c.Bool(&h.from.System)
		c.U8((*uint8)(&h.kind))
		c.Str(&h.name)
	})
}

// greets is what p says when it is honest.
func (p *peer) greets() hello {
	from := provider
	from.Machine = p.name
	return hello{1, 1, time.Now(), from, link.ToService, "machined"}
}

// say shows a certificate to m1 and says hello, and returns what it says to it.
func (w *world) say(cert *tls.Certificate, h hello) error {
	raw, err := w.connect(w.ctx, w.m1.Address())
	if err != nil {
		return err
	}
	return w.sayOver(raw, cert, h)
}

// sayOver is say over a connection.
func (w *world) sayOver(raw net.Conn, cert *tls.Certificate, h hello) error {
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(20 * time.Second))
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		NextProtos: []string{identity.ProtocolLink}}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	conn := tls.Client(raw, cfg)
	payload, err := h.payload()
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))),
		payload...)); err != nil {
		return err
	}
	reply, err := frame(conn)
	if err != nil {
		return err
	}
	_, _, err = link.ParseAnswer(reply, "m1")
	return err
}

// frame reads one.
func frame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	b := make([]byte, min(binary.LittleEndian.Uint32(head[:]), 1<<16))
	_, err := io.ReadFull(r, b)
	return b, err
}

func (p *peer) certificate() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{p.cert}, PrivateKey: p.key}
}
