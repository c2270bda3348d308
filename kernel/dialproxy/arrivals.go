package dialproxy

import (
	"os"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// A listener may have a socket of its own, on which what arrives is sent as it comes: so its proc
// need not ask for each connection, and whoever waits there is woken by the kernel alone. What the
// socket has no room for waits in the backlog as ever, and follows in order.

// pushBytes is the room of such a socket: a dozen connections, as each costs the kernel some
// hundred bytes and more. What is in it does not count as waiting, but its descriptors are in
// flight (package inflight).
const pushBytes = 8 << 10

// Limits of what is in such sockets: of more listeners who accepts asks.
const (
	pushedOfProc = 16
	pushedOf     = 128 // of one realm
)

// pumpAgain is when sockets are sent again that the kernel had no room for.
const pumpAgain = 100 * time.Millisecond

// Push gives the socket of a listener of p, at which nobody can ask by Accept from then on.
// KindBusy: there are too many, and who accepts has to ask. Run pump until it returns, which it
// does when the listener has ended: it sends what had to wait.
func (x *Proxy) Push(p sigma.Principal, id sigma.EndpointID) (theirs *os.File, pump func(), err error) {
	const op = "dialproxy.Push"
	l, err := x.mine(p, id)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		return nil, nil, sigma.Wrap(op, "", err)
	}
	raw, err := ours.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, pushBytes)
		})
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err == nil && (x.listeners[id] != l || l.ending || l.out != nil) {
		err = sigma.Errorf(op, sigma.KindUnavailable, "the listener is closed, or has a socket")
	}
	if err == nil && (x.pushes.from[p.Proc] >= pushedOfProc || x.pushes.of[p.Realm] >= pushedOf) {
		err = sigma.Errorf(op, sigma.KindBusy, "%d listeners of the proc have sockets, %d of its realm",
			x.pushes.from[p.Proc], x.pushes.of[p.Realm])
	}
	if err != nil {
		ours.Close()
		theirs.Close()
		return nil, nil, err
	}
	l.out, l.raw, l.more = ours, raw, make(chan struct{}, 1)
	l.passing.Of(raw, 0)
	x.pushes.countLocked(p.Realm, p.Proc, 1)
	if len(l.waiting) > 0 {
		l.more <- struct{}{}
	}
	return theirs, func() { x.pump(l) }, nil
}

// pushes count listeners that have sockets.
type pushes struct {
	of   map[sigma.RealmID]int // Proxy.mu
	from map[sigma.ProcID]int  // Proxy.mu
}

func (c *pushes) countLocked(realm sigma.RealmID, id sigma.ProcID, by int) {
	if c.of[realm] += by; c.of[realm] == 0 {
		delete(c.of, realm)
	}
	if c.from[id] += by; c.from[id] == 0 {
		delete(c.from, id)
	}
}

// deaf says that an error of sending means that the listener's proc has closed its socket. Any
// other says that the proc has too much unread, or is the kernel's, which has a limit for memory.
func deaf(err error) bool {
	return err == syscall.EPIPE || err == syscall.ECONNRESET || err == syscall.ENOTCONN
}

// deliverLocked has an arrival go to its listener, for which there is room. The arrival is over if
// that fails: KindUnavailable if the listener's proc has closed its socket, and so is the listener;
// KindBusy if the kernel does not take it.
func (x *Proxy) deliverLocked(l *listener, a arrival) error {
	err := error(syscall.EAGAIN)
	if l.out != nil && len(l.waiting) == 0 && l.first == nil {
		err = x.pushLocked(l, a)
	}
	if err == syscall.EAGAIN {
		a.held, err = l.passing.PackFDs([]int{int(a.file.Fd())})
	} else if err == nil {
		return nil
	}
	if err != nil {
		a.file.Close()
		x.dropRingLocked(l.endpoint.Proc, a.number)
		if !deaf(err) {
			if c := x.conns.all[a.number]; c != nil {
				x.dropLocked(c)
			}
			return &sigma.Error{Op: "dialproxy.Dial", Kind: sigma.KindBusy, Msg: "the listener takes no connection now",
				Err: err}
		}
		x.closeLocked(l)
		return &sigma.Error{Op: "dialproxy.Dial", Kind: sigma.KindUnavailable, Msg: "nobody listens at the endpoint",
			Err: err}
	}
	l.waiting <- a
	x.countLocked(l, a.from.Realm, 1)
	if l.out != nil {
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
	return nil
}

// pushLocked sends an arrival, which is over for the proxy then. EAGAIN: there is no room now.
func (x *Proxy) pushLocked(l *listener, a arrival) error {
	record, err := sigmap.Payload(func(c *sigmap.Coder) {
		c.Arrival(&sigmap.Arrival{From: a.from, Tickets: []string{string(a.ticket)}})
	})
	if err != nil {
		return err
	}
	files := []*os.File{a.file}
	r := x.rings.all[a.number]
	if a.ticket != "" && r != nil && r.waits[ring.Accepted] {
		files = append(files, r.file)
	} else {
		r = nil
	}
	if err := l.send(record, descriptors(files)); err != nil {
		return err
	}
	if r != nil {
		r.waits[ring.Accepted] = false
	}
	a.file.Close()
	x.underWayLocked(a.number)
	return nil
}

// descriptors are those of files, which stay open until they are sent, under Proxy.mu.
func descriptors(files []*os.File) (fds []int) {
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	return fds
}

// send puts a record on the listener's socket, or says EAGAIN. KindBusy: the proc has too many
// descriptors unread.
func (l *listener) send(record []byte, fds []int) (err error) {
	parcel, err := l.passing.PackFDs(fds)
	if err != nil {
		return err
	}
	defer parcel.Drop()
	if e := l.raw.Control(func(fd uintptr) { err = parcel.Send(int(fd), record) }); e != nil {
		return e
	}
	return err
}

// pump sends what waits whenever there is room, until the listener has ended. It closes the socket:
// under Proxy.mu nobody could wait for those who use it.
func (x *Proxy) pump(l *listener) {
	defer l.passing.Close(l.out)
	for again, over := false, false; !over; {
		if again {
			<-time.After(pumpAgain)
		} else {
			select {
			case <-l.more:
			case <-l.closed:
			}
		}
		err := l.raw.Write(func(uintptr) (done bool) {
			done, again, over = x.pumpOnce(l)
			return done
		})
		over = over || err != nil // the socket is closed
	}
}

// pumpOnce sends what there is room for. done says that nothing waits for room in the socket, again
// that something waits for the kernel, over that nothing will any more.
func (x *Proxy) pumpOnce(l *listener) (done, again, over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.listeners[l.endpoint.ID] != l {
		return true, false, true
	}
	for l.first != nil || len(l.waiting) > 0 {
		a := l.first
		if a == nil {
			next := <-l.waiting
			a = &next
		}
		l.first = nil
		a.held.Drop() // while it waits in first it is one of a listener, which are bounded
		err := x.pushLocked(l, *a)
		if err != nil && !deaf(err) {
			l.first = a
			return err != syscall.EAGAIN, err != syscall.EAGAIN, false
		}
		x.countLocked(l, a.from.Realm, -1)
		if err != nil {
			a.file.Close()
			x.dropRingLocked(l.endpoint.Proc, a.number)
			x.closeLocked(l)
			return true, false, true
		}
	}
	if l.ending {
		x.closeLocked(l)
		return true, false, true
	}
	return true, false, false
}
