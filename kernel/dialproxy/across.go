package dialproxy

import (
	"context"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/sigmap"
)

// Connections made in advance between machines (docs/adr/0036). The proxies of both machines have a
// part of each pool. The dialler's part gives the numbers and notes the dialler's ends (AskAway,
// TakeAway); the listener's part notes the ends that arrive (PoolFrom). Each proxy keeps a
// duplicate of its end of a connection, so that it can end its direction.

// Away is a batch that is to be made for an endpoint of another machine.
type Away struct {
	First uint64   // number of the first connection
	Count int      // connections; 0 = none are wanted
	Line  bool     // and a line
	Begun []uint64 // of before, which the other machine has to be told
	own   *pool    // that it is for; nil = there is none any more
}

// AskAway takes note of what p says of its pool for an endpoint of another machine, and says what
// is to be made. A new pool counts from then on, so TakeAway or FailAway follows if there is
// anything to make; if not, ToldAway if the other machine was told what has begun. Errors are those
// of Pool.
func (x *Proxy) AskAway(p sigma.Principal, ask sigmap.PoolAsk) (a Away, err error) {
	const op = "dialproxy.Pool"
	e := ask.Endpoint
	if p.Proc == "" || p.System || p.Realm != e.Realm || e.Form != sigma.FormStream || p.Machine != x.machine ||
		e.Machine == x.machine {
		return a, sigma.Errorf(op, sigma.KindUnsupported,
			"connections are made in advance between procs of one realm, for streams")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	own := x.pools.away[p.Proc][e.ID]
	if own != nil {
		for number := range own.ready {
			if !slices.Contains(ask.Unused, number) {
				x.beganLocked(own, number)
				own.untold = append(own.untold, number)
			}
		}
		a.Begun = slices.Clone(own.untold)
		if ask.Over || own.line >= 0 && rawio.Gone(own.line) {
			x.leaveAwayLocked(own, e.ID)
			own = nil
		}
	}
	a.own = own
	n := min(int(ask.Count), poolBatch, sigmap.PoolMost-len(ask.Unused))
	switch {
	case ask.Over || n <= 0:
		return a, nil
	case own != nil && own.asking:
		return a, sigma.Errorf(op, sigma.KindBusy, "the proc asks twice at a time")
	case own == nil && (x.pools.all >= PoolsMax || x.pools.of[p.Realm] >= PoolsOf ||
		x.pools.ofProc(p.Proc) >= poolsOfProc):
		return a, sigma.Errorf(op, sigma.KindBusy, "the proc has connections in advance at %d endpoints, its realm %d",
			x.pools.ofProc(p.Proc), x.pools.of[p.Realm])
	}
	if err := x.manyLocked(p.Proc); err != nil {
		return a, err
	}
	if own == nil {
		own = &pool{from: dialler{x.machine, p.Proc}, line: -1, ready: map[uint64]uint64{}, realm: p.Realm}
		if x.pools.away[p.Proc] == nil {
			x.pools.away[p.Proc] = map[sigma.EndpointID]*pool{}
		}
		x.pools.away[p.Proc][e.ID] = own
		x.pools.all++
		x.pools.of[p.Realm]++
		a.Line, n = true, min(n, poolBatch-1)
	}
	own.asking = true
	a.First, a.Count, a.own = x.rings.last+1, n, own
	x.rings.last += uint64(n)
	return a, nil
}

// TakeAway notes what was made for AskAway: p's ends, the line's first if there is one. The files
// stay the caller's. ctx is that of p's session: one that has ended has no pool any more. After an
// error there is no pool.
func (x *Proxy) TakeAway(ctx context.Context, p sigma.Principal, e sigma.Endpoint, other sigma.Life, a Away,
	files []*os.File) (*sigmap.PoolGrant, error) {
	inodes := make([]uint64, len(files))
	for i, f := range files {
		inodes[i] = inodeOf(f)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.mayTakeLocked(ctx, p, e, a, files); err != nil {
		x.leaveAwayLocked(a.own, e.ID) // or the listener would hold for ever what nobody has
		return nil, err
	}
	own := a.own
	own.asking, own.other = false, other
	own.toldLocked(a.Begun)
	if a.Line {
		inodes = inodes[1:]
	}
	for i, inode := range inodes {
		number := a.First + uint64(i)
		own.ready[number] = number
		x.noteAcross(p, e, other, number, ring.Dialled, end{proc: p.Proc, realm: p.Realm, inode: inode,
			since: time.Now()})
	}
	return &sigmap.PoolGrant{Line: a.Line, First: a.First, Tickets: make([]string, len(inodes))}, nil
}

// mayTakeLocked says why a batch that was made is not taken. Of a new pool it keeps the line.
func (x *Proxy) mayTakeLocked(ctx context.Context, p sigma.Principal, e sigma.Endpoint, a Away,
	files []*os.File) error {
	const op = "dialproxy.Pool"
	n := a.Count
	if a.Line {
		n++
	}
	switch {
	case ctx.Err() != nil:
		return sigma.Wrap(op, "", ctx.Err())
	case x.pools.away[p.Proc][e.ID] != a.own:
		return sigma.Errorf(op, sigma.KindUnavailable, "the line has ended meanwhile")
	case len(files) != n:
		return sigma.Errorf(op, sigma.KindInvalid, "%d connections were made, not %d", len(files), n)
	}
	if err := x.manyLocked(p.Proc); err != nil || !a.Line {
		return err
	}
	line, err := unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return sigma.Wrap(op, "", os.NewSyscallError("fcntl", err))
	}
	a.own.line = line
	return nil
}

// FailAway notes that nothing was made for AskAway. none: the other machine was not asked, or has
// said that its listener has none; if not, its listener may have been given connections that are
// closed here by now, and the line ends, so that it does not hold them for ever.
func (x *Proxy) FailAway(e sigma.Endpoint, a Away, none bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a.own.asking = false
	if a.Line || !none {
		x.leaveAwayLocked(a.own, e.ID)
	}
}

// ToldAway notes that the other machine was told which connections have begun.
func (x *Proxy) ToldAway(a Away) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if a.own != nil {
		a.own.toldLocked(a.Begun)
	}
}

func (own *pool) toldLocked(begun []uint64) {
	own.untold = slices.DeleteFunc(own.untold, func(number uint64) bool { return slices.Contains(begun, number) })
}

// unbegunMax is how many connections of one pool that have not begun, as far as is known here, a
// listener is given from another machine: what is said on the line may be late, after what it was
// lost with has been sent again.
const unbegunMax = 4 * sigmap.PoolMost

// noteAcross notes a connection with another machine that has not begun, of which one end is here.
func (x *Proxy) noteAcross(p sigma.Principal, e sigma.Endpoint, other sigma.Life, number uint64, side ring.Side,
	here end) {
	c := &connection{Connection: Connection{Number: number, Endpoint: e, From: p, Transport: "tcp", Began: time.Now(),
		Other: other, Ready: true}}
	c.ends[side] = here
	x.noteLocked(c)
}

// leaveAwayLocked ends a pool that is dialled from here: nothing of it begins any more. What has
// begun goes on.
func (x *Proxy) leaveAwayLocked(own *pool, e sigma.EndpointID) {
	of := x.pools.away[own.from.proc]
	if of[e] != own {
		return
	}
	x.endLocked(own)
	if delete(of, e); len(of) == 0 {
		delete(x.pools.away, own.from.proc)
	}
}

// PoolFrom gives a listener here its ends of connections that p of another machine, whose life that
// is, had made in advance; first is the number that p begins the first of them by. The first of the
// sockets, which stay the caller's, is the line's if line. Errors are those of Pool.
func (x *Proxy) PoolFrom(p sigma.Principal, e sigma.Endpoint, other sigma.Life, first uint64, line bool,
	socks []syscall.Conn) error {
	const op = "dialproxy.Pool"
	l, err := x.find(p, e)
	if err != nil {
		return err
	}
	if p.Proc == "" || p.System || p.Realm != l.endpoint.Realm || l.endpoint.Form != sigma.FormStream ||
		p.Machine == x.machine || p.Machine != other.Machine {
		return sigma.Errorf(op, sigma.KindUnsupported,
			"connections are made in advance between procs of one realm, for streams")
	}
	fds, inodes := make([]int, len(socks)), make([]uint64, len(socks))
	for i, s := range socks {
		if fds[i], inodes[i], err = descriptor(s); err != nil {
			return sigma.Wrap(op, "", err)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	who := dialler{p.Machine, p.Proc}
	own := l.pools[who]
	if own != nil && line { // the one before has ended, which was not seen yet
		x.leaveLocked(own, l)
		own = nil
	}
	if own == nil && !line {
		return sigma.Errorf(op, sigma.KindUnavailable, "the line has ended")
	}
	if err := x.mayPoolFromLocked(p, l, own == nil); err != nil {
		return err
	}
	if own != nil {
		if err := x.mayHoldLocked(own, l, first, len(socks)); err != nil {
			return err
		}
	}
	if own == nil {
		x.rings.last++
		own = &pool{number: x.rings.last, from: who, ready: map[uint64]uint64{}, other: other, realm: l.endpoint.Realm}
		if own.line, err = unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return sigma.Wrap(op, "", os.NewSyscallError("fcntl", err))
		}
		inodes = inodes[1:]
	}
	if err := x.sendFromLocked(p, l, own, first, line, fds); err != nil {
		if line {
			unix.Close(own.line)
		}
		return err
	}
	if line {
		l.pools[who] = own
		x.pools.all++
		x.pools.of[own.realm]++
	}
	for i, inode := range inodes {
		x.rings.last++
		own.ready[first+uint64(i)] = x.rings.last
		x.noteAcross(p, l.endpoint, other, x.rings.last, ring.Accepted,
			end{proc: l.endpoint.Proc, realm: l.endpoint.Realm, inode: inode, since: time.Now()})
	}
	return nil
}

// descriptor gives a socket's, which is good as long as the socket is open, and its inode.
func descriptor(s syscall.Conn) (fd int, inode uint64, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	if e := raw.Control(func(at uintptr) {
		var st unix.Stat_t
		err = unix.Fstat(int(at), &st)
		fd, inode = int(at), st.Ino
	}); e != nil {
		return 0, 0, e
	}
	return fd, inode, err
}

// mayPoolFromLocked is mayPoolLocked for a proc of another machine.
func (x *Proxy) mayPoolFromLocked(p sigma.Principal, l *listener, fresh bool) error {
	const op = "dialproxy.Pool"
	if err := x.roomLocked(p, l); err != nil {
		return err
	}
	if err := x.manyLocked(l.endpoint.Proc); err != nil {
		return err
	}
	switch {
	case l.out == nil:
		return sigma.Errorf(op, sigma.KindUnsupported, "the listener has no socket for what arrives")
	case len(l.waiting) > 0 || l.first != nil:
		return sigma.Errorf(op, sigma.KindBusy, "connections wait to be accepted there")
	case fresh && (x.pools.all >= PoolsMax || x.pools.of[p.Realm] >= PoolsOf || len(l.pools) >= poolsAt):
		return sigma.Errorf(op, sigma.KindBusy, "%d procs have connections in advance there, its realm %d",
			len(l.pools), x.pools.of[p.Realm])
	case fresh && x.pools.ending[dialler{p.Machine, p.Proc}] >= poolsEnding:
		return sigma.Errorf(op, sigma.KindBusy,
			"the proc has just ended connections in advance at %d listeners; their lines end within %v", poolsEnding,
			lineLinger)
	}
	return nil
}

// mayHoldLocked says why a listener gets no n further connections of a pool.
func (x *Proxy) mayHoldLocked(own *pool, l *listener, first uint64, n int) error {
	const op = "dialproxy.Pool"
	for i := range n {
		if _, is := own.ready[first+uint64(i)]; is {
			return sigma.Errorf(op, sigma.KindInvalid, "%d is the number of a connection that has not begun",
				first+uint64(i))
		}
	}
	if len(own.ready)+n > unbegunMax {
		for number, here := range own.ready {
			if x.conns.all[here] == nil { // both have closed it
				delete(own.ready, number)
			}
		}
	}
	if len(own.ready)+n > unbegunMax {
		x.crowdLocked(l.endpoint.Proc) // somebody sees which of them still are
		return sigma.Errorf(op, sigma.KindBusy, "%d connections of the pool have not begun", len(own.ready))
	}
	return nil
}

// sendFromLocked sends the listener its part of a batch.
func (x *Proxy) sendFromLocked(p sigma.Principal, l *listener, own *pool, first uint64, line bool, fds []int) error {
	const op = "dialproxy.Pool"
	n := len(fds)
	if line {
		n--
	}
	a := sigmap.Arrival{Pool: own.number, From: p, First: first, Line: line, Tickets: make([]string, n)}
	record, err := sigmap.Payload(func(c *sigmap.Coder) { c.Arrival(&a) })
	if err == nil {
		err = l.send(record, fds)
	}
	if err == syscall.EAGAIN {
		return sigma.Errorf(op, sigma.KindBusy, "the listener is behind with what arrives")
	}
	return sigma.Wrap(op, "", err)
}

// BegunFrom notes which connections of a pool have begun that p of another machine has at a
// listener here.
func (x *Proxy) BegunFrom(p sigma.Principal, e sigma.EndpointID, begun []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.listeners[e]; l != nil {
		if own := l.pools[dialler{p.Machine, p.Proc}]; own != nil && own.realm == p.Realm {
			for _, number := range begun {
				x.beganLocked(own, number)
			}
		}
	}
}

// SweepPools ends pools with other machines whose line has ended, or with a machine whose life is
// over.
func (x *Proxy) SweepPools(over func(sigma.Life) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ended := func(own *pool) bool {
		switch {
		case own.other == (sigma.Life{}):
			return false
		case over(own.other):
			unix.Shutdown(own.line, unix.SHUT_RDWR) // nobody there says anything any more that is heard
			return true
		}
		return rawio.Gone(own.line)
	}
	for _, l := range x.listeners {
		for _, own := range l.pools {
			if ended(own) {
				x.leaveLocked(own, l)
			}
		}
	}
	for _, of := range x.pools.away {
		for e, own := range of {
			if ended(own) {
				x.leaveAwayLocked(own, e)
			}
		}
	}
}
