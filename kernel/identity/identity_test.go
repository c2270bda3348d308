package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func authority(t testing.TB) *Authority {
	t.Helper()
	a, err := NewAuthority(start)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// issue makes a key and a certificate.
func issue(t testing.TB, a *Authority, now time.Time, name sigma.MachineID, life sigma.Incarnation) (ed25519.PrivateKey,
	[]byte) {
	t.Helper()
	key := NewKey()
	der, err := a.Issue(now, Subject{Machine: name, Incarnation: life, Epoch: uint64(life)},
		key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return key, der
}

// TestKeep: what is kept in files is read again, and nothing else is.
func TestKeep(t *testing.T) {
	a := authority(t)
	b, err := ParseAuthority(a.Marshal())
	if err != nil || b.System() != a.System() || b.Fingerprint() != a.Fingerprint() || !b.key.Equal(a.key) {
		t.Errorf("got %v, %v", b, err)
	}
	key := NewKey()
	if got, err := ParseKey(MarshalKey(key)); err != nil || !got.Equal(key) {
		t.Errorf("got %v", err)
	}
	mixed := append(bytes.Clone(a.Marshal()[:bytes.Index(a.Marshal(), []byte("-----BEGIN PRIVATE"))]),
		MarshalKey(key)...)
	for name, text := range map[string][]byte{"nothing": nil, "a key": MarshalKey(key), "another's key": mixed,
		"half": a.Marshal()[:300], "more": append(a.Marshal(), "x"...)} {
		if _, err := ParseAuthority(text); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestToken: a token is read as it was printed, a damaged one is refused, and its secret shows
// nowhere else.
func TestToken(t *testing.T) {
	tok := NewToken(authority(t).Fingerprint())
	got, err := ParseToken(" " + tok.Text() + "\n")
	if err != nil || got != tok || got.Key() != tok.Key() {
		t.Fatalf("got %v, %v", got, err)
	}
	for i := range tok.Text() {
		b := []byte(tok.Text())
		b[i] ^= 1
		if _, err := ParseToken(string(b)); sigma.KindOf(err) != sigma.KindInvalid ||
			strings.Contains(err.Error(), string(b[20:])) {
			t.Errorf("with another character at %d: %v", i, err)
		}
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", tok)
	for _, shown := range []string{log.String(), fmt.Sprint(tok), fmt.Sprintf("%v %+v %#v", tok, tok, tok)} {
		if !strings.Contains(shown, string(tok.ID())) || strings.Contains(shown, tok.Text()[20:40]) ||
			strings.Contains(shown, fmt.Sprint(tok.secret[0], " ", tok.secret[1])) {
			t.Errorf("it is shown as %s", shown)
		}
	}
}

// TestEnrolment: a request is good for its key, token, system and moment, once.
func TestEnrolment(t *testing.T) {
	a, key := authority(t), NewKey()
	tok, other := NewToken(a.Fingerprint()), NewToken(a.Fingerprint())
	chs := NewChallenges()
	created := Enrolment{Challenge: chs.New(start), System: a.System(), Machine: "m2", Clock: start,
		Address: "10.0.0.2:7700", Memory: sigma.GiB, Labels: []string{"zone=a"}}
	if err := created.Sign(key, &tok); err != nil {
		t.Fatal(err)
	}
	send := func(change func(*Enrolment)) *Enrolment {
		t.Helper()
		e := created
		change(&e)
		payload, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseEnrolment(payload)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	good := send(func(*Enrolment) {})
	if err := good.CheckKey(a.System(), start.Add(time.Minute)); err != nil || !good.CheckToken(tok.Key()) ||
		chs.Use(start, good.Challenge) != nil {
		t.Errorf("a good request was refused: %v", err)
	}
	if err := chs.Use(start, good.Challenge); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("the same challenge again: %v", err)
	}
	if good.CheckToken(other.Key()) {
		t.Error("another token's key takes it")
	}
	for name, e := range map[string]*Enrolment{"name": send(func(e *Enrolment) {
		e.Machine = "m3"
	}), "address": send(func(e *Enrolment) { e.Address = "10.0.0.3:7700" }),
		"token": send(func(e *Enrolment) {
			e.Token = other.ID()
		}), "key": send(func(e *Enrolment) { e.Key = NewKey().Public().(ed25519.PublicKey) })} {
		if err := e.CheckKey(a.System(), start); sigma.KindOf(err) != sigma.KindPermission || e.CheckToken(tok.Key()) {
			t.Errorf("with another %s it is taken: %v", name, err)
		}
	}
	if err := good.CheckKey(authority(t).System(), start); err == nil {
		t.Error("another system takes it")
	}
	if err := good.CheckKey(a.System(), start.Add(time.Hour)); err == nil || !strings.Contains(err.Error(),
		"12:00:00") || !strings.Contains(err.Error(), "13:00:00") || sigma.HintOf(err) == "" {
		t.Errorf("an hour off: %v", err)
	}
	for name, ch := range map[string]Challenge{"another's": NewChallenges().New(start),
		"an old": chs.New(start.Add(-2 * challengeAge)), "none": {}} {
		if err := chs.Use(start, ch); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("%s challenge: %v", name, err)
		}
	}
}

// TestChallengesBound: those in use are bounded, and forgotten when they are too old to come again.
func TestChallengesBound(t *testing.T) {
	chs := NewChallenges()
	for range usedMax {
		if err := chs.Use(start, chs.New(start)); err != nil {
			t.Fatal(err)
		}
	}
	if err := chs.Use(start, chs.New(start)); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("got %v", err)
	}
	later := start.Add(challengeAge + 1)
	if err := chs.Use(later, chs.New(later)); err != nil || len(chs.used) != 1 {
		t.Errorf("%v, %d are kept", err, len(chs.used))
	}
}

// TestRoster: who is admitted, and with which kind of error not.
func TestRoster(t *testing.T) {
	a, b := Fingerprint{1}, Fingerprint{2}
	r := NewRoster()
	sub := func(m sigma.MachineID, life sigma.Incarnation, epoch uint64, key Fingerprint) Subject {
		return Subject{Machine: m, Incarnation: life, Epoch: epoch, Key: key}
	}
	check := func(what string, s Subject, want sigma.Kind, ok bool) {
		t.Helper()
		if err := r.Check(s); (err == nil) != ok || !ok && sigma.KindOf(err) != want {
			t.Errorf("%s: got %v (%v), want %v", what, err, sigma.KindOf(err), want)
		}
	}
	check("before the first list", sub("m1", 3, 3, a), sigma.KindUnavailable, false)
	changed := r.Changed()
	if !r.Set(5, []Member{{Machine: "m1", Key: a, Incarnation: 3}, {Machine: "m2", Key: b, Incarnation: 4,
		Lost: true}}) {
		t.Fatal("the list was not taken")
	}
	<-changed
	check("a member", sub("m1", 3, 3, a), 0, true)
	check("registered since", sub("m1", 7, 7, a), 0, true)
	check("an earlier life", sub("m1", 2, 2, a), sigma.KindStale, false)
	check("a lost one", sub("m2", 4, 4, b), sigma.KindStale, false)
	check("a lost one that registered again", sub("m2", 8, 8, b), 0, true)
	check("one that joined since", sub("m3", 6, 6, b), sigma.KindUnavailable, false)
	check("one that was removed", sub("m3", 2, 2, b), sigma.KindStale, false)
	check("a removed key of a name that was given again", sub("m1", 2, 2, b), sigma.KindStale, false)
	if r.Set(5, nil) || r.Set(4, nil) || r.Epoch() != 5 || len(r.Members()) != 2 {
		t.Error("an older list was taken")
	}
	if r.Set(6, make([]Member, MembersMax+1)) {
		t.Error("a list without bound was taken")
	}
}

// TestInstall: only a certificate of the same machine, key and system takes the place of another.
func TestInstall(t *testing.T) {
	a := authority(t)
	key, der := issue(t, a, start, "m1", 5)
	now := start
	id, err := New(Config{Key: key, Certificate: der, Authorities: [][]byte{a.Certificate()}, Roster: NewRoster(),
		Now: func() time.Time {
			return now
		}})
	if err != nil {
		t.Fatal(err)
	}
	if got := id.RenewAt(); got.Sub(start) < 5*time.Hour || got.Sub(start) > 7*time.Hour {
		t.Errorf("it is to be renewed at %v", got)
	}
	try := func(name sigma.MachineID, life sigma.Incarnation, k ed25519.PrivateKey) error {
		der, err := a.Issue(start, Subject{Machine: name, Incarnation: life}, k.Public().(ed25519.PublicKey))
		if err != nil {
			t.Fatal(err)
		}
		return id.Install(der)
	}
	if err := try("m1", 6, key); err != nil || id.Self().Incarnation != 6 {
		t.Errorf("a renewed certificate: %v", err)
	}
	_, foreign := issue(t, authority(t), start, "m1", 9)
	for name, err := range map[string]error{"another name": try("m2", 7, key), "an earlier life": try("m1", 5, key),
		"another key": try("m1", 7, NewKey()), "another system": id.Install(foreign),
		"garbage": id.Install([]byte("x"))} {
		if err == nil {
			t.Errorf("a certificate of %s was installed", name)
		}
	}
	warns := func() (out []string) {
		for _, e := range id.Expiries() {
			if e.Warn {
				out = append(out, e.What)
			}
		}
		return out
	}
	if w := warns(); w != nil {
		t.Errorf("a fresh one warns of %v", w)
	}
	if now = start.Add(11 * time.Hour); strings.Join(warns(), " ") != "certificate" {
		t.Errorf("near its end it warns of %v", warns())
	}
}

// TestRenewal: over three days, with an authority that is away for some hours, the certificate
// never ends.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		key, der := issue(t, a, time.Now(), "m1", 1)
		id, err := New(Config{Key: key, Certificate: der, Authorities: [][]byte{a.Certificate()}, Roster: NewRoster()})
		if err != nil {
			t.Fatal(err)
		}
		began, renewals, failures := time.Now(), 0, 0
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			id.KeepFresh(ctx, func(context.Context) ([]byte, error) {
				if d := time.Since(began); d > 28*time.Hour && d < 33*time.Hour {
					return nil, sigma.Errorf("test", sigma.KindUnavailable, "no authority")
				}
				renewals++
				return a.Issue(time.Now(), Subject{Machine: "m1", Incarnation: 1}, key.Public().(ed25519.PublicKey))
			}, func(error) { failures++ })
		}()
		for range 72 * 4 {
			time.Sleep(15 * time.Minute)
			if err := id.Self().validAt(time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		<-done
		if renewals < 10 || renewals > 14 || failures == 0 || failures > 300 {
			t.Errorf("%d renewals and %d failures in three days", renewals, failures)
		}
	})
}

// TestIssue: what an authority does not certify.
func TestIssue(t *testing.T) {
	a := authority(t)
	key := NewKey().Public().(ed25519.PublicKey)
	for name, err := range map[string]error{
		"a bad name":    second(a.Issue(start, Subject{Machine: "M/2", Incarnation: 1}, key)),
		"no life":       second(a.Issue(start, Subject{Machine: "m"}, key)),
		"a short key":   second(a.Issue(start, Subject{Machine: "m", Incarnation: 1}, key[:3])),
		"a wrong clock": second(a.Issue(start.Add(-time.Hour), Subject{Machine: "m", Incarnation: 1}, key)),
	} {
		if err == nil {
			t.Errorf("%s was certified", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestVerify: certificates that the authority's key signed but that are no machine's.
func TestVerify(t *testing.T) {
	a := authority(t)
	trusted, err := newTrust([][]byte{a.Certificate()})
	if err != nil {
		t.Fatal(err)
	}
	key := NewKey()
	name := Subject{System: a.System(), Machine: "m1", Incarnation: 1}
	make := func(change func(*x509.Certificate)) []*x509.Certificate {
		c := &x509.Certificate{SerialNumber: newSerial(), NotBefore: start, NotAfter: start.Add(time.Hour),
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			URIs:        []*url.URL{name.URI()}}
		change(c)
		der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return []*x509.Certificate{got}
	}
	if s, err := trusted.verify(make(func(*x509.Certificate) {}), x509.ExtKeyUsageServerAuth, start); err != nil ||
		s.Machine != "m1" {
		t.Fatalf("a good one: %v, %v", s, err)
	}
	for what, chain := range map[string][]*x509.Certificate{
		"no certificate": nil, "the authority's own": {a.cert}, "no name": make(func(c *x509.Certificate) {
			c.URIs = nil
		}),
		"two names":       make(func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }),
		"a host name too": make(func(c *x509.Certificate) { c.DNSNames = []string{"m1"} }),
		"another's form": make(func(c *x509.Certificate) {
			c.URIs = []*url.URL{{Scheme: "spiffe", Host: "x", Path: "/m1"}}
		}),
		"only a client's": make(func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }),
	} {
		if s, err := trusted.verify(chain, x509.ExtKeyUsageServerAuth,
			start); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("%s: got %v, %v", what, s, err)
		}
	}
}

func FuzzParseSubject(f *testing.F) {
	f.Add("sigma://abcdefghijklmnop/machine/m1/3/4")
	f.Add("sigma://abcdefghijklmnop/machine/m1/03/4")
	f.Add("sigma://user@abcdefghijklmno/machine/m1/3/4?x")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseSubject(text); err == nil && s.URI().String() != text {
			t.Errorf("%q became %q", text, s.URI())
		}
	})
}

func FuzzParseToken(f *testing.F) {
	f.Add(NewToken(Fingerprint{1}).Text())
	f.Add(tokenPrefix)
	f.Fuzz(func(t *testing.T, text string) {
		if tok, err := ParseToken(text); err == nil && tok.Text() != strings.TrimSpace(text) {
			t.Errorf("%q became another token", text)
		}
	})
}

func FuzzParseEnrolment(f *testing.F) {
	tok := NewToken(Fingerprint{1})
	e := Enrolment{System: "abcdefghijklmnop", Machine: "m2", Clock: start, Address: "10.0.0.2:7700",
		Labels: []string{"zone=a"}}
	if err := e.Sign(NewKey(), &tok); err != nil {
		f.Fatal(err)
	}
	payload, err := e.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add(payload[:60])
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := ParseEnrolment(payload)
		if err != nil {
			return
		}
		if again, err := e.Encode(); err != nil || !bytes.Equal(again, payload) {
			t.Errorf("%x became %x, %v", payload, again, err)
		}
		e.CheckKey("abcdefghijklmnop", start)
		e.CheckToken(tok.Key())
	})
}

func FuzzParseAuthority(f *testing.F) {
	f.Add(authority(f).Marshal())
	f.Add(MarshalKey(NewKey()))
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, err := ParseAuthority(text); err == nil {
			a.Fingerprint()
		}
		ParseKey(text)
	})
}
