package besched

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Goal: under random enqueues, cancels, offers, withdrawals, and machines that come and go, no job
// is granted twice or after its cancellation, none exceeds its credit, each realm's jobs come in
// order, none of a machine that went is left, and there are leases only while no job waits, of the
// kind that the number of machines allows.
func TestCoreRandom(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &random{t: t, r: rand.New(rand.NewPCG(seed, 1)), c: NewCore(), waiting: map[sigma.ProcID]Job{},
				credits: map[Ticket]parked{}, leased: map[Ticket]parked{}, attending: map[sigma.MachineID]sigma.Life{},
				next: map[sigma.RealmID]int{}, order: map[sigma.RealmID]int{}, number: map[sigma.ProcID]int{}}
			for i := range 500 {
				w.step(Ticket(i + 1))
				w.check()
			}
			w.attend("m0")
			for tk := Ticket(1 << 20); len(w.waiting) > 0; tk++ {
				w.park(tk, "m0", Offer{Memory: sigma.GiB})
			}
		})
	}
}

type parked struct {
	machine sigma.MachineID
	Offer
}

// random is a core and what it should have.
type random struct {
	t               *testing.T
	r               *rand.Rand
	c               *Core
	waiting         map[sigma.ProcID]Job
	credits, leased map[Ticket]parked
	attending       map[sigma.MachineID]sigma.Life
	lives           sigma.Incarnation
	next, order     map[sigma.RealmID]int // number of the realm's next job, and of the last one granted
	number          map[sigma.ProcID]int
}

func (w *random) step(tk Ticket) {
	m := sigma.MachineID(fmt.Sprint("m", w.r.IntN(3)))
	switch w.r.IntN(7) {
	case 0, 1:
		var jobs []Job
		for range w.r.IntN(4) {
			realm := sigma.RealmID(fmt.Sprint("r", w.r.IntN(3)))
			w.next[realm]++
			j := Job{ID: sigma.ProcID(fmt.Sprint(realm, "-", w.next[realm])), Realm: realm,
				Memory: sigma.Bytes(1+w.r.IntN(8)) * sigma.MiB, Home: w.attending[m]}
			if w.number[j.ID] = w.next[realm]; j.Home.Machine != "" {
				w.waiting[j.ID] = j
			}
			jobs = append(jobs, j)
		}
		w.done(w.c.Enqueue(jobs))
	case 2:
		for id := range w.waiting {
			delete(w.waiting, id)
			w.done(w.c.Cancel(id), nil)
			break
		}
	case 3:
		if w.attending[m].Machine != "" {
			w.park(tk, m, Offer{Memory: sigma.Bytes(1+w.r.IntN(20)) * sigma.MiB, Load: uint32(w.r.IntN(9)),
				Ask: w.r.IntN(2) == 0})
		}
	case 4:
		for tk := range w.credits {
			if !w.c.Leave(tk) {
				w.t.Fatal("a parked credit was not there")
			}
			delete(w.credits, tk)
			break
		}
	case 5:
		w.attend(m)
	case 6:
		if life := w.attending[m]; life.Machine != "" {
			w.gone(life)
		}
	}
}

func (w *random) attend(m sigma.MachineID) {
	if life := w.attending[m]; life.Machine != "" {
		w.gone(life)
	}
	w.lives++
	w.attending[m] = sigma.Life{Machine: m, Incarnation: w.lives}
	w.done(nil, w.c.Attend(w.attending[m], sigma.MilliCPU(w.r.IntN(3))*1000, sigma.GiB))
}

func (w *random) gone(life sigma.Life) {
	delete(w.attending, life.Machine)
	maps.DeleteFunc(w.waiting, func(_ sigma.ProcID, j Job) bool { return j.Home == life })
	for _, ps := range []map[Ticket]parked{w.credits, w.leased} {
		maps.DeleteFunc(ps, func(_ Ticket, p parked) bool { return p.machine == life.Machine })
	}
	w.done(w.c.Gone(life))
}

func (w *random) park(tk Ticket, m sigma.MachineID, o Offer) {
	w.credits[tk] = parked{m, o}
	w.done(w.c.Park(tk, m, o), nil)
}

func (w *random) done(gs []Grant, recalled []Ticket) {
	before := maps.Clone(w.order) // what is granted at once to several machines has no order between them
	for _, g := range gs {
		last := maps.Clone(before)
		cr, ok := w.credits[g.Ticket]
		delete(w.credits, g.Ticket)
		if g.Lease != NoLease && cr.Ask && len(g.Jobs) == 0 {
			w.leased[g.Ticket] = cr
			continue
		}
		if !ok || len(g.Jobs) == 0 || len(g.Jobs) > GrantMax || g.Lease != NoLease {
			w.t.Fatalf("grant %+v of a credit of %v (%v)", g, cr, ok)
		}
		for _, j := range g.Jobs {
			asked := j
			if asked.Prepaid = 0; w.waiting[j.ID] != asked {
				w.t.Fatalf("%v was granted but does not wait", j)
			}
			delete(w.waiting, j.ID)
			if j.Memory > cr.Memory {
				w.t.Fatalf("%v exceeds what is left of the credit, %v", j, cr.Memory)
			}
			cr.Memory -= j.Memory
			if w.number[j.ID] < last[j.Realm] {
				w.t.Fatalf("%v came after a later one of its realm", j)
			}
			last[j.Realm] = w.number[j.ID]
			w.order[j.Realm] = max(w.order[j.Realm], w.number[j.ID])
		}
	}
	for _, tk := range recalled {
		if _, ok := w.leased[tk]; !ok {
			w.t.Fatalf("lease %d was recalled and not given", tk)
		}
		delete(w.leased, tk)
	}
}

func (w *random) check() {
	if len(w.leased) > 0 && len(w.waiting) > 0 {
		w.t.Fatalf("%d leases are held while %d jobs wait", len(w.leased), len(w.waiting))
	}
	for _, l := range w.c.leases {
		if (l.kind == LeaseAlone) != (len(w.attending) == 1) {
			w.t.Fatalf("a lease of kind %d while %d machines attend", l.kind, len(w.attending))
		}
	}
	lent, leases := 0, map[sigma.MachineID]int{}
	for _, l := range w.c.leases {
		leases[l.machine.life.Machine]++
	}
	for id, m := range w.c.machines {
		if m.leases != leases[id] || m.full && len(m.credits) > 0 {
			w.t.Fatalf("%s has %d leases, and %d are counted; full: %v with %d credits", id, leases[id], m.leases,
				m.full, len(m.credits))
		}
		if m.leases > 0 && !m.full {
			lent++
		}
	}
	if w.c.lent != lent {
		w.t.Fatalf("%d machines count as lent to, want %d", w.c.lent, lent)
	}
	if w.c.Waiting() != len(w.waiting) || len(w.c.leases) != len(w.leased) || w.c.credits.free() != len(w.credits) {
		w.t.Fatalf("%d wait, want %d; %d leases, want %d; %d credits, want %d", w.c.Waiting(), len(w.waiting),
			len(w.c.leases), len(w.leased), w.c.credits.free(), len(w.credits))
	}
}

// A burst is spread by load and size: of 12 jobs the machine of four cores, which runs two procs,
// gets as many as make it no fuller than the idle one of two cores.
func TestLeastLoaded(t *testing.T) {
	c := NewCore()
	for m, cpu := range map[sigma.MachineID]sigma.MilliCPU{"home": 1000, "small": 2000, "large": 4000, "full": 64000} {
		c.Attend(life(m), cpu, sigma.GiB)
	}
	c.Park(1, "small", Offer{Memory: sigma.GiB})
	c.Park(2, "large", Offer{Memory: sigma.GiB, Load: 2})
	c.Park(3, "full", Offer{Memory: 1})
	var jobs []Job
	for i := range 10 {
		jobs = append(jobs, Job{ID: sigma.ProcID(fmt.Sprint("p", i)), Realm: "a", Memory: 2, Home: life("home")})
	}
	got := map[Ticket]int{}
	gs, _ := c.Enqueue(jobs)
	for _, g := range gs {
		got[g.Ticket] = len(g.Jobs)
	}
	if len(got) != 2 || got[1] != 4 || got[2] != 6 {
		t.Errorf("got %v, want 4 for the small and 6 for the large machine", got)
	}
}

func life(m sigma.MachineID) sigma.Life { return sigma.Life{Machine: m, Incarnation: 1} }

// A realm with a long queue and one with a short one take turns.
func TestTurns(t *testing.T) {
	c, m := NewCore(), life("m")
	c.Attend(m, 1000, sigma.GiB)
	var jobs []Job
	for i := range 10 {
		jobs = append(jobs, Job{ID: sigma.ProcID(fmt.Sprint("a", i)), Realm: "a", Memory: 1, Home: m})
	}
	c.Enqueue(append(jobs, Job{ID: "b0", Realm: "b", Memory: 1, Home: m}, Job{ID: "b1", Realm: "b", Memory: 1,
		Home: m}))
	got := c.Park(1, "m", Offer{Memory: 5})[0].Jobs
	want := []sigma.ProcID{"a0", "b0", "a1", "b1", "a2"}
	for i, j := range got {
		if len(got) != len(want) || j.ID != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// attended is a machine's session.
func attended(t *testing.T, s *Service, m sigma.MachineID) (v *visit, leave func()) {
	t.Helper()
	v = s.visit(m)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.attend(ctx, life(m), 1000, sigma.GiB) }()
	<-v.begun
	return v, func() { cancel(); <-ended }
}

// Goal: a puller that gives up leaves no credit behind, and a grant made in the same moment is not
// lost.
func TestServicePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService()
		m, leave := attended(t, s, "m")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		m.enqueue(ctx, []Job{{ID: "large", Realm: "a", Memory: 2 * sigma.GiB}})
		go func() { _, err := m.pull(ctx, Offer{Memory: sigma.GiB, Ask: true}); ended <- err }()
		synctest.Wait()
		cancel()
		if err := <-ended; sigma.KindOf(err) != sigma.KindCanceled {
			t.Errorf("got %v, want canceled", err)
		}
		m.enqueue(t.Context(), []Job{{ID: "p", Realm: "b", Memory: 1}})
		got, err := m.pull(t.Context(), Offer{Memory: sigma.GiB, Ask: true})
		if got.Lease != 0 || err != nil || len(got.Jobs) != 1 || got.Largest != sigma.GiB || len(s.waiting) != 0 {
			t.Errorf("got %+v, %v with %d waiting, want the job", got, err, len(s.waiting))
		}
		leave()
		if s.core.Waiting() != 0 || len(s.attending) != 0 {
			t.Errorf("%d jobs of a machine that left wait", s.core.Waiting())
		}
	})
}

// Goal: nobody starves by leases, and a machine alone has no limit. Machine A has a lease for all;
// when B attends, it ends, and the next one is shared; when a job of B waits, that ends at once
// too, A's next credit gives the job its turn, and only then is there a lease again.
func TestServiceLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService()
		recalled := make(chan error, 1)
		hold := func(ctx context.Context, v *visit, l Ticket) {
			go func() { recalled <- v.hold(ctx, l) }()
			synctest.Wait()
		}
		pull := func(v *visit, memory sigma.Bytes, kind Lease, jobs ...sigma.ProcID) Ticket {
			t.Helper()
			p, err := v.pull(t.Context(), Offer{Memory: memory, Ask: true})
			var got []sigma.ProcID
			for _, j := range p.Jobs {
				got = append(got, j.ID)
			}
			if err != nil || (p.Lease != 0) != (kind != NoLease) || p.Kind != kind || !slices.Equal(got, jobs) {
				t.Fatalf("got %+v, %v, want a lease of kind %d and jobs %v", p, err, kind, jobs)
			}
			return p.Lease
		}
		a, _ := attended(t, s, "a")
		hold(t.Context(), a, pull(a, sigma.GiB, LeaseAlone))
		b, leave := attended(t, s, "b")
		if err := <-recalled; err != nil {
			t.Errorf("recall: %v", err)
		}
		hold(t.Context(), a, pull(a, sigma.GiB, LeaseShared))
		b.enqueue(t.Context(), []Job{{ID: "b", Realm: "b", Memory: 1}})
		if err := <-recalled; err != nil {
			t.Errorf("recall: %v", err)
		}
		a.enqueue(t.Context(), []Job{{ID: "a", Realm: "a", Memory: 1}})
		pull(a, 1, NoLease, "b")
		pull(a, 1, NoLease, "a")
		hold(t.Context(), a, pull(a, 1, LeaseShared))
		leave()
		if err := <-recalled; err != nil {
			t.Errorf("recall: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		l := pull(a, 1, LeaseAlone)
		hold(ctx, a, l)
		cancel()
		if err := <-recalled; sigma.KindOf(err) != sigma.KindCanceled || len(s.holding) != 0 || s.core.Leased(l) {
			t.Errorf("a lease that was given back: %v, %d held", err, len(s.holding))
		}
		if err := a.hold(t.Context(), l); err != nil {
			t.Errorf("holding what was recalled: %v", err)
		}
		l = pull(a, 1, LeaseAlone)
		c := s.visit("c") // which does not even attend
		if err := c.hold(t.Context(), l); err != nil || !s.core.Leased(l) || len(s.holding) != 0 {
			t.Errorf("another machine's lease was taken: %v", err)
		}
	})
}

// Goal: a machine that attends anew, because the end of its session has not been seen yet, ends all
// that the old session has; one in an older life does not.
func TestServiceAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService()
		old := s.visit("m")
		ended := make(chan error, 2)
		go func() { ended <- old.attend(t.Context(), life("m"), 1000, sigma.GiB) }()
		go func() { _, err := old.pull(t.Context(), Offer{Memory: 1}); ended <- err }()
		synctest.Wait()
		now, _ := attended(t, s, "m")
		for range 2 {
			if err := <-ended; sigma.KindOf(err) != sigma.KindStale {
				t.Errorf("a call of the old session: got %v, want stale", err)
			}
		}
		if err := old.enqueue(t.Context(),
			[]Job{{ID: "p", Realm: "a", Memory: 1}}); sigma.KindOf(err) != sigma.KindStale {
			t.Errorf("a job by the old session: %v", err)
		}
		if err := s.visit("m").attend(t.Context(), sigma.Life{Machine: "m"}, 1000,
			1); sigma.KindOf(err) != sigma.KindStale {
			t.Errorf("an older life: %v", err)
		}
		now.enqueue(t.Context(), []Job{{ID: "p", Realm: "a", Memory: 1}})
		other, _ := attended(t, s, "other")
		other.cancel(t.Context(), "p")
		if got, err := now.pull(t.Context(), Offer{Memory: 1}); err != nil || len(got.Jobs) != 1 ||
			got.Jobs[0].Home != life("m") {
			t.Errorf("got %+v, %v, want its own job, which another machine cannot cancel", got, err)
		}
	})
}

func TestServiceCalls(t *testing.T) {
	s := NewService()
	if _, err := s.Attach(t.Context(), sigma.Principal{Realm: "a", Proc: "p"},
		""); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a tenant attached: %v", err)
	}
	f, err := s.Attach(t.Context(), sigma.Principal{System: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method  string
		payload []byte
		want    sigma.Kind
	}{{"nothing", nil, sigma.KindUnsupported}, {CallEnqueue.Name, []byte{255, 255}, sigma.KindInvalid},
		{CallPull.Name, nil, sigma.KindInvalid}, {CallHold.Name, nil, sigma.KindInvalid},
		{CallCancel.Name, []byte{9}, sigma.KindInvalid},
		{CallAttend.Name, []byte{1}, sigma.KindInvalid}} {
		if _, _, err := f.(sigma.Caller).Call(t.Context(), c.method, c.payload, nil); sigma.KindOf(err) != c.want {
			t.Errorf("%s: got %v, want %v", c.method, err, c.want)
		}
	}
}

// What machines say is read without a fault, and what was read changes no invariant of the
// accounts, whatever the numbers.
func FuzzCodes(f *testing.F) {
	charges, _ := CallCharge.Payload([]Charge{{Realm: "a", Used: 1, Prepaid: 2, Ended: 3, Whole: 4}})
	shares, _ := CallShares.Payload(Shares{time.Second, []sigmap.RealmShares{{Realm: "a", Shares: 2}}})
	offer, _ := CallPull.Payload(Offer{Memory: 5, Load: 6, Ask: true})
	for _, b := range [][]byte{charges, shares, offer} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := NewCore()
		c.Attend(life("m"), 1000, sigma.GiB)
		var qs []Queued
		var p Pulled
		sigmap.Parse(b, func(x *sigmap.Coder) { codeQueues(x, &qs) })
		sigmap.Parse(b, func(x *sigmap.Coder) { codePulled(x, &p) })
		if told, err := CallShares.Parse(b); err == nil {
			of := map[sigma.RealmID]uint32{}
			for _, r := range told.Of {
				of[r.Realm] = r.Shares
			}
			c.Shares(of)
		}
		if cs, err := CallCharge.Parse(b); err == nil {
			c.Charge("m", cs)
		}
		if o, err := CallPull.Parse(b); err == nil {
			c.Park(1, "m", o)
		}
		for realm, q := range c.turns.accounts {
			if math.IsNaN(q.used) || math.IsInf(q.used, 0) || math.IsNaN(q.mean) || math.IsInf(q.mean, 0) ||
				q.mean < 0 {
				t.Errorf("the account of %s is %v, a job of it costs %v", realm, q.used, q.mean)
			}
		}
	})
}

func FuzzCodeJobs(f *testing.F) {
	jobs := []Job{{ID: "p", Realm: "a", Memory: 7, Home: life("m")}}
	b, _ := sigmap.Payload(func(c *sigmap.Coder) { CodeJobs(c, &jobs) })
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var got []Job
		if sigmap.Parse(b, func(c *sigmap.Coder) { CodeJobs(c, &got) }) == nil && len(got) > len(b) {
			t.Error("more jobs than bytes")
		}
	})
}

// A job that fits no credit, once it is canceled, does not keep those behind it from what is free.
func TestCancelFirst(t *testing.T) {
	c, m := NewCore(), life("m")
	c.Attend(m, 1000, sigma.GiB)
	c.Enqueue([]Job{{ID: "large", Realm: "a", Memory: 100, Home: m}, {ID: "small", Realm: "a", Memory: 10, Home: m}})
	if g := c.Park(1, "m", Offer{Memory: 50}); g != nil {
		t.Fatalf("got %v, want that the large job keeps its turn", g)
	}
	if g := c.Cancel("large"); len(g) != 1 || g[0].Ticket != 1 || len(g[0].Jobs) != 1 || g[0].Jobs[0].ID != "small" {
		t.Errorf("got %v, want the small job granted", g)
	}
	if g := c.Cancel("large"); g != nil {
		t.Errorf("a job canceled twice gave %v", g)
	}
}
