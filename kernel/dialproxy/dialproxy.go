// Package dialproxy makes and authorises every connection between procs of one machine (001 §4.2):
// it keeps the endpoints, checks realms, and hands each side one end of a fresh socket pair. Bytes
// do not pass through it, and of what it passed it keeps no duplicate but that of a line by which
// connections made in advance begin, to be able to end them
// (docs/adr/0029-connections-in-advance.md). Who dials from another machine has a TCP socket
// (Reserve), or does so through the sigmads of both, with the principal that its own vouches for.
//
// It promises that a proc of one realm is never connected to an endpoint of another, but for the
// system's services that say they are for everybody; that who dialled is what the machine knows,
// not what anyone claims; that a client that is silent or slow blocks no listener; and that a
// proc's endpoints end with it.
//
// Both may have memory for their bytes (rings.go), which is made when one of them asks for it.
//
// Users: kernel. Lock: Proxy.mu guards everything; nothing blocks under it.
package dialproxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/session"
)

// Limits. A connection that waits for Accept holds two file descriptors in sigmad.
const (
	BacklogMax   = 128            // connections that wait at one listener, as Linux' default
	ListenersMax = 256            // of one proc
	WaitingMax   = 1024           // connections of one realm that wait to be accepted anywhere
	publicMax    = BacklogMax / 4 // of one realm at an endpoint for everybody, so that it does not keep the others out
)

// Proxy is one machine's endpoints. Safe for concurrent use.
type Proxy struct {
	machine sigma.MachineID
	passed  *inflight.Account

	mu        sync.Mutex
	listeners map[sigma.EndpointID]*listener             // mu
	owned     map[sigma.ProcID]int                       // mu; listeners per proc
	forbidden map[sigma.ProcID]map[sigma.EndpointID]bool // mu; endpoints of procs that live, which were taken back
	waiting   map[sigma.RealmID]int                      // mu; connections that wait, by who dialled
	rings     rings
	pools     pools
	pushes    pushes
	conns     table // mu
}

type listener struct {
	endpoint sigma.Endpoint
	public   bool
	waiting  chan arrival
	closed   chan struct{}         // it takes no more; what waits can still be accepted
	ending   bool                  // Proxy.mu; closed is closed
	from     map[sigma.RealmID]int // Proxy.mu; as waiting, at this one
	reserved int                   // Proxy.mu; places of the backlog that are kept

	// Of one that has a socket (arrivals.go).
	out   *os.File          // Proxy.mu to set; nil = it has none
	raw   syscall.RawConn   // of it
	more  chan struct{}     // takes one: something waits
	first *arrival          // Proxy.mu; that the socket had no room for
	pools map[dialler]*pool // Proxy.mu

	passing *inflight.Queue // counts the descriptors that wait at it, or are in its socket
}

type arrival struct {
	file   *os.File
	from   sigma.Principal
	ticket Ticket
	number uint64
	held   *inflight.Parcel // of one that waits: file is counted
}

// New makes a machine's proxy. passed counts the descriptors that it sends to listeners.
func New(machine sigma.MachineID, passed *inflight.Account) *Proxy {
	x := &Proxy{machine: machine, passed: passed, listeners: map[sigma.EndpointID]*listener{},
		owned: map[sigma.ProcID]int{}, forbidden: map[sigma.ProcID]map[sigma.EndpointID]bool{},
		waiting: map[sigma.RealmID]int{}, rings: rings{all: map[uint64]*shared{},
			of: map[sigma.ProcID]map[uint64]bool{}, warm: map[sigma.ProcID]int{}, used: map[sigma.RealmID]int{}},
		conns: newTable(),
		pools: pools{of: map[sigma.RealmID]int{}, from: map[sigma.ProcID]map[*listener]*pool{},
			away: map[sigma.ProcID]map[sigma.EndpointID]*pool{}, linger: lineLinger, ending: map[dialler]int{}},
		pushes: pushes{of: map[sigma.RealmID]int{}, from: map[sigma.ProcID]int{}}}
	rand.Read(x.rings.key[:])
	return x
}

// Listen makes an endpoint of proc p. public endpoints may be dialled from every realm; only the
// kernel's callers can ask for that.
func (x *Proxy) Listen(p sigma.Principal, form sigma.ConnForm, public bool) (sigma.Endpoint, error) {
	return x.listen(p, newID(p.Proc), form, public, false)
}

// ListenAgain listens at an endpoint that an earlier sigmad made for p, so that the texts of it
// that are about stay good. KindPermission: the endpoint is not p's, or was taken back.
func (x *Proxy) ListenAgain(p sigma.Principal, id sigma.EndpointID, form sigma.ConnForm, public bool) (sigma.Endpoint,
	error) {
	if p.Proc == "" || !isOf(id, p.Proc) {
		return sigma.Endpoint{}, &sigma.Error{Op: "dialproxy.ListenAgain", Kind: sigma.KindPermission,
			Msg: "the endpoint is not one of this proc"}
	}
	return x.listen(p, id, form, public, true)
}

func (x *Proxy) listen(p sigma.Principal, id sigma.EndpointID, form sigma.ConnForm, public, again bool) (sigma.Endpoint,
	error) {
	const op = "dialproxy.Listen"
	none := sigma.Endpoint{}
	switch {
	case p.Proc == "":
		return none, &sigma.Error{Op: op, Kind: sigma.KindPermission, Msg: "only procs can listen"}
	case form != sigma.FormStream && form != sigma.FormTree:
		return none, sigma.Errorf(op, sigma.KindInvalid, "%.20q is not a form of endpoint", string(form))
	}
	l := &listener{public: public, waiting: make(chan arrival, BacklogMax), closed: make(chan struct{}),
		from: map[sigma.RealmID]int{}, pools: map[dialler]*pool{},
		endpoint: sigma.Endpoint{Realm: p.Realm, Machine: x.machine, Proc: p.Proc, ID: id, Form: form}}
	l.passing = &inflight.Queue{}
	l.passing.Charge(x.passed, p.Realm, p.Proc)
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.owned[p.Proc] >= ListenersMax:
		return none, sigma.Errorf(op, sigma.KindBusy, "a proc can have %d listeners", ListenersMax)
	case x.listeners[id] != nil:
		return none, sigma.Errorf(op, sigma.KindExists, "the proc listens at the endpoint")
	case again && (x.forbidden[p.Proc][id] || x.forbidden[p.Proc][allOfThem]):
		return none, &sigma.Error{Op: op, Kind: sigma.KindPermission, Msg: "the endpoint was taken back",
			Hint: "listen at a new one, and publish it"}
	}
	x.owned[p.Proc]++
	x.listeners[id] = l
	return l.endpoint, nil
}

// An EndpointID has 80 random bits, so that nobody guesses it, and 48 bits of a hash of them and
// its proc: so no proc can listen at another's.
const (
	idRandom = 10
	idBytes  = 16
)

// newID makes the id of an endpoint of a proc.
func newID(proc sigma.ProcID) sigma.EndpointID {
	id := make([]byte, idRandom, idBytes)
	rand.Read(id)
	return sigma.EndpointID(base64.RawURLEncoding.EncodeToString(sealed(id, proc)))
}

// sealed appends the hash to random bits.
func sealed(random []byte, proc sigma.ProcID) []byte {
	sum := sha256.Sum256(append(random[:idRandom:idRandom], proc...))
	return append(random[:idRandom:idRandom], sum[:idBytes-idRandom]...)
}

// isOf reports whether an endpoint's id was made for a proc.
func isOf(id sigma.EndpointID, proc sigma.ProcID) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(string(id))
	return err == nil && len(b) == idBytes && bytes.Equal(b, sealed(b, proc)) &&
		base64.RawURLEncoding.EncodeToString(b) == string(id) // the decoder skips line ends
}

// mine finds a listener that p may accept from and close.
func (x *Proxy) mine(p sigma.Principal, id sigma.EndpointID) (*listener, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.listeners[id]
	if l == nil || p.Proc == "" || l.endpoint.Proc != p.Proc || l.endpoint.Realm != p.Realm {
		return nil, sigma.Errorf("dialproxy", sigma.KindNotFound, "no such listener of this proc")
	}
	return l, nil
}

// pushed says that what arrives at a listener goes to its socket.
func (x *Proxy) pushed(l *listener) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return l.out != nil
}

// Accept waits for a connection. The file is the caller's. Of a listener that is closed it gives
// what had been dialled before, then KindUnavailable.
func (x *Proxy) Accept(ctx context.Context, p sigma.Principal, id sigma.EndpointID) (*os.File, sigma.Principal, Ticket,
	error) {
	l, err := x.mine(p, id)
	if err != nil {
		return nil, sigma.Principal{}, "", err
	}
	if x.pushed(l) {
		return nil, sigma.Principal{}, "", sigma.Errorf("dialproxy.Accept", sigma.KindUnsupported,
			"what arrives at this listener comes on its socket")
	}
	select {
	case a := <-l.waiting:
		return x.accepted(l, a)
	case <-l.closed:
	case <-ctx.Done():
		return nil, sigma.Principal{}, "", sigma.Wrap("dialproxy.Accept", "", ctx.Err())
	}
	select {
	case a := <-l.waiting:
		return x.accepted(l, a)
	default: // nothing comes any more
		x.close(l)
		return nil, sigma.Principal{}, "", sigma.Errorf("dialproxy.Accept", sigma.KindUnavailable,
			"the listener is closed")
	}
}

func (x *Proxy) accepted(l *listener, a arrival) (*os.File, sigma.Principal, Ticket, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.countLocked(l, a.from.Realm, -1)
	a.held.Drop()
	x.underWayLocked(a.number)
	return a.file, a.from, a.ticket, nil
}

// find is the listener of an endpoint that p may dial.
func (x *Proxy) find(p sigma.Principal, e sigma.Endpoint) (*listener, error) {
	x.mu.Lock()
	l := x.listeners[e.ID]
	if l != nil && l.ending {
		l = nil
	}
	x.mu.Unlock()
	switch {
	case l != nil && l.endpoint.Realm != p.Realm && !l.public && !p.System, l == nil && e.Realm != p.Realm && !p.System:
		return nil, &sigma.Error{Op: "dialproxy.Dial", Kind: sigma.KindPermission,
			Msg: "the endpoint belongs to another realm"}
	case l == nil || l.endpoint != e:
		return nil, &sigma.Error{Op: "dialproxy.Dial", Kind: sigma.KindUnavailable,
			Msg: "nobody listens at the endpoint", Hint: "the proc may have ended; look its name up again"}
	}
	return l, nil
}

// roomLocked says why p cannot wait at a listener; nil if it can.
func (x *Proxy) roomLocked(p sigma.Principal, l *listener) error {
	switch {
	case x.listeners[l.endpoint.ID] != l || l.ending:
		return sigma.Errorf("dialproxy.Dial", sigma.KindUnavailable, "nobody listens at the endpoint")
	case !p.System && (x.waiting[p.Realm] >= WaitingMax || l.public && l.from[p.Realm] >= publicMax):
		return sigma.Errorf("dialproxy.Dial", sigma.KindUnavailable, "%d connections of this realm wait to be accepted",
			x.waiting[p.Realm])
	case len(l.waiting)+l.reserved >= BacklogMax:
		return sigma.Errorf("dialproxy.Dial", sigma.KindUnavailable, "%d connections wait to be accepted there",
			BacklogMax)
	}
	return nil
}

// Dial connects p to an endpoint and returns p's end.
func (x *Proxy) Dial(p sigma.Principal, e sigma.Endpoint) (*os.File, Ticket, error) {
	l, err := x.find(p, e)
	if err != nil {
		return nil, "", err
	}
	typ := syscall.SOCK_STREAM
	if l.endpoint.Form == sigma.FormTree {
		typ = syscall.SOCK_SEQPACKET
	}
	mine, theirs, err := session.FilePair(typ)
	if err != nil {
		return nil, "", sigma.Wrap("dialproxy.Dial", "", err)
	}
	if p.System {
		widen(mine)
		widen(theirs)
	}
	memory := x.earlyFile(p.Proc, e.Proc)
	inodes := [2]uint64{inodeOf(mine), inodeOf(theirs)}
	x.mu.Lock() // so that close, which drains, sees either no arrival or this one
	defer x.mu.Unlock()
	err = x.roomLocked(p, l)
	for _, id := range []sigma.ProcID{p.Proc, l.endpoint.Proc} {
		if err == nil {
			err = x.manyLocked(id)
		}
	}
	if err != nil {
		mine.Close()
		theirs.Close()
		memory.Close() // of nil, too
		return nil, "", err
	}
	x.rings.last++
	t := x.ticket(x.rings.last, p, l)
	c := &connection{Connection: Connection{Number: x.rings.last, Endpoint: l.endpoint, From: p, Transport: "unix",
		Began: time.Now()}}
	if p.Machine == x.machine || p.Machine == "" {
		c.ends[ring.Dialled] = end{proc: p.Proc, realm: p.Realm, inode: inodes[0], since: c.Began}
	} else {
		c.Transport = "relay"
	}
	c.ends[ring.Accepted] = end{proc: l.endpoint.Proc, realm: l.endpoint.Realm, inode: inodes[1]}
	if p.Proc != "" ||
		l.endpoint.Realm != sigma.SystemRealm { // what sigmad and services have with each other nobody asks about
		x.noteLocked(c)
	}
	if memory != nil && t != "" {
		x.earlyLocked(memory, x.rings.last, p.Realm, p.Proc, e.Proc)
	} else {
		memory.Close()
	}
	if err := x.deliverLocked(l, arrival{file: theirs, from: p, ticket: t, number: c.Number}); err != nil {
		x.dropRingLocked(p.Proc, c.Number)
		mine.Close()
		return nil, "", err
	}
	return mine, t, nil
}

// Place is kept in a listener's backlog for a connection whose socket comes later, since the other
// machine's end is made first. One of its methods is called, once.
type Place struct {
	x     *Proxy
	l     *listener
	from  sigma.Principal
	other sigma.Life
}

// Reserve keeps a place for p, who dials from another machine, whose life that is, at an endpoint
// of FormStream.
func (x *Proxy) Reserve(p sigma.Principal, e sigma.Endpoint, other sigma.Life) (*Place, error) {
	l, err := x.find(p, e)
	if err != nil {
		return nil, err
	}
	if e.Form != sigma.FormStream {
		return nil, sigma.Errorf("dialproxy.Reserve", sigma.KindUnsupported,
			"only streams can be connected with another machine's directly")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.roomLocked(p, l); err != nil {
		return nil, err
	}
	l.reserved++
	x.countLocked(l, p.Realm, 1)
	return &Place{x, l, p, other}, nil
}

// Endpoint is the listener's.
func (p *Place) Endpoint() sigma.Endpoint { return p.l.endpoint }

// Give has the listener accept f, and owns it. If the listener has ended meanwhile, so does f.
func (p *Place) Give(f *os.File) {
	inode := inodeOf(f)
	p.x.mu.Lock()
	defer p.x.mu.Unlock()
	p.l.reserved--
	p.x.countLocked(p.l, p.from.Realm, -1)
	if p.x.listeners[p.l.endpoint.ID] != p.l || f == nil {
		f.Close() // of nil, too
		return
	}
	p.x.rings.last++
	c := &connection{Connection: Connection{Number: p.x.rings.last, Endpoint: p.l.endpoint, From: p.from,
		Transport: "tcp", Began: time.Now(), Other: p.other}}
	c.ends[ring.Accepted] = end{proc: p.l.endpoint.Proc, realm: p.l.endpoint.Realm, inode: inode}
	p.x.noteLocked(c)
	p.x.deliverLocked(p.l, arrival{file: f, from: p.from, number: c.Number}) // there is room, since it was reserved
}

// Close gives the place back.
func (p *Place) Close() error {
	p.Give(nil)
	return nil
}

// roomBytes is what may be under way on a connection of the machine's own, over which programs are
// fetched. By default three answers of a store fill a socket, and then it has to be empty again
// before more come: each time both sides wait for a processor.
const roomBytes = 2 << 20

// widen gives a socket that room, or as much as the kernel allows (net.core.wmem_max).
func widen(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, roomBytes/2)
	}) // the kernel doubles it
}

// countLocked counts connections that wait.
func (x *Proxy) countLocked(l *listener, realm sigma.RealmID, by int) {
	for _, m := range []map[sigma.RealmID]int{x.waiting, l.from} {
		if m[realm] += by; m[realm] == 0 {
			delete(m, realm)
		}
	}
}

// Close ends a listener of p: nobody can dial it any more. Who has dialled already can still be
// accepted, since a server that goes in good order owes them an answer; a second Close sends them
// away.
func (x *Proxy) Close(p sigma.Principal, id sigma.EndpointID) error {
	l, err := x.mine(p, id)
	if err != nil {
		return err
	}
	if !x.drain(l) {
		x.close(l)
	}
	return nil
}

// drain lets a listener end with those who wait at it. It reports false if there are none, or it
// was asked before.
func (x *Proxy) drain(l *listener) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l.ending || x.listeners[l.endpoint.ID] != l || len(l.waiting) == 0 && l.first == nil {
		return false
	}
	for _, own := range l.pools {
		x.leaveLocked(own, l)
	}
	l.ending = true
	close(l.closed)
	return true
}

func (x *Proxy) close(l *listener) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closeLocked(l)
}

func (x *Proxy) closeLocked(l *listener) {
	if x.listeners[l.endpoint.ID] != l {
		return
	}
	for _, own := range l.pools { // before the socket ends, so that whoever sees that end has all that began
		x.leaveLocked(own, l)
	}
	if l.out != nil {
		x.pushes.countLocked(l.endpoint.Realm, l.endpoint.Proc, -1)
		l.raw.Control(func(fd uintptr) {
			syscall.Shutdown(int(fd), syscall.SHUT_RDWR)
		}) // pump closes it; what it has is still received
	}
	delete(x.listeners, l.endpoint.ID)
	if x.owned[l.endpoint.Proc]--; x.owned[l.endpoint.Proc] <= 0 {
		delete(x.owned, l.endpoint.Proc)
		delete(x.rings.warm, l.endpoint.Proc)
	}
	if !l.ending {
		l.ending = true
		close(l.closed)
	}
	gone := func(a *arrival) {
		a.file.Close()
		a.held.Drop()
		x.countLocked(l, a.from.Realm, -1)
		x.dropRingLocked(l.endpoint.Proc, a.number)
	}
	if l.first != nil {
		gone(l.first)
		l.first = nil
	}
	for {
		select {
		case a := <-l.waiting:
			gone(&a)
		default:
			return
		}
	}
}

// Listens lists the endpoints of a proc.
func (x *Proxy) Listens(id sigma.ProcID) (out []sigma.Endpoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.owned[id] == 0 {
		return nil
	}
	for _, l := range x.listeners {
		if l.endpoint.Proc == id {
			out = append(out, l.endpoint)
		}
	}
	return out
}

// Listening is one endpoint with how many connections wait there.
type Listening struct {
	Endpoint sigma.Endpoint
	Waiting  int
}

// After lists up to n endpoints of a realm, or of all if it is "", in the order of their ids, from
// the one behind after on.
func (x *Proxy) After(realm sigma.RealmID, after sigma.EndpointID, n int) (out []Listening, more bool) {
	x.mu.Lock()
	for id, l := range x.listeners {
		if id > after && (realm == "" || l.endpoint.Realm == realm) {
			out = append(out, Listening{l.endpoint, len(l.waiting)})
		}
	}
	x.mu.Unlock()
	slices.SortFunc(out, func(a, b Listening) int {
		return strings.Compare(string(a.Endpoint.ID), string(b.Endpoint.ID))
	})
	return out[:min(n, len(out))], len(out) > n
}

// CloseProc ends all listeners of a proc that is gone, and its part in the memory of connections.
func (x *Proxy) CloseProc(id sigma.ProcID) {
	x.closeRings(id)
	x.closePools(id)
	x.CloseListeners(id)
	x.closeConnections(id) // now none can come at its listeners any more
	x.Forget(id)
}

// CloseListeners ends all listeners of a proc, with those who wait there: of one that is to be
// killed before it dies, so that who dials it meanwhile goes elsewhere and loses nothing.
func (x *Proxy) CloseListeners(id sigma.ProcID) {
	x.mu.Lock()
	var ls []*listener
	if x.owned[id] > 0 {
		for _, l := range x.listeners {
			if l.endpoint.Proc == id {
				ls = append(ls, l)
			}
		}
	}
	x.mu.Unlock()
	for _, l := range ls {
		x.close(l)
	}
}
