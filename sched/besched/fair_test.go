package besched

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// tenant is a realm that always has work.
type tenant struct {
	realm  sigma.RealmID
	shares uint32
	length time.Duration // of a job, from half of it to one and a half
	memory sigma.Bytes
	from   time.Duration
	until  time.Duration // 0 = for ever
	number int
	used   []time.Duration // in each window
	waits  time.Duration   // longest of a job at the head
	since  time.Duration
}

// ran is a job that runs.
type ran struct {
	Job
	machine    int
	begun, end time.Duration
}

type runs []*ran

func (h runs) Len() int           { return len(h) }
func (h runs) Less(i, j int) bool { return h[i].end < h[j].end }
func (h runs) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runs) Push(x any)        { *h = append(*h, x.(*ran)) }
func (h *runs) Pop() any          { o := *h; x := o[len(o)-1]; *h = o[:len(o)-1]; return x }

// plant is machines with as many cores as jobs of memory 1 fit, that run what the core gives them,
// in virtual time.
type plant struct {
	t       *testing.T
	r       *rand.Rand
	c       *Core
	tenants []*tenant
	byRealm map[sigma.RealmID]*tenant
	now     time.Duration
	free    []sigma.Bytes
	running []uint32
	parked  map[Ticket]int
	ticket  Ticket
	runs    runs
}

const (
	plantMemory = 8
	window      = time.Second
	backlog     = 100
)

func newPlant(t *testing.T, seed uint64, machines int, tenants ...*tenant) *plant {
	p := &plant{t: t, r: rand.New(rand.NewPCG(seed, 7)), c: NewCore(), tenants: tenants,
		byRealm: map[sigma.RealmID]*tenant{}, parked: map[Ticket]int{}}
	shares := map[sigma.RealmID]uint32{}
	for i, tn := range tenants {
		tn.realm = sigma.RealmID(fmt.Sprint("r", i))
		p.byRealm[tn.realm] = tn
		shares[tn.realm] = tn.shares
		tn.used = make([]time.Duration, 1000)
	}
	p.c.Shares(shares)
	for m := range machines {
		p.c.Attend(life(p.name(m)), plantMemory*1000, plantMemory)
		p.free = append(p.free, plantMemory)
	}
	p.running = make([]uint32, machines)
	return p
}

func (p *plant) name(m int) sigma.MachineID { return sigma.MachineID(fmt.Sprint("m", m)) }

// run goes on to a time.
func (p *plant) run(until time.Duration) {
	for p.now < until {
		for _, tn := range p.tenants {
			p.feed(tn)
		}
		for m := range p.free {
			p.park(m)
		}
		p.check()
		next := until
		for _, tn := range p.tenants {
			if tn.from > p.now {
				next = min(next, tn.from)
			}
		}
		if len(p.runs) > 0 && p.runs[0].end <= next {
			p.now = p.runs[0].end
			p.ended(heap.Pop(&p.runs).(*ran))
		} else {
			p.now = next
		}
	}
}

// feed keeps jobs of a tenant waiting.
func (p *plant) feed(tn *tenant) {
	q := p.c.turns.accounts[tn.realm]
	n := 0
	if q != nil {
		for w := q.first; w != nil; w = w.next {
			n++
		}
	}
	if n > backlog/2 || p.now < tn.from || tn.until > 0 && p.now >= tn.until {
		return
	}
	var jobs []Job
	for range backlog {
		tn.number++
		jobs = append(jobs, Job{ID: sigma.ProcID(fmt.Sprint(tn.realm, "-", tn.number)), Realm: tn.realm,
			Memory: tn.memory, Home: life("m0")})
	}
	if n == 0 {
		tn.since = p.now
	}
	gs, _ := p.c.Enqueue(jobs)
	p.granted(gs)
}

func (p *plant) park(m int) {
	for tk, at := range p.parked {
		if at == m {
			p.c.Leave(tk)
			delete(p.parked, tk)
		}
	}
	if p.free[m] == 0 {
		return
	}
	p.ticket++
	p.parked[p.ticket] = m
	p.granted(p.c.Park(p.ticket, p.name(m), Offer{Memory: p.free[m], Load: p.running[m]}))
}

func (p *plant) granted(gs []Grant) {
	for _, g := range gs {
		m := p.parked[g.Ticket]
		delete(p.parked, g.Ticket)
		for _, j := range g.Jobs {
			if j.Memory > p.free[m] {
				p.t.Fatalf("machine %d has %d, and was given %v", m, p.free[m], j)
			}
			p.free[m] -= j.Memory
			p.running[m]++
			tn := p.byRealm[j.Realm]
			tn.waits, tn.since = max(tn.waits, p.now-tn.since), p.now
			heap.Push(&p.runs, &ran{Job: j, machine: m, begun: p.now,
				end: p.now + tn.length/2 + time.Duration(p.r.Int64N(int64(tn.length)))})
		}
	}
}

func (p *plant) ended(r *ran) {
	p.free[r.machine] += r.Memory
	p.running[r.machine]--
	tn := p.byRealm[r.Realm]
	for at := r.begun; at < r.end; { // each core's time belongs to the window it was used in
		edge := min(r.end, (at/window+1)*window)
		tn.used[at/window] += time.Duration(r.Memory) * (edge - at)
		at = edge
	}
	held := r.end - r.begun
	cost := Cost(time.Duration(r.Memory)*held, r.Memory, held, plantMemory*1000, plantMemory)
	p.c.Charge(p.name(r.machine), []Charge{{Realm: r.Realm, Used: cost, Prepaid: r.Prepaid, Ended: 1, Whole: cost,
		Held: -int64(r.Memory)}})
}

// check: no job waits that fits what is free and kept for nobody.
func (p *plant) check() {
	for _, m := range p.parked {
		kept := p.c.machines[p.name(m)].kept
		for _, w := range p.c.where {
			if w.q.first == w && w.Memory <= p.free[m] && kept == nil {
				p.t.Fatalf("at %v %v waits, and machine %d has room for it", p.now, w.Job, m)
			}
		}
	}
}

// jain is Jain's index of what realms used for each share in some windows.
func (p *plant) jain(from, to time.Duration) float64 {
	sum, squares, n := 0.0, 0.0, 0.0
	for _, tn := range p.tenants {
		used := time.Duration(0)
		for w := from / window; w < to/window; w++ {
			used += tn.used[w]
		}
		x := used.Seconds() / float64(max(1, tn.shares))
		sum, squares, n = sum+x, squares+x*x, n+1
	}
	return sum * sum / (n * squares)
}

// Goal (001 §4.3, §6.4): realms that always have work get CPU time in the ratio of their shares,
// whatever the length of their jobs, in each window once they are all there; the machines are
// always busy.
func TestFairByUse(t *testing.T) {
	for seed := range uint64(8) {
		p := newPlant(t, seed, 4, &tenant{length: 10 * time.Millisecond, memory: 1},
			&tenant{length: time.Second, memory: 1}, &tenant{length: 100 * time.Millisecond, memory: 1,
				from: 2 * time.Second},
			&tenant{length: 30 * time.Millisecond, memory: 1, from: 4 * time.Second})
		p.run(14 * time.Second)
		if j := p.jain(7*time.Second, 12*time.Second); j < 0.995 {
			t.Errorf("seed %d: Jain's index %.4f of five windows", seed, j)
		}
		for w := 7 * window; w < 12*window; w += window {
			if j := p.jain(w, w+window); j < 0.97 {
				t.Errorf("seed %d: Jain's index %.4f from %v", seed, j, w)
			}
		}
	}
}

// Goal: shares of 1:2:4 give CPU in that ratio within 5 %, with short and long jobs.
func TestFairByShares(t *testing.T) {
	for seed := range uint64(8) {
		p := newPlant(t, seed, 4, &tenant{shares: 1, length: 200 * time.Millisecond, memory: 1},
			&tenant{shares: 2, length: 10 * time.Millisecond, memory: 1},
			&tenant{shares: 4, length: 50 * time.Millisecond, memory: 1})
		p.run(12 * time.Second)
		total := func(tn *tenant) (d time.Duration) {
			for w := 2; w < 11; w++ {
				d += tn.used[w]
			}
			return d
		}
		one := total(p.tenants[0]).Seconds()
		for i, want := range []float64{1, 2, 4} {
			if got := total(p.tenants[i]).Seconds() / one; got < 0.95*want || got > 1.05*want {
				t.Errorf("seed %d: realm %d got %.3f times what the first got, want %v", seed, i, got, want)
			}
		}
	}
}

// Goal: when shares change, the new ones hold within a second, whatever the realms used under the
// old ones: one that had all for a while pays for it no longer, and one that waited is owed
// nothing.
func TestSharesChange(t *testing.T) {
	for seed := range uint64(8) {
		p := newPlant(t, seed, 4, &tenant{shares: 1, length: 10 * time.Millisecond, memory: 1},
			&tenant{shares: 1, length: 500 * time.Millisecond, memory: 1},
			&tenant{shares: 1, length: 50 * time.Millisecond, memory: 1})
		p.run(2 * time.Second)
		for i, debt := range []time.Duration{0, 60 * time.Second,
			-60 * time.Second} { // as if the machines had been far from the ratio
			p.c.Charge(p.name(0), []Charge{{Realm: p.tenants[i].realm, Used: debt}})
		}
		p.run(3 * time.Second)
		shares := map[sigma.RealmID]uint32{}
		for i, tn := range p.tenants {
			tn.shares = 1 << i
			shares[tn.realm] = tn.shares
		}
		p.c.Shares(shares)
		p.run(9 * time.Second)
		for w := 4 * window; w < 8*window; w += window {
			if j := p.jain(w, w+window); j < 0.97 {
				t.Errorf("seed %d: Jain's index %.4f from %v", seed, j, w)
			}
		}
		if j := p.jain(4*window, 8*window); j < 0.99 {
			t.Errorf("seed %d: Jain's index %.4f of four windows", seed, j)
		}
	}
}

// Goal: that another realm's share changes, or is reported to have, forgives a realm nothing and
// owes it nothing: one that used much keeps waiting for what others did not have, however often
// shares are told.
func TestDebtsOutliveOthersShares(t *testing.T) {
	c := NewCore()
	c.Attend(life("m"), 1000, 1000)
	c.Shares(map[sigma.RealmID]uint32{"even": 2})
	var jobs []Job
	for i := range 40 {
		for _, realm := range []sigma.RealmID{"debtor", "even", "other"} {
			jobs = append(jobs, Job{ID: sigma.ProcID(fmt.Sprint(realm, i)), Realm: realm, Memory: 1, Home: life("m")})
		}
	}
	c.Enqueue(jobs)
	c.Charge("m", []Charge{{Realm: "debtor", Used: 2 * time.Second}}) // as much as some hundred of its jobs
	for i := range uint32(5) {
		c.Shares(map[sigma.RealmID]uint32{"other": 3 + i%2})
		for _, j := range c.Park(Ticket(i+1), "m", Offer{Memory: 8})[0].Jobs {
			if j.Realm == "debtor" {
				t.Fatalf("%s was given when another realm's share changed", j.ID)
			}
		}
	}
	c.Shares(map[sigma.RealmID]uint32{"debtor": 2})
	got := c.Park(9, "m", Offer{Memory: 4})[0].Jobs
	if !slices.ContainsFunc(got, func(j Job) bool { return j.Realm == "debtor" }) {
		t.Errorf("its own share changed, and it was given none of %v", got)
	}
}

// Goal: of reports of shares that machines make, one that is older than what is known changes
// nothing, whenever it comes.
func TestOlderSharesAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService()
		m, leave := attended(t, s, "m")
		defer leave()
		tell := func(age time.Duration, shares uint32, want uint32) {
			t.Helper()
			of := []sigmap.RealmShares{{Realm: "r", Shares: shares}}
			err := m.shares(t.Context(), Shares{age, of})
			if got := s.core.turns.shares["r"]; err != nil || got != want {
				t.Errorf("%d shares, told %v later: %d hold (%v), want %d", shares, age, got, err, want)
			}
		}
		tell(time.Second, 2, 2)
		tell(0, 3, 3)
		tell(500*time.Millisecond, 2, 3)
		tell(math.MaxInt64, 2, 3)
		time.Sleep(time.Second)
		tell(500*time.Millisecond, 4, 4)
		tell(math.MinInt64, 5, 5) // from the future: as if it were of now
		time.Sleep(time.Millisecond)
		tell(0, 6, 6)
	})
}

// Goal: what a realm is charged with in advance is bounded as its debts are, however long its jobs
// were said to have run: with a machine that is lost it is never given back. Nor do absurd reports
// make an account that is no number, or keep a realm from its turns for longer.
func TestPrepaidIsBounded(t *testing.T) {
	for _, whole := range []time.Duration{10 * time.Hour, math.MaxInt64, math.MinInt64} {
		c := NewCore()
		c.Attend(life("m"), 1000, 100)
		var jobs []Job
		for i := range 1000 {
			for _, realm := range []sigma.RealmID{"long", "short"} {
				jobs = append(jobs, Job{ID: sigma.ProcID(fmt.Sprint(realm, i)), Realm: realm, Memory: 1,
					Home: life("m")})
			}
		}
		c.Enqueue(jobs)
		c.Charge("m", []Charge{{Realm: "long", Used: -whole, Prepaid: whole, Ended: math.MaxUint32, Whole: whole},
			{Realm: "long", Used: whole, Prepaid: -whole, Ended: 1, Whole: whole}})
		given := map[sigma.RealmID]int{}
		for tk := range Ticket(12) { // 768 jobs of 20 ms, more than twice what spanMax is
			for _, j := range c.Park(tk+1, "m", Offer{Memory: 100})[0].Jobs {
				if given[j.Realm]++; j.Prepaid < 0 || j.Prepaid > spanMax {
					t.Fatalf("%v: %s was charged with %v in advance", whole, j.ID, j.Prepaid)
				}
			}
		}
		if q := c.turns.accounts["long"]; given["long"] < 2 || math.IsNaN(q.used) || math.IsInf(q.used, 0) {
			t.Errorf("%v: given were %v, the account is %v", whole, given, q.used)
		}
	}
}

// Goal: a newcomer starts even with those who were there, who had all for a long time: it neither
// waits for what they did not need, nor keeps them from running.
func TestNewcomer(t *testing.T) {
	old, newer := &tenant{length: 20 * time.Millisecond, memory: 1}, &tenant{length: 20 * time.Millisecond, memory: 1,
		from: 60 * time.Second}
	p := newPlant(t, 1, 2, old, newer)
	p.run(64 * time.Second)
	for w := 61; w < 63; w++ {
		if a, b := old.used[w].Seconds(), newer.used[w].Seconds(); a < 0.9*b || b < 0.9*a {
			t.Errorf("in second %d the old realm used %.2f s and the new one %.2f s", w, a, b)
		}
	}
}

// Goal: a job as large as a machine is given one in bounded time, though small ones of another
// realm would always fit: after it was overtaken by its own size, and one machine's jobs have
// ended. The small ones go on meanwhile.
func TestLargeIsNotStarved(t *testing.T) {
	for seed := range uint64(8) {
		for _, machines := range []int{1, 3} {
			small, large := &tenant{length: 100 * time.Millisecond, memory: 1}, &tenant{length: 100 * time.Millisecond,
				memory: plantMemory, from: time.Second}
			p := newPlant(t, seed, machines, small, large)
			p.run(10 * time.Second)
			if large.waits > 2*time.Second || large.number == 0 || p.c.turns.accounts[large.realm].served == 0 {
				t.Errorf("seed %d, %d machines: a large job waited %v", seed, machines, large.waits)
			}
			if j := p.jain(3*time.Second, 8*time.Second); j < 0.88 {
				t.Errorf("seed %d, %d machines: Jain's index %.3f", seed, machines, j)
			}
		}
	}
}

// Goal: a machine that is kept for a job is everybody's again when the job is canceled or the
// machine leaves, and the next one is kept when it leaves.
func TestKept(t *testing.T) {
	c := NewCore()
	for _, m := range []sigma.MachineID{"home", "a"} {
		c.Attend(life(m), 1000, 8)
	}
	job := func(id sigma.ProcID, realm sigma.RealmID, memory sigma.Bytes) Job {
		return Job{ID: id, Realm: realm, Memory: memory, Home: life("home")}
	}
	c.Enqueue([]Job{job("large", "l", 8)})
	for i := range Ticket(8) { // overtaken by as much as it wants
		c.Enqueue([]Job{job(sigma.ProcID(fmt.Sprint("s", i)), "s", 1)})
		c.Park(i+1, "a", Offer{Memory: 1})
		c.turns.accounts["s"].used++
	}
	c.Enqueue([]Job{job("s8", "s", 1), job("s9", "s", 1)})
	if gs := c.Park(20, "a", Offer{Memory: 2}); gs != nil || len(c.kept) != 1 || c.kept[0].life.Machine != "a" {
		t.Fatalf("%d machines are kept; granted %v", len(c.kept), gs)
	}
	if gs, _ := c.Gone(life("a")); gs != nil || len(c.kept) != 0 {
		t.Fatalf("%d are kept once it is gone; granted %v", len(c.kept), gs)
	}
	if gs := c.Park(21, "home", Offer{Memory: 1}); gs != nil || len(c.kept) != 1 {
		t.Fatalf("%d are kept; granted %v", len(c.kept), gs)
	}
	if gs := c.Cancel("large"); len(gs) != 1 || gs[0].Jobs[0].ID != "s8" || len(c.kept) != 0 {
		t.Fatalf("%d are kept after the cancellation; granted %v", len(c.kept), gs)
	}
}

// Goal: what is used while nobody waits is forgiven, and nothing is saved up by not having work.
func TestNothingSavedUp(t *testing.T) {
	c := NewCore()
	c.Attend(life("m"), 1000, 100)
	c.Charge("m", []Charge{{Realm: "busy", Used: time.Hour}})
	job := func(realm sigma.RealmID, n int) (js []Job) {
		for i := range n {
			js = append(js, Job{ID: sigma.ProcID(fmt.Sprint(realm, i)), Realm: realm, Memory: 1, Home: life("m")})
		}
		return js
	}
	c.Enqueue(append(job("busy", 50), job("idle", 50)...))
	got := map[sigma.RealmID]int{}
	for _, j := range c.Park(1, "m", Offer{Memory: 20})[0].Jobs {
		got[j.Realm]++
	}
	if got["busy"] != 10 || got["idle"] != 10 {
		t.Errorf("got %v, want 10 of each", got)
	}
	c.Charge("m", []Charge{{Realm: "idle", Used: -time.Hour, Prepaid: time.Hour}})
	clear(got)
	for _, j := range c.Park(2, "m", Offer{Memory: 40})[0].Jobs {
		got[j.Realm]++
	}
	if got["busy"] < 10 {
		t.Errorf("got %v: what was given back led below where the realm began", got)
	}
}
