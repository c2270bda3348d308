//go:build system

package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/machines"
)

func publicOf(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// handshake is a server's.
func handshake(conn net.Conn, id *identity.Identity) {
	c := tls.Server(conn, id.ServerConfig())
	if c.Handshake() == nil {
		c.Read(make([]byte, 1))
	}
}

// forge certifies with the system's own authority, as only root on a control machine can, what it
// would never certify.
func (w *world) forge(key ed25519.PrivateKey, name string, change func(*x509.Certificate)) *tls.Certificate {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.m1.DataDir, "machined", "authority"))
	w.must(err)
	block, rest := pem.Decode(text)
	parent, err := x509.ParseCertificate(block.Bytes)
	w.must(err)
	signer, err := identity.ParseKey(rest)
	w.must(err)
	u, err := url.Parse(name)
	w.must(err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, URIs: []*url.URL{u}}
	if change != nil {
		change(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	w.must(err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// tryCertificates shows certificates that are not one's own, or not good.
func (w *world) tryCertificates() {
	p := w.join()
	name := p.id.Self().URI().String()
	with := func(c *tls.Certificate) func() error { return func() error { return w.say(c, p.greets()) } }
	control := with(p.certificate())
	w.try("no certificate", control, with(nil), "")
	key, theirs := w.stolen()
	w.try("m2's certificate without its key", control, with(&tls.Certificate{Certificate: [][]byte{theirs.Certificate},
		PrivateKey: p.key}), "")
	other, err := identity.NewAuthority(time.Now())
	w.must(err)
	der, err := other.Issue(time.Now(), p.id.Self(), publicOf(p.key))
	w.must(err)
	w.try("a certificate of another authority", control,
		with(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: p.key}), "")
	w.try("the authority's own certificate", control,
		with(&tls.Certificate{Certificate: [][]byte{w.known[0]}, PrivateKey: p.key}), "")
	w.try("an expired certificate", with(w.forge(p.key, name, nil)),
		with(w.forge(p.key, name, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Minute), time.Now().Add(-time.Minute)
		})), "expired at")
	w.try("a certificate of tomorrow", with(w.forge(p.key, name, nil)),
		with(w.forge(p.key, name, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(24*time.Hour), time.Now().Add(48*time.Hour)
		})), "valid only from")
	w.try("a certificate for another key", with(w.forge(p.key, name, nil)), with(w.forge(identity.NewKey(), name, nil)),
		"")
	m2 := w.peer("m2", key, theirs).id.Self().URI().String()
	w.try("a certificate of m2's name for one's own key", with(w.forge(p.key, name, nil)), func() error {
		h := p.greets()
		h.from.Machine = "m2"
		return w.say(w.forge(p.key, m2, nil), h)
	}, "another key now")
	w.try("a certificate for servers only", with(w.forge(p.key, name, nil)),
		with(w.forge(p.key, name, func(c *x509.Certificate) {
			c.ExtKeyUsage = c.ExtKeyUsage[1:]
		})), "")
	w.tryLives(p)
	w.tryServers(p)
}

// tryLives uses a certificate of a life that is over.
func (w *world) tryLives(p *peer) {
	former := *p
	w.try("the certificate of a former life", former.reach, func() error {
		g, err := w.enrol(nil, p.name, p.key, nil)
		w.must(err)
		now := w.peer(p.name, p.key, g)
		w.must(now.reach())
		p.cert, p.id, p.node = now.cert, now.id, now.node
		return w.soon(func() error { return w.say(former.certificate(), former.greets()) }, "was ended")()
	}, "was ended")
	w.try("to renew the certificate of a former life", func() error {
		return p.machined(func(c *machines.Client) error {
			return second(c.Renew(w.ctx, p.id.Self().Incarnation, publicOf(p.key)))
		})
	}, func() error {
		return p.machined(func(c *machines.Client) error {
			return second(c.Renew(w.ctx, former.id.Self().Incarnation, publicOf(p.key)))
		})
	}, "is over")
}

// tryServers answers in m1's place.
func (w *world) tryServers(p *peer) {
	ln, err := w.m2.Net.Listen(0)
	w.must(err)
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); handshake(conn, p.id) }()
		}
	}()
	q := w.join()
	w.try("another member answers in m1's place", q.reach, func() error {
		g := &identity.Grant{Certificate: q.cert, Authorities: w.known,
			Control: []identity.Member{{Machine: "m1", Address: ln.Addr().String(), Incarnation: 1, Control: true}}}
		return w.peer(q.name, q.key, g).reach()
	}, "not m1")
}

// tryRemoved uses what was good until a machine was removed. It is tried last, since m2 is that
// machine.
func (w *world) tryRemoved() {
	key, theirs := w.stolen()
	thief := w.peer("m2", key, theirs)
	p := w.join()
	kept, err := p.node.Dial(w.ctx, "m1", link.Target{Kind: link.ToService, Name: "machined"}, provider)
	w.must(err)
	defer kept.Close()
	w.cli("machine", "rm", "--force", string(p.name))
	w.try("a link that was made before the machine was removed", func() error { return nil }, func() error {
		kept.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := kept.Read(make([]byte, 1))
		if e, ok := err.(net.Error); ok && e.Timeout() {
			return nil // it is open still
		}
		return err
	}, "")
	w.try("the certificate of a machine that was removed", w.join().reach, w.soon(p.reach, "was removed"),
		"was removed")
	w.try("to register a machine again that was removed", func() error {
		q := w.join()
		return second(w.enrol(nil, q.name, q.key, nil))
	}, func() error { return second(w.enrol(nil, p.name, p.key, nil)) }, "shows no token")
	w.try("m2's stolen identity after it was removed", thief.reach, func() error {
		w.cli("machine", "rm", "--force", "m2")
		return w.soon(thief.reach, "was removed")()
	}, "was removed")
	w.try("a stolen identity under a name that was given again", func() error {
		tok := w.token()
		return second(w.enrol(&tok, "m2", identity.NewKey(), nil))
	}, w.soon(thief.reach, "another key now"), "another key now")
	if list := w.cli("machine", "ls"); !strings.Contains(list, "m2 ") {
		w.t.Errorf("machines: %s", list)
	}
}
