package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// Listen accepts other machines until ctx ends, and returns when all it began is over. It owns ln.
func (n *Node) Listen(ctx context.Context, ln net.Listener) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	defer ln.Close()
	for pause := time.Duration(0); ; {
		conn, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if conn != nil {
				conn.Close()
			}
			return nil
		case err != nil && outOfFiles(err): // it passes; spinning would make it worse
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			n.cfg.Log.Warn("no connection can be accepted", "err", err)
			retry.Pause(ctx, pause)
			continue
		case err != nil:
			return sigma.Wrap("link.Listen", "", err)
		}
		pause = 0
		place, ended := n.handshakes.take(conn)
		if ended != nil {
			n.refused(ended.conn, sigma.Errorf("link.Listen", sigma.KindBusy,
				"too many handshakes are under way, and this one was the oldest"))
			ended.conn.Close()
		}
		all.Go(func() { n.accept(ctx, conn, sync.OnceFunc(func() { n.handshakes.give(place) })) })
	}
}

func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) ||
		errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ECONNABORTED)
}

func (n *Node) refused(conn net.Conn, err error) {
	if n.cfg.Events.Refused != nil {
		n.cfg.Events.Refused(conn.RemoteAddr(), err)
	}
}

// accept does what there is to do with one connection. ready is called when the handshake no longer
// counts as one.
func (n *Node) accept(ctx context.Context, raw net.Conn, ready func()) {
	defer ready()
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	tune(raw)
	raw.SetDeadline(time.Now().Add(handshakeMax))
	begun := make([]byte, len(directMagic))
	if _, err := io.ReadFull(raw, begun); err != nil {
		raw.Close()
		n.refused(raw, sigma.Wrap("link.accept", "", err))
		return
	}
	switch string(begun) {
	case followMagic:
		if err := n.acceptFollowing(raw, stop); err != nil {
			n.refused(raw, err)
		}
		return
	case directMagic:
		if err := n.acceptDirect(raw, ready, stop); err != nil {
			n.refused(raw, err)
		}
		return
	}
	conn := tls.Server(&whole{raw, begun}, n.cfg.Identity.ServerConfig())
	defer conn.Close()
	if err := conn.HandshakeContext(ctx); err != nil {
		n.refused(raw, sigma.Wrap("link.accept", "", err))
		return
	}
	if conn.ConnectionState().NegotiatedProtocol == identity.ProtocolEnrol {
		if err := n.enrol(ctx, conn); err != nil {
			n.refused(raw, err)
		}
		return
	}
	l, err := n.agree(ctx, conn)
	if err != nil {
		n.refused(raw, err)
		return
	}
	ready()
	defer l.Close()
	markLink(raw, l.Target)
	if l.Target.Kind == ToDirect {
		n.serveKey(l)
		l.release()
		return
	}
	if n.cfg.Serve == nil {
		l.release()
		return
	}
	n.cfg.Serve(ctx, l)
}

// agree reads the hello and answers it. The hello is read in any case, because closing a socket
// with unread bytes would take the refusal from the peer.
func (n *Node) agree(ctx context.Context, conn *tls.Conn) (*Link, error) {
	payload, err := readFrame(conn, frameMax)
	if err != nil {
		return nil, sigma.Wrap("link.agree", "", err)
	}
	l, err := n.judge(ctx, conn, payload)
	now := n.cfg.Identity.Now()
	a := &answer{Version: VersionMost, Clock: now}
	if err != nil {
		a = refusal(err, now)
	} else {
		a.Version = l.Version
	}
	reply, cerr := sigmap.Payload(a.code)
	if cerr == nil {
		cerr = writeFrame(conn, reply)
	}
	if err == nil && cerr != nil {
		l.Close()
		l.release()
		err = sigma.Wrap("link.agree", "", cerr)
	}
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return l, nil
}

// judge decides about a hello. Who the peer is comes first: nothing it says matters before.
func (n *Node) judge(ctx context.Context, conn *tls.Conn, payload []byte) (*Link, error) {
	const op = "link.judge"
	peer, stale := n.admit(ctx, conn)
	if stale != nil && sigma.KindOf(stale) != sigma.KindStale {
		return nil, stale
	}
	h, err := ParseHello(payload)
	if stale != nil && (err != nil || n.standing(peer, h.Target) != nil) {
		return nil, stale
	}
	if err != nil {
		return nil, err
	}
	version, err := common(h.Least, h.Most)
	if err != nil {
		return nil, err
	}
	if err := identity.CheckClock("machine "+string(peer.Machine), h.Clock, n.cfg.Identity.Now()); err != nil {
		return nil, err
	}
	if h.From.Machine != peer.Machine {
		return nil, sigma.Errorf(op, sigma.KindPermission, "machine %s speaks for a proc of machine %s", peer.Machine,
			h.From.Machine)
	}
	l := &Link{Conn: conn, Peer: peer, From: h.From, Target: h.Target, Version: version, node: n}
	if l.Target.Kind == ToDirect {
		if err := n.offersDirect(l.From); err != nil {
			return nil, err
		}
		cs := conn.ConnectionState()
		if l.key, err = exportKey(l, cs.ExportKeyingMaterial); err != nil {
			return nil, err
		}
	}
	if n.cfg.Authorise != nil {
		if err := n.cfg.Authorise(l); err != nil {
			return nil, err
		}
	}
	if err := n.enter(l); err != nil {
		l.release()
		return nil, err
	}
	if l.key != nil { // before the peer has the answer
		n.holdKey(l.key)
	}
	return l, nil
}

// release closes what Authorise opened for a link that does not come about.
func (l *Link) release() {
	if l.Held != nil {
		l.Held.Close()
	}
}

// enrol serves a machine that wants to be registered. It counts as a handshake all the while, so
// that strangers who ask for nothing keep nobody of another address out.
func (n *Node) enrol(ctx context.Context, conn *tls.Conn) error {
	const op = "link.enrol"
	ctx, cancel := context.WithTimeout(ctx, enrolMax)
	defer cancel()
	say := func(code func(*sigmap.Coder)) error {
		payload, err := sigmap.Payload(code)
		if err == nil {
			conn.SetWriteDeadline(time.Now().Add(handshakeMax))
			err = writeFrame(conn, payload)
		}
		return sigma.Wrap(op, "", err)
	}
	self := n.cfg.Identity.Self()
	w := welcome{Least: VersionLeast, Most: VersionMost, System: self.System, Clock: n.cfg.Identity.Now()}
	var unready error
	if n.cfg.Enrol == nil {
		unready = sigma.Errorf(op, sigma.KindUnsupported, "machine %s takes no machines in", self.Machine)
	} else if ch, err := n.cfg.Enrol.Challenge(ctx); err != nil {
		unready = err
	} else {
		w.Challenge = ch[:]
	}
	if err := say(w.code); err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(handshakeMax))
	payload, err := readFrame(conn, frameMax)
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	var grant *identity.Grant
	if err = unready; err == nil {
		grant, err = n.decide(ctx, payload)
	}
	a := &answer{Version: VersionMost, Clock: n.cfg.Identity.Now()}
	var body []byte
	if err == nil {
		body, err = grant.Encode()
	}
	if err != nil {
		say(refusal(err, a.Clock).code)
		return err
	}
	if err := say(a.code); err != nil {
		return err
	}
	return sigma.Wrap(op, "", writeFrame(conn, body))
}

// decide passes a request on, some at a time.
func (n *Node) decide(ctx context.Context, payload []byte) (*identity.Grant, error) {
	e, err := identity.ParseEnrolment(payload)
	if err != nil {
		return nil, err
	}
	select {
	case n.enrolments <- struct{}{}:
		defer func() { <-n.enrolments }()
		return n.cfg.Enrol.Enrol(ctx, e)
	default:
		return nil, &sigma.Error{Op: "link.decide", Kind: sigma.KindBusy,
			Msg: fmt.Sprintf("%d machines are being registered", enrolmentsMax), Hint: "try again in a moment"}
	}
}

// whole makes an end of the TCP stream that TLS did not announce an error. crypto/tls takes it for
// an orderly end, as browsers do; but then whoever can forge a TCP segment could cut a stream short
// without notice (RFC 8446 §6.1).
type whole struct {
	net.Conn
	begun []byte // that was read before TLS began
}

var errCut = errors.New("the connection was cut off")

func (w *whole) Read(b []byte) (int, error) {
	if len(w.begun) > 0 {
		n := copy(b, w.begun)
		w.begun = w.begun[n:]
		return n, nil
	}
	n, err := w.Conn.Read(b)
	if err == io.EOF {
		err = errCut
	}
	return n, err
}

// tune sets what a connection between machines needs of TCP.
func tune(conn net.Conn) {
	t, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount})
	if raw, err := t.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedMax/time.Millisecond))
		})
	}
}

// abort makes the coming Close drop what was not sent yet and wait for nothing.
func abort(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn().(*whole).Conn
	}
	if t, ok := conn.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	conn.Close() // of TLS would first say goodbye
}
