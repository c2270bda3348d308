package besched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// shards are bescheds that one machine attends at, and the messages between them, which take 1 ms
// each.
type fleet struct {
	t       *testing.T
	o       *Offers
	now     time.Duration
	cores   map[Shard]*Core
	ticket  Ticket
	parked  map[Shard]Ticket
	leases  map[Shard]Ticket
	due     []message
	free    sigma.Bytes
	load    uint32
	granted map[sigma.ProcID]time.Duration
}

type message struct {
	at time.Duration
	do func()
}

const fleetMemory = 64 * sigma.MiB

func newFleet(t *testing.T, n int) *fleet {
	f := &fleet{t: t, o: NewOffers(fleetMemory), cores: map[Shard]*Core{}, parked: map[Shard]Ticket{},
		leases: map[Shard]Ticket{}, free: fleetMemory, granted: map[sigma.ProcID]time.Duration{}}
	for i := range n {
		name := Shard(fmt.Sprint("s", i))
		f.cores[name] = NewCore()
		f.cores[name].Attend(life("m"), 2000, fleetMemory)
		f.o.Attend(name)
	}
	return f
}

func (f *fleet) later(do func()) { f.due = append(f.due, message{f.now + time.Millisecond, do}) }

func (f *fleet) done(s Shard, gs []Grant, recalled []Ticket) {
	for _, g := range gs {
		if g.Ticket != f.parked[s] {
			f.t.Fatalf("%s granted by the credit %d, and %d is parked", s, g.Ticket, f.parked[s])
		}
		if g.Lease != NoLease {
			f.leases[s] = g.Ticket
		}
		f.later(func() {
			f.parked[s] = 0
			lease := g.Lease
			if f.leases[s] != g.Ticket { // it was recalled
				lease = NoLease
			}
			f.o.Granted(s, len(g.Jobs), lease, g.Kept)
			for _, j := range g.Jobs {
				if j.Memory > f.free { // declined
					f.later(func() { f.enqueue(s, j) })
					continue
				}
				f.free -= j.Memory
				f.load++
				f.granted[j.ID] = f.now
			}
		})
	}
	for _, t := range recalled {
		if f.leases[s] != t {
			f.t.Fatalf("%s recalled %d, and lent %d", s, t, f.leases[s])
		}
		f.leases[s] = 0
		f.later(func() { f.o.Recalled(s) })
	}
}

func (f *fleet) enqueue(s Shard, j Job) {
	j.Home = life("m")
	gs, recalled := f.cores[s].Enqueue([]Job{j})
	f.done(s, gs, recalled)
}

// ends gives memory back.
func (f *fleet) ends(memory sigma.Bytes) { f.free, f.load = f.free+memory, f.load-1 }

// run goes on for a time, a millisecond at each step.
func (f *fleet) run(d time.Duration) {
	for end := f.now + d; f.now < end; f.now += time.Millisecond {
		moves, _ := f.o.Plan(time.Unix(0, 0).Add(f.now), f.free, f.load)
		for _, m := range moves {
			f.move(m)
		}
		due := f.due
		f.due = nil
		for _, m := range due {
			if m.at <= f.now {
				m.do()
			} else {
				f.due = append(f.due, m)
			}
		}
	}
}

func (f *fleet) move(m Move) {
	s := m.Shard
	if m.Back {
		t := f.parked[s]
		f.later(func() {
			if t != 0 && f.parked[s] == t && f.cores[s].Leave(t) && f.leases[s] != t {
				f.later(func() { f.parked[s] = 0; f.o.Returned(s) })
			}
		})
		return
	}
	if f.parked[s] != 0 {
		f.t.Fatalf("two credits are parked at %s", s)
	}
	f.ticket++
	t := f.ticket
	f.parked[s] = t
	f.later(func() { f.done(s, f.cores[s].Park(t, "m", m.Offer), nil) })
}

// Goal: while nobody waits, a job is granted wherever it is sent; a machine that is alone then has
// leases of all shards, and no credit parked.
func TestOffersIdle(t *testing.T) {
	f := newFleet(t, 3)
	f.run(20 * time.Millisecond)
	if all, shared := f.o.Leased(); !all || shared || f.parked["s0"]+f.parked["s1"]+f.parked["s2"] != 0 {
		t.Errorf("leased %v, shared %v; parked %v", all, shared, f.parked)
	}
	for i, s := range []Shard{"s0", "s1", "s2", "s0"} {
		f.enqueue(s, Job{ID: sigma.ProcID(fmt.Sprint(i)), Realm: "a", Memory: 8 * sigma.MiB})
	}
	f.run(40 * time.Millisecond)
	if len(f.granted) != 4 || f.free != 32*sigma.MiB {
		t.Errorf("%d were granted, %v are free", len(f.granted), f.free)
	}
	f.run(40 * time.Millisecond)
	if all, _ := f.o.Leased(); !all {
		t.Error("nobody waits, and not all shards gave a lease")
	}
}

// Goal: a machine whose memory is full, with jobs at all shards, takes them by turns as memory
// becomes free, with hardly a grant that it must decline; a job that waits at one shard alone is
// found in bounded time.
func TestOffersFull(t *testing.T) {
	f := newFleet(t, 2)
	f.run(20 * time.Millisecond)
	n := 0
	spawn := func(s Shard, many int) {
		for range many {
			n++
			f.enqueue(s, Job{ID: sigma.ProcID(fmt.Sprint(s, "-", n)), Realm: "a", Memory: 8 * sigma.MiB})
		}
	}
	spawn("s0", 40)
	spawn("s1", 40)
	f.run(100 * time.Millisecond)
	if f.free != 0 {
		t.Fatalf("%v are free while jobs wait", f.free)
	}
	for range 60 {
		f.ends(8 * sigma.MiB)
		f.run(20 * time.Millisecond)
		if f.free != 0 {
			t.Fatalf("%v are free 20 ms after a proc ended, while jobs wait", f.free)
		}
	}
	of := map[Shard]int{}
	for id := range f.granted {
		of[Shard(id[:2])]++
	}
	if of["s0"] < 30 || of["s1"] < 30 {
		t.Errorf("granted by shard: %v", of)
	}
	f.run(time.Second)
	for range 12 { // the rest
		f.ends(8 * sigma.MiB)
		f.run(30 * time.Millisecond)
	}
	if len(f.granted) != n {
		t.Fatalf("%d of %d were granted", len(f.granted), n)
	}
	spawn("s1", 1)
	f.run(50 * time.Millisecond)
	if len(f.granted) != n && f.free >= 8*sigma.MiB {
		t.Error("a job at one shard was not found")
	}
}

// Goal: a job as large as the machine, at one shard, gets it although small ones wait at the other,
// for whom there would always be room; after that they go on.
func TestOffersLarge(t *testing.T) {
	f := newFleet(t, 2)
	f.run(20 * time.Millisecond)
	running := 0
	for i := range 200 {
		f.enqueue("s0", Job{ID: sigma.ProcID(fmt.Sprint("small", i)), Realm: "a", Memory: 8 * sigma.MiB})
		f.enqueue("s1", Job{ID: sigma.ProcID(fmt.Sprint("other", i)), Realm: "a", Memory: 8 * sigma.MiB})
	}
	f.enqueue("s1", Job{ID: "large", Realm: "b", Memory: fleetMemory})
	for i := 0; f.granted["large"] == 0 && i < 200; i++ {
		f.run(20 * time.Millisecond)
		if running = int((fleetMemory - f.free) / (8 * sigma.MiB)); running > 0 && f.granted["large"] == 0 {
			f.ends(8 * sigma.MiB)
		}
	}
	if f.granted["large"] == 0 {
		t.Fatalf("the large job was not granted, after %d others", len(f.granted))
	}
	if len(f.granted) > 60 {
		t.Errorf("%d were granted before it", len(f.granted)-1)
	}
	f.ends(fleetMemory)
	f.run(50 * time.Millisecond)
	if f.free != 0 {
		t.Errorf("%v are free afterwards, while small jobs wait", f.free)
	}
}

// Goal: whatever becomes of leases, grants and shards, at most one credit is parked at a shard,
// none where the machine does not attend, and while there is little room and jobs may wait, none is
// parked at two shards at once.
func TestOffersRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 9))
		o, now := NewOffers(fleetMemory), time.Unix(0, 0)
		parked := map[Shard]bool{}
		attended := map[Shard]bool{}
		for range 400 {
			s := Shard(fmt.Sprint("s", r.IntN(3)))
			switch r.IntN(8) {
			case 0:
				if r.IntN(4) == 0 {
					o.Leave(s)
					delete(parked, s)
					delete(attended, s)
				}
			case 1, 2:
				if !attended[s] {
					o.Attend(s)
					attended[s] = true
				}
			case 3:
				if parked[s] {
					o.Granted(s, r.IntN(2), NoLease, r.IntN(6) == 0)
					delete(parked, s)
				}
			case 4:
				if parked[s] {
					o.Granted(s, 0, Lease(1+r.IntN(2)), false)
					delete(parked, s)
				}
			case 5:
				o.Recalled(s)
			case 6:
				if st := o.find(s); st != nil && st.leaving {
					o.Returned(s)
					delete(parked, s)
				}
			case 7:
				o.Close(r.IntN(9) == 0)
			}
			now = now.Add(time.Duration(r.IntN(4)) * time.Millisecond)
			free := sigma.Bytes(r.IntN(64)) * sigma.MiB
			moves, again := o.Plan(now, free, uint32(r.IntN(9)))
			for _, m := range moves {
				if !attended[m.Shard] || m.Back != parked[m.Shard] {
					t.Fatalf("seed %d: %+v; attended %v, parked %v", seed, m, attended, parked)
				}
				parked[m.Shard] = true
			}
			if only := slices.DeleteFunc(slices.Clone(o.stands), func(s *stand) bool {
				return !s.parked || s.leaving
			}); o.waiting() > 0 && free < fleetMemory/2 && len(only) > 1 && o.kept == "" {
				t.Fatalf("seed %d: with little room %d credits are parked", seed, len(only))
			}
			if !again.IsZero() && again.Before(now) {
				t.Fatalf("seed %d: asked to come again %v ago", seed, now.Sub(again))
			}
		}
	}
}
