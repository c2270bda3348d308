package treeserver

import (
	"fmt"
	"sync"
	"time"

	"sigmaos.dev/sigma"
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
