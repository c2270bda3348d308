package dialproxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"os"

	"golang.org/x/sys/unix"

	"sigmaos.dev/ring"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// A connection costs the proxy nothing once both sides have it: what it takes to let the two have shared memory later is in the ticket that both get, which names them and which only the proxy can make.

const (
	// RingsMax is how many connections of the machine have memory at a time. Each holds a file descriptor in sigmad.
	RingsMax = 1024
	// RingsOfProc is how many one proc has. Their pages are charged to whoever writes them first.
	RingsOfProc = ring.SetMost
	// macBytes of SHA-256 are left; they are guessed online only, a call each.
	macBytes = 16
)

// Ticket lets the two procs of a connection ask for its memory. Others learn nothing by it. Empty: there is none.
type Ticket string

// rings are the connections that have memory.
type rings struct {
	key  [32]byte                         // of this life of sigmad: connections of the one before keep their sockets
	last uint64                           // Proxy.mu; number of the last connection
	all  map[uint64]*shared               // Proxy.mu
	of   map[sigma.ProcID]map[uint64]bool // Proxy.mu; who holds them
}

// shared is one connection's memory.
type shared struct {
	file    *os.File
	holders int // Proxy.mu
}

// parts are what a ticket says.
type parts struct {
	Number uint64
	Realm  sigma.RealmID
	Procs  [2]sigma.ProcID // by ring.Side
}

func (p *parts) code(c *sigmap.Coder) {
	c.U64(&p.Number)
	c.RealmID(&p.Realm)
	c.ProcID(&p.Procs[ring.Dialled])
	c.ProcID(&p.Procs[ring.Accepted])
}

// ticket makes that of a connection; none if the two are not procs of one realm on this machine.
func (x *Proxy) ticket(number uint64, from sigma.Principal, l *listener) Ticket {
	to := l.endpoint
	if from.Proc == "" || from.Realm != to.Realm || from.Machine != x.machine || from.System || to.Form != sigma.FormStream {
		return ""
	}
	p := parts{number, to.Realm, [2]sigma.ProcID{from.Proc, to.Proc}}
	text, err := sigmap.Payload(p.code)
	if err != nil {
		return ""
	}
	return Ticket(append(x.mac(text), text...))
}

func (x *Proxy) mac(text []byte) []byte {
	h := hmac.New(sha256.New, x.rings.key[:])
	h.Write(text)
	return h.Sum(nil)[:macBytes]
}

// ParseTicket finds which connection a ticket is for. KindPermission if the proxy did not make it, or not for p.
func (x *Proxy) ParseTicket(p sigma.Principal, t Ticket) (number uint64, err error) {
	no := sigma.Errorf("dialproxy.Ring", sigma.KindPermission, "the ticket is none of a connection of this proc")
	if len(t) < macBytes || !hmac.Equal(x.mac([]byte(t[macBytes:])), []byte(t[:macBytes])) {
		return 0, no
	}
	var is parts
	if err := sigmap.Parse([]byte(t[macBytes:]), is.code); err != nil {
		return 0, err
	}
	switch {
	case p.Proc == "" || p.Realm != is.Realm:
		return 0, no
	case p.Proc == is.Procs[ring.Dialled] && p.Proc == is.Procs[ring.Accepted]:
		return 0, sigma.Errorf("dialproxy.Ring", sigma.KindUnsupported, "a connection of a proc with itself has no memory")
	case p.Proc == is.Procs[ring.Dialled] || p.Proc == is.Procs[ring.Accepted]:
		return is.Number, nil
	}
	return 0, no
}

// Ring gives p the memory of one of its connections, which is made for the first of the two that asks. The file is the caller's. KindBusy if there are too many.
func (x *Proxy) Ring(p sigma.Principal, t Ticket) (*os.File, error) {
	const op = "dialproxy.Ring"
	number, err := x.ParseTicket(p, t)
	if err != nil {
		return nil, err
	}
	fresh, err := ring.NewFile() // not under the lock, and seldom in vain: of two that ask, one
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.rings.all[number]
	switch {
	case r == nil && len(x.rings.all) >= RingsMax, len(x.rings.of[p.Proc]) >= RingsOfProc:
		fresh.Close()
		return nil, sigma.Errorf(op, sigma.KindBusy, "%d connections of this proc have memory, %d of all", len(x.rings.of[p.Proc]), len(x.rings.all))
	case r != nil && x.rings.of[p.Proc][number]:
		fresh.Close()
		return nil, sigma.Errorf(op, sigma.KindExists, "the proc has the memory of this connection")
	case r == nil:
		r = &shared{file: fresh}
	default:
		fresh.Close()
	}
	fd, err := unix.FcntlInt(r.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		if r.holders == 0 {
			r.file.Close()
		}
		return nil, sigma.Wrap(op, "", os.NewSyscallError("fcntl", err))
	}
	x.rings.all[number] = r
	r.holders++
	if x.rings.of[p.Proc] == nil {
		x.rings.of[p.Proc] = map[uint64]bool{}
	}
	x.rings.of[p.Proc][number] = true
	return os.NewFile(uintptr(fd), "ring"), nil
}

// EndRing says that p uses the memory of a connection no more.
func (x *Proxy) EndRing(p sigma.Principal, t Ticket) error {
	number, err := x.ParseTicket(p, t)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropRingLocked(p.Proc, number)
	return nil
}

func (x *Proxy) dropRingLocked(id sigma.ProcID, number uint64) {
	r := x.rings.all[number]
	if r == nil || !x.rings.of[id][number] {
		return
	}
	if delete(x.rings.of[id], number); len(x.rings.of[id]) == 0 {
		delete(x.rings.of, id)
	}
	if r.holders--; r.holders == 0 {
		r.file.Close()
		delete(x.rings.all, number)
	}
}

// closeRings ends what a proc that is gone had.
func (x *Proxy) closeRings(id sigma.ProcID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for number := range x.rings.of[id] {
		x.dropRingLocked(id, number)
	}
}
