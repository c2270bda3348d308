package meter

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
)

// What connections carry is counted for procs and realms (docs/reference/paths/sys-usage.md). There
// are two sources. What crosses to other machines is known to those that a proc cannot deceive:
// TCP's account of the procs' own sockets, looked at while they are open (traffic.sample) and told
// by the kernel when they are destroyed (tcpends.go), and sigmad itself for what it relays.
// Everything else is in the proc's meter (ring.NewMeter), which is its own word: no other proc can
// write there, a figure that is lower than before or impossibly high is not believed, and what is
// sent is at least what has left the machine.

// Limits.
const (
	// carriedMost bytes, and messagesMost messages, in a second are more than memory can carry: a
	// meter that claims more is not believed.
	carriedMost  = 1 << 37
	messagesMost = 1 << 30
	// FlowsMost TCP connections of procs are counted at a time; of more only what meters say.
	FlowsMost = 1 << 17
	// flowsEach bounds the flows that are looked at each time: one costs the launcher a look at its
	// proc's descriptors. With more each has its turn later.
	flowsEach = 2048
	// flowLinger is how long the kernel may try to deliver what a closed socket has left to say.
	flowLinger = 20 * time.Minute
)

// Traffic is what the connections of this machine's procs carry. Safe for concurrent use.
type Traffic struct {
	ledger *Ledger
	Late   func(sigma.ProcID, sigma.Traffic) // of a proc that has ended
	Full   func()                            // once: flowsMost are followed; nil = nobody wants to know

	filled sync.Once

	mu     sync.Mutex
	procs  map[sigma.ProcID]*procTraffic    // mu; of procs that have had connections and not ended
	realms map[sigma.RealmID]*sigma.Traffic // mu; since this sigmad began
	flows  map[uint64]*flow                 // mu; by the socket's cookie
}

// procTraffic is one proc's.
type procTraffic struct {
	realm  sigma.RealmID
	id     sigma.ProcID
	meter  *os.File      // nil: it has none
	known  sigma.Traffic // that is counted; never goes back
	looked time.Time     // at the meter
}

// flow is a TCP connection of a proc.
type flow struct {
	end            dialproxy.Open
	sent, received uint64    // that are counted, and what the set-up took
	gone           time.Time // since when the proc was not seen to have it; zero: it was
}

func NewTraffic(l *Ledger) *Traffic {
	return &Traffic{ledger: l, procs: map[sigma.ProcID]*procTraffic{}, realms: map[sigma.RealmID]*sigma.Traffic{},
		flows: map[uint64]*flow{}}
}

// GiveMeter makes a proc's meter. The file is the caller's.
func (x *Traffic) GiveMeter(p sigma.Principal, now time.Time) (*os.File, error) {
	const op = "kernel.meter"
	if p.Proc == "" || p.Realm == sigma.SystemRealm {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "only what procs of realms carry is counted")
	}
	f, err := ring.NewMeter()
	if err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		f.Close()
		return nil, sigma.Wrap(op, "", os.NewSyscallError("fcntl", err))
	}
	theirs := os.NewFile(uintptr(fd), "meter")
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.ofLocked(p.Realm, p.Proc)
	if t.meter != nil {
		f.Close()
		theirs.Close()
		return nil, sigma.Errorf(op, sigma.KindExists, "the proc has its meter")
	}
	t.meter, t.looked = f, now
	return theirs, nil
}

// Begin notes that a proc has a connection that sigmad counts.
func (x *Traffic) Begin(p sigma.Principal) {
	if p.Proc == "" || p.Realm == sigma.SystemRealm {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ofLocked(p.Realm, p.Proc)
}

func (x *Traffic) ofLocked(realm sigma.RealmID, id sigma.ProcID) *procTraffic {
	t := x.procs[id]
	if t == nil {
		t = &procTraffic{realm: realm, id: id}
		x.procs[id] = t
	}
	return t
}

// claim is what a meter may have made of what was known, when it says all.
func (t *procTraffic) claim(now time.Time, all ring.Carried) sigma.Traffic {
	seconds := uint64(max(0, min(now.Sub(t.looked), time.Hour))/time.Second) + 2
	next := t.known
	next.Sent = sigma.Bytes(believe(uint64(next.Sent), all.Sent, seconds*carriedMost))
	next.Received = sigma.Bytes(believe(uint64(next.Received), all.Received, seconds*carriedMost))
	next.Messages = believe(next.Messages, all.Writes, seconds*messagesMost)
	return next
}

// believe is what a figure was, or is said to be now, if that is more and not by more than most.
func believe(was, said, most uint64) uint64 {
	return max(was, min(said, saturate(was, most)))
}

func saturate(a, b uint64) uint64 {
	if a+b < a {
		return ^uint64(0)
	}
	return a + b
}

// countLocked takes next for what a proc's connections carried, and counts what is new.
func (x *Traffic) countLocked(now time.Time, t *procTraffic, next sigma.Traffic) {
	next.Sent, next.Received = max(next.Sent, next.Egress), max(next.Received, next.Ingress)
	more := next.Less(t.known)
	t.known = next
	x.chargeLocked(now, t.realm, t.id, more)
}

func (x *Traffic) chargeLocked(now time.Time, realm sigma.RealmID, id sigma.ProcID, more sigma.Traffic) {
	if more == (sigma.Traffic{}) {
		return
	}
	r := x.realms[realm]
	if r == nil {
		r = &sigma.Traffic{}
		x.realms[realm] = r
	}
	*r = r.Plus(more)
	x.ledger.egress(now, realm, id, uint64(more.Egress))
	more.Egress = 0
	x.ledger.carried(now, realm, more)
}

// Look gives what a proc's connections have carried, and counts it.
func (x *Traffic) Look(now time.Time, id sigma.ProcID) sigma.Traffic {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.procs[id]
	if t == nil {
		return sigma.Traffic{}
	}
	x.lookLocked(now, t)
	return t.known
}

func (x *Traffic) lookLocked(now time.Time, t *procTraffic) {
	if t.meter == nil {
		return
	}
	if all, _, err := ring.ReadMeter(t.meter); err == nil {
		x.countLocked(now, t, t.claim(now, all))
		t.looked = now
	}
}

// Open is what a proc's meter says of its open connections, by the inodes of their sockets.
func (x *Traffic) Open(id sigma.ProcID) map[uint64]ring.Carried {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.procs[id]; t != nil && t.meter != nil {
		_, open, _ := ring.ReadMeter(t.meter)
		return open
	}
	return nil
}

// End gives what the connections of a proc carried that has ended. What TCP still has to say comes
// by late.
func (x *Traffic) End(now time.Time, id sigma.ProcID) sigma.Traffic {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.procs[id]
	if t == nil {
		return sigma.Traffic{}
	}
	x.lookLocked(now, t)
	if delete(x.procs, id); t.meter != nil {
		t.meter.Close()
	}
	return t.known
}

// Crossed counts bytes that left the machine for a proc or came to it; "" is a program outside.
func (x *Traffic) Crossed(now time.Time, realm sigma.RealmID, id sigma.ProcID, out, in uint64) {
	if realm == sigma.SystemRealm || out == 0 && in == 0 {
		return
	}
	more := sigma.Traffic{Egress: sigma.Bytes(out), Ingress: sigma.Bytes(in)}
	x.mu.Lock()
	t := x.procs[id]
	if t != nil {
		next := t.known
		next.Egress, next.Ingress = next.Egress+more.Egress, next.Ingress+more.Ingress
		x.countLocked(now, t, next)
		x.mu.Unlock()
		return
	}
	if id == "" { // it has no meter
		more.Sent, more.Received = more.Egress, more.Ingress
	}
	x.chargeLocked(now, realm, id, more)
	x.mu.Unlock()
	if id != "" && x.Late != nil {
		x.Late(id, more)
	}
}

// Follow counts a TCP connection from now on, of which a proc gets the end f. f stays the caller's.
func (x *Traffic) Follow(realm sigma.RealmID, id sigma.ProcID, f syscall.Conn) {
	if id == "" || realm == sigma.SystemRealm {
		return
	}
	cookie, info, inode := uint64(0), (*unix.TCPInfo)(nil), uint64(0)
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		if cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE); err == nil {
			info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		}
		if err == nil {
			err = unix.Fstat(int(fd), &st)
			inode = st.Ino
		}
	})
	if err != nil || cookie == 0 || info == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.flows) >= FlowsMost {
		if x.Full != nil {
			x.filled.Do(x.Full)
		}
		return
	}
	x.ofLocked(realm, id)
	x.flows[cookie] = &flow{end: dialproxy.Open{Realm: realm, Proc: id, Inode: inode}, sent: info.Bytes_acked,
		received: info.Bytes_received}
}

// FlowNow takes TCP's account of a flow. over: it is the last one.
func (x *Traffic) FlowNow(now time.Time, cookie, sent, received uint64, over bool) {
	x.mu.Lock()
	f := x.flows[cookie]
	if f == nil {
		x.mu.Unlock()
		return
	}
	out, in := max(sent, f.sent)-f.sent, max(received, f.received)-f.received
	f.sent, f.received, f.gone = f.sent+out, f.received+in, time.Time{}
	if over {
		delete(x.flows, cookie)
		out, in = out-min(out, 1), in-min(in, 1) // the ends of both directions count as a byte each
	}
	end := f.end
	x.mu.Unlock()
	x.Crossed(now, end.Realm, end.Proc, out, in)
}

// Some are flows to be looked at, in an order that differs each time, by cookie.
func (x *Traffic) Some(now time.Time) map[uint64]dialproxy.Open {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[uint64]dialproxy.Open{}
	for cookie, f := range x.flows {
		switch {
		case !f.gone.IsZero() && now.Sub(f.gone) > flowLinger:
			delete(x.flows, cookie) // its end was not heard of
		case f.gone.IsZero() || x.procs[f.end.Proc] != nil: // which may not have accepted it yet
			if out[cookie] = f.end; len(out) == flowsEach {
				return out
			}
		}
	}
	return out
}

// Lost notes that a flow's proc does not have it any more, or not yet. If it is not seen for
// flowLinger either it is forgotten.
func (x *Traffic) Lost(now time.Time, cookie uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if f := x.flows[cookie]; f != nil && f.gone.IsZero() {
		f.gone = now
	}
}

// Drop forgets what a realm carried that was removed.
func (x *Traffic) Drop(realm sigma.RealmID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.realms, realm)
}

// Totals are those of the realms since this sigmad began.
func (x *Traffic) Totals() map[sigma.RealmID]sigma.Traffic {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make(map[sigma.RealmID]sigma.Traffic, len(x.realms))
	for id, t := range x.realms {
		out[id] = *t
	}
	return out
}

// Procs are the procs whose connections are counted.
func (x *Traffic) Procs() (out []sigma.ProcID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.procs {
		out = append(out, id)
	}
	return out
}

// carried counts what connections of a realm carried, but for what left the machine.
func (l *Ledger) carried(now time.Time, realm sigma.RealmID, more sigma.Traffic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hourLocked(now, realm)
	h.Traffic = h.Traffic.Plus(report.OfTraffic(more))
}
