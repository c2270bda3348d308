package dialproxy

import (
	"os"
	"slices"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/ring"
)

// The proxy keeps no duplicate of what it passes, but it notes the number of each socket's inode,
// by which the launcher finds it among a proc's descriptors: to end it, or to see whether it still
// is. Nobody tells the proxy when a proc closes one; so now and then somebody has to look (Crowded,
// Reconcile).

// Limits.
const (
	crowdedFirst = 256              // connections noted of one proc, of which it is worth to see which still are
	crowdedAgain = 2 * time.Second  // a proc is looked at no sooner than so long after it was last asked for
	notedMax     = 1 << 15          // of one proc; it has no more descriptors, and waits if it is faster than who looks
	underWayMax  = 10 * time.Second // a socket that was passed so long ago is among its proc's descriptors, or closed
	revokedMax   = time.Minute      // the same of one that was taken back, for which it is worth to look longer
	eventsMost   = 1024
)

// Connection is one that procs of this machine have, or had.
type Connection struct {
	Number   uint64
	Endpoint sigma.Endpoint  // that was dialled
	From     sigma.Principal // who dialled
	// "unix", "ring" if it has memory; with another machine "tcp", or "relay" if sigmad passes it
	// on
	Transport string
	Began     time.Time
	Other     sigma.Life  // machine of the other end; zero: this one
	Tally     *ring.Tally // by Connections, of one that has memory
	Ready     bool        // it was made in advance, and has not begun as far as is known
}

// Open is one end of a connection, which a proc of this machine has.
type Open struct {
	Number uint64
	Realm  sigma.RealmID
	Proc   sigma.ProcID
	Inode  uint64
}

// Event is something that happened to a connection.
type Event struct {
	Time time.Time
	What string // "dialled", "revoked", "cut"
	Connection
}

// connection is what is noted.
type connection struct {
	Connection
	ends    [2]end // by ring.Side
	revoked bool
}

// end is one that a proc of this machine has; inode 0: none has.
type end struct {
	proc  sigma.ProcID
	realm sigma.RealmID
	inode uint64
	since time.Time // that it is under way to the proc; zero: it waits to be accepted
	gone  bool
}

// table is what Proxy.mu guards of connections.
type table struct {
	all     map[uint64]*connection
	of      map[sigma.ProcID]map[uint64]*connection
	look    map[sigma.ProcID]int       // how many make it worth to look at a proc; crowdedFirst if not said
	asked   map[sigma.ProcID]time.Time // when it was last asked to look at a proc
	crowded chan sigma.ProcID
	events  []Event // the latest eventsMost, from next on
	next    int
}

func newTable() table {
	return table{all: map[uint64]*connection{}, of: map[sigma.ProcID]map[uint64]*connection{},
		look: map[sigma.ProcID]int{}, asked: map[sigma.ProcID]time.Time{}, crowded: make(chan sigma.ProcID, 64)}
}

// inodeOf is the number of a socket; 0 if that cannot be told.
func inodeOf(f *os.File) uint64 {
	if f == nil {
		return 0
	}
	return rawio.Inode(int(f.Fd()))
}

// manyLocked says no to a proc that has more connections noted than it can have.
func (x *Proxy) manyLocked(id sigma.ProcID) error {
	if id != "" && len(x.conns.of[id]) >= notedMax {
		x.crowdLocked(id)
		return sigma.Errorf("dialproxy.Dial", sigma.KindBusy,
			"%d connections of this proc were made lately, and it is being seen which of them still are", notedMax)
	}
	return nil
}

// noteLocked notes a connection of which a proc has an end. Of ends without a proc nothing is
// noted.
func (x *Proxy) noteLocked(c *connection) {
	for i := range c.ends {
		e := &c.ends[i]
		if e.proc == "" || e.inode == 0 {
			*e = end{}
			continue
		}
		of := x.conns.of[e.proc]
		if of == nil {
			of = map[uint64]*connection{}
			x.conns.of[e.proc] = of
		}
		of[c.Number] = c
		if len(of) >= max(x.conns.look[e.proc], crowdedFirst) {
			x.crowdLocked(e.proc)
		}
	}
	if c.ends == [2]end{} {
		return
	}
	x.conns.all[c.Number] = c
	if !c.Ready {
		x.eventLocked("dialled", c.Connection)
	}
}

// crowdLocked has somebody look at a proc's connections, if it has any and nobody was asked just
// now: procs can have this called as often as they like.
func (x *Proxy) crowdLocked(id sigma.ProcID) {
	if len(x.conns.of[id]) == 0 || time.Since(x.conns.asked[id]) < crowdedAgain {
		return
	}
	select {
	case x.conns.crowded <- id:
		x.conns.asked[id] = time.Now()
		x.conns.look[id] = 2 * len(x.conns.of[id]) // not again before, unless Reconcile says otherwise
	default:
	}
}

func (x *Proxy) eventLocked(what string, c Connection) {
	e := Event{time.Now(), what, c}
	if len(x.conns.events) < eventsMost {
		x.conns.events = append(x.conns.events, e)
		return
	}
	x.conns.events[x.conns.next] = e
	x.conns.next = (x.conns.next + 1) % eventsMost
}

// dropLocked forgets a connection that is over. Whoever had its memory has no use for it, and needs
// not tell.
func (x *Proxy) dropLocked(c *connection) {
	delete(x.conns.all, c.Number)
	for _, e := range c.ends {
		x.dropRingLocked(e.proc, c.Number)
		if of := x.conns.of[e.proc]; of != nil {
			if delete(of, c.Number); len(of) == 0 {
				delete(x.conns.of, e.proc)
				delete(x.conns.look, e.proc)
				delete(x.conns.asked, e.proc)
			}
		}
	}
}

// Dialled notes the end that p has of a connection with another machine, by the transport "tcp" or
// "relay". It is cut with the other machine's life, unless that is the zero one. f stays the
// caller's.
func (x *Proxy) Dialled(p sigma.Principal, e sigma.Endpoint, other sigma.Life, transport string, f *os.File) error {
	inode := inodeOf(f)
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.manyLocked(p.Proc); err != nil {
		return err
	}
	x.rings.last++
	c := &connection{Connection: Connection{Number: x.rings.last, Endpoint: e, From: p, Transport: transport,
		Began: time.Now(), Other: other}}
	c.ends[ring.Dialled] = end{proc: p.Proc, realm: p.Realm, inode: inode, since: time.Now()}
	x.noteLocked(c)
	return nil
}

// underWayLocked notes that a connection was accepted.
func (x *Proxy) underWayLocked(number uint64) {
	if c := x.conns.all[number]; c != nil {
		c.ends[ring.Accepted].since = time.Now()
	}
}

// Connections are those for which match says so, with the ends that procs of this machine have.
func (x *Proxy) Connections(match func(*Connection) bool) (cs []Connection, ends []Open) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.conns.all {
		if match(&c.Connection) {
			one := c.Connection
			if r := x.rings.all[c.Number]; r != nil {
				if t, err := ring.TallyOf(r.file); err == nil {
					one.Transport, one.Tally = "ring", &t
				}
			}
			cs, ends = append(cs, one), append(ends, c.open()...)
		}
	}
	slices.SortFunc(cs, func(a, b Connection) int { return int(int64(a.Number - b.Number)) })
	return cs, ends
}

func (c *connection) open() (out []Open) {
	for _, e := range c.ends {
		if e.inode != 0 && !e.gone {
			out = append(out, Open{c.Number, e.realm, e.proc, e.inode})
		}
	}
	return out
}

// Of are the ends that a proc has.
func (x *Proxy) Of(id sigma.ProcID) (ends []Open) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.conns.of[id] {
		for _, o := range c.open() {
			if o.Proc == id {
				ends = append(ends, o)
			}
		}
	}
	return ends
}

// Crowded tells of procs of whose connections it should be seen which still are.
func (x *Proxy) Crowded() <-chan sigma.ProcID { return x.conns.crowded }

// Reconcile notes which of a proc's ends were looked for and not found: those are closed, if they
// are not under way. A connection without an end is forgotten.
func (x *Proxy) Reconcile(id sigma.ProcID, asked []Open, found map[uint64]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	late := time.Now().Add(-underWayMax)
	for _, o := range asked {
		c := x.conns.all[o.Number]
		if c == nil || found[o.Inode] {
			continue
		}
		left := 0
		for i := range c.ends {
			e := &c.ends[i]
			by := late
			if c.revoked {
				by = by.Add(underWayMax - revokedMax)
			}
			if e.proc == id && e.inode == o.Inode && !e.since.IsZero() && e.since.Before(by) &&
				!(i == int(ring.Accepted) && x.lateLocked(c)) {
				e.gone = true
				x.dropRingLocked(id, c.Number)
			}
			if e.inode != 0 && !e.gone {
				left++
			}
		}
		if left == 0 {
			x.dropLocked(c)
		}
	}
	if n := len(x.conns.of[id]); n > 0 {
		x.conns.look[id] = 2*n + crowdedFirst
	}
}

// lateLocked says that a connection may still be in its listener's socket.
func (x *Proxy) lateLocked(c *connection) bool {
	l := x.listeners[c.Endpoint.ID]
	if l == nil || l.out == nil {
		return false
	}
	waits := 0
	if err := l.raw.Control(func(fd uintptr) { waits, _ = rawio.Unread(int(fd)) }); err != nil {
		return false
	}
	return waits > 0
}

// Revoke takes back the connections for which match says so: their memory says that they are over,
// they get none any more, and those that wait are closed. What procs have of them the caller has to
// shut down.
func (x *Proxy) Revoke(what string, match func(*Connection) bool) (ends []Open) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.conns.all {
		if c.revoked || !match(&c.Connection) {
			continue
		}
		c.revoked = true
		if r := x.rings.all[c.Number]; r != nil {
			ring.Revoke(r.file)
		}
		ends = append(ends, c.open()...)
		x.eventLocked(what, c.Connection)
	}
	return ends
}

// Revoked are the ends of connections that were taken back and have not been seen to be over.
func (x *Proxy) Revoked() (ends []Open) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.conns.all {
		if c.revoked {
			ends = append(ends, c.open()...)
		}
	}
	return ends
}

// Shut notes that ends were shut down. Of a connection on this machine one is enough.
func (x *Proxy) Shut(ends []Open) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range ends {
		if c := x.conns.all[o.Number]; c != nil && c.revoked {
			x.dropLocked(c)
		}
	}
}

// Withdraw ends a listener at once, for its proc or, if by is System, for whoever it is: nobody
// dials or accepts any more, and who waits is sent away.
func (x *Proxy) Withdraw(by sigma.Principal, e sigma.Endpoint) error {
	x.mu.Lock()
	l := x.listeners[e.ID]
	x.mu.Unlock()
	own := by.Proc != "" && by.Proc == e.Proc && by.Realm == e.Realm
	switch {
	case !own && !(by.System && by.Proc == ""):
		return &sigma.Error{Op: "dialproxy.Revoke", Kind: sigma.KindPermission,
			Msg: "only the proc that listens can take an endpoint back, and the provider"}
	case l != nil && l.endpoint != e:
		return sigma.Errorf("dialproxy.Revoke", sigma.KindNotFound, "there is no such endpoint")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if l != nil {
		x.closeLocked(l)
	}
	x.forbidLocked(e)
	return nil
}

// forbidLocked has nobody listen again at an endpoint. Of a proc that had more taken back than are
// remembered that is true of all.
func (x *Proxy) forbidLocked(e sigma.Endpoint) {
	if !isOf(e.ID, e.Proc) { // nobody can
		return
	}
	of := x.forbidden[e.Proc]
	if of == nil {
		of = map[sigma.EndpointID]bool{}
		x.forbidden[e.Proc] = of
	}
	if len(of) < ListenersMax {
		of[e.ID] = true
	} else {
		of[allOfThem] = true
	}
}

// Forget forgets which endpoints of a proc that is gone were taken back.
func (x *Proxy) Forget(id sigma.ProcID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.forbidden, id)
}

// allOfThem, among endpoints that are forbidden, is no endpoint's id.
const allOfThem sigma.EndpointID = ""

// Events are the latest things that happened to connections, oldest first.
func (x *Proxy) Events(match func(*Connection) bool) (out []Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.conns.events {
		if e := &x.conns.events[(x.conns.next+i)%len(x.conns.events)]; match(&e.Connection) {
			out = append(out, *e)
		}
	}
	return out
}

// closeConnections forgets those of a proc that is gone: the other end of each has ended with it.
func (x *Proxy) closeConnections(id sigma.ProcID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.conns.of[id] {
		x.dropLocked(c)
	}
}
