package link

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

var proc = sigma.Principal{Realm: "default", Proc: "p"}

// TestSession: a session over a link reaches a tree on the other machine, which knows who asks; and
// it ends at once when the machine is dropped.
func TestSession(t *testing.T) {
	s := newSystem(t)
	m2 := s.join("m2")
	l, err := m2.node.Dial(s.ctx, "m1", Target{ToService, "named"}, sigma.Principal{Realm: "default", Proc: "p",
		Machine: "m7"})
	if err != nil {
		t.Fatal(err)
	}
	at := <-s.hosts["m1"].served
	if want := (sigma.Principal{Realm: "default", Proc: "p", Machine: "m2"}); at.From != want ||
		at.Peer.Machine != "m2" || at.Target != (Target{ToService, "named"}) || l.Peer.Machine != "m1" {
		t.Errorf("got %+v of %v for %v", at.From, at.Peer, at.Target)
	}
	var served sync.WaitGroup
	served.Go(func() {
		treeserver.Serve(s.ctx, at.Session(), treeserver.Config{Tree: memfs.New(memfs.Config{}), Principal: at.From})
	})
	c, err := session.Dial(s.ctx, l.Session())
	if err != nil {
		t.Fatal(err)
	}
	root, err := c.Attach(s.ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	f, err := root.Create(s.ctx, "f", sigma.OpenWrite, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 300<<10)
	if n, err := f.WriteAt(s.ctx, big, 0); n != len(big) || err != nil {
		t.Fatal(n, err)
	}
	if n := m2.node.Count()["m1"]; n != 1 {
		t.Errorf("%d links are counted", n)
	}
	m2.node.Drop("m1")
	if _, err := root.Stat(s.ctx); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("after the peer was dropped: %v", err)
	}
	served.Wait()
	if n := len(m2.node.Count()); n != 0 {
		t.Errorf("%d links are left", n)
	}
	c.Close()
}

// TestAuthorise: what this machine does not want to do is refused with its reason.
func TestAuthorise(t *testing.T) {
	s := newSystem(t)
	m2 := s.join("m2")
	s.hosts["m1"].node.cfg.Authorise = func(l *Link) error {
		if l.Target.Name == "named" {
			return nil
		}
		return &sigma.Error{Kind: sigma.KindNotFound, Msg: "no such service", Hint: "named is one"}
	}
	l, err := m2.node.Dial(s.ctx, "m1", Target{ToService, "named"}, proc)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = m2.node.Dial(s.ctx, "m1", Target{ToService, "x"}, proc)
	if sigma.KindOf(err) != sigma.KindNotFound || !strings.Contains(err.Error(),
		"machine m1 refuses: no such service") || sigma.HintOf(err) != "named is one" {
		t.Errorf("got %v, %v", err, sigma.HintOf(err))
	}
	if _, err := m2.node.Dial(s.ctx, "m7", Target{ToService, "x"}, proc); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("an unknown machine: %v", err)
	}
}

// Goal: whatever strangers send before the handshake, instead of it, or after it, the machine
// serves the others, and says nothing to them.
func TestHostile(t *testing.T) {
	s := newSystem(t)
	m2 := s.join("m2")
	address := s.hosts["m1"].address
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, r.IntN(4000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		switch i % 4 {
		case 1: // the start of a handshake record, with rubbish in it
			b = append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, b...)
		case 2:
			b = []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		case 3:
			b = nil
		}
		conn.Write(b)
		conn.(*net.TCPConn).CloseWrite()
		if answer, _ := io.ReadAll(conn); bytes.Contains(answer, []byte("m1")) || len(answer) > 2000 {
			t.Errorf("it was answered with %q", answer)
		}
		conn.Close()
	}
	cert, _ := m2.id.ClientConfig("m1").GetClientCertificate(nil)
	for i, b := range [][]byte{nil, {0}, {0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}, {4, 0, 0, 0, 1, 2, 3, 4}, {1, 0, 0}} {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true,
			NextProtos: []string{identity.ProtocolLink}, Certificates: []tls.Certificate{*cert}})
		if err != nil {
			t.Fatal(err)
		}
		conn.Write(b)
		conn.CloseWrite()
		answer, _ := io.ReadAll(conn)
		if v, _, err := ParseAnswer(answer[min(4, len(answer)):], "m1"); err == nil {
			t.Errorf("hello %d was agreed to with version %d", i, v)
		}
		conn.Close()
	}
	l, err := m2.node.Dial(s.ctx, "m1", Target{ToService, "named"}, proc)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// pipes is a network within a bubble.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	over  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), over: make(chan struct{})} }

// from gives a connection with another address than that of a pipe.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

func (p *pipes) dialFrom(ip byte) (net.Conn, error) {
	return p.dialAs(netip.AddrFrom4([4]byte{10, 0, 0, ip}))
}

func (p *pipes) dialAs(addr netip.Addr) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- from{b, net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 1))}:
		return a, nil
	case <-p.over:
		return nil, syscall.ECONNREFUSED
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.over) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7700} }

// member makes an identity of a machine of a.
func member(t *testing.T, a *identity.Authority, roster *identity.Roster, name sigma.MachineID,
	life sigma.Incarnation) (*identity.Identity, identity.Member) {
	t.Helper()
	key := identity.NewKey()
	pub := key.Public().(ed25519.PublicKey)
	der, err := a.Issue(time.Now(), identity.Subject{Machine: name, Incarnation: life, Epoch: uint64(life)}, pub)
	if err != nil {
		t.Fatal(err)
	}
	id, err := identity.New(identity.Config{Key: key, Certificate: der, Authorities: [][]byte{a.Certificate()},
		Roster: roster})
	if err != nil {
		t.Fatal(err)
	}
	return id, identity.Member{Machine: name, Key: identity.KeyFingerprint(pub),
		Address: "10.0.0." + string(name[1:]) + ":7700", Incarnation: life}
}

// bubble runs m1, which listens on a network of pipes, and m2, which can dial it.
func bubble(t *testing.T, do func(t *testing.T, net *pipes, m1, m2 *Node, roster *identity.Roster)) {
	bubbleOf(t, 2, do)
}

// bubbleOf is bubble where the first so many of the machines have been heard of.
func bubbleOf(t *testing.T, heard int, do func(t *testing.T, net *pipes, m1, m2 *Node, roster *identity.Roster)) {
	synctest.Test(t, func(t *testing.T) {
		a, err := identity.NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		roster, network := identity.NewRoster(), newPipes()
		id1, member1 := member(t, a, roster, "m1", 2)
		id2, member2 := member(t, a, roster, "m2", 3)
		roster.Set(uint64(1+heard), []identity.Member{member1, member2}[:heard])
		m1, err := New(Config{Identity: id1, Serve: func(ctx context.Context, l *Link) { io.Copy(l, l) }})
		if err != nil {
			t.Fatal(err)
		}
		m2, err := New(Config{Identity: id2, Connect: func(context.Context, string) (net.Conn, error) {
			return network.dialFrom(2)
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { m1.Listen(ctx, network) })
		all.Go(func() { m1.Watch(ctx) })
		do(t, network, m1, m2, roster)
		stop()
		all.Wait()
	})
}

// Goal: addresses that connect and say nothing hold a bounded number of places for a bounded time,
// and do not keep members out.
func TestSilent(t *testing.T) {
	bubble(t, func(t *testing.T, network *pipes, m1, m2 *Node, _ *identity.Roster) {
		var open []net.Conn
		for i := range handshakesFrom * 3 {
			c, err := network.dialFrom(9)
			if err != nil {
				t.Fatal(err)
			}
			if open = append(open, c); i%2 == 0 {
				go c.Write([]byte{22, 3}) // a little of a handshake
			}
		}
		synctest.Wait()
		if m1.handshakes.strangers != handshakesFrom {
			t.Errorf("%d handshakes are under way, of one address", m1.handshakes.strangers)
		}
		l, err := m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc)
		if err != nil {
			t.Fatalf("a member is kept out: %v", err)
		}
		defer l.Close()
		began := time.Now()
		for _, c := range open {
			io.Copy(io.Discard, c)
			c.Close()
		}
		if d := time.Since(began); d > handshakeMax {
			t.Errorf("silent connections stood for %v", d)
		}
		synctest.Wait()
		if m1.handshakes.strangers != 0 || len(m1.handshakes.from) != 0 {
			t.Errorf("%d places are still taken", m1.handshakes.strangers)
		}
		go l.Write([]byte("x"))
		if n, err := l.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("the link that was open did not live on: %v", err)
		}
	})
}

// Goal: a machine that does not answer, or with nothing, or garbage, is an error within seconds;
// then it is left alone for a while, and found soon when it is back.
func TestBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, network *pipes, _, m2 *Node, _ *identity.Roster) {
		good := m2.cfg.Connect
		dials := 0
		var kept []net.Conn
		answers := map[string]func() (net.Conn, error){
			"nobody": func() (net.Conn, error) { return nil, syscall.ECONNREFUSED },
			"nothing": func() (net.Conn, error) {
				a, b := net.Pipe()
				kept = append(kept, b)
				go io.Copy(io.Discard, b)
				return a, nil
			},
			"garbage": func() (net.Conn, error) {
				a, b := net.Pipe()
				go func() { b.Write([]byte("220 mail.example ESMTP\r\n")); b.Close() }()
				go io.Copy(io.Discard, b)
				return a, nil
			},
		}
		for what, answer := range answers {
			m2.cfg.Connect = func(context.Context, string) (net.Conn, error) { dials++; return answer() }
			began := time.Now()
			if _, err := m2.Dial(t.Context(), "m1", Target{ToService, "x"},
				proc); sigma.KindOf(err) != sigma.KindUnavailable || !strings.Contains(err.Error(), "10.0.0.1:7700") {
				t.Errorf("%s answers: %v", what, err)
			}
			if d := time.Since(began); d > connectMax+handshakeMax {
				t.Errorf("%s answers: that took %v", what, d)
			}
			<-time.After(backoffMost)
		}
		m2.cfg.Connect = func(context.Context, string) (net.Conn, error) { dials++; return answers["nobody"]() }
		dials = 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
			m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc)
		}
		if dials > 80 {
			t.Errorf("a machine that does not answer was dialled %d times within a minute", dials)
		}
		m2.cfg.Connect = good
		<-time.After(backoffMost)
		l, err := m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc)
		if err != nil {
			t.Fatalf("it is back: %v", err)
		}
		l.Close()
		for _, c := range kept {
			c.Close()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m2.Dial(ctx, "m1", Target{ToService, "x"}, proc); err == nil {
			t.Error("a dial that was canceled succeeded")
		}
		if l, err = m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc); err != nil {
			t.Errorf("a caller that gave up counts against the machine: %v", err)
		} else {
			l.Close()
		}
	})
}

// TestHeardOfLater: a machine that was certified a moment ago is waited for by one that has not
// heard of it yet, and refused in words if it stays unheard of.
func TestHeardOfLater(t *testing.T) {
	bubbleOf(t, 1, func(t *testing.T, _ *pipes, m1, m2 *Node, roster *identity.Roster) {
		dial := func() error {
			l, err := m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc)
			if err == nil {
				l.Close()
			}
			return err
		}
		began := time.Now()
		if err := dial(); sigma.KindOf(err) != sigma.KindUnavailable || !strings.Contains(err.Error(),
			"not yet heard of machine m2") || time.Since(began) < hearMax {
			t.Errorf("m1 has not heard of m2: %v, after %v", err, time.Since(began))
		}
		answered := make(chan error, 1)
		began = time.Now()
		go func() { answered <- dial() }()
		synctest.Wait()
		self := m2.cfg.Identity.Self()
		roster.Set(self.Epoch, append(roster.Members(), identity.Member{Machine: self.Machine, Key: self.Key,
			Incarnation: self.Incarnation}))
		if err := <-answered; err != nil || time.Since(began) > 0 {
			t.Errorf("m1 has heard of m2: %v, after %v", err, time.Since(began))
		}
	})
}

// Goal: links end as soon as the roster no longer holds their peer, whichever side dialled, and no
// other links do.
func TestRemovedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, _ *pipes, m1, m2 *Node, roster *identity.Roster) {
		l, err := m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		other, err := m2.Dial(t.Context(), "m1", Target{ToService, "x"}, proc)
		if err != nil {
			t.Fatal(err)
		}
		other.Close() // an orderly end, which is none of the kind below
		ms := roster.Members()
		roster.Set(4, ms)
		synctest.Wait()
		if m1.Count()["m2"] != 1 {
			t.Fatal("a roster that still holds the peer ended its link")
		}
		began := time.Now()
		roster.Set(5, ms[:1])
		if _, err := io.ReadAll(l); !errors.Is(err, errCut) || time.Since(began) > 0 {
			t.Errorf("the link ended with %v after %v", err, time.Since(began))
		}
		synctest.Wait()
		if m1.Count()["m2"] != 0 {
			t.Error("it is still counted")
		}
	})
}

// TestBridge: messages go through, and file descriptors are answered for.
func TestBridge(t *testing.T) {
	file := t.TempDir() + "/f"
	if err := os.WriteFile(file, []byte("bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	service, inner, err := session.Pair()
	if err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	var all sync.WaitGroup
	all.Go(func() { treeserver.Serve(t.Context(), service, treeserver.Config{Tree: passer{file}}) })
	all.Go(func() { Bridge(t.Context(), session.NewStreamConn(b), inner) })
	c, err := session.Dial(t.Context(), session.NewStreamConn(a))
	if err != nil {
		t.Fatal(err)
	}
	root, err := c.Attach(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := root.Open(t.Context(), sigma.OpenRead); err != nil {
		t.Fatal(err)
	}
	if f, err := root.(sigma.FilePasser).PassFile(t.Context()); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("got %v, %v", f, err)
	}
	if st, err := root.Stat(t.Context()); err != nil || st.Size != 5 {
		t.Errorf("got %+v, %v", st, err)
	}
	c.Close()
	all.Wait()
}

// passer is a tree of one file that is passed.
type passer struct{ path string }

func (p passer) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return &passed{path: p.path}, nil
}

type passed struct {
	treeserver.Base
	path string
}

func (p *passed) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Path: 1}, Size: 5, Perm: 0o644, Modified: time.Unix(0, 0)}, nil
}
func (p *passed) Open(context.Context, sigma.OpenFlags) error { return nil }
func (p *passed) PassFile(context.Context) (*os.File, error)  { return os.Open(p.path) }

// TestRelay: an end of one direction is passed on, and the other direction lives until its own end.
func TestRelay(t *testing.T) {
	pair := func() (*net.UnixConn, *net.UnixConn) {
		x, y, err := session.FilePair(syscall.SOCK_STREAM)
		if err != nil {
			t.Fatal(err)
		}
		a, err := session.UnixConn(x)
		b, err2 := session.UnixConn(y)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return a, b
	}
	a, a2 := pair()
	b, b2 := pair()
	var all sync.WaitGroup
	all.Go(func() { Relay(t.Context(), a2, b2) })
	a.Write([]byte("question"))
	a.CloseWrite()
	if q, err := io.ReadAll(b); string(q) != "question" || err != nil {
		t.Errorf("got %q, %v", q, err)
	}
	b.Write([]byte("answer"))
	b.Close()
	if q, err := io.ReadAll(a); string(q) != "answer" || err != nil {
		t.Errorf("got %q, %v", q, err)
	}
	all.Wait()
	a.Close()
}

// BenchmarkDial is what one link costs from dialling to closing, both ends in one process.
func BenchmarkDial(b *testing.B) {
	s := newSystem(b)
	m1 := s.hosts["m1"].node
	m1.cfg.Serve = func(context.Context, *Link) {}
	b.ReportAllocs()
	for b.Loop() {
		l, err := m1.Dial(s.ctx, "m1", Target{ToService, "x"}, proc)
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}

// TestEnrolmentsBound: many that ask at once are told that they are too many.
func TestEnrolmentsBound(t *testing.T) {
	s := newSystem(t)
	n := s.hosts["m1"].node
	for range enrolmentsMax {
		n.enrolments <- struct{}{}
	}
	tok := s.token(1, time.Minute)
	h := &host_{key: identity.NewKey(), address: "127.0.0.1:1"}
	if _, err := s.ask(h, "m2", &tok, nil); sigma.KindOf(err) != sigma.KindBusy || sigma.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
	for range enrolmentsMax {
		<-n.enrolments
	}
	if _, err := s.ask(h, "m2", &tok, nil); err != nil {
		t.Error(err)
	}
	n.cfg.Enrol = nil
	if _, err := s.ask(h, "m2", &tok, nil); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("a machine that takes none in: %v", err)
	}
	s.do(machines.Cordon{ID: "m2", On: true})
}

func FuzzParseHello(f *testing.F) {
	h := Hello{VersionLeast, VersionMost, time.Unix(1, 0), sigma.Principal{Realm: "default", Proc: "p", Machine: "m1"},
		Target{ToService, "named"}}
	payload, err := h.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add(payload[:9])
	f.Fuzz(func(t *testing.T, payload []byte) {
		h, err := ParseHello(payload)
		if err != nil {
			return
		}
		if again, err := h.encode(); err != nil || !bytes.Equal(again, payload) {
			t.Errorf("%x became %x, %v", payload, again, err)
		}
		_ = h.Target.String()
	})
}

func FuzzParseAnswer(f *testing.F) {
	for _, a := range []*answer{{Version: 1, Clock: time.Unix(1, 0)},
		refusal(sigma.Errorf("x", sigma.KindBusy, "words"), time.Unix(1, 0))} {
		payload, err := answerPayload(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		if v, _, err := ParseAnswer(payload, "m1"); err == nil && v == 0 {
			t.Error("neither agreed nor refused")
		} else if err != nil && len(err.Error()) > 3000 {
			t.Errorf("a refusal of %d bytes", len(err.Error()))
		}
		readFrame(bytes.NewReader(payload), frameMax)
	})
}
