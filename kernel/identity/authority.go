package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"time"

	"sigmaos.dev/sigma"
)

// authorityLife is long because replacing an authority touches every machine; the machines'
// certificates are the short-lived ones.
const authorityLife = 10 * 365 * 24 * time.Hour

// Authority certifies machines. Whoever has it can be any machine, so it is held by machined alone.
// Safe for concurrent use.
type Authority struct {
	system sigma.SystemID
	cert   *x509.Certificate
	key    ed25519.PrivateKey
}

// NewAuthority makes the authority of a new system.
func NewAuthority(now time.Time) (*Authority, error) {
	system := sigma.SystemID(sigma.NewProcID()) // the same alphabet and the same need never to meet another
	key := NewKey()
	template := &x509.Certificate{SerialNumber: newSerial(),
		Subject: pkix.Name{CommonName: "sigmaOS system " + string(system)}, NotBefore: now.Add(-SkewMax),
		NotAfter: now.Add(authorityLife),
		IsCA:     true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		URIs: []*url.URL{{Scheme: "sigma", Host: string(system), Path: "/authority"}}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, sigma.Wrap("identity.NewAuthority", "", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, sigma.Wrap("identity.NewAuthority", "", err)
	}
	return &Authority{system, cert, key}, nil
}

func newSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f // positive, as RFC 5280 §4.1.2.2 wants
	b[0] |= 0x40 // and never zero
	return new(big.Int).SetBytes(b[:])
}

// System names the system.
func (a *Authority) System() sigma.SystemID { return a.system }

// Certificate is what everybody may know, in DER.
func (a *Authority) Certificate() []byte { return a.cert.Raw }

// Fingerprint is what a token carries, so that a joiner knows the system when it sees it.
func (a *Authority) Fingerprint() Fingerprint { return sha256.Sum256(a.cert.Raw) }

// Issue certifies that the holder of key is s.Machine in the life s.Incarnation, for Lifetime from
// now, less SkewMax so that a clock that is behind takes it too. The caller checks the requester
// and its right.
func (a *Authority) Issue(now time.Time, s Subject, key ed25519.PublicKey) ([]byte, error) {
	const op = "identity.Issue"
	if err := s.Machine.Check(); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	switch {
	case len(key) != ed25519.PublicKeySize:
		return nil, sigma.Errorf(op, sigma.KindInvalid, "a machine's key has %d bytes, not %d", ed25519.PublicKeySize,
			len(key))
	case s.Incarnation == 0:
		return nil, sigma.Errorf(op, sigma.KindInvalid, "machine %s has not registered", s.Machine)
	case now.Add(Lifetime).After(a.cert.NotAfter) || now.Before(a.cert.NotBefore):
		return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
			Msg: "the authority of the system is valid from " + stamp(a.cert.NotBefore) + " to " +
				stamp(a.cert.NotAfter) + ", and the clock here says " + stamp(now),
			Hint: "set this machine's clock, or replace the authority"}
	}
	s.System = a.system
	template := &x509.Certificate{SerialNumber: newSerial(), Subject: pkix.Name{CommonName: string(s.Machine)},
		NotBefore: now.Add(-SkewMax), NotAfter: now.Add(Lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth,
			x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true, URIs: []*url.URL{s.URI()}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
	return der, sigma.Wrap(op, "", err)
}

// Marshal gives the authority with its private key, in PEM. It is kept in a file of machined's own,
// of mode 0600, and in no listable state.
func (a *Authority) Marshal() []byte {
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), MarshalKey(a.key)...)
}

// ParseAuthority reads what Marshal gives.
func ParseAuthority(text []byte) (*Authority, error) {
	bad := func(msg string) (*Authority, error) {
		return nil, sigma.Errorf("identity.ParseAuthority", sigma.KindInvalid, "%s", msg)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(text) > 16<<10 {
		return bad("this is not an authority in PEM form")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !cert.IsCA || len(cert.URIs) != 1 {
		return bad("the certificate is not an authority's")
	}
	key, err := ParseKey(rest)
	if err != nil {
		return nil, err
	}
	if pub, ok := cert.PublicKey.(ed25519.PublicKey); !ok || !bytes.Equal(pub, key.Public().(ed25519.PublicKey)) {
		return bad("the key is not the certificate's")
	}
	system := sigma.SystemID(cert.URIs[0].Host)
	return &Authority{system, cert, key}, system.Check()
}
