package dialproxy

import (
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Who dials the same endpoint again and again gets connections made in advance (docs/adr/0029):
// pairs of sockets of which both procs have their ends already, and a line, another pair, on which
// the one who dials says which connection begins. The proxy is asked once for a batch, and is not
// on the way of a dial. It notes each as any connection, so that all of them are listed, taken back
// and cut like others; of the line it keeps a duplicate of the dialler's end, to shut it down when
// the listener ends: then nothing begins any more, at once.

// Limits.
const (
	poolBatch   = 16   // connections of one answer, as they come with one message; half as many with memory
	PoolsMax    = 1024 // of the machine; each holds a file descriptor in sigmad
	PoolsOf     = 256  // of one realm
	poolsOfProc = 32   // that one proc dials with
	poolsAt     = 32   // at one listener
	poolsEnding = 32   // whose lines linger, of one proc of another machine
)

// dialler is a proc that dials, with its machine, which alone speaks for it.
type dialler struct {
	machine sigma.MachineID
	proc    sigma.ProcID
}

// pool is what one proc has of connections to one listener that were made in advance.
type pool struct {
	number uint64
	from   dialler
	// a duplicate of the dialler's end; of a pool with another machine, of the one that is here; -1
	// = it is being made
	line   int
	ready  map[uint64]uint64 // connections that have not begun, as the dialler said last: its numbers, and those here
	other  sigma.Life        // of the machine at the other end; zero: this one
	realm  sigma.RealmID
	asking bool        // of one that is dialled from here: a batch is being made
	untold []uint64    // of one that is dialled from here: what has begun, as far as the other machine may not know
	ends   *time.Timer // of one whose line lingers
}

// pools count them.
type pools struct {
	all  int                                         // Proxy.mu
	of   map[sigma.RealmID]int                       // Proxy.mu
	from map[sigma.ProcID]map[*listener]*pool        // Proxy.mu
	away map[sigma.ProcID]map[sigma.EndpointID]*pool // Proxy.mu; to endpoints of other machines (across.go)

	linger time.Duration   // lineLinger
	ending map[dialler]int // Proxy.mu; those whose lines linger
}

// lineLinger is how long another machine's line whose end was said goes on being heard by its
// listener, which itself hears it for half of that; then it ends, whatever the other machine does.
// Until then it counts.
const lineLinger = 2 * time.Second

// ofProc counts those that a proc of this machine dials with.
func (c *pools) ofProc(id sigma.ProcID) int { return len(c.from[id]) + len(c.away[id]) }

// Batch is what Pool makes. Files are the dialler's: its end of the line, if Grant.Line, and of
// each connection.
type Batch struct {
	Grant sigmap.PoolGrant
	Files []*os.File
}

// Pool makes connections of p to an endpoint of FormStream of its realm on this machine, for p to
// begin them later. KindBusy: there are too many pools, or the listener does not take what arrives;
// then p dials. KindUnsupported: the listener has no socket to get them by.
func (x *Proxy) Pool(p sigma.Principal, ask sigmap.PoolAsk) (*Batch, error) {
	const op = "dialproxy.Pool"
	if ask.Over {
		x.endPool(p, ask.Endpoint.ID, ask.Unused)
		return &Batch{}, nil
	}
	l, err := x.find(p, ask.Endpoint)
	if err != nil {
		return nil, err
	}
	if p.Proc == "" || p.System || p.Realm != l.endpoint.Realm || p.Proc == l.endpoint.Proc ||
		l.endpoint.Form != sigma.FormStream || p.Machine != x.machine {
		return nil, sigma.Errorf(op, sigma.KindUnsupported,
			"connections are made in advance between procs of one realm, for streams")
	}
	n := min(int(ask.Count), poolBatch, sigmap.PoolMost-len(ask.Unused))
	x.mu.Lock()
	fresh := x.pools.from[p.Proc][l] == nil
	memory := x.rings.warm[l.endpoint.Proc] > 0
	if memory = memory && x.mayShareLocked(p.Realm, p.Proc, l.endpoint.Proc, min(n, poolBatch/2)); memory {
		n = min(n, poolBatch/2)
	}
	x.mu.Unlock()
	ps, err := makePairs(n, fresh, memory)
	if err != nil {
		return nil, err
	}
	defer ps.close()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.grantLocked(p, l, ask, ps, fresh)
}

// pairs are sockets that are being handed out. The first pair of a new pool is its line.
type pairs []pair

type pair struct {
	mine, theirs *os.File
	inodes       [2]uint64
	memory, dup  *os.File // the proxy's and the dialler's; nil: it has none
}

// makePairs makes n connections, with a line before them and memory if wanted.
func makePairs(n int, line, memory bool) (pairs, error) {
	var ps pairs
	typ := syscall.SOCK_STREAM
	if line {
		n, typ = n+1, syscall.SOCK_SEQPACKET
	}
	for range n {
		mine, theirs, err := session.UnpolledPair(typ)
		if err != nil {
			ps.close()
			return nil, sigma.Wrap("dialproxy.Pool", "", err)
		}
		one := pair{mine: mine, theirs: theirs, inodes: [2]uint64{inodeOf(mine), inodeOf(theirs)}}
		if memory && typ == syscall.SOCK_STREAM {
			if one.memory, err = ring.NewFile(); err == nil {
				one.dup, err = duplicate(one.memory)
			}
		}
		if ps, typ = append(ps, one), syscall.SOCK_STREAM; err != nil {
			ps.close()
			return nil, sigma.Wrap("dialproxy.Pool", "", err)
		}
	}
	return ps, nil
}

// close closes what is left.
func (ps pairs) close() {
	for _, p := range ps {
		for _, f := range []*os.File{p.mine, p.theirs, p.memory, p.dup} {
			f.Close() // of nil, too
		}
	}
}

// grantLocked gives a listener its ends of a batch, and the dialler the other ones.
func (x *Proxy) grantLocked(p sigma.Principal, l *listener, ask sigmap.PoolAsk, ps pairs, fresh bool) (*Batch, error) {
	own := x.pools.from[p.Proc][l]
	if own != nil {
		x.begunLocked(own, ask.Unused)
	}
	if ask.Count == 0 {
		return &Batch{}, nil
	}
	if err := x.mayPoolLocked(p, l, own, fresh); err != nil {
		return nil, err
	}
	line := -1
	if fresh {
		x.rings.last++
		var err error
		if line, err = unix.FcntlInt(ps[0].mine.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return nil, sigma.Wrap("dialproxy.Pool", "", os.NewSyscallError("fcntl", err))
		}
		own = &pool{number: x.rings.last, from: dialler{x.machine, p.Proc}, line: line, ready: map[uint64]uint64{},
			realm: p.Realm}
	}
	b, err := x.sendLocked(p, l, own, ps, fresh)
	if err != nil {
		if fresh {
			unix.Close(line)
		}
		return nil, err
	}
	if fresh {
		x.enterLocked(own, l, p)
		ps[0].mine = nil
		ps = ps[1:]
	}
	now := time.Now()
	for i := range ps {
		x.rings.last++
		own.ready[x.rings.last] = x.rings.last
		c := &connection{Connection: Connection{Number: x.rings.last, Endpoint: l.endpoint, From: p, Transport: "unix",
			Began: now, Ready: true}}
		c.ends[ring.Dialled] = end{proc: p.Proc, realm: p.Realm, inode: ps[i].inodes[0], since: now}
		c.ends[ring.Accepted] = end{proc: l.endpoint.Proc, realm: l.endpoint.Realm, inode: ps[i].inodes[1], since: now}
		x.noteLocked(c)
		if m := ps[i].memory; m != nil {
			x.shareLocked(m, x.rings.last, p.Realm, p.Proc, l.endpoint.Proc)
			x.coolLocked(l.endpoint.Proc)
		}
		ps[i].mine, ps[i].memory, ps[i].dup = nil, nil, nil
	}
	return b, nil
}

// mayPoolLocked says why p gets no batch now.
func (x *Proxy) mayPoolLocked(p sigma.Principal, l *listener, own *pool, fresh bool) error {
	const op = "dialproxy.Pool"
	if err := x.roomLocked(p, l); err != nil {
		return err
	}
	for _, id := range []sigma.ProcID{p.Proc, l.endpoint.Proc} {
		if err := x.manyLocked(id); err != nil {
			return err
		}
	}
	switch {
	case l.out == nil:
		return sigma.Errorf(op, sigma.KindUnsupported, "the listener has no socket for what arrives")
	case len(l.waiting) > 0 || l.first != nil:
		return sigma.Errorf(op, sigma.KindBusy, "connections wait to be accepted there")
	case fresh != (own == nil):
		return sigma.Errorf(op, sigma.KindBusy, "the proc asks twice at a time")
	case fresh && (x.pools.all >= PoolsMax || x.pools.of[p.Realm] >= PoolsOf || x.pools.ofProc(p.Proc) >= poolsOfProc ||
		len(l.pools) >= poolsAt):
		return sigma.Errorf(op, sigma.KindBusy,
			"%d procs have connections in advance there, this one at %d endpoints, its realm %d", len(l.pools),
			x.pools.ofProc(p.Proc), x.pools.of[p.Realm])
	}
	return nil
}

// sendLocked sends the listener its part of a batch.
func (x *Proxy) sendLocked(p sigma.Principal, l *listener, own *pool, ps pairs, fresh bool) (*Batch, error) {
	const op = "dialproxy.Pool"
	first := x.rings.last + 1
	a := sigmap.Arrival{Pool: own.number, From: p, First: first, Line: fresh}
	b := &Batch{Grant: sigmap.PoolGrant{Line: fresh, First: first}}
	var fds []int
	for i := range ps {
		fds, b.Files = append(fds, int(ps[i].theirs.Fd())), append(b.Files, ps[i].mine)
		if i == 0 && fresh {
			continue
		}
		t := string(x.ticket(first+uint64(len(a.Tickets)), p, l))
		a.Tickets, b.Grant.Tickets = append(a.Tickets, t), append(b.Grant.Tickets, t)
	}
	for i := range ps { // behind all sockets
		if m := ps[i].memory; m != nil {
			fds, b.Files = append(fds, int(m.Fd())), append(b.Files, ps[i].dup)
		}
	}
	record, err := sigmap.Payload(func(c *sigmap.Coder) { c.Arrival(&a) })
	if err == nil {
		err = l.send(record, fds)
	}
	switch err {
	case nil:
		return b, nil
	case syscall.EAGAIN:
		return nil, sigma.Errorf(op, sigma.KindBusy, "the listener is behind with what arrives")
	}
	return nil, sigma.Wrap(op, "", err)
}

// begunLocked notes which connections of a pool have begun, by which have not.
func (x *Proxy) begunLocked(own *pool, unused []uint64) {
	for number := range own.ready {
		if !slices.Contains(unused, number) {
			x.beganLocked(own, number)
		}
	}
}

// beganLocked notes that a connection has begun, by its dialler's number.
func (x *Proxy) beganLocked(own *pool, number uint64) {
	here, is := own.ready[number]
	if !is {
		return
	}
	delete(own.ready, number)
	if c := x.conns.all[here]; c != nil {
		c.Ready, c.Began = false, time.Now()
		x.eventLocked("dialled", c.Connection)
	}
}

func (x *Proxy) enterLocked(own *pool, l *listener, p sigma.Principal) {
	l.pools[own.from] = own
	if x.pools.from[p.Proc] == nil {
		x.pools.from[p.Proc] = map[*listener]*pool{}
	}
	x.pools.from[p.Proc][l] = own
	x.pools.all++
	x.pools.of[p.Realm]++
}

// leaveLocked ends a pool: nothing of it begins any more. What has begun goes on.
func (x *Proxy) leaveLocked(own *pool, l *listener) {
	if l.pools[own.from] != own {
		return
	}
	if own.other == (sigma.Life{}) {
		x.endLocked(own)
	} else { // what is under way has begun: the listener's proc reads until the dialler has ended the other direction
		unix.Shutdown(own.line, unix.SHUT_WR)
		x.pools.ending[own.from]++
		own.ends = time.AfterFunc(x.pools.linger, func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			if x.pools.ending[own.from]--; x.pools.ending[own.from] == 0 {
				delete(x.pools.ending, own.from)
			}
			x.endLocked(own)
		})
	}
	delete(l.pools, own.from)
	if of := x.pools.from[own.from.proc]; of[l] == own {
		if delete(of, l); len(of) == 0 {
			delete(x.pools.from, own.from.proc)
		}
	}
}

// endLocked ends a pool's line, for all who have it, and counts it no more.
func (x *Proxy) endLocked(own *pool) {
	if own.line >= 0 {
		unix.Shutdown(own.line, unix.SHUT_RDWR)
		unix.Close(own.line)
	}
	x.pools.all--
	if x.pools.of[own.realm]--; x.pools.of[own.realm] == 0 {
		delete(x.pools.of, own.realm)
	}
}

// endPool is what a proc asks for that wants its pool no more, of which some did not begin.
func (x *Proxy) endPool(p sigma.Principal, id sigma.EndpointID, unused []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.listeners[id]; l != nil && p.Proc != "" {
		if own := x.pools.from[p.Proc][l]; own != nil {
			x.begunLocked(own, unused)
			x.leaveLocked(own, l)
		}
	}
}

// closePools ends those that a proc that is gone dialled with.
func (x *Proxy) closePools(id sigma.ProcID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for l, own := range x.pools.from[id] {
		x.leaveLocked(own, l)
	}
	for e, own := range x.pools.away[id] {
		x.leaveAwayLocked(own, e)
	}
}

// Pools counts those of a realm.
func (x *Proxy) Pools(realm sigma.RealmID) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.pools.of[realm]
}
