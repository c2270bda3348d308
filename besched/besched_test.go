package besched

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// Goal: under random enqueues, cancels, credits and withdrawals, no job is granted twice or after its cancellation, none exceeds its credit, and each realm's jobs come in order.
func TestCoreRandom(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			c := NewCore()
			waiting := map[sigma.ProcID]Job{}
			credits := map[Ticket]sigma.Bytes{}
			next := map[sigma.RealmID]int{}  // number of the realm's next job
			order := map[sigma.RealmID]int{} // number of the last one granted
			number := map[sigma.ProcID]int{}
			asked, leased := map[Ticket]bool{}, map[Ticket]bool{}
			check := func(gs []Grant) {
				for _, g := range gs {
					room, ok := credits[g.Ticket]
					if asked[g.Ticket] && len(g.Jobs) == 0 && ok {
						delete(credits, g.Ticket)
						leased[g.Ticket] = true
						continue
					}
					if !ok || len(g.Jobs) == 0 || len(g.Jobs) > GrantMax {
						t.Fatalf("grant %+v of a credit of %v (%v)", g, room, ok)
					}
					delete(credits, g.Ticket)
					for _, j := range g.Jobs {
						if _, ok := waiting[j.ID]; !ok {
							t.Fatalf("%v was granted but does not wait", j)
						}
						delete(waiting, j.ID)
						if j.Memory > room {
							t.Fatalf("%v exceeds what is left of the credit, %v", j, room)
						}
						room -= j.Memory
						if number[j.ID] < order[j.Realm] {
							t.Fatalf("%v came after a later one of its realm", j)
						}
						order[j.Realm] = number[j.ID]
					}
				}
			}
			for i := range 500 {
				switch r.IntN(5) {
				case 0, 1:
					var jobs []Job
					for range r.IntN(4) {
						realm := sigma.RealmID(fmt.Sprint("r", r.IntN(3)))
						next[realm]++
						j := Job{ID: sigma.ProcID(fmt.Sprint(realm, "-", next[realm])), Realm: realm, Memory: sigma.Bytes(1+r.IntN(8)) * sigma.MiB}
						number[j.ID], waiting[j.ID] = next[realm], j
						jobs = append(jobs, j)
					}
					gs, recalled := c.Enqueue(jobs)
					check(gs)
					for _, tk := range recalled {
						if !leased[tk] {
							t.Fatalf("lease %d was recalled and not given", tk)
						}
						delete(leased, tk)
					}
				case 2:
					for id := range waiting {
						delete(waiting, id)
						check(c.Cancel(id))
						break
					}
				case 3:
					tk := Ticket(i)
					credits[tk] = sigma.Bytes(1+r.IntN(20)) * sigma.MiB
					if asked[tk] = r.IntN(2) == 0; asked[tk] {
						check(c.Ask(tk, credits[tk]))
					} else {
						check(c.Park(tk, credits[tk]))
					}
				case 4:
					for tk := range credits {
						if !c.Leave(tk) {
							t.Fatal("a parked credit was not there")
						}
						delete(credits, tk)
						break
					}
				}
				if len(leased) > 0 && len(waiting) > 0 {
					t.Fatalf("%d leases are held while %d jobs wait", len(leased), len(waiting))
				}
				if c.Waiting() != len(waiting) {
					t.Fatalf("%d wait, want %d", c.Waiting(), len(waiting))
				}
			}
			tk := Ticket(1 << 20)
			for ; len(waiting) > 0; tk++ {
				credits[tk] = sigma.GiB
				check(c.Park(tk, sigma.GiB))
			}
		})
	}
}

// A realm with a long queue and one with a short one take turns.
func TestTurns(t *testing.T) {
	c := NewCore()
	var jobs []Job
	for i := range 10 {
		jobs = append(jobs, Job{ID: sigma.ProcID(fmt.Sprint("a", i)), Realm: "a", Memory: 1})
	}
	c.Enqueue(append(jobs, Job{ID: "b0", Realm: "b", Memory: 1}, Job{ID: "b1", Realm: "b", Memory: 1}))
	got := c.Park(1, 5)[0].Jobs
	want := []sigma.ProcID{"a0", "b0", "a1", "b1", "a2"}
	for i, j := range got {
		if len(got) != len(want) || j.ID != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// Goal: a puller that gives up leaves no credit behind, and a grant made in the same moment is not lost.
func TestServicePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		s.enqueue([]Job{{ID: "large", Realm: "a", Memory: 2 * sigma.GiB}})
		go func() { _, _, err := s.pull(ctx, sigma.GiB); ended <- err }()
		synctest.Wait()
		cancel()
		if err := <-ended; sigma.KindOf(err) != sigma.KindCanceled {
			t.Errorf("got %v, want canceled", err)
		}
		s.enqueue([]Job{{ID: "p", Realm: "b", Memory: 1}})
		jobs, lease, err := s.pull(t.Context(), sigma.GiB)
		if lease != 0 || err != nil || len(jobs) != 1 || len(s.waiting) != 0 {
			t.Errorf("got %v, %v with %d waiting, want the job", jobs, err, len(s.waiting))
		}
	})
}

// Goal: nobody starves by leases. Machine A has one and places by itself; when a job of machine B waits, A's lease ends at once, its next credit gives the job its turn, and
// only then is there a lease again.
func TestServiceLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewService()
		_, lease, err := s.pull(t.Context(), sigma.GiB)
		if err != nil || lease == 0 {
			t.Fatalf("got lease %d, %v, want one, as nothing waits", lease, err)
		}
		recalled := make(chan error)
		go func() { recalled <- s.hold(t.Context(), lease) }()
		synctest.Wait()
		s.enqueue([]Job{{ID: "b", Realm: "b", Memory: 1}})
		if err := <-recalled; err != nil {
			t.Errorf("recall: %v", err)
		}
		s.enqueue([]Job{{ID: "a", Realm: "a", Memory: 1}})
		jobs, none, err := s.pull(t.Context(), 1)
		if err != nil || none != 0 || len(jobs) != 1 || jobs[0].ID != "b" {
			t.Errorf("got %v, lease %d, %v; want the job that waited", jobs, none, err)
		}
		if jobs, none, _ = s.pull(t.Context(), 1); none != 0 || len(jobs) != 1 || jobs[0].ID != "a" {
			t.Errorf("got %v, lease %d; want the next job", jobs, none)
		}
		if _, lease, _ = s.pull(t.Context(), 1); lease == 0 {
			t.Error("got no lease again")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { recalled <- s.hold(ctx, lease) }()
		synctest.Wait()
		cancel()
		if err := <-recalled; sigma.KindOf(err) != sigma.KindCanceled || len(s.holding) != 0 || s.core.Leased(lease) {
			t.Errorf("a lease that was given back: %v, %d held", err, len(s.holding))
		}
		if err := s.hold(t.Context(), lease); err != nil {
			t.Errorf("holding what was recalled: %v", err)
		}
	})
}

func TestServiceCalls(t *testing.T) {
	s := NewService()
	if _, err := s.Attach(t.Context(), sigma.Principal{Realm: "a", Proc: "p"}, ""); sigma.KindOf(err) != sigma.KindPermission {
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
	}{{"nothing", nil, sigma.KindUnsupported}, {CallEnqueue, []byte{255, 255}, sigma.KindInvalid}, {CallPull, nil, sigma.KindInvalid}, {CallHold, nil, sigma.KindInvalid}, {CallCancel, []byte{9}, sigma.KindInvalid}} {
		if _, _, err := f.(sigma.Caller).Call(t.Context(), c.method, c.payload, nil); sigma.KindOf(err) != c.want {
			t.Errorf("%s: got %v, want %v", c.method, err, c.want)
		}
	}
}

func FuzzCodeJobs(f *testing.F) {
	jobs := []Job{{ID: "p", Realm: "a", Memory: 7}}
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
	c := NewCore()
	c.Enqueue([]Job{{"large", "a", 100}, {"small", "a", 10}})
	if g := c.Park(1, 50); g != nil {
		t.Fatalf("got %v, want that the large job keeps its turn", g)
	}
	if g := c.Cancel("large"); len(g) != 1 || g[0].Ticket != 1 || len(g[0].Jobs) != 1 || g[0].Jobs[0].ID != "small" {
		t.Errorf("got %v, want the small job granted", g)
	}
	if g := c.Cancel("large"); g != nil {
		t.Errorf("a job canceled twice gave %v", g)
	}
}
