package dialproxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/sigmap"
)

// A connection costs the proxy nothing once both sides have it: what it takes to let the two have
// shared memory later is in the ticket that both get, which names them and which only the proxy can
// make.

const (
	// RingsMax is how many connections of the machine have memory at a time. Each holds a file
	// descriptor in sigmad.
	RingsMax = 1024
	// RingsOfRealm is how many all connections of one realm have: it leaves as many to others.
	RingsOfRealm = RingsMax / 2
	// RingsOfProc is how many one proc has. Their pages are charged to whoever writes them first.
	RingsOfProc = ring.SetMost
	// ringsEarly is how many connections get memory when they are made, after one that was accepted
	// by the same proc asked for it, or had it and used it: to ask costs each side 100 µs and more,
	// to have it a tenth of that. The next one does not, and says so whether others will.
	ringsEarly = 16
	// ringUsed is how many messages say that a connection had use for its memory.
	ringUsed = 8
	// macBytes of SHA-256 are left; they are guessed online only, a call each.
	macBytes = 16
)

// Ticket lets the two procs of a connection ask for its memory. Others learn nothing by it. Empty:
// there is none.
type Ticket string

// rings are the connections that have memory.
type rings struct {
	key  [32]byte                         // of this life of sigmad: connections of the one before keep their sockets
	last uint64                           // Proxy.mu; number of the last connection
	all  map[uint64]*shared               // Proxy.mu
	of   map[sigma.ProcID]map[uint64]bool // Proxy.mu; who holds them
	used map[sigma.RealmID]int            // Proxy.mu; memories
	warm map[sigma.ProcID]int             // Proxy.mu; connections to come that get memory, by who accepts

	looked time.Time // Proxy.mu; when it was last seen whose connections to look at, of realms that are full
}

// shared is one connection's memory.
type shared struct {
	file    *os.File
	realm   sigma.RealmID
	to      sigma.ProcID // who accepted
	holders int          // Proxy.mu
	waits   [2]bool      // Proxy.mu; by ring.Side: it holds it and has not got it yet
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
	if from.Proc == "" || from.Realm != to.Realm || from.Machine != x.machine || from.System ||
		to.Form != sigma.FormStream {
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

// ParseTicket finds which connection a ticket is for. KindPermission if the proxy did not make it,
// or not for p.
func (x *Proxy) ParseTicket(p sigma.Principal, t Ticket) (number uint64, err error) {
	is, _, err := x.parse(p, t)
	return is.Number, err
}

// parse says which side p is, too.
func (x *Proxy) parse(p sigma.Principal, t Ticket) (is parts, side ring.Side, err error) {
	no := sigma.Errorf("dialproxy.Ring", sigma.KindPermission, "the ticket is none of a connection of this proc")
	if len(t) < macBytes || !hmac.Equal(x.mac([]byte(t[macBytes:])), []byte(t[:macBytes])) {
		return parts{}, 0, no
	}
	if err := sigmap.Parse([]byte(t[macBytes:]), is.code); err != nil {
		return parts{}, 0, err
	}
	switch {
	case p.Proc == "" || p.Realm != is.Realm:
		return parts{}, 0, no
	case p.Proc == is.Procs[ring.Dialled] && p.Proc == is.Procs[ring.Accepted]:
		return parts{}, 0, sigma.Errorf("dialproxy.Ring", sigma.KindUnsupported,
			"a connection of a proc with itself has no memory")
	case p.Proc == is.Procs[ring.Dialled]:
		return is, ring.Dialled, nil
	case p.Proc == is.Procs[ring.Accepted]:
		return is, ring.Accepted, nil
	}
	return parts{}, 0, no
}

// Ring gives p the memory of one of its connections, which is made for the first of the two that
// asks. The file is the caller's. KindBusy if there are too many.
func (x *Proxy) Ring(p sigma.Principal, t Ticket) (*os.File, error) {
	const op = "dialproxy.Ring"
	is, side, err := x.parse(p, t)
	if err != nil {
		return nil, err
	}
	fresh, err := ring.NewFile() // not under the lock, and seldom in vain: of two that ask, one
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	number := is.Number
	r := x.rings.all[number]
	c := x.conns.all[number]
	switch {
	case r != nil && x.rings.of[p.Proc][number] && !r.waits[side]:
		fresh.Close()
		return nil, sigma.Errorf(op, sigma.KindExists, "the proc has the memory of this connection")
	case c == nil || c.revoked:
		fresh.Close()
		return nil, sigma.Errorf(op, sigma.KindUnavailable, "the connection is over")
	case r != nil && x.rings.of[p.Proc][number]:
		fresh.Close()
		return x.giveLocked(r, side)
	case r == nil && x.fullLocked(is.Realm), len(x.rings.of[p.Proc]) >= RingsOfProc:
		fresh.Close()
		x.crowdRingsLocked(p.Proc)
		return nil, sigma.Errorf(op, sigma.KindBusy,
			"%d connections of this proc have memory, %d of its realm, %d of all", len(x.rings.of[p.Proc]),
			x.rings.used[is.Realm], len(x.rings.all))
	case r == nil:
		r = &shared{file: fresh, realm: is.Realm, to: is.Procs[ring.Accepted]}
		x.rings.all[number] = r
		x.rings.used[is.Realm]++
		x.rings.warm[is.Procs[ring.Accepted]] = ringsEarly
	default:
		fresh.Close()
	}
	x.holdLocked(p.Proc, number, r)
	r.waits[side] = true
	f, err := x.giveLocked(r, side)
	if err != nil {
		x.dropRingLocked(p.Proc, number)
	}
	return f, err
}

// holdLocked counts a proc among those that hold a memory.
func (x *Proxy) holdLocked(id sigma.ProcID, number uint64, r *shared) {
	r.holders++
	if x.rings.of[id] == nil {
		x.rings.of[id] = map[uint64]bool{}
	}
	x.rings.of[id][number] = true
}

// giveLocked gives a side its descriptor.
func (x *Proxy) giveLocked(r *shared, side ring.Side) (*os.File, error) {
	r.waits[side] = false
	f, err := duplicate(r.file)
	return f, sigma.Wrap("dialproxy.Ring", "", err)
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "ring"), nil
}

// earlyFile makes memory for a connection that is about to be, if those before wanted it; nil if
// not.
func (x *Proxy) earlyFile(from, to sigma.ProcID) *os.File {
	x.mu.Lock()
	wanted := from != to && x.coolLocked(to)
	x.mu.Unlock()
	if !wanted {
		return nil
	}
	f, err := ring.NewFile()
	if err != nil {
		return nil // then they ask, and are told why
	}
	return f
}

// coolLocked counts a connection that gets memory when it is made, and reports whether it should.
func (x *Proxy) coolLocked(to sigma.ProcID) bool {
	if x.rings.warm[to] == 0 {
		return false
	}
	if x.rings.warm[to]--; x.rings.warm[to] == 0 {
		delete(x.rings.warm, to)
	}
	return true
}

// mayShareLocked reports whether n connections that have not begun may have memory: it leaves half
// of what each may have to those that have.
func (x *Proxy) mayShareLocked(realm sigma.RealmID, from, to sigma.ProcID, n int) bool {
	return len(x.rings.of[from])+n <= RingsOfProc/2 && len(x.rings.of[to])+n <= RingsOfProc/2 &&
		x.rings.used[realm]+n <= RingsOfRealm/2 && len(x.rings.all)+n <= RingsMax/2
}

// fullLocked says that there is no more memory for a realm's connections.
func (x *Proxy) fullLocked(realm sigma.RealmID) bool {
	return len(x.rings.all) >= RingsMax || x.rings.used[realm] >= RingsOfRealm
}

// crowdRingsLocked has somebody see which connections still are of who holds too many memories: a
// proc, or, of a realm or a machine that is full, all who hold any.
func (x *Proxy) crowdRingsLocked(id sigma.ProcID) {
	if len(x.rings.of[id]) >= RingsOfProc {
		x.crowdLocked(id)
	}
	if time.Since(x.rings.looked) < crowdedAgain {
		return
	}
	x.rings.looked = time.Now()
	for id, of := range x.rings.of {
		for number := range of { // all are of its realm
			if x.fullLocked(x.rings.all[number].realm) {
				x.crowdLocked(id)
			}
			break
		}
	}
}

// Rings counts the memories of a realm's connections.
func (x *Proxy) Rings(realm sigma.RealmID) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rings.used[realm]
}

// earlyLocked has both sides of a connection hold memory, which they get by Early. The file is the
// proxy's.
func (x *Proxy) earlyLocked(f *os.File, number uint64, realm sigma.RealmID, from, to sigma.ProcID) {
	if len(x.rings.of[from]) >= RingsOfProc || len(x.rings.of[to]) >= RingsOfProc || x.fullLocked(realm) {
		f.Close()
		return
	}
	x.shareLocked(f, number, realm, from, to).waits = [2]bool{true, true}
}

// shareLocked has both sides of a connection hold memory. The file is the proxy's.
func (x *Proxy) shareLocked(f *os.File, number uint64, realm sigma.RealmID, from, to sigma.ProcID) *shared {
	r := &shared{file: f, realm: realm, to: to}
	x.rings.all[number] = r
	x.rings.used[realm]++
	x.holdLocked(from, number, r)
	x.holdLocked(to, number, r)
	return r
}

// Early gives p, whose connection was just dialled or accepted, the memory that was made with it;
// nil if there is none. wanted says whether p has use for it; if not it is as if p had given it
// back.
func (x *Proxy) Early(p sigma.Principal, t Ticket, wanted bool) *os.File {
	if t == "" {
		return nil
	}
	is, side, err := x.parse(p, t)
	if err != nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.rings.all[is.Number]
	if c := x.conns.all[is.Number]; r == nil || !r.waits[side] || c == nil || c.revoked ||
		!x.rings.of[p.Proc][is.Number] {
		return nil
	}
	var f *os.File
	if wanted {
		f, err = x.giveLocked(r, side)
	}
	if !wanted || err != nil {
		x.dropRingLocked(p.Proc, is.Number)
	}
	return f
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
		if t, err := ring.TallyOf(r.file); err == nil && t.Messages[0]+t.Messages[1] >= ringUsed && x.owned[r.to] > 0 {
			x.rings.warm[r.to] = ringsEarly
		}
		r.file.Close()
		delete(x.rings.all, number)
		if x.rings.used[r.realm]--; x.rings.used[r.realm] == 0 {
			delete(x.rings.used, r.realm)
		}
	}
}

// closeRings ends what a proc that is gone had.
func (x *Proxy) closeRings(id sigma.ProcID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for number := range x.rings.of[id] {
		x.dropRingLocked(id, number)
	}
	delete(x.rings.warm, id)
}
