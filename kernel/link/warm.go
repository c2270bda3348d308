package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// Limits of the direct connections that are made before they are needed, so that a dial is one
// round trip.
const (
	warmMost    = 16               // to one machine: what procs dial there within the time that a new one takes
	warmLeast   = 2                // after the first dial; it doubles each time that none was there
	warmMax     = 10 * time.Second // after the last dial; a connection costs both machines a socket
	keyMax      = time.Minute      // after the last dial, the link of the key is closed
	refusedMax  = 10 * time.Second // a machine that makes none is not asked again before
	warmTick    = time.Second
	directTries = 3 // for one dial: a connection that waited may be dead, and a key forgotten
)

// warmth is what this machine has for dialling another.
type warmth struct {
	key      *directKey    // nil = none
	making   chan struct{} // closed when an attempt to have one is over; nil = none is under way
	refused  error         // that machine makes none, until
	until    time.Time
	idle     []*started // youngest last
	starting int        // that are being made
	want     int
	dialled  time.Time // last
	tended   bool
	more     chan struct{} // takes one: something is wanted
}

// DialDirect connects to target on machine m for from, whose Machine is set to this one, by a TCP
// connection of its own, in the clear. It is the caller's, and nothing of this package is on its
// way any more: it does not end with the roster's mind, so whoever has it made notes what to cut.
// KindUnsupported: that machine makes none, or this one; then Dial does it. Other errors are those
// of Dial. Watch must run.
func (n *Node) DialDirect(ctx context.Context, m sigma.MachineID, target Target, from sigma.Principal) (*net.TCPConn,
	error) {
	const op = "link.DialDirect"
	if n.cfg.Reserve == nil {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "this machine makes no direct connections")
	}
	member, ok := n.cfg.Identity.Roster().Member(m)
	if !ok {
		return nil, sigma.Errorf(op, sigma.KindNotFound, "machine %.80q is not known here", string(m))
	}
	ctx, cancel := context.WithTimeout(ctx, connectMax+handshakeMax)
	defer cancel()
	from.Machine = n.cfg.Identity.Self().Machine
	h := &directHello{From: from, Target: target}
	var err error
	for range directTries {
		var k *directKey
		if k, err = n.keyFor(ctx, member); err != nil {
			return nil, err
		}
		s := n.takeWarm(m, k)
		if s == nil {
			if s, err = n.begin(ctx, member, k); errors.Is(err, errNoKey) {
				n.coolDown(m, k)
				n.drop(k.link, nil)
				continue
			} else if err != nil {
				return nil, err
			}
		}
		var conn *net.TCPConn
		if conn, err = s.ask(ctx, h, "machine "+string(m)); err == nil {
			return conn, nil
		} else if !errors.Is(err, errUnheard) {
			return nil, theirs(n.failed(ctx, member, err))
		}
	}
	return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
		Msg: fmt.Sprintf("machine %s ends direct connections without an answer", m), Err: err}
}

// keyFor is the key for dialling a machine; the link that it comes from is made if there is none.
func (n *Node) keyFor(ctx context.Context, m identity.Member) (*directKey, error) {
	const op = "link.DialDirect"
	for {
		n.mu.Lock()
		w := n.warm[m.Machine]
		if w == nil {
			w = &warmth{want: warmLeast, more: make(chan struct{}, 1)}
			n.warm[m.Machine] = w
		}
		w.dialled = time.Now()
		switch {
		case w.key != nil:
			k := w.key
			n.mu.Unlock()
			return k, nil
		case w.refused != nil && time.Now().Before(w.until):
			err := w.refused
			n.mu.Unlock()
			return nil, err
		case w.making != nil:
			over := w.making
			n.mu.Unlock()
			select {
			case <-over:
				continue
			case <-ctx.Done():
				return nil, sigma.Wrap(op, "", ctx.Err())
			}
		}
		over := make(chan struct{})
		w.making = over
		n.mu.Unlock()
		k, err := n.makeKey(ctx, m.Machine)
		n.mu.Lock()
		w.making, w.refused = nil, nil
		switch {
		case err == nil && !k.over:
			w.key = k
			if !w.tended {
				w.tended = n.goLocked(func(ctx context.Context) { n.tend(ctx, m.Machine, w) })
			}
		case sigma.KindOf(err) == sigma.KindUnsupported:
			w.refused, w.until = err, time.Now().Add(refusedMax)
		}
		n.mu.Unlock()
		close(over)
		return k, err
	}
}

// makeKey makes a link of target ToDirect, and sees that its end is noticed.
func (n *Node) makeKey(ctx context.Context, m sigma.MachineID) (*directKey, error) {
	const op = "link.DialDirect"
	l, err := n.Dial(ctx, m, Target{ToDirect, "direct"}, sigma.Principal{Realm: sigma.SystemRealm, System: true})
	if err != nil {
		return nil, err
	}
	cs := l.Conn.(*tls.Conn).ConnectionState()
	k, err := exportKey(l, cs.ExportKeyingMaterial)
	if err != nil {
		l.Close()
		return nil, err
	}
	n.mu.Lock()
	watched := n.goLocked(func(ctx context.Context) {
		defer context.AfterFunc(ctx, func() { abort(l.Conn) })()
		n.serveKey(l)
		l.Close()
		n.coolDown(m, k)
	})
	n.mu.Unlock()
	if !watched {
		l.Close()
		return nil, sigma.Errorf(op, sigma.KindUnavailable, "this machine's links have ended")
	}
	return k, nil
}

// coolDown forgets a key for dialling, and ends what waits by it.
func (n *Node) coolDown(m sigma.MachineID, k *directKey) {
	n.mu.Lock()
	k.over = true
	var idle []*started
	if w := n.warm[m]; w != nil && w.key == k {
		idle, w.idle, w.key = w.idle, nil, nil
	}
	n.mu.Unlock()
	endAll(idle)
}

func endAll(all []*started) {
	for _, s := range all {
		s.conn.Close()
	}
}

// takeWarm takes a connection that waits; nil if there is none that lives.
func (n *Node) takeWarm(m sigma.MachineID, k *directKey) *started {
	for {
		var s *started
		n.mu.Lock()
		w := n.warm[m]
		if w != nil && w.key == k {
			if last := len(w.idle) - 1; last >= 0 {
				s, w.idle = w.idle[last], w.idle[:last]
			} else {
				w.want = min(2*w.want, warmMost)
			}
			select {
			case w.more <- struct{}{}:
			default:
			}
		}
		n.mu.Unlock()
		if s == nil || s.alive() {
			return s
		}
		s.conn.Close()
	}
}

// alive says whether the other side still waits: it says nothing meanwhile, so anything to read is
// an end.
func (s *started) alive() bool {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = err == unix.EAGAIN
	})
	return quiet
}

// tend keeps connections for a machine as long as it is dialled now and then, and its key for a
// while after.
func (n *Node) tend(ctx context.Context, m sigma.MachineID, w *warmth) {
	tick := time.NewTicker(warmTick)
	defer tick.Stop()
	for {
		var idle []*started
		var key *directKey
		n.mu.Lock()
		since := time.Since(w.dialled)
		switch {
		case ctx.Err() != nil || w.key == nil && w.making == nil || since > keyMax:
			key, idle = w.key, w.idle
			w.key, w.idle, w.tended = nil, nil, false
			if w.making == nil && w.refused == nil {
				delete(n.warm, m)
			}
		case since > warmMax:
			idle, w.idle, w.want = w.idle, nil, warmLeast
		case w.key != nil:
			n.fillLocked(m, w)
		}
		over := !w.tended
		n.mu.Unlock()
		endAll(idle)
		if key != nil {
			n.drop(key.link, nil)
		}
		if over {
			return
		}
		select {
		case <-ctx.Done():
		case <-w.more:
		case <-tick.C:
		}
	}
}

// fillLocked has as many connections made as are missing.
func (n *Node) fillLocked(m sigma.MachineID, w *warmth) {
	member, ok := n.cfg.Identity.Roster().Member(m)
	for k := w.key; ok && len(w.idle)+w.starting < w.want; w.starting++ {
		if !n.goLocked(func(ctx context.Context) { n.fill(ctx, member, w, k) }) {
			return
		}
	}
}

// fill makes one. What goes wrong is found out by who dials.
func (n *Node) fill(ctx context.Context, m identity.Member, w *warmth, k *directKey) {
	ctx, cancel := context.WithTimeout(ctx, connectMax+handshakeMax)
	defer cancel()
	s, err := n.begin(ctx, m, k)
	n.mu.Lock()
	w.starting--
	if err == nil && w.key == k && w.tended {
		w.idle = append(w.idle, s)
		s = nil
	}
	if err != nil {
		w.want = warmLeast
	}
	n.mu.Unlock()
	if s != nil {
		s.conn.Close()
	}
}

// goLocked starts a goroutine that Watch waits for; false: Watch does not run.
func (n *Node) goLocked(f func(ctx context.Context)) bool {
	if n.life == nil || n.life.Err() != nil {
		return false
	}
	ctx := n.life
	n.tasks.Go(func() { f(ctx) })
	return true
}
