// Package inflight passes file descriptors over UNIX sockets, and counts those that the reader has
// not received.
//
// The kernel counts the descriptors that lie unread in sockets for the uid that sent them. When
// they are more than RLIMIT_NOFILE, no process of that uid can send any: sigmad could start no proc
// and answer no dial. So a proc that asks for descriptors and never reads would stop the whole
// machine.
//
// It promises that all tenants together never reach the kernel's limit, that realms which read
// nothing leave room to others, and that the services' room is their own. The rule is that only
// Parcel.Send can send a descriptor (internal/tidy checks it), and that a Parcel exists only while
// its descriptors are counted. A descriptor is counted from Pack on, and until the sender's own
// socket shows that the reader took the record (rawio.Unread). What the reader says of it is never
// used.
//
// Users: session, dialproxy, launch. Locks: Queue.mu before Account.mu. Nothing blocks under them.
package inflight

import (
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
)

const (
	// RecordMax is how many descriptors go with one record: a batch of connections that were made
	// in advance with their line, or half a batch with memory.
	RecordMax = 17
	// ProcMax is how many descriptors one proc may have unread, in all of its sockets. A session's
	// socket that is full of dials' answers has about 340, a listener's about 200.
	ProcMax = 512
	// LauncherMax bounds those to the launcher. Requests beyond it wait until the launcher has
	// received others.
	LauncherMax = 2048
	// realmsMost is for how many realms that read nothing there is room, and servicesMost the same
	// of services.
	realmsMost   = 128
	servicesMost = 16
	// looksMax is how many sockets are looked at before a descriptor is refused, so that a refusal
	// costs little. Those that were read make room.
	looksMax = 16
	// lingerEvery is how often closed sockets are looked at that had something unread.
	lingerEvery = time.Second
)

// Account counts what one process passed to many readers. Safe for concurrent use.
type Account struct {
	mu        sync.Mutex
	tenants   pot                     // mu
	system    pot                     // mu
	procs     map[sigma.ProcID]*level // mu
	lingering map[*Queue]bool         // mu; closed, and something in them is unread
	looks     *time.Timer             // mu; for them; nil = none
	closed    bool                    // mu
}

// pot is a part of the kernel's limit. Half of it is kept: own for each who shares it, up to a
// number of them. From the other half one gets no more than half of what is left. What nobody reads
// does not come back; so without what is kept, a few greedy ones would leave nothing to the next.
type pot struct {
	most   int
	own    int // descriptors that each may always have
	extra  int // that some have beyond own
	all    level
	shares map[string]*level
}

func newPot(most, sharers int) pot {
	return pot{most: most, own: max(most/2/sharers, 2), shares: map[string]*level{}}
}

// add counts n more of a share, or less.
func (p *pot) add(share *level, n int) {
	p.extra -= max(share.n-p.own, 0)
	share.n += n
	p.all.n += n
	p.extra += max(share.n-p.own, 0)
}

// may says whether a share may have n more.
func (p *pot) may(share *level, n int) bool {
	beyond := max(share.n+n-p.own, 0)
	others := p.extra - max(share.n-p.own, 0)
	return p.all.n+n <= p.most && (beyond == 0 || beyond <= (p.most/2-others-beyond)/2)
}

// level counts descriptors, and knows the sockets in which they are.
type level struct {
	n      int
	queues map[*Queue]bool
}

// New makes the Account of a process with a limit of descriptors (RLIMIT_NOFILE). Half of it is for
// tenants and an eighth for services. The launcher's socket, and what procs have not read of a
// former life of the process, have the rest.
func New(limit int) *Account {
	return &Account{tenants: newPot(limit/2, realmsMost), system: newPot(limit/8, servicesMost),
		procs: map[sigma.ProcID]*level{}, lingering: map[*Queue]bool{}}
}

// Unread counts the descriptors of all readers that have not been received as far as is known.
func (a *Account) Unread() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tenants.all.n + a.system.all.n
}

// Queue is the sending end of one socket. The zero value with its socket (Of) is bounded by itself
// alone, for processes that pass little. Safe for concurrent use.
type Queue struct {
	socket syscall.RawConn
	most   int // 0 = ProcMax; of a Queue without Account
	a      *Account
	realm  sigma.RealmID
	proc   sigma.ProcID
	unread atomic.Int32 // that were sent and not received; written under mu

	mu      sync.Mutex
	packed  int       // mu; not sent yet; of a Queue without Account
	records []record  // mu; unread ones that carry descriptors, oldest first
	sent    uint64    // mu; bytes since records was empty
	closer  io.Closer // mu; of the socket, after Close
}

// record is one that carries descriptors.
type record struct {
	files int
	end   uint64 // value of sent behind it
}

// Of sets the socket. most bounds the descriptors if the Queue gets no Account; 0 = ProcMax.
func (q *Queue) Of(socket syscall.RawConn, most int) { q.socket, q.most = socket, most }

// Charge has what the Queue sends count for a proc of a realm. Call it before anything is sent.
func (q *Queue) Charge(a *Account, realm sigma.RealmID, proc sigma.ProcID) {
	if q != nil {
		q.a, q.realm, q.proc = a, realm, proc
	}
}

// Parcel is descriptors that are counted and were not sent yet. It is sent or dropped once.
type Parcel struct {
	q     *Queue
	files []*os.File // the caller's; kept from the collector of garbage
	fds   []int
	n     int // that are counted; 0 = sent or dropped
}

// Pack counts files, so that they can be sent. KindBusy: the reader, its realm or all of them have
// too many unread. KindUnsupported: q is nil, as of a byte stream. A Parcel of no files is nil.
func (q *Queue) Pack(files []*os.File) (*Parcel, error) {
	if len(files) == 0 {
		return nil, nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	p, err := q.PackFDs(fds)
	if err == nil {
		p.files = files
	}
	return p, err
}

// PackFDs is Pack of descriptors that the caller keeps open until the Parcel was sent or dropped.
func (q *Queue) PackFDs(fds []int) (*Parcel, error) {
	const op = "inflight.Pack"
	switch n := len(fds); {
	case q == nil:
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "a byte stream carries no file descriptors")
	case n > RecordMax:
		return nil, sigma.Errorf(op, sigma.KindTooBig, "%d file descriptors with one message; %d are possible", n,
			RecordMax)
	}
	if q.unread.Load() > 0 {
		q.settle()
	}
	if err := q.take(len(fds)); err != nil {
		return nil, err
	}
	return &Parcel{q: q, fds: fds, n: len(fds)}, nil
}

// take counts n more, unless a bound is reached though what is known to be read makes room.
func (q *Queue) take(n int) error {
	for looked := false; ; looked = true {
		full, err := q.tryTake(n)
		if err == nil || looked {
			return err
		}
		for _, other := range full {
			other.settle()
		}
	}
}

// tryTake is take without making room. If it fails full are Queues where descriptors are unread.
func (q *Queue) tryTake(n int) (full []*Queue, err error) {
	const op = "inflight.Pack"
	if q.a == nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		most := q.most
		if most == 0 {
			most = ProcMax
		}
		if have := q.packed + int(q.unread.Load()); have+n > most {
			return nil, unreadError(op, have, "the reader of this socket has")
		}
		q.packed += n
		return nil, nil
	}
	a := q.a
	a.mu.Lock()
	defer a.mu.Unlock()
	p, share, proc := a.levelsLocked(q)
	switch {
	case proc.n+n > min(ProcMax, p.most/8):
		full, err = proc.some(), unreadError(op, proc.n, "this proc has")
	case !p.may(share, n):
		full, err = append(share.some(), p.all.some()...), unreadError(op, share.n, "the procs of this realm have")
	default:
		p.add(share, n)
		proc.n += n
	}
	a.forgetLocked(q)
	return full, err
}

func unreadError(op string, n int, who string) error {
	err := sigma.Errorf(op, sigma.KindBusy, "%s %d descriptors that were passed and have not been received", who, n)
	err.Hint = "read answers and accept connections, then ask again"
	return err
}

// levelsLocked are the counts in which a Queue counts: of a tenant's those of its realm and of all
// tenants, of a service's its own and those of all services.
func (a *Account) levelsLocked(q *Queue) (p *pot, share, proc *level) {
	p, key := &a.tenants, string(q.realm)
	if q.realm == sigma.SystemRealm {
		p, key = &a.system, string(q.proc)
	}
	if share = p.shares[key]; share == nil {
		share = &level{}
		p.shares[key] = share
	}
	if proc = a.procs[q.proc]; proc == nil {
		proc = &level{}
		a.procs[q.proc] = proc
	}
	return p, share, proc
}

// forgetLocked drops counts of a Queue that are zero.
func (a *Account) forgetLocked(q *Queue) {
	p, share, proc := a.levelsLocked(q)
	if share.n == 0 {
		if q.realm == sigma.SystemRealm {
			delete(p.shares, string(q.proc))
		} else {
			delete(p.shares, string(q.realm))
		}
	}
	if proc.n == 0 {
		delete(a.procs, q.proc)
	}
}

// some are up to looksMax of a level's Queues, others each time.
func (l *level) some() (out []*Queue) {
	for q := range l.queues {
		if out = append(out, q); len(out) == looksMax {
			break
		}
	}
	return out
}

// give counts n less. waits says that something in q is unread still.
func (q *Queue) give(n int, waits bool) {
	a := q.a
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p, share, proc := a.levelsLocked(q)
	p.add(share, -n)
	proc.n -= n
	for _, l := range []*level{&p.all, share, proc} {
		l.hold(q, waits)
	}
	a.forgetLocked(q)
}

// hold notes whether something in q is unread.
func (l *level) hold(q *Queue, waits bool) {
	if !waits {
		delete(l.queues, q)
		return
	}
	if l.queues == nil {
		l.queues = map[*Queue]bool{}
	}
	l.queues[q] = true
}

// Send sends a record with the descriptors. fd is the Queue's socket, which does not block; EAGAIN:
// there is no room now, and Send may be called again.
func (p *Parcel) Send(fd int, msg []byte) error {
	q := p.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := rawio.Sendmsg(fd, msg, syscall.UnixRights(p.fds...)); err != nil {
		return err
	}
	q.sent += uint64(len(msg))
	q.records = append(q.records, record{p.n, q.sent})
	q.unread.Add(int32(p.n))
	if q.a == nil {
		q.packed -= p.n
	} else {
		q.give(0, true)
	}
	p.n, p.files = 0, nil
	return nil
}

// Drop counts no more what was not sent. Of a nil Parcel, or after Send, it does nothing.
func (p *Parcel) Drop() {
	if p == nil || p.n == 0 {
		return
	}
	q := p.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.a == nil {
		q.packed -= p.n
	} else {
		q.give(p.n, q.unread.Load() > 0)
	}
	p.n, p.files = 0, nil
}

// Len is how many descriptors there are; 0 of nil.
func (p *Parcel) Len() int {
	if p == nil {
		return 0
	}
	return p.n
}

// Write writes a record without descriptors, as rawio.Write does. All such records should go by
// it: each that follows one with descriptors helps to see that the latter was read.
func (q *Queue) Write(fd int, msg []byte) (int, error) {
	if q.unread.Load() == 0 {
		return rawio.Write(fd, msg)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n, err := rawio.Write(fd, msg)
	if err == nil {
		q.sent += uint64(n)
	}
	return n, err
}

// settle counts no more what the reader has received.
func (q *Queue) settle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settleLocked()
}

// settleLocked looks how much of what was sent is unread. The kernel counts buffers, which are
// larger than the records in them. So if no more is unread than what was sent behind a record, that
// record was read: were it not, it and all behind it would be unread.
func (q *Queue) settleLocked() {
	waits, err := 0, error(nil)
	if len(q.records) == 0 || q.socket == nil {
		return
	}
	if e := q.socket.Control(func(fd uintptr) { waits, err = rawio.Unread(int(fd)) }); e != nil || err != nil {
		return // it is not known
	}
	read, n := 0, 0
	for read < len(q.records) && q.sent-q.records[read].end >= uint64(waits) {
		n += q.records[read].files
		read++
	}
	q.records = slices.Delete(q.records, 0, read)
	if len(q.records) == 0 {
		q.records, q.sent = nil, 0
	}
	q.unread.Add(-int32(n))
	q.give(n, len(q.records) > 0)
}

// Close closes the socket. What is unread then stays in flight until the reader receives it or
// ends: so the Queue only shuts the socket down, which shows the reader the end behind what is
// there, goes on counting, and closes it later.
func (q *Queue) Close(socket io.Closer) error {
	if q.linger(socket) {
		return nil
	}
	// Without q.mu: the socket's Close waits for senders that use it, and these wait for q.mu.
	return socket.Close()
}

// linger shuts the socket down and leaves its end to Account.look. It returns false if the socket
// is to be closed now: nothing in it is unread, or it is not counted for an Account.
func (q *Queue) linger(socket io.Closer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closer != nil {
		return true
	}
	if q.settleLocked(); q.a == nil || len(q.records) == 0 {
		return false
	}
	var failed error
	err := q.socket.Control(func(fd uintptr) { failed = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	if err != nil || failed != nil && failed != unix.ENOTCONN {
		return false // it was closed by somebody else
	}
	q.closer = socket
	q.a.mu.Lock()
	defer q.a.mu.Unlock()
	q.a.lingering[q] = true
	if q.a.looks == nil {
		q.a.looks = time.AfterFunc(lingerEvery, q.a.look)
	}
	return true
}

// look closes sockets that were read, or whose reader is gone, since Queue.Close. It runs every
// second while there are any.
func (a *Account) look() {
	a.closeLingering(false)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.looks = nil; len(a.lingering) > 0 && !a.closed {
		a.looks = time.AfterFunc(lingerEvery, a.look)
	}
}

// Close closes all sockets that wait to be closed.
func (a *Account) Close() {
	a.mu.Lock()
	a.closed = true
	if a.looks != nil {
		a.looks.Stop()
	}
	a.mu.Unlock()
	a.closeLingering(true)
}

func (a *Account) closeLingering(all bool) {
	a.mu.Lock()
	queues := slices.Collect(maps.Keys(a.lingering))
	a.mu.Unlock()
	for _, q := range queues {
		q.mu.Lock()
		q.settleLocked()
		over := all || len(q.records) == 0
		q.mu.Unlock()
		if !over {
			continue
		}
		q.closer.Close() // without q.mu, as in Queue.Close; closer is not changed any more
		a.mu.Lock()
		delete(a.lingering, q)
		a.mu.Unlock()
	}
}
