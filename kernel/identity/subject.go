package identity

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// Subject is the machine a certificate speaks for, in one of its lives.
type Subject struct {
	System      sigma.SystemID
	Machine     sigma.MachineID
	Incarnation sigma.Incarnation
	Epoch       uint64 // of the membership when the certificate was made, so that a roster can know that it is behind

	// What the certificate, not its name, says.
	Key                 Fingerprint
	NotBefore, NotAfter time.Time
}

// URI is the subject's name in its certificate, the only one (SAN, RFC 5280 §4.2.1.6):
// sigma://SYSTEM/machine/NAME/INCARNATION/EPOCH.
func (s Subject) URI() *url.URL {
	return &url.URL{Scheme: "sigma", Host: string(s.System), Path: fmt.Sprintf("/machine/%s/%d/%d", s.Machine,
		s.Incarnation, s.Epoch)}
}

// Life is which life of which machine that is.
func (s Subject) Life() sigma.Life {
	return sigma.Life{Machine: s.Machine, Incarnation: s.Incarnation}
}

// String is for people.
func (s Subject) String() string {
	return fmt.Sprintf("machine %s (life %d) of system %s", s.Machine, s.Incarnation, s.System)
}

// ParseSubject reads the text of what URI gives, and only that.
func ParseSubject(text string) (Subject, error) {
	w := strings.Split(text, "/")
	if len(text) < 256 && len(w) == 7 && w[0] == "sigma:" && w[1] == "" && w[3] == "machine" {
		inc, err1 := strconv.ParseUint(w[5], 10, 64)
		epoch, err2 := strconv.ParseUint(w[6], 10, 64)
		s := Subject{System: sigma.SystemID(w[2]), Machine: sigma.MachineID(w[4]), Incarnation: sigma.Incarnation(inc),
			Epoch: epoch}
		if err1 == nil && err2 == nil && s.System.Check() == nil && s.Machine.Check() == nil &&
			s.URI().String() == text {
			return s, nil
		}
	}
	return Subject{}, sigma.Errorf("identity.ParseSubject", sigma.KindInvalid, "%.80q names no machine", text)
}

// validAt checks the certificate's dates. Whose clock is wrong cannot be known, so the error tells
// what there is to know.
func (s Subject) validAt(now time.Time) error {
	off, what := time.Duration(0), ""
	switch {
	case now.After(s.NotAfter):
		off, what = now.Sub(s.NotAfter), "expired at"
	case now.Before(s.NotBefore):
		off, what = s.NotBefore.Sub(now), "is valid only from"
	default:
		return nil
	}
	at := s.NotAfter
	if now.Before(s.NotBefore) {
		at = s.NotBefore
	}
	return &sigma.Error{Op: "identity.Admit", Kind: sigma.KindPermission,
		Msg: fmt.Sprintf("the certificate of machine %s %s %s, and the clock here says %s (%v off)", s.Machine, what,
			stamp(at), stamp(now), off.Round(time.Second)),
		Hint: fmt.Sprintf(
			"compare the clocks of both machines (they may differ by %v); a certificate that really has expired is "+
				"renewed when %s's sigmad starts", SkewMax, s.Machine)}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// CheckClock compares the clock of another machine, or a joiner, with ours.
func CheckClock(other string, theirs, ours time.Time) error {
	if d := theirs.Sub(ours).Abs(); d > SkewMax {
		return &sigma.Error{Op: "identity.CheckClock", Kind: sigma.KindPermission,
			Msg: fmt.Sprintf("the clock of %.80s says %s, the clock here says %s: they differ by %v", other,
				stamp(theirs), stamp(ours), d.Round(time.Second)),
			Hint: fmt.Sprintf("set both clocks (chrony or systemd-timesyncd); at most %v are allowed", SkewMax)}
	}
	return nil
}

// trust is the authorities that are believed.
type trust struct {
	certs []*x509.Certificate
	ders  [][]byte
	pool  *x509.CertPool
}

// authoritiesMax bounds the authorities that are trusted at once: the old and the new one, and one
// more to be generous.
const authoritiesMax = 3

func newTrust(ders [][]byte) (*trust, error) {
	if len(ders) == 0 || len(ders) > authoritiesMax {
		return nil, sigma.Errorf("identity.New", sigma.KindInvalid, "%d authorities were given, 1 to %d can be trusted",
			len(ders), authoritiesMax)
	}
	t := &trust{ders: ders, pool: x509.NewCertPool()}
	for _, der := range ders {
		c, err := x509.ParseCertificate(der)
		if err != nil || !c.IsCA {
			return nil, &sigma.Error{Op: "identity.New", Kind: sigma.KindInvalid,
				Msg: "an authority's certificate cannot be used", Err: err}
		}
		t.certs = append(t.certs, c)
		t.pool.AddCert(c)
	}
	return t, nil
}

// verify checks everything of a peer's chain but its dates and the roster: they are Admit's.
// chain[0] is the peer's; others are ignored, since machines are certified directly.
func (t *trust) verify(chain []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) (Subject, error) {
	refuse := func(format string, args ...any) (Subject, error) {
		return Subject{}, sigma.Errorf("identity.verify", sigma.KindPermission, format, args...)
	}
	if len(chain) == 0 {
		return refuse("the peer showed no certificate")
	}
	leaf := chain[0]
	if now.After(leaf.NotAfter) {
		now = leaf.NotAfter
	} else if now.Before(leaf.NotBefore) {
		now = leaf.NotBefore
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: t.pool, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
		return Subject{}, &sigma.Error{Op: "identity.verify", Kind: sigma.KindPermission,
			Msg: "the peer's certificate is not one of this system", Err: err}
	}
	key, ok := leaf.PublicKey.(ed25519.PublicKey)
	if !ok || leaf.IsCA {
		return refuse("the peer's certificate is not a machine's")
	}
	if len(leaf.URIs) != 1 || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
		return refuse("the peer's certificate has not exactly one name")
	}
	s, err := ParseSubject(leaf.URIs[0].String())
	if err != nil {
		return refuse("the peer's certificate names no machine")
	}
	s.Key, s.NotBefore, s.NotAfter = KeyFingerprint(key), leaf.NotBefore, leaf.NotAfter
	return s, nil
}

// only gives the trust in the one authority of chain whose fingerprint is f.
func only(chain []*x509.Certificate, f Fingerprint) (*trust, error) {
	at := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return sha256.Sum256(c.Raw) == f })
	if at < 0 {
		return nil, &sigma.Error{Op: "identity.Join", Kind: sigma.KindPermission,
			Msg:  "the machine that answered is not of the system that made the token",
			Hint: "check the address, or make a token on a machine of that system: sigma token create"}
	}
	return newTrust([][]byte{chain[at].Raw})
}
