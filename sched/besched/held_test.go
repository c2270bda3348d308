package besched

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// places is a machine with room for some jobs at a time, of which two compute and the others wait
// for them, as procs do that share processors.
type places struct {
	t       *testing.T
	r       *rand.Rand
	c       *Core
	free    sigma.Bytes
	ticket  Ticket
	running map[sigma.RealmID][]Job
	spawned map[sigma.RealmID]int
}

const placesMemory = 32

func newPlaces(t *testing.T, seed uint64, shares map[sigma.RealmID]uint32) *places {
	p := &places{t: t, r: rand.New(rand.NewPCG(seed, 7)), c: NewCore(), free: placesMemory,
		running: map[sigma.RealmID][]Job{}, spawned: map[sigma.RealmID]int{}}
	p.c.Attend(life("m"), 2000, placesMemory)
	p.c.Shares(shares)
	return p
}

// spawn has a realm wait with so many more jobs.
func (p *places) spawn(realm sigma.RealmID, n int) {
	for range n {
		p.spawned[realm]++
		gs, _ := p.c.Enqueue([]Job{{ID: sigma.ProcID(fmt.Sprint(realm, p.spawned[realm])), Realm: realm, Memory: 1,
			Home: life("m")}})
		p.granted(gs)
	}
	p.park()
}

func (p *places) park() {
	p.c.Leave(p.ticket)
	if p.ticket++; p.free > 0 {
		p.granted(p.c.Park(p.ticket, "m", Offer{Memory: p.free}))
	}
}

func (p *places) granted(gs []Grant) {
	for _, g := range gs {
		for _, j := range g.Jobs {
			p.free -= j.Memory
			p.running[j.Realm] = append(p.running[j.Realm], j)
		}
	}
}

// end ends one job of a realm that used so much, whose next one comes at once.
func (p *places) end(realm sigma.RealmID, used time.Duration) {
	of := p.running[realm]
	if len(of) == 0 {
		return
	}
	i := p.r.IntN(len(of))
	j := of[i]
	p.running[realm] = append(of[:i], of[i+1:]...)
	p.free += j.Memory
	p.c.Charge("m", []Charge{{Realm: realm, Used: used, Prepaid: j.Prepaid, Ended: 1, Whole: used, Held: -1}})
	p.spawn(realm, 1)
}

// Goal: a realm of long procs that keeps as many waiting as one of short ones does not get all
// memory because places of short procs become free more often: who waits has a third of its part at
// the least, whatever others hold, and the parts go by shares.
func TestLongDoNotHoldAllMemory(t *testing.T) {
	for seed := range uint64(8) {
		for _, shares := range []uint32{1, 4} {
			p := newPlaces(t, seed, map[sigma.RealmID]uint32{"short": shares})
			p.spawn("short", 64)
			for range 200 {
				p.end("short", 10*time.Millisecond)
			}
			p.spawn("long", 64)
			for i := range 2000 {
				p.end("short", 10*time.Millisecond)
				if i%100 == 99 {
					p.end("long", time.Second)
				}
				part := placesMemory * int(shares) / int(shares+1)
				if n := len(p.running["short"]); i > 100 && (n < part/2-1 || n > part*3/2+1) {
					t.Fatalf("seed %d, %d shares: the short ones have %d of %d places after %d ends", seed, shares, n,
						placesMemory, i)
				}
			}
		}
	}
}

// Goal: a realm whose procs are all on machines for a moment finds the places that they leave when
// its next ones come, although another one waits all the time with procs that are long; but only
// for so long as AwayFor says, and only those.
func TestPlacesAreSparedForWhoComesAgain(t *testing.T) {
	p := newPlaces(t, 1, nil)
	p.spawn("long", 64)
	for i := range 16 {
		p.spawn("short", 1)
		p.end("long", time.Second)
		if i == 0 && len(p.running["short"]) != 1 {
			t.Fatal("the short realm has nothing")
		}
	}
	if n := len(p.running["short"]); n < 8 {
		t.Fatalf("the short realm has %d places", n)
	}
	for range 100 { // one after another: the last one's place is free before the next one comes
		p.end("short", 10*time.Millisecond)
	}
	if n := len(p.running["short"]); n < 8 {
		t.Errorf("the short realm has %d places left", n)
	}
	of := len(p.running["short"])
	for p.running["short"] != nil && len(p.running["short"]) > 0 {
		j := p.running["short"][0]
		p.running["short"] = p.running["short"][1:]
		p.free += j.Memory
		p.c.Charge("m", []Charge{{Realm: "short", Used: time.Millisecond, Prepaid: j.Prepaid, Ended: 1,
			Whole: time.Millisecond, Held: -1}})
		p.park()
	}
	if n := len(p.running["long"]); n > placesMemory-7 {
		t.Errorf("of %d places that were left others took all but %d at once", of, placesMemory-n)
	}
	for range 2 {
		if !p.c.Sparing() {
			t.Fatal("nothing is spared")
		}
		p.granted(p.c.Relent())
	}
	if n := len(p.running["long"]); n != placesMemory || p.c.Sparing() {
		t.Errorf("%d places are taken after the time is over", n)
	}
}

// Goal: of several realms that hold far more than their parts all are passed, not only the first:
// one that holds nothing has its turn though all of them used less.
func TestAllThatHoldTooMuchArePassed(t *testing.T) {
	p := newPlaces(t, 1, nil)
	for _, realm := range []sigma.RealmID{"a", "b", "c"} {
		p.spawn(realm, 64)
	}
	for range 12 {
		p.end("a", time.Millisecond) // a to c have more than their parts when others come, and used least
	}
	for i, realm := range []sigma.RealmID{"d", "e", "f", "g", "h", "i"} {
		p.spawn(realm, 8)
		p.c.Charge("m", []Charge{{Realm: realm, Used: time.Duration(i+1) * time.Second}})
	}
	for range 6 {
		p.end("a", time.Millisecond)
	}
	if n := len(p.running["d"]); n < 4 {
		t.Errorf("d has %d of 6 places; a to c have %d, %d, %d", n, len(p.running["a"]), len(p.running["b"]),
			len(p.running["c"]))
	}
}

// Goal: what is counted of a realm's memory is what it holds, whatever the order in which ends and
// grants come, and nothing of a machine that is gone.
func TestHeldIsCounted(t *testing.T) {
	p := newPlaces(t, 1, nil)
	p.spawn("a", 64)
	held := func() sigma.Bytes { return p.c.turns.account("a").held }
	for range 3 { // ends are told after the places were given anew
		p.free += placesMemory
		p.park()
	}
	if held() != 2*placesMemory {
		t.Fatalf("%d are held", held())
	}
	p.c.Charge("m", []Charge{{Realm: "a", Held: -placesMemory}, {Realm: "b", Held: 3}, {Realm: "b", Held: -5}})
	if b := p.c.turns.account("b").held; held() != placesMemory || b != 0 {
		t.Errorf("%d and %d are held", held(), b)
	}
	p.c.Gone(life("m"))
	if held() != 0 || p.c.turns.parts.held != 0 {
		t.Errorf("%d, of all %d, are held of a machine that is gone", held(), p.c.turns.parts.held)
	}
}
