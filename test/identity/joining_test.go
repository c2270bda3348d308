//go:build system

package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
)

// remade is a token with its text taken apart: bytes 0 to 7 name it, 8 to 23 are its secret, 24 to
// 55 the system.
func (w *world) remade(tok identity.Token, change func(b []byte)) identity.Token {
	w.t.Helper()
	const prefix = "sigma-token-1-"
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(tok.Text(), prefix))
	w.must(err)
	change(b)
	sum := sha256.Sum256(b[:56])
	copy(b[56:], sum[:])
	out, err := identity.ParseToken(prefix + base64.RawURLEncoding.EncodeToString(b))
	w.must(err)
	return out
}

// tryTokens joins with tokens that are none.
func (w *world) tryTokens() {
	good := w.token("--uses", "50")
	with := func(tok identity.Token) func() error {
		return func() error { return second(w.enrol(&tok, w.name(), identity.NewKey(), nil)) }
	}
	w.try("an invented token", with(good), with(identity.NewToken(good.Authority())), "not one of this system's")
	once := w.token()
	w.try("a used token", with(once), with(once), "used up")
	revoked := w.token("--uses", "5")
	w.try("a revoked token", with(revoked), func() error {
		w.cli("token", "revoke", string(revoked.ID()))
		return with(revoked)()
	}, "revoked")
	short := w.token("--ttl", "1ms")
	testenv.Eventually(w.t, "a token expires", func() error {
		if list := w.cli("token", "ls"); !strings.Contains(list, string(short.ID())+"   expired") {
			return fmt.Errorf("%s", list)
		}
		return nil
	})
	w.try("an expired token", with(good), with(short), "expired")
	other, err := identity.NewAuthority(time.Now())
	w.must(err)
	foreign := identity.NewToken(other.Fingerprint())
	w.try("a token of another system", with(good), with(foreign), "not of the system that made the token")
	system := good.Authority()
	w.try("a token of another system, readdressed", with(good), with(w.remade(foreign, func(b []byte) {
		copy(b[24:], system[:])
	})), "not one of this system's")
	w.try("the name of a token with another secret", with(good), with(w.remade(good, func(b []byte) {
		b[8] ^= 1
	})), "not one of this system's")
	w.try("no token", with(good), func() error {
		return second(w.enrol(nil, w.name(), identity.NewKey(), nil))
	}, "shows no token")
}

// tryRequests makes requests with a good token, to become what it is not good for.
func (w *world) tryRequests() {
	good := w.token("--uses", "50")
	fresh := func(change func(*link.Join)) func() error {
		return func() error { return second(w.enrol(&good, w.name(), identity.NewKey(), change)) }
	}
	control := fresh(nil)
	key := identity.NewKey()
	w.try("a machine joins once more under another name", func() error {
		return second(w.enrol(&good, w.name(), key, nil))
	},
		func() error { return second(w.enrol(&good, w.name(), key, nil)) }, "has joined before")
	w.try("under another machine's name", control, func() error {
		return second(w.enrol(&good, "m2", identity.NewKey(), nil))
	}, "there is a machine m2")
	w.try("under the judge's name", control, func() error {
		return second(w.enrol(&good, "m1", identity.NewKey(), nil))
	}, "there is a machine m1")
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		w.try(fmt.Sprintf("a joiner whose clock is %v off", off), control, fresh(func(j *link.Join) {
			j.Now = func() time.Time { return time.Now().Add(off) }
		}), "clock")
	}
	w.try("a machine without address", control, fresh(func(j *link.Join) { j.Ask.Address = "" }), "needs an address")
	w.tryRelay(good)
	w.tryMiddle(control)
}

// eavesdropper is a member that takes machines in for the judge, and keeps what they say.
type eavesdropper struct {
	p     *peer
	heard *identity.Enrolment
}

func (e *eavesdropper) Challenge(ctx context.Context) (ch identity.Challenge, err error) {
	err = e.p.machined(func(c *machines.Client) (err error) { ch, err = c.Challenge(ctx); return err })
	return ch, err
}

func (e *eavesdropper) Enrol(ctx context.Context, q *identity.Enrolment) (*identity.Grant, error) {
	e.heard = q
	return nil, sigma.Errorf("test", sigma.KindUnavailable, "heard")
}

// tryRelay lets a machine join by way of a member that keeps what it hears and uses it for itself.
func (w *world) tryRelay(good identity.Token) {
	evil := &eavesdropper{p: w.join()}
	ln, err := w.m2.Net.Listen(0)
	w.must(err)
	node, err := link.New(link.Config{Identity: evil.p.id, Enrol: evil, Serve: func(_ context.Context, l *link.Link) {
		l.Close()
	}})
	w.must(err)
	ctx, stop := context.WithCancel(w.ctx)
	var listening sync.WaitGroup
	listening.Go(func() { node.Listen(ctx, ln) })
	defer listening.Wait()
	defer stop()
	// hear has somebody join through the member.
	hear := func() *identity.Enrolment {
		_, err := w.enrol(&good, w.name(), identity.NewKey(), func(j *link.Join) { j.Address = ln.Addr().String() })
		if evil.heard == nil {
			w.t.Fatal(err)
		}
		e := evil.heard
		evil.heard = nil
		return e
	}
	// use sends a request to the judge, as any member may for others.
	use := func(e *identity.Enrolment) error {
		return evil.p.machined(func(c *machines.Client) error { return second(c.Enrol(w.ctx, e)) })
	}
	passed := func() error { return use(hear()) }
	w.try("a relay sends a request twice", passed, func() error {
		e := hear()
		if err := use(e); err != nil {
			w.t.Error(err)
		}
		return use(e)
	}, "it is a copy")
	w.try("a relay puts its own key in", passed, func() error {
		e := hear()
		id, proof := e.Token, e.TokenProof
		if err := e.Sign(identity.NewKey(), nil); err != nil {
			return err
		}
		e.Token, e.TokenProof = id, proof
		return use(e)
	}, "not signed with the key it shows")
	w.try("a relay signs anew with a token of its own", passed, func() error {
		e := hear()
		own := identity.NewToken(good.Authority())
		if err := e.Sign(identity.NewKey(), &own); err != nil {
			return err
		}
		return use(e)
	}, "not one of this system's")
	w.try("a relay answers with a challenge of its own", passed, func() error {
		e := hear()
		key, tok := identity.NewKey(), good
		e.Challenge = identity.NewChallenges().New(time.Now())
		if err := e.Sign(key, &tok); err != nil {
			return err
		}
		return use(e)
	}, "no challenge of the last minute")
	w.try("a member says for a joiner that its clock is right an hour off", passed, func() error {
		e := hear()
		tok := good
		e.Clock = time.Now().Add(time.Hour)
		if err := e.Sign(identity.NewKey(), &tok); err != nil {
			return err
		}
		return use(e)
	}, "differ by")
}

// tryMiddle has a joiner connect to somebody in the middle, who passes on what it says, or answers
// itself.
func (w *world) tryMiddle(control func() error) {
	good := w.token("--uses", "5")
	middle := func(answer func(net.Conn)) func() error {
		return func() error {
			ln, err := w.m2.Net.Listen(0)
			if err != nil {
				return err
			}
			var all sync.WaitGroup
			defer all.Wait()
			defer ln.Close()
			all.Go(func() {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				answer(conn)
			})
			return second(w.enrol(&good, w.name(), identity.NewKey(), func(j *link.Join) {
				j.Address = ln.Addr().String()
			}))
		}
	}
	pass := middle(func(conn net.Conn) {
		on, err := w.connect(w.ctx, w.m1.Address())
		if err != nil {
			return
		}
		link.Relay(w.ctx, conn, on)
	})
	w.try("who is in the middle answers with a system of its own", pass, middle(func(conn net.Conn) {
		a, err := identity.NewAuthority(time.Now())
		if err != nil {
			return
		}
		key := identity.NewKey()
		der, err := a.Issue(time.Now(), identity.Subject{Machine: "m1", Incarnation: 1}, publicOf(key))
		if err != nil {
			return
		}
		id, err := identity.New(identity.Config{Key: key, Certificate: der, Authorities: [][]byte{a.Certificate()},
			Roster: identity.NewRoster()})
		if err != nil {
			return
		}
		handshake(conn, id)
	}), "not of the system that made the token")
	w.try("who is in the middle changes a byte", pass, middle(func(conn net.Conn) {
		on, err := w.connect(w.ctx, w.m1.Address())
		if err != nil {
			return
		}
		link.Relay(w.ctx, &spoiler{Conn: conn}, on)
	}), "")
	w.try("what answers is no machine", control, middle(func(conn net.Conn) {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	}), "no machine of sigmaOS")
}

// spoiler changes a byte of what it reads, after the handshake's first message.
type spoiler struct {
	net.Conn
	n int
}

func (s *spoiler) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if before := s.n; n > 0 {
		s.n += n
		if before > 0 {
			p[n-1] ^= 1
		}
	}
	return n, err
}
