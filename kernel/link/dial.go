package link

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// dialling is what is remembered of a machine that could not be reached.
type dialling struct {
	address  string
	failures int
	until    time.Time // no attempt before
	last     error
}

// Dial connects to target on machine m for from, whose Machine is set to this one. An attempt that
// comes too soon after failed ones fails at once, with the reason of the last (KindUnavailable).
// KindStale: the other machine says that this one's life is over.
func (n *Node) Dial(ctx context.Context, m sigma.MachineID, target Target, from sigma.Principal) (*Link, error) {
	const op = "link.Dial"
	member, ok := n.cfg.Identity.Roster().Member(m)
	if !ok {
		return nil, sigma.Errorf(op, sigma.KindNotFound, "machine %.80q is not known here", string(m))
	}
	ctx, cancel := context.WithTimeout(ctx, connectMax+handshakeMax)
	defer cancel()
	if target.Kind != ToBeat {
		done, err := n.turn(ctx, m)
		if err != nil {
			return nil, err
		}
		defer done()
		if err := n.mayDial(member); err != nil { // of those who waited for their turn, one was enough to find out
			return nil, err
		}
	}
	from.Machine = n.cfg.Identity.Self().Machine
	raw, err := n.cfg.Connect(ctx, member.Address)
	if err != nil {
		return nil, n.unreached(ctx, member, err)
	}
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	tune(raw)
	raw.SetDeadline(time.Now().Add(handshakeMax))
	conn := tls.Client(&whole{Conn: raw}, n.cfg.Identity.ClientConfig(m))
	l, err := n.greet(ctx, conn, m, target, from)
	if err != nil {
		raw.Close()
		return nil, n.failed(ctx, member, err)
	}
	n.mu.Lock()
	delete(n.dials, m)
	n.mu.Unlock()
	raw.SetDeadline(time.Time{})
	markLink(raw, target)
	return l, nil
}

// turn waits until fewer than dialsMost other dials to m are under way.
func (n *Node) turn(ctx context.Context, m sigma.MachineID) (done func(), err error) {
	n.mu.Lock()
	places := n.turns[m]
	if places == nil {
		places = make(chan struct{}, dialsMost)
		n.turns[m] = places
	}
	n.mu.Unlock()
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, &sigma.Error{Op: "link.Dial", Kind: sigma.KindUnavailable,
			Msg: fmt.Sprintf("%d attempts to reach machine %s are under way", dialsMost, m), Err: ctx.Err()}
	}
}

// greet makes the handshake and has the other side agree.
func (n *Node) greet(ctx context.Context, conn *tls.Conn, want sigma.MachineID, target Target,
	from sigma.Principal) (*Link, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	peer, err := n.admit(ctx, conn)
	if sigma.KindOf(err) == sigma.KindStale && n.standing(peer, target) == nil {
		err = nil
	}
	if sigma.KindOf(err) == sigma.KindStale { // of the peer; from here on, that kind is about the life of this machine
		return nil, &sigma.Error{Op: "link.Dial", Kind: sigma.KindUnavailable,
			Msg: fmt.Sprintf("the life in which machine %s answers is over", want), Err: err, Hint: sigma.HintOf(err)}
	}
	if err != nil {
		return nil, theirs(err)
	}
	h := Hello{VersionLeast, VersionMost, n.cfg.Identity.Now(), from, target}
	payload, err := h.encode()
	if err != nil {
		return nil, err
	}
	if err := writeFrame(conn, payload); err != nil {
		return nil, err
	}
	reply, err := readFrame(conn, frameMax)
	if err != nil {
		return nil, err
	}
	version, clock, err := ParseAnswer(reply, "machine "+string(peer.Machine))
	if err != nil {
		return nil, err
	}
	if err := identity.CheckClock("machine "+string(peer.Machine), clock, n.cfg.Identity.Now()); err != nil {
		return nil, err
	}
	if version < VersionLeast || version > VersionMost {
		return nil, sigma.Errorf("link.Dial", sigma.KindInvalid,
			"machine %s answers with version %d, which it was not offered", peer.Machine, version)
	}
	l := &Link{Conn: conn, Peer: peer, From: from, Target: target, Version: version, node: n}
	return l, theirs(n.enter(l))
}

// theirs makes KindStale of the other machine's life, which says that it cannot be reached now,
// what it is: for who dials, KindStale is the other's word that this machine's life is over.
func theirs(err error) error {
	var e *sigma.Error
	if sigma.KindOf(err) != sigma.KindStale || !errors.As(err, &e) {
		return err
	}
	return &sigma.Error{Op: "link.Dial", Kind: sigma.KindUnavailable, Msg: e.Msg, Hint: e.Hint, Err: e.Err}
}

// mayDial says no while a machine that did not answer is left alone.
func (n *Node) mayDial(m identity.Member) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.dials[m.Machine]
	if d == nil || d.address != m.Address {
		return nil
	}
	if left := time.Until(d.until); left > 0 {
		return &sigma.Error{Op: "link.Dial", Kind: sigma.KindUnavailable, Err: d.last,
			Msg: fmt.Sprintf("machine %s at %s did not answer %d times; the next attempt is made in %v", m.Machine,
				m.Address, d.failures, left.Round(time.Millisecond))}
	}
	return nil
}

// unreached notes that nobody answers at a machine's address.
func (n *Node) unreached(ctx context.Context, m identity.Member, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) { // the caller's wish says nothing of the machine
		return sigma.Wrap("link.Dial", "", ctx.Err())
	}
	n.mu.Lock()
	d := n.dials[m.Machine]
	if d == nil || d.address != m.Address {
		d = &dialling{address: m.Address}
		n.dials[m.Machine] = d
	}
	wait := min(backoffLeast<<min(d.failures, 10), backoffMost)
	d.failures++
	d.until, d.last = time.Now().Add(wait/2+rand.N(wait/2+1)), err
	n.mu.Unlock()
	return &sigma.Error{Op: "link.Dial", Kind: sigma.KindUnavailable,
		Msg: fmt.Sprintf("machine %s does not answer at %s", m.Machine, m.Address), Err: err}
}

// failed tells an answer in words apart from none.
func (n *Node) failed(ctx context.Context, m identity.Member, err error) error {
	var said *sigma.Error
	var alert tls.AlertError
	switch {
	case errors.As(err, &said):
		return sigma.Wrap("link.Dial", "", said)
	case errors.As(err, &alert), refusedByAlert(err):
		return &sigma.Error{Op: "link.Dial", Kind: sigma.KindPermission,
			Msg:  fmt.Sprintf("machine %s at %s does not take this machine's certificate", m.Machine, m.Address),
			Err:  err,
			Hint: "are both of the same system? sigma machine ls on each shows"}
	}
	return n.unreached(ctx, m, err)
}

// refusedByAlert recognises the alert that a peer sent, which crypto/tls wraps in a net.OpError.
func refusedByAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// Join is what a machine that enrols brings.
type Join struct {
	Address string // of a machine of the system
	// Authority is the fingerprint of the authority it knows; with a Token it is the token's.
	Authority identity.Fingerprint
	Token     *identity.Token // nil = it is a member
	Key       ed25519.PrivateKey
	Ask       identity.Enrolment // name, address, what it offers; the rest is filled in
	Now       func() time.Time   // nil = time.Now
	// Connect makes the TCP connection; nil = a net.Dialer's.
	Connect func(ctx context.Context, address string) (net.Conn, error)
}

// Enrol registers a machine with its system and returns what it needs for its Identity. The errors
// are the system's own words, or say which address did not answer what.
func Enrol(ctx context.Context, j Join) (*identity.Grant, identity.Met, error) {
	const op = "link.Enrol"
	var met identity.Met
	if j.Now == nil {
		j.Now = time.Now
	}
	if j.Connect == nil {
		j.Connect = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{Timeout: connectMax}).DialContext(ctx, "tcp", address)
		}
	}
	if j.Token != nil {
		j.Authority = j.Token.Authority()
	}
	ctx, cancel := context.WithTimeout(ctx, connectMax+handshakeMax+enrolMax)
	defer cancel()
	raw, err := j.Connect(ctx, j.Address)
	if err != nil {
		return nil, met, &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: fmt.Sprintf("nobody answers at %.80s",
			j.Address), Err: err,
			Hint: "is this the machine port of a machine of the system? sigma machine ls shows it"}
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	raw.SetDeadline(time.Now().Add(handshakeMax))
	conn := tls.Client(&whole{Conn: raw}, identity.EnrolConfig(j.Authority, j.Now, &met))
	if err := conn.HandshakeContext(ctx); err != nil {
		var said *sigma.Error
		if errors.As(err, &said) {
			return nil, met, sigma.Wrap(op, "", said)
		}
		return nil, met, &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
			Msg: fmt.Sprintf("what answers at %.80s is no machine of sigmaOS", j.Address), Err: err,
			Hint: "is this the machine port? sigma machine ls shows it"}
	}
	grant, err := j.ask(conn, raw, met)
	return grant, met, err
}

// ask sends the request and reads the answer.
func (j *Join) ask(conn *tls.Conn, raw net.Conn, met identity.Met) (*identity.Grant, error) {
	const op = "link.Enrol"
	broken := func(err error) error {
		if sigma.KindOf(err) == sigma.KindOther {
			err = &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
				Msg: fmt.Sprintf("machine %s broke the connection off", met.Machine), Err: err}
		}
		return sigma.Wrap(op, "", err)
	}
	payload, err := readFrame(conn, frameMax)
	if err != nil {
		return nil, broken(err)
	}
	var w welcome
	if err := sigmap.Parse(payload, w.code); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	if _, err := common(w.Least, w.Most); err != nil {
		return nil, err
	}
	if err := identity.CheckClock("machine "+string(met.Machine), w.Clock, j.Now()); err != nil {
		return nil, err
	}
	e := j.Ask
	copy(e.Challenge[:], w.Challenge)
	e.System, e.Clock = met.System, j.Now()
	if err := e.Sign(j.Key, j.Token); err != nil {
		return nil, err
	}
	if payload, err = e.Encode(); err != nil {
		return nil, err
	}
	raw.SetDeadline(time.Now().Add(enrolMax))
	if err := writeFrame(conn, payload); err != nil {
		return nil, broken(err)
	}
	if payload, err = readFrame(conn, frameMax); err != nil {
		return nil, broken(err)
	}
	if _, _, err := ParseAnswer(payload, "system "+string(met.System)); err != nil {
		return nil, err
	}
	if payload, err = readFrame(conn, grantMax); err != nil {
		return nil, broken(err)
	}
	return identity.ParseGrant(payload)
}
