// Package identity says which machine is at the other end of a connection: the system's own
// certificate authority, the machines' keys and short-lived certificates, the tokens by which a new
// machine joins, and the roster that ends the trust in one that was removed.
//
// It promises: a connection made with the tls.Config of an Identity and then admitted (Admit) is
// TLS 1.3 with a machine that the authority of the same system certified, whose certificate is
// valid now, and which the roster holds as a member under that key and in a life that was not
// ended. Nothing a peer sends before that is believed. A secret never leaves who holds it: a
// machine proves that it has its key, and a joiner that it knows its token's secret, by signatures
// over a fresh challenge, so neither the machine that passes the request on nor the store that
// holds what tokens are checked with can use them.
//
// It assumes that clocks differ by less than SkewMax; if they do not, the error names both.
//
// It knows no network: package link makes the connections. Who is a member is decided by package
// machines. Users: link, sigmad, machined, sigma join.
//
// Locks: Roster.mu and Challenges.mu; nothing is called under them.
package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// Times. A machine that cannot reach the authority for half of Lifetime is out of the system until
// it registers again.
const (
	Lifetime    = 12 * time.Hour  // of a machine's certificate; renewed after half of it
	SkewMax     = 5 * time.Minute // that two clocks may differ: what NTP corrects at once, and far below Lifetime
	renewRetry  = time.Minute     // between attempts to renew, of which there are hundreds before the certificate ends
	wakeMax     = time.Minute     // timers stand still while a machine sleeps, so the clock is looked at this often
	warnBefore  = Lifetime / 3    // a certificate so near its end should have been renewed two hours ago
	authorityIn = authorityLife / 3
)

// Protocols that the two ends agree on during the handshake (ALPN, RFC 7301). Versions are the
// hello's matter, so that its refusal can say what both sides speak.
const (
	ProtocolLink  = "sigma-link"  // both ends are members
	ProtocolEnrol = "sigma-enrol" // the one that dials has no certificate yet, or one that no longer counts
)

// Fingerprint is the SHA-256 of a public key's or a certificate's DER form.
type Fingerprint [sha256.Size]byte

// String is for people: the first half of it, in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:16]) }

// KeyFingerprint is that of a machine's public key.
func KeyFingerprint(key ed25519.PublicKey) Fingerprint { return sha256.Sum256(key) }

// NewKey makes a machine's key.
func NewKey() ed25519.PrivateKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil { // crypto/rand does not fail since Go 1.24
		panic(err)
	}
	return key
}

// MarshalKey gives the PEM form of a private key (PKCS #8), to be kept in a file of mode 0600.
func MarshalKey(key ed25519.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil { // an ed25519 key can always be encoded
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// ParseKey reads what MarshalKey gives.
func ParseKey(text []byte) (ed25519.PrivateKey, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" || len(bytes.TrimSpace(rest)) > 0 || len(text) > 4096 {
		return nil, sigma.Errorf("identity.ParseKey", sigma.KindInvalid, "this is not one private key in PEM form")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if ed, ok := key.(ed25519.PrivateKey); ok && err == nil {
		return ed, nil
	}
	return nil, sigma.Errorf("identity.ParseKey", sigma.KindInvalid, "this is not an Ed25519 private key")
}

// Config is what an Identity is made of.
type Config struct {
	Key         ed25519.PrivateKey // of this machine
	Certificate []byte             // DER, for that key
	Authorities [][]byte           // DER; what is trusted. More than one while an authority is being replaced
	Roster      *Roster            // who is a member
	Now         func() time.Time   // nil = time.Now; for tests of clocks
}

// Identity is one machine's. Safe for concurrent use.
type Identity struct {
	key    ed25519.PrivateKey
	trust  *trust
	roster *Roster
	now    func() time.Time
	self   atomic.Pointer[own]
}

// own is what changes with a renewal.
type own struct {
	subject Subject
	cert    tls.Certificate
}

// New checks that the certificate is one of this system for the key.
func New(cfg Config) (*Identity, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	t, err := newTrust(cfg.Authorities)
	if err != nil {
		return nil, err
	}
	if cfg.Roster == nil || len(cfg.Key) != ed25519.PrivateKeySize {
		return nil, sigma.Errorf("identity.New", sigma.KindInvalid, "the configuration lacks a key or a roster")
	}
	i := &Identity{key: cfg.Key, trust: t, roster: cfg.Roster, now: cfg.Now}
	if err := i.Install(cfg.Certificate); err != nil {
		return nil, err
	}
	return i, nil
}

// Install puts a renewed certificate in use for all handshakes from now on. It must be for the same
// key, system and machine, and for no older life.
func (i *Identity) Install(der []byte) error {
	const op = "identity.Install"
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: "the certificate cannot be read", Err: err}
	}
	s, err := i.trust.verify([]*x509.Certificate{leaf}, x509.ExtKeyUsageAny, i.now())
	if err != nil {
		return err
	}
	if s.Key != KeyFingerprint(i.key.Public().(ed25519.PublicKey)) {
		return sigma.Errorf(op, sigma.KindInvalid, "the certificate is for another key than this machine's")
	}
	for {
		old := i.self.Load()
		if old != nil && (s.System != old.subject.System || s.Machine != old.subject.Machine ||
			s.Incarnation < old.subject.Incarnation) {
			return sigma.Errorf(op, sigma.KindInvalid, "the certificate is for %s, this machine is %s", s, old.subject)
		}
		chain := append([][]byte{der},
			i.trust.ders...) // the authority goes along for joiners, who know only its fingerprint
		if i.self.CompareAndSwap(old, &own{s, tls.Certificate{Certificate: chain, PrivateKey: i.key, Leaf: leaf}}) {
			return nil
		}
	}
}

// Self is this machine as its certificate says.
func (i *Identity) Self() Subject { return i.self.Load().subject }

// Now is the clock that certificates are checked by.
func (i *Identity) Now() time.Time { return i.now() }

// Roster is who is a member, as this machine knows.
func (i *Identity) Roster() *Roster { return i.roster }

// RenewAt is when the certificate should be renewed: after half of its life.
func (i *Identity) RenewAt() time.Time {
	s := i.Self()
	return s.NotBefore.Add(s.NotAfter.Sub(s.NotBefore) / 2)
}

// KeepFresh renews the certificate each time half of its life is over, until ctx ends. renew asks
// the authority; failed is told, if set, when that did not work, and it is tried again after a
// minute.
func (i *Identity) KeepFresh(ctx context.Context, renew func(context.Context) ([]byte, error), failed func(error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait := min(wakeMax, i.RenewAt().Sub(i.now()))
		if wait <= 0 {
			der, err := renew(ctx)
			if err == nil {
				err = i.Install(der)
			}
			if err != nil && ctx.Err() == nil && failed != nil {
				failed(err)
			}
			wait = renewRetry
		}
		timer.Reset(wait)
	}
}

// ServerConfig is for accepting connections. With ProtocolLink the peer is certified but not yet
// admitted: call Admit before believing or sending anything else. With ProtocolEnrol nothing is
// known of it.
func (i *Identity) ServerConfig() *tls.Config {
	cfg := i.config()
	cfg.NextProtos = []string{ProtocolLink, ProtocolEnrol}
	cfg.ClientAuth = tls.RequestClientCert // what it is worth is decided below, since joiners have none
	cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &i.self.Load().cert, nil }
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		switch cs.NegotiatedProtocol {
		case ProtocolEnrol:
			return nil
		case ProtocolLink:
			_, err := i.trust.verify(cs.PeerCertificates, x509.ExtKeyUsageClientAuth, i.now())
			return err
		}
		return sigma.Errorf("identity.ServerConfig", sigma.KindUnsupported, "the peer asks for no protocol of sigmaOS")
	}
	return cfg
}

// ClientConfig is for dialling a machine. The connection must be admitted (Admit) before anything
// is believed.
func (i *Identity) ClientConfig(want sigma.MachineID) *tls.Config {
	cfg := i.config()
	cfg.NextProtos = []string{ProtocolLink}
	cfg.InsecureSkipVerify = true // the standard check knows host names only; VerifyConnection checks all of it
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &i.self.Load().cert, nil
	}
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		s, err := i.trust.verify(cs.PeerCertificates, x509.ExtKeyUsageServerAuth, i.now())
		if err == nil && s.Machine != want {
			err = &sigma.Error{Op: "identity.ClientConfig", Kind: sigma.KindPermission,
				Msg:  fmt.Sprintf("the machine that answered is %s, not %s", s.Machine, want),
				Hint: "the address belongs to another machine now; sigma machine ls shows the addresses"}
		}
		if err == nil && cs.NegotiatedProtocol != ProtocolLink {
			err = sigma.Errorf("identity.ClientConfig", sigma.KindUnsupported, "machine %s does not speak %s", want,
				ProtocolLink)
		}
		return err
	}
	return cfg
}

// Admit says who is at the other end of a connection of ProtocolLink, or why it may not be. The
// checks that were left to it are those whose refusal the other side should be told in words. With
// KindStale it says both, for CheckControl.
func (i *Identity) Admit(cs tls.ConnectionState) (Subject, error) {
	use := x509.ExtKeyUsageAny // which side it is was checked in the handshake
	if cs.Version != tls.VersionTLS13 || cs.NegotiatedProtocol != ProtocolLink || !cs.HandshakeComplete {
		return Subject{}, sigma.Errorf("identity.Admit", sigma.KindPermission,
			"the connection is not one between members")
	}
	s, err := i.trust.verify(cs.PeerCertificates, use, i.now())
	if err != nil {
		return Subject{}, err
	}
	if err := s.validAt(i.now()); err != nil {
		return Subject{}, err
	}
	if self := i.Self(); s.System != self.System {
		return Subject{}, sigma.Errorf("identity.Admit", sigma.KindPermission,
			"machine %s belongs to system %s, this one to %s", s.Machine, s.System, self.System)
	}
	return s, i.roster.Check(s)
}

func (i *Identity) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Time: i.now,
		// A resumed session would save a signature and cost the certainty that each connection was
		// checked from the start.
		SessionTicketsDisabled: true, ClientSessionCache: nil}
}

// Expiry is something that ends by itself.
type Expiry struct {
	What string    `json:"what"` // "certificate" or "authority"
	At   time.Time `json:"at"`
	Warn bool      `json:"warn"` // it should have been renewed long before now
}

// Expiries says what expires when, for the gauge sigma_identity_expiry_seconds{what} and for sigma
// doctor.
func (i *Identity) Expiries() []Expiry {
	now, s := i.now(), i.Self()
	out := []Expiry{{"certificate", s.NotAfter, s.NotAfter.Sub(now) < warnBefore}}
	for _, a := range i.trust.certs {
		out = append(out, Expiry{"authority", a.NotAfter, a.NotAfter.Sub(now) < authorityIn})
	}
	slices.SortStableFunc(out, func(a, b Expiry) int { return a.At.Compare(b.At) })
	return out
}
