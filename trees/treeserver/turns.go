package treeserver

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/filestream"
	"sigmaos.dev/wire/sigmap"
)

// Limits of a server's work for realms.
const (
	// turnsMax requests are worked on at a time: more than what waits for a disk or for another
	// server can make use of, and few enough that a new one is soon through among them.
	turnsMax = 128
	// turnsOfRealm of them are one realm's: a flood of one realm leaves room, so that another's
	// request need not wait for any of it.
	turnsOfRealm = 96
	// turnTick: a request that takes one to two of these has waited for something, most likely, and
	// keeps its turn no longer while others want one. So who waits for a lock does not keep out who
	// holds it, and nothing waits for ever.
	turnTick = 10 * time.Millisecond
	// inFlightOfRealm bounds a realm's requests that were begun and not answered, with those that
	// wait for events; each costs some 8 KiB.
	inFlightOfRealm = 32768
	// waitsOfRealm of them may wait for events: the rest is left to those that are answered soon.
	waitsOfRealm = inFlightOfRealm / 8 * 7
	// inFlightShared is what one realm may have of the requests of a session that sigmad has for
	// realms, besides waitsShared that wait for events. Such a session takes RequestsMax of each.
	inFlightShared = RequestsMax / 2
	// waitsShared is more than the watches that named allows a realm if the provider says nothing.
	waitsShared = RequestsMax / 4 * 3
	// turnBytes cost as much as a request.
	turnBytes = 4 << 10
	// costUnit is the virtual time that a request takes a realm of one share.
	costUnit = 1 << 20
)

// Turns shares a server's work out among realms, and counts it. All sessions of a server have the
// same one (Config.Turns). A request that waits for its turn is the last that is read of its
// session: the rest stays in the socket, so that a flood costs who makes it.
//
// Realms that wait take turns by their shares, a large request counting as several. A realm has
// turnsOfRealm at a time at most. Requests that are there to wait (watches, calls to files of
// functions) take a turn to begin, and keep none. The system's own work waits for nobody. Safe for
// concurrent use.
type Turns struct {
	weights weights

	mu       sync.Mutex
	accounts map[sigma.RealmID]*account // mu
	shares   map[sigma.RealmID]uint32   // mu
	held     int                        // mu; turns
	holders  turn                       // mu; the ring of those
	waiting  []*account                 // mu; with requests in line
	clock    uint64                     // mu; virtual time: when what was begun last was to begin
	ticking  bool                       // mu
}

// account is one realm's.
type account struct {
	realm sigma.RealmID
	work  work

	shares   uint64 // Turns.mu; 0 = 1
	sessions int    // Turns.mu; that may use it
	inFlight int    // Turns.mu
	waits    int    // Turns.mu; those of inFlight that wait for events
	held     int    // Turns.mu
	line     turn   // Turns.mu; the ring of those in line, first come first
	next     uint64 // Turns.mu; virtual time until which it had its due
}

// turn is one request's.
type turn struct {
	of         *account
	cost       uint64
	brief      bool          // it only takes a turn to begin
	waits      bool          // for an event, which need not come
	ready      chan struct{} // closed when it may begin; nil: it did not wait
	holds      bool          // Turns.mu
	lined      bool          // Turns.mu; it is in line
	old        bool          // Turns.mu; it held its turn at the last tick
	prev, next *turn         // Turns.mu; in holders, or in its account's line
}

// NewTurns makes the Turns of a server.
func NewTurns() *Turns {
	t := &Turns{accounts: map[sigma.RealmID]*account{}}
	t.holders.empty()
	return t
}

// empty makes x a ring of nobody else.
func (x *turn) empty() { x.prev, x.next = x, x }

// append puts y last into the ring of x.
func (x *turn) append(y *turn) {
	y.prev, y.next = x.prev, x
	y.prev.next, x.prev = y, y
}

// unlink takes x out of its ring.
func (x *turn) unlink() {
	x.prev.next, x.next.prev = x.next, x.prev
	x.prev, x.next = nil, nil
}

// SetShares tells how many turns realms have compared to each other; those that are not named have
// 1. It keeps the map.
func (t *Turns) SetShares(of map[sigma.RealmID]uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shares = of
	for realm, a := range t.accounts {
		a.shares = uint64(of[realm])
	}
}

// join gives a realm's account to a session, until it leaves.
func (t *Turns) join(realm sigma.RealmID) *account {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.accounts[realm]
	if a == nil {
		a = &account{realm: realm, shares: uint64(t.shares[realm])}
		a.line.empty()
		t.accounts[realm] = a
	}
	a.sessions++
	return a
}

func (t *Turns) leave(a *account) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.sessions--
}

// enter asks for a turn. If x.ready is not nil after it, the request may begin when that is closed.
// An error says that too much is in flight, unless the request is to have a turn all the same
// (gives); then it has none. exit ends it in any other case.
func (t *Turns) enter(x *turn, gives bool) error {
	a := x.of
	x.ready, x.holds, x.lined, x.old = nil, false, false, false
	if a.realm == sigma.SystemRealm {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.inFlight >= inFlightOfRealm && !gives {
		return tooMany(inFlightOfRealm)
	}
	if x.waits {
		if a.waits >= waitsOfRealm {
			return tooManyWait(waitsOfRealm)
		}
		a.waits++
	}
	a.inFlight++
	if t.held < turnsMax && a.held < turnsOfRealm { // then nobody waits who could have it
		t.grantLocked(x)
		return nil
	}
	x.ready, x.lined = make(chan struct{}), true
	if a.line.next == &a.line {
		t.waiting = append(t.waiting, a)
	}
	a.line.append(x)
	if !t.ticking {
		t.ticking = true
		time.AfterFunc(turnTick, t.tick)
	}
	return nil
}

func tooMany(most int) error {
	return &sigma.Error{Op: "treeserver.Serve", Kind: sigma.KindBusy,
		Msg:  fmt.Sprintf("%d requests of this realm are in flight", most),
		Hint: "wait for answers before you ask for more"}
}

func tooManyWait(most int) error {
	return &sigma.Error{Op: "treeserver.Serve", Kind: sigma.KindBusy,
		Msg:  fmt.Sprintf("%d requests of this realm wait for changes and files", most),
		Hint: "watch a directory instead of each of its files"}
}

// exit gives a turn back, or the wish for one.
func (t *Turns) exit(x *turn) {
	a := x.of
	if a.realm == sigma.SystemRealm {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a.inFlight--
	if x.waits {
		a.waits--
	}
	if x.holds {
		t.dropLocked(x)
		t.nextLocked()
		return
	}
	if x.lined {
		t.outLocked(x)
	}
}

// outLocked takes a request out of its account's line.
func (t *Turns) outLocked(x *turn) {
	a := x.of
	x.lined = false
	x.unlink()
	if a.line.next != &a.line {
		return
	}
	for i, w := range t.waiting {
		if w == a {
			last := len(t.waiting) - 1
			t.waiting[i], t.waiting[last] = t.waiting[last], nil
			t.waiting = t.waiting[:last]
			return
		}
	}
}

// grantLocked has a request begin.
func (t *Turns) grantLocked(x *turn) {
	a := x.of
	t.clock = max(t.clock, a.next)
	a.next = t.clock + x.cost/max(1, a.shares)
	if x.brief {
		return
	}
	x.holds = true
	t.held++
	a.held++
	t.holders.append(x)
}

// dropLocked takes a turn away.
func (t *Turns) dropLocked(x *turn) {
	x.holds = false
	t.held--
	x.of.held--
	x.unlink()
}

// nextLocked has those begin for which there are turns: of the realms whose due is earliest.
func (t *Turns) nextLocked() {
	for t.held < turnsMax && len(t.waiting) > 0 {
		var first *account
		for _, a := range t.waiting {
			if a.held < turnsOfRealm && (first == nil || a.next < first.next) {
				first = a
			}
		}
		if first == nil {
			return
		}
		x := first.line.next
		t.outLocked(x)
		t.grantLocked(x)
		close(x.ready)
	}
}

// tick takes their turns away from requests that have them for long. It runs while anybody waits.
func (t *Turns) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.ticking = false
		return
	}
	for x := t.holders.next; x != &t.holders; {
		next := x.next
		if x.old {
			t.dropLocked(x)
		}
		x.old, x = true, next
	}
	t.nextLocked()
	time.AfterFunc(turnTick, t.tick)
}

// How a session's requests take turns with those of other sessions (Turns), and are counted for
// realms.

// asking is a realm's part of a session that many share.
type asking struct {
	*account
	inFlight atomic.Int32 // besides those that wait for events
	waits    atomic.Int32
}

// room is where a request is counted, and how many may be there.
func (a *asking) room(x *turn) (n *atomic.Int32, most int32) {
	if x.waits {
		return &a.waits, waitsShared
	}
	return &a.inFlight, inFlightShared
}

// join has the session's requests counted for a realm, and for those to which it attaches.
func (s *server) join(realm sigma.RealmID) {
	s.own, s.shared = s.cfg.Turns.join(realm), map[sigma.RealmID]*asking{}
	s.sample = rand.Uint64() % sampleEach
}

// leave ends it.
func (s *server) leave() {
	s.cfg.Turns.leave(s.own)
	for _, a := range s.shared {
		s.cfg.Turns.leave(a.account)
	}
}

// attachedFor is for whom is asked what comes through an attach; nil = the session's own realm.
func (s *server) attachedFor(m *sigmap.Tattach) *asking {
	name, _, _ := strings.Cut(m.Aname, "/") // sigmap.AsOwner
	realm := sigma.RealmID(name)
	if s.own == nil || !s.cfg.ForRealms || realm.Check() != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.shared[realm]
	if a == nil {
		a = &asking{account: s.cfg.Turns.join(realm)}
		s.shared[realm] = a
	}
	return a
}

// askingOf is for which other realm than the session's own m asks; nil = for that.
func (s *server) askingOf(m sigmap.Message) *asking {
	if !s.cfg.ForRealms {
		return nil
	}
	n, ok := fidOf(m)
	switch m := m.(type) {
	case *sigmap.Tclunk:
		n, ok = m.Fid, true
	case *sigmap.Tcall:
		n, ok = m.Fid, true
	case *sigmap.Trenameat:
		n, ok = m.OldDir, true
	}
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.fids[n]; f != nil {
		return f.of
	}
	return nil
}

// waitsForEvent says that a request may go unanswered for ever, as long as nothing happens.
func waitsForEvent(m sigmap.Message) bool {
	switch m := m.(type) {
	case *sigmap.Twatch:
		return true
	case *sigmap.Tput:
		return m.Options.Wait
	}
	return false
}

// isBrief says that a request waits for something to happen, by its nature, and so keeps no turn.
func (s *server) isBrief(m sigmap.Message, prompt bool) bool {
	call, ok := m.(*sigmap.Tcall)
	if !ok || prompt {
		return waitsForEvent(m)
	}
	f, err := s.get(call.Fid)
	if err != nil {
		return false
	}
	defer s.put(f)
	_, is := f.file.(prompter)
	return is
}

// enter asks for a turn of a request's. wait: it has to wait for it, until its ready is closed.
func (s *server) enter(m sigmap.Message, size int) (r *request, wait bool, err error) {
	if r = s.spare; r == nil {
		r = &request{}
		s.spare = r
	}
	r.prompt = s.isPrompt(m)
	if s.own == nil {
		return r, false, nil
	}
	_, gives := m.(*sigmap.Tclunk) // something back: there is no limit to that
	r.turn.of, r.turn.cost, r.turn.brief = s.own, costUnit*(1+(uint64(size)+uint64(answerSize(m)))/turnBytes),
		s.isBrief(m, r.prompt)
	r.turn.waits = waitsForEvent(m)
	if r.of = s.askingOf(m); r.of != nil {
		r.turn.of = r.of.account
		switch n, most := r.of.room(&r.turn); {
		case n.Load() < most || gives:
		case r.turn.waits:
			return nil, false, tooManyWait(waitsShared)
		default:
			return nil, false, tooMany(inFlightShared)
		}
	}
	if err := s.cfg.Turns.enter(&r.turn, gives); err != nil {
		return nil, false, err
	}
	if r.of != nil {
		n, _ := r.of.room(&r.turn)
		n.Add(1)
	}
	if r.turn.waits {
		s.waits.Add(1)
	}
	s.sample++
	r.sampled = s.sample%sampleEach == 0 && !r.turn.brief
	return r, r.turn.ready != nil, nil
}

// exit ends a request's turn, or its wish for one.
func (s *server) exit(r *request) {
	if s.own == nil {
		return
	}
	s.cfg.Turns.exit(&r.turn)
	if r.of != nil {
		n, _ := r.of.room(&r.turn)
		n.Add(-1)
	}
	if r.turn.waits {
		s.waits.Add(-1)
	}
}

// measure begins to measure what a request costs, if it is one of those.
func (s *server) measure(r *request) (began time.Duration) {
	if r.sampled {
		began, r.sampled = s.cfg.Turns.weights.begin()
	}
	return began
}

// done counts a request that was answered with so many bytes, and ends its turn. It is called by
// the goroutine that measured.
func (s *server) done(r *request, kind sigmap.Type, size, sent int, began time.Duration) {
	if s.own == nil {
		return
	}
	class := classOf(kind, size+sent)
	if r.sampled {
		s.cfg.Turns.weights.end(class, began, true)
	}
	r.turn.of.work.count(class, size, sent)
	s.exit(r)
}

// recalled answers a request at once if that can be (recall), and says whether it did.
func (s *server) recalled(tag uint16, m sigmap.Message, r *request, size int) (bool, error) {
	if _, ok := m.(*sigmap.Tget); !ok {
		return false, nil
	}
	began := s.measure(r)
	reply := s.recall(m)
	if reply == nil {
		if r.sampled {
			s.cfg.Turns.weights.end(0, began, false)
			r.sampled = false
		}
		return false, nil
	}
	sent, err := s.answer(tag, reply, nil)
	s.done(r, m.Type(), size, sent, began)
	return true, err
}

// streamMeter counts the pieces of a stream, as requests by which the stream was asked for.
type streamMeter struct {
	turns   *Turns
	of      *account
	pieces  uint64 // since one was measured
	began   time.Duration
	sampled bool
}

// streamMeter makes the meter of a stream of f; nil where nobody counts.
func (s *server) streamMeter(f *fid) filestream.Meter {
	if s.own == nil {
		return nil
	}
	m := &streamMeter{turns: s.cfg.Turns, of: s.own, pieces: rand.Uint64() % sampleEach}
	if f.of != nil { // not changed
		m.of = f.of.account
	}
	return m
}

// Begin implements filestream.Meter.
func (m *streamMeter) Begin() {
	m.pieces++
	if m.sampled = m.pieces%sampleEach == 0; m.sampled {
		m.began, m.sampled = m.turns.weights.begin()
	}
}

// End implements filestream.Meter.
func (m *streamMeter) End(in, out int) {
	class := classOf((&sigmap.Tbulk{}).Type(), in+out)
	if m.sampled {
		m.turns.weights.end(class, m.began, true)
	}
	m.of.work.count(class, in, out)
}

// A server's processor time cannot be told apart by realms request by request: a thread works on
// many. So one request in sampleEach has its thread for itself, and what that used is what a
// request of its class costs: of the same message, and as many bytes within a factor of eight. What
// a realm's requests cost is estimated by how many it made of each class.

const (
	// sampleEach is chosen so that measuring, two system calls and a thread that is not shared,
	// costs some 1 % of the cheapest request.
	sampleEach = 64
	// samplesMax requests are measured at a time: each keeps a thread.
	samplesMax = 4
	// sampleMemory is how many samples of a class weigh in its mean.
	sampleMemory = 256
	// sampleGuess is what a class is taken to cost before it was measured.
	sampleGuess = 10 * time.Microsecond

	kinds   = 80 // of requests: half their types' numbers, as types of requests are even
	sizes   = 4  // below 1 KiB, below 8, below 64, more
	classes = kinds * sizes
)

// work is what one realm has had done.
type work struct {
	requests [classes]atomic.Uint32 // wrapping; by class
	in, out  atomic.Uint64          // bytes of messages

	told            [classes]uint32 // of Work only
	toldIn, toldOut uint64          // as told
}

// classOf is the class of a request that has so many bytes, with its answer.
func classOf(kind sigmap.Type, bytes int) int {
	size := 0
	for b := bytes >> 10; b > 0 && size < sizes-1; b >>= 3 {
		size++
	}
	return int(kind/2)%kinds*sizes + size
}

// weights are what requests cost by class.
type weights struct {
	busy atomic.Int32 // samples being taken

	mu    sync.Mutex
	mean  [classes]time.Duration // mu
	count [classes]int           // mu
}

// begin begins a sample, unless enough are being taken.
func (w *weights) begin() (since time.Duration, is bool) {
	if w.busy.Add(1) > samplesMax {
		w.busy.Add(-1)
		return 0, false
	}
	runtime.LockOSThread()
	return threadTime(), true
}

// end ends it, by the goroutine that began it; counts says that it is one of that class.
func (w *weights) end(class int, since time.Duration, counts bool) {
	used := threadTime() - since
	runtime.UnlockOSThread()
	w.busy.Add(-1)
	if !counts {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[class] = min(w.count[class]+1, sampleMemory)
	w.mean[class] += (used - w.mean[class]) / time.Duration(w.count[class])
}

// threadTime is the processor time of the thread.
func threadTime() time.Duration {
	const clockThread = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	// SAFETY: the kernel writes one timespec to t, which outlives the call.
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockThread, uintptr(unsafe.Pointer(&t)), 0)
	return time.Duration(t.Nano())
}

// Work is what was new of all realms, the system's among them, since it was called last. It is for
// one caller at a time.
func (t *Turns) Work() (out []sigma.Work) {
	t.mu.Lock()
	accounts := make([]*account, 0, len(t.accounts))
	for realm, a := range t.accounts {
		accounts = append(accounts, a)
		if a.sessions == 0 && a.inFlight == 0 { // all that it had is told now
			delete(t.accounts, realm)
		}
	}
	t.mu.Unlock()
	t.weights.mu.Lock()
	mean := t.weights.mean
	for i := range mean {
		if t.weights.count[i] == 0 {
			mean[i] = sampleGuess
		}
	}
	t.weights.mu.Unlock()
	for _, a := range accounts {
		w, done := &a.work, sigma.Work{Realm: a.realm}
		for i := range w.requests {
			if n := w.requests[i].Load(); n != w.told[i] {
				done.Requests += uint64(n - w.told[i])
				done.CPU += time.Duration(n-w.told[i]) * mean[i]
				w.told[i] = n
			}
		}
		in, sent := w.in.Load(), w.out.Load()
		done.In, done.Out = sigma.Bytes(in-w.toldIn), sigma.Bytes(sent-w.toldOut)
		if w.toldIn, w.toldOut = in, sent; done.Requests > 0 || done.In > 0 || done.Out > 0 {
			out = append(out, done)
		}
	}
	return out
}

// count notes a request that was answered.
func (w *work) count(class, in, out int) {
	w.requests[class].Add(1)
	w.in.Add(uint64(in))
	w.out.Add(uint64(out))
}
