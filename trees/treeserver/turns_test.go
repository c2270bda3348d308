package treeserver

import (
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// begun says whether a request may begin.
func begun(x *turn) bool {
	if x.ready == nil {
		return true
	}
	select {
	case <-x.ready:
		return true
	default:
		return false
	}
}

func ask(t *testing.T, turns *Turns, of *account, cost uint64) *turn {
	t.Helper()
	x := &turn{of: of, cost: cost * costUnit}
	if err := turns.enter(x, false); err != nil {
		t.Fatal(err)
	}
	return x
}

// Goal: of 10,000 requests of one realm so many begin as it may have at a time; another's begins at
// once, before all others of the first. When all turns are taken realms have them by shares, and by
// what their requests cost.
func TestTurnsShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns()
		turns.SetShares(map[sigma.RealmID]uint32{"b": 2})
		lines := map[sigma.RealmID][]*turn{}
		flood := func(realm sigma.RealmID, n int, cost uint64) {
			a := turns.join(realm)
			for range n {
				lines[realm] = append(lines[realm], ask(t, turns, a, cost))
			}
		}
		count := func(realm sigma.RealmID) (n int) {
			for _, x := range lines[realm] {
				if begun(x) {
					n++
				}
			}
			return n
		}
		flood("a", 10000, 1)
		if n := count("a"); n != turnsOfRealm {
			t.Fatalf("%d requests of a began, not %d", n, turnsOfRealm)
		}
		one := ask(t, turns, turns.join("one"), 1)
		if !begun(one) {
			t.Fatal("another realm's request waits for a flood")
		}
		turns.exit(one)
		own := &turn{of: turns.join(sigma.SystemRealm)}
		if err := turns.enter(own, false); err != nil || !begun(own) {
			t.Errorf("the system's own waits: %v", err)
		}
		flood("b", 5000, 1)
		flood("c", 5000, 4)
		if n := count("b") + count("c"); n != turnsMax-turnsOfRealm {
			t.Fatalf("%d requests of b and c began, not %d", n, turnsMax-turnsOfRealm)
		}
		// The flood's first end, in the order in which they began, and each is followed by another.
		// Ends of a realm are as many as its beginnings, so all that counts is who is next.
		before := map[sigma.RealmID]int{"a": count("a"), "b": count("b"), "c": count("c")}
		const rounds = 700
		for range rounds {
			x := turns.holders.next
			turns.exit(x)
		}
		a, b, c := count("a")-before["a"], count("b")-before["b"], count("c")-before["c"]
		if a+b+c != rounds {
			t.Errorf("%d, %d and %d began, not %d in all", a, b, c, rounds)
		}
		// a has 1 share, b 2, c 1 and its requests cost 4: 4 to 8 to 1 of 13. b is bound by what it
		// may have at a time for a while.
		if c < rounds/13-8 || c > rounds/13+40 || a < 3*c || b < a {
			t.Errorf("%d, %d and %d began, which is not by shares", a, b, c)
		}
		late := ask(t, turns, turns.join("late"), 1)
		ends := 0
		for ; !begun(late); ends++ {
			turns.exit(turns.holders.next)
		}
		if ends > 8 {
			t.Errorf("another realm's first request waited for %d ends", ends)
		}
		for len(turns.waiting) > 0 { // so that no timer is left
			turns.exit(turns.waiting[0].line.next)
		}
		<-time.After(2 * turnTick)
	})
}

// Goal: requests that wait for one another lose their turns, so that who holds the lock comes; a
// wish that is given up is forgotten; what is in flight is bounded.
func TestTurnsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns()
		a := turns.join("a")
		var all []*turn
		for range turnsOfRealm {
			all = append(all, ask(t, turns, a, 1))
		}
		given, commit := ask(t, turns, a, 1), ask(t, turns, a, 1)
		turns.exit(given)
		synctest.Wait()
		if begun(commit) || begun(given) {
			t.Fatal("there were more turns than a realm may have")
		}
		began := time.Now()
		<-commit.ready
		if d := time.Since(began); d > 2*turnTick {
			t.Errorf("it came after %v", d)
		}
		brief := &turn{of: a, brief: true}
		if err := turns.enter(brief, false); err != nil || !begun(brief) {
			t.Errorf("a brief one: %v", err)
		}
		synctest.Wait() // the tick is over
		a.inFlight += inFlightOfRealm
		if err := turns.enter(&turn{of: a}, false); sigma.KindOf(err) != sigma.KindBusy {
			t.Errorf("too much in flight: %v", err)
		}
		a.inFlight -= inFlightOfRealm
		a.waits += waitsOfRealm
		if err := turns.enter(&turn{of: a, brief: true, waits: true}, false); sigma.KindOf(err) != sigma.KindBusy {
			t.Errorf("too many wait for events: %v", err)
		}
		turns.exit(ask(t, turns, a, 1))
		a.waits -= waitsOfRealm
		for _, x := range append(all, commit, brief) {
			turns.exit(x)
		}
		synctest.Wait()
		if turns.held != 0 || a.held != 0 || a.inFlight != 0 || turns.holders.next != &turns.holders {
			t.Errorf("%d turns are held, %d of a, %d in flight", turns.held, a.held, a.inFlight)
		}
		<-time.After(2 * turnTick)
		synctest.Wait()
		if turns.ticking {
			t.Error("it ticks though nobody waits")
		}
	})
}

// Goal: what is new is told once, by realm; classes that were measured cost what was measured.
func TestWork(t *testing.T) {
	turns := NewTurns()
	a, b := turns.join("a"), turns.join("b")
	class := classOf(132, 100)
	turns.weights.mean[class], turns.weights.count[class] = 3*time.Microsecond, 1
	for range 10 {
		a.work.count(class, 60, 40)
	}
	b.work.count(classOf(134, 1<<20), 1<<20, 12)
	turns.leave(b)
	told := map[sigma.RealmID]sigma.Work{}
	for _, w := range append(turns.Work(), turns.Work()...) {
		if told[w.Realm].Requests > 0 {
			t.Errorf("%s was told twice", w.Realm)
		}
		told[w.Realm] = w
	}
	if want := (sigma.Work{Realm: "a", Requests: 10, In: 600, Out: 400,
		CPU: 30 * time.Microsecond}); told["a"] != want {
		t.Errorf("a has %+v", told["a"])
	}
	if want := (sigma.Work{Realm: "b", Requests: 1, In: 1 << 20, Out: 12, CPU: sampleGuess}); told["b"] != want {
		t.Errorf("b has %+v", told["b"])
	}
	if turns.accounts["b"] != nil || turns.accounts["a"] == nil {
		t.Error("the wrong account is kept")
	}
	seen := map[int]bool{}
	for kind := 0; kind < 160; kind += 2 {
		for _, n := range []int{0, 1 << 10, 8 << 10, 64 << 10, 1 << 30} {
			if c := classOf(sigmap.Type(kind), n); c < 0 || c >= classes {
				t.Errorf("class %d", c)
			} else {
				seen[c] = true
			}
		}
	}
	if len(seen) != classes {
		t.Errorf("%d classes, not %d", len(seen), classes)
	}
	since, is := turns.weights.begin()
	for n := 0; threadTime()-since < time.Millisecond; n++ {
	}
	turns.weights.end(class+1, since, true)
	if m := turns.weights.mean[class+1]; !is || m < time.Millisecond {
		t.Errorf("a sample of a millisecond is %v, %v", m, is)
	}
}
