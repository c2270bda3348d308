package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
)

// attempts counts what was tried to be somebody one is not. An attempt whose positive control fails
// is no attempt.
type attempts struct {
	t                *testing.T
	tried, succeeded int
}

// try runs the control, which must succeed, and then the attempt, which must not; the words of the
// refusal must contain want.
func (a *attempts) try(name string, control, attempt func() error, want string) {
	a.t.Helper()
	if err := control(); err != nil {
		a.t.Errorf("%s: the control failed, so the attempt shows nothing: %v", name, err)
		return
	}
	a.tried++
	err := attempt()
	if err == nil {
		a.succeeded++
		a.t.Errorf("%s: succeeded", name)
	} else if !strings.Contains(err.Error(), want) {
		a.t.Errorf("%s: refused with %q, want %q in it", name, err, want)
	}
}

// TestIdentity tries to join, to dial and to be dialled with every identity that is not one's own.
func TestIdentity(t *testing.T) {
	s, other := newSystem(t), newSystem(t)
	m2 := s.join("m2")
	a := &attempts{t: t}
	tryTokens(a, s, other)
	tryEnrolments(a, s)
	tryCertificates(a, s, other, m2)
	tryServers(a, s, other, m2)
	tryLives(a, s)
	fmt.Printf("identity: %d tried, %d succeeded\n", a.tried, a.succeeded)
	if a.tried < 20 {
		t.Errorf("only %d attempts were made", a.tried)
	}
}

func second[T any](_ T, err error) error { return err }

// tryTokens joins with tokens that are none.
func tryTokens(a *attempts, s, other *system) {
	names := 0
	// with joins as a new machine with tok, which some may have spoilt.
	with := func(tok identity.Token, change func(*Join)) func() error {
		return func() error {
			names++
			h := &host_{key: identity.NewKey(), address: "127.0.0.1:1"}
			return second(s.ask(h, sigma.MachineID("t"+string(rune('a'+names))), &tok, change))
		}
	}
	good := s.token(100, time.Minute)
	control := with(good, nil)

	a.try("an invented token", control, with(identity.NewToken(s.authority.Fingerprint()), nil),
		"not one of this system's")
	a.try("a token of another system", control, with(other.token(1, time.Minute), nil),
		"not of the system that made the token")
	once := s.token(1, time.Minute)
	a.try("a used token", with(once, nil), with(once, nil), "used up")
	revoked := s.token(5, time.Minute)
	a.try("a revoked token", with(revoked, nil), func() error {
		s.do(machines.RevokeToken{ID: revoked.ID()})
		return with(revoked, nil)()
	}, "revoked")
	short := s.token(1, time.Nanosecond)
	a.try("an expired token", control, with(short, nil), "expired")
	a.try("no token", control, func() error {
		return second(s.ask(&host_{key: identity.NewKey(), address: "127.0.0.1:1"}, "nobody", nil, nil))
	}, "shows no token")
	a.try("the name of a token without its secret", control, func() error {
		forged := identity.NewToken(s.authority.Fingerprint())
		e := identity.Enrolment{Machine: "forger", Address: "127.0.0.1:1"}
		return s.enrolRaw(func(en *identity.Enrolment, key ed25519.PrivateKey) error {
			en.Machine, en.Address = e.Machine, e.Address
			if err := en.Sign(key, &forged); err != nil {
				return err
			}
			en.Token = good.ID() // after signing with another secret
			return nil
		})
	}, "not signed")
	a.try("a clock an hour ahead", control, with(good, func(j *Join) {
		j.Now = func() time.Time { return time.Now().Add(time.Hour) }
	}), "differ by 1h0m0s")
	a.try("a clock an hour behind", control, with(good, func(j *Join) {
		j.Now = func() time.Time { return time.Now().Add(-time.Hour) }
	}), "the clock here says")
}

// enrolRaw enrols with a request that prepare makes, on the wire, without the checks of the honest
// joiner.
func (s *system) enrolRaw(prepare func(e *identity.Enrolment, key ed25519.PrivateKey) error) error {
	var met identity.Met
	raw, err := net.Dial("tcp", s.hosts["m1"].address)
	if err != nil {
		return err
	}
	defer raw.Close()
	conn := tls.Client(raw, identity.EnrolConfig(s.authority.Fingerprint(), nil, &met))
	w, err := readWelcome(conn)
	if err != nil {
		return err
	}
	e := &identity.Enrolment{System: met.System, Clock: time.Now()}
	copy(e.Challenge[:], w.Challenge)
	if err := prepare(e, identity.NewKey()); err != nil {
		return err
	}
	payload, err := e.Encode()
	if err != nil {
		return err
	}
	return answered(conn, payload)
}

func answered(conn io.ReadWriter, payload []byte) error {
	if err := writeFrame(conn, payload); err != nil {
		return err
	}
	reply, err := readFrame(conn, frameMax)
	if err != nil {
		return err
	}
	_, _, err = ParseAnswer(reply, "m1")
	return err
}

// tryEnrolments asks to be registered in another's place.
func tryEnrolments(a *attempts, s *system) {
	m3 := s.join("m3")
	again := func() error { return second(s.ask(m3, "m3", nil, nil)) }
	fresh := func(name sigma.MachineID, tok identity.Token) func() error {
		return func() error {
			return second(s.ask(&host_{key: identity.NewKey(), address: "127.0.0.1:1"}, name, &tok, nil))
		}
	}
	tok := s.token(10, time.Minute)
	a.try("another machine's name, with a good token", again, fresh("m3", tok), "there is a machine m3")
	a.try("another machine's name, with no token", again, func() error {
		return second(s.ask(&host_{key: identity.NewKey(), address: "127.0.0.1:1"}, "m3", nil, nil))
	}, "shows no token")
	a.try("a second name for one machine", again, func() error {
		return second(s.ask(m3, "m3-twin", &tok, nil))
	}, "joined before, as m3")
	a.try("a request that was made before", again, func() error {
		var seen []byte
		if err := s.enrolRaw(func(e *identity.Enrolment, _ ed25519.PrivateKey) error {
			e.Machine, e.Address = "m3", m3.address
			err := e.Sign(m3.key, nil)
			if err == nil {
				seen, err = e.Encode()
			}
			return err
		}); err != nil {
			return nil // counts as a success of the attempt: the control of it failed
		}
		conn, err := net.Dial("tcp", s.hosts["m1"].address)
		if err != nil {
			return err
		}
		defer conn.Close()
		var met identity.Met
		c := tls.Client(conn, identity.EnrolConfig(s.authority.Fingerprint(), nil, &met))
		if _, err := readWelcome(c); err != nil {
			return err
		}
		return answered(c, seen)
	}, "made before")
	a.try("a request with another's key in it", again, func() error {
		return s.enrolRaw(func(e *identity.Enrolment, key ed25519.PrivateKey) error {
			e.Machine, e.Address = "m3", m3.address
			err := e.Sign(key, nil)
			e.Key = m3.key.Public().(ed25519.PublicKey)
			return err
		})
	}, "not signed with the key")
}

// dialer is somebody who dials m1 with whatever certificate, and says whatever.
type dialer struct {
	chain tls.Certificate
	tls   func(*tls.Config)
	hello func(*Hello)
}

// dial says hello to m1 and returns how it was answered.
func (s *system) dial(d dialer) error {
	cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{identity.ProtocolLink},
		MinVersion:           tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &d.chain, nil }}
	if d.tls != nil {
		d.tls(cfg)
	}
	conn, err := tls.Dial("tcp", s.hosts["m1"].address, cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	h := Hello{VersionLeast, VersionMost, time.Now(), sigma.Principal{Realm: "default", Proc: "p", Machine: "m2"},
		Target{ToService, "named"}}
	if d.hello != nil {
		d.hello(&h)
	}
	payload, err := h.encode()
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	return answered(conn, payload)
}

// signer is an authority's key, taken out of what machined keeps: these attempts show what its
// owner must not be able to be mistaken for.
func signer(t *testing.T, a *identity.Authority) (*x509.Certificate, ed25519.PrivateKey) {
	block, rest := pem.Decode(a.Marshal())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := identity.ParseKey(rest)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// forge makes a certificate for key that the authority signed and change spoilt.
func forge(t *testing.T, a *identity.Authority, subject string, key any, private any,
	change func(*x509.Certificate)) tls.Certificate {
	ca, sign := signer(t, a)
	uri, err := url.Parse(subject)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, URIs: []*url.URL{uri}}
	if change != nil {
		change(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, key, sign)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}

// tryCertificates dials m1 with certificates that are not good, and with good ones badly.
func tryCertificates(a *attempts, s, other *system, m2 *host_) {
	self := m2.id.Self()
	mine := m2.id.ClientConfig("m1")
	cert, err := mine.GetClientCertificate(nil)
	if err != nil {
		a.t.Fatal(err)
	}
	good := dialer{chain: *cert}
	control := func() error { return s.dial(good) }
	pub := m2.key.Public()
	created := func(subject string, change func(*x509.Certificate)) func() error {
		return func() error { return s.dial(dialer{chain: forge(a.t, s.authority, subject, pub, m2.key, change)}) }
	}
	said := func(change func(*Hello)) func() error {
		return func() error { return s.dial(dialer{chain: *cert, hello: change}) }
	}
	name := self.URI().String()
	forged := func() error { return created(name, nil)() } // what forge makes is good when nothing is spoilt

	a.try("no certificate", control, func() error { return s.dial(dialer{}) }, "bad certificate")
	a.try("a certificate signed by itself", control, func() error {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute),
			NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{self.URI()}}
		der, err := x509.CreateCertificate(rand.Reader, c, c, pub, m2.key)
		if err != nil {
			return nil
		}
		return s.dial(dialer{chain: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: m2.key}})
	}, "bad certificate")
	a.try("another system's certificate for the same name", control, func() error {
		o := other.join("m2")
		c, _ := o.id.ClientConfig("m1").GetClientCertificate(nil)
		return s.dial(dialer{chain: *c})
	}, "bad certificate")
	a.try("somebody else's certificate without its key", control, func() error {
		return s.dial(dialer{chain: tls.Certificate{Certificate: cert.Certificate, PrivateKey: identity.NewKey()}})
	}, "")
	a.try("a certificate that a machine signed", control, func() error {
		ca, err := x509.ParseCertificate(cert.Certificate[0])
		key := identity.NewKey()
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute),
			NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{self.URI()}}
		der, err2 := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), m2.key)
		if err != nil || err2 != nil {
			return nil
		}
		return s.dial(dialer{chain: tls.Certificate{Certificate: [][]byte{der, cert.Certificate[0]}, PrivateKey: key}})
	}, "bad certificate")
	a.try("an expired certificate", forged, created(name, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Minute), time.Now().Add(-time.Minute)
	}), "expired at")
	a.try("a certificate of the future", forged, created(name, func(c *x509.Certificate) {
		c.NotBefore = time.Now().Add(30 * time.Minute)
	}), "valid only from")
	a.try("a host name for a name", forged, created(name, func(c *x509.Certificate) {
		c.URIs, c.DNSNames = nil, []string{"m2"}
	}), "bad certificate")
	a.try("two names", forged, created(name, func(c *x509.Certificate) { c.URIs = append(c.URIs, m2.id.Self().URI()) }),
		"bad certificate")
	a.try("a name of another form", forged, created("spiffe://"+string(s.authority.System())+"/machine/m2/3/3", nil),
		"bad certificate")
	a.try("the name of another system", forged,
		created(strings.Replace(name, string(s.authority.System()), string(other.authority.System()), 1), nil),
		"belongs to system")
	a.try("another machine's name for one's own key", forged, created(strings.Replace(name, "/m2/", "/m1/", 1), nil),
		"another key")
	a.try("a certificate for servers only", forged, created(name, func(c *x509.Certificate) {
		c.ExtKeyUsage = c.ExtKeyUsage[1:]
	}), "bad certificate")
	a.try("a key of another kind", forged, func() error {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil
		}
		return s.dial(dialer{chain: forge(a.t, s.authority, name, key.Public(), key, nil)})
	}, "bad certificate")
	a.try("TLS 1.2", control, func() error {
		return s.dial(dialer{chain: *cert, tls: func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }})
	}, "protocol version")
	a.try("another protocol", control, func() error {
		return s.dial(dialer{chain: *cert, tls: func(c *tls.Config) { c.NextProtos = []string{"h2"} }})
	}, "no application protocol")
	a.try("no protocol", control, func() error {
		return s.dial(dialer{chain: *cert, tls: func(c *tls.Config) { c.NextProtos = nil }})
	}, "bad certificate")
	a.try("a hello on the door for joiners", control, func() error {
		return s.dial(dialer{chain: *cert, tls: func(c *tls.Config) {
			c.NextProtos = []string{identity.ProtocolEnrol}
		}})
	}, "")
	a.try("another machine's proc", control, said(func(h *Hello) {
		h.From.Machine = "m1"
	}), "speaks for a proc of machine m1")
	a.try("a newer version", control, said(func(h *Hello) {
		h.Least, h.Most = VersionMost+1, VersionMost+3
	}), "speaks versions 2 to 4")
	a.try("an older version", control, said(func(h *Hello) { h.Least, h.Most = 0, 0 }), "speaks versions 0 to 0")
	a.try("a clock an hour off", control, said(func(h *Hello) { h.Clock = h.Clock.Add(time.Hour) }), "differ by 1h0m0s")
	a.try("the bytes of a connection that was good", control, func() error { return replay(a.t, s, m2) }, "")
}

// replay records all that m2 sends to m1 and sends it again.
func replay(t *testing.T, s *system, m2 *host_) error {
	rec := &recorder{}
	n, err := New(Config{Identity: m2.id, Connect: func(ctx context.Context, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return &recorded{c, rec}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := n.Dial(s.ctx, "m1", Target{ToService, "named"}, sigma.Principal{Realm: "default", Proc: "p"})
	if err != nil {
		return nil // the recording is the control
	}
	l.Close()
	conn, err := net.Dial("tcp", s.hosts["m1"].address)
	if err != nil {
		return err
	}
	defer conn.Close()
	rec.mu.Lock()
	conn.Write(rec.sent)
	rec.mu.Unlock()
	conn.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, conn)
	for {
		select {
		case r := <-s.refused: // the machine says why it went no further
			if r.from == conn.LocalAddr().String() {
				return r.err
			}
		case <-time.After(10 * time.Second):
			return nil // it did go further
		}
	}
}

type recorder struct {
	mu   sync.Mutex
	sent []byte // mu
}

type recorded struct {
	net.Conn
	rec *recorder
}

func (c *recorded) Write(b []byte) (int, error) {
	c.rec.mu.Lock()
	c.rec.sent = append(c.rec.sent, b...)
	c.rec.mu.Unlock()
	return c.Conn.Write(b)
}

// tryServers is dialled by m2, which expects m1.
func tryServers(a *attempts, s, other *system, m2 *host_) {
	// served dials whoever listens with cfg in m1's place.
	served := func(cfg *tls.Config) error {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			a.t.Fatal(err)
		}
		var done sync.WaitGroup
		defer done.Wait()
		defer ln.Close()
		done.Go(func() {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			defer raw.Close()
			raw.SetDeadline(time.Now().Add(10 * time.Second))
			conn := tls.Server(raw, cfg)
			if payload, err := readFrame(conn, frameMax); err == nil && len(payload) > 0 {
				reply, _ := answerPayload(&answer{Version: VersionMost, Clock: time.Now()})
				writeFrame(conn, reply)
			}
		})
		n, err := New(Config{Identity: m2.id, Connect: func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
		}})
		if err != nil {
			a.t.Fatal(err)
		}
		l, err := n.Dial(s.ctx, "m1", Target{ToService, "named"}, sigma.Principal{Realm: "default", Proc: "p"})
		if err == nil {
			l.Close()
		}
		return err
	}
	m1 := s.hosts["m1"]
	control := func() error { return served(m1.id.ServerConfig()) }
	with := func(c tls.Certificate) func() error {
		return func() error {
			return served(&tls.Config{Certificates: []tls.Certificate{c}, NextProtos: []string{identity.ProtocolLink},
				ClientAuth: tls.RequestClientCert})
		}
	}
	name := m1.id.Self().URI().String()
	pub := m1.key.Public()
	forged := with(forge(a.t, s.authority, name, pub, m1.key, nil))
	a.try("served by another machine", control, func() error { return served(m2.id.ServerConfig()) }, "is m2, not m1")
	a.try("served by another system's machine of that name", control, func() error {
		return served(other.hosts["m1"].id.ServerConfig())
	}, "not one of this system")
	a.try("served with a certificate for clients only", forged,
		with(forge(a.t, s.authority, name, pub, m1.key, func(c *x509.Certificate) {
			c.ExtKeyUsage = c.ExtKeyUsage[:1]
		})), "not one of this system")
	a.try("served with an expired certificate", forged,
		with(forge(a.t, s.authority, name, pub, m1.key, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Minute), time.Now().Add(-time.Minute)
		})), "expired at")
	a.try("served with TLS 1.2", control, func() error {
		c := m1.id.ServerConfig()
		c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		return served(c)
	}, "protocol version")
	a.try("a joiner served by another system", func() error {
		tok := s.token(1, time.Minute)
		return second(s.ask(&host_{key: identity.NewKey(), address: "127.0.0.1:1"}, "late", &tok, nil))
	}, func() error {
		tok := s.token(1, time.Minute)
		return second(s.ask(&host_{key: identity.NewKey(), address: "127.0.0.1:1"}, "later", &tok, func(j *Join) {
			j.Address = other.hosts["m1"].address
		}))
	}, "not of the system that made the token")
}

// tryLives uses what was good once: after another registration, and after removal.
func tryLives(a *attempts, s *system) {
	h := s.join("m9")
	old, err := h.id.ClientConfig("m1").GetClientCertificate(nil)
	if err != nil {
		a.t.Fatal(err)
	}
	as := func(c *tls.Certificate) func() error {
		return func() error {
			return s.dial(dialer{chain: *c, hello: func(h *Hello) { h.From.Machine = "m9" }})
		}
	}
	a.try("the certificate of a life that was ended", as(old), func() error {
		g, err := s.ask(h, "m9", nil, nil)
		if err != nil || h.id.Install(g.Certificate) != nil {
			return nil
		}
		return as(old)()
	}, "was ended")
	now, err := h.id.ClientConfig("m1").GetClientCertificate(nil)
	if err != nil {
		a.t.Fatal(err)
	}
	l, err := h.node.Dial(s.ctx, "m1", Target{ToService, "named"}, sigma.Principal{Realm: "default", Proc: "p"})
	if err != nil {
		a.t.Fatal(err)
	}
	defer l.Close()
	a.try("a stolen certificate after removal", as(now), func() error {
		s.do(machines.Remove{ID: "m9", Force: true})
		return as(now)()
	}, "was removed")
	stays := s.join("m10")
	kept, err := stays.node.Dial(s.ctx, "m1", Target{ToService, "named"}, sigma.Principal{Realm: "default", Proc: "p"})
	if err != nil {
		a.t.Fatal(err)
	}
	defer kept.Close()
	a.try("a connection that was open before removal", func() error {
		return kept.SetReadDeadline(time.Now().Add(time.Minute))
	}, func() error {
		l.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err := l.Read(make([]byte, 1))
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			return nil // it still stands
		}
		return err
	}, "")
	if n := s.hosts["m1"].node.Count()["m10"]; n != 1 {
		a.t.Errorf("the removal of one machine left another with %d connections", n)
	}
	a.try("registering again after removal", func() error {
		return second(s.ask(stays, "m10", nil, nil))
	}, func() error { return second(s.ask(h, "m9", nil, nil)) }, "shows no token")
}
