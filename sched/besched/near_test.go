package besched

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: a job that should be near a machine is given to it, however loaded, if it has room; waits
// for it aside if it has none, without delaying others or recalling a lease; goes to it when it has
// room, and anywhere after a while, or at once when the machine is gone, too small or not known.
func TestNearMachine(t *testing.T) {
	of := map[Ticket]sigma.MachineID{}
	var c *Core
	var ticket Ticket
	leases := 0
	begin := func() {
		c, leases = NewCore(), 0
		for _, m := range []sigma.MachineID{"a", "b", "c"} {
			c.Attend(sigma.Life{Machine: m, Incarnation: 1}, 1000, sigma.GiB)
		}
	}
	said := func(gs []Grant, recalled []Ticket) (out string) {
		for _, g := range gs {
			for _, j := range g.Jobs {
				out += fmt.Sprintf("%s>%s ", j.ID, of[g.Ticket])
			}
			if g.Lease != NoLease {
				leases++
			}
		}
		if len(recalled) > 0 {
			out += "recalled "
		}
		return out
	}
	park := func(m sigma.MachineID, memory sigma.Bytes, load uint32) string {
		ticket++
		of[ticket] = m
		return said(c.Park(ticket, m, Offer{Memory: memory, Load: load}), nil)
	}
	spawn := func(id string, near sigma.MachineID) string {
		return said(c.Enqueue([]Job{{ID: sigma.ProcID(id), Realm: "r", Memory: 100, Near: near,
			Home: sigma.Life{Machine: "a", Incarnation: 1}}}))
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	begin()
	park("a", 1000, 0)
	park("b", 1000, 50)
	want("it is given to the machine though that is loaded", spawn("1", "b"), "1>b ")
	want("one that is not known", spawn("2", "x"), "2>a ")
	park("a", 1000, 0)
	park("c", 10, 0)
	want("its machine has no room", spawn("3", "c"), "")
	if q := c.Queues(); !c.Expecting("3") || c.Waiting() != 0 || len(q) != 1 || q[0].Jobs != 1 ||
		c.Home("3").Machine != "a" {
		t.Errorf("3 is not aside: %v", q)
	}
	want("again", spawn("3", "c"), "")
	want("another is not delayed by it", spawn("4", ""), "4>a ")
	want("its machine has room", park("c", 1000, 90), "3>c ")
	park("a", 1000, 0)
	spawn("5", "c")
	want("after a while", said(c.Hurry("5")), "5>a ")
	want("and not twice", said(c.Hurry("5")), "")
	park("a", 1000, 0)
	spawn("6", "c")
	c.Cancel("6")
	want("it is not wanted any more", park("c", 1000, 0), "")
	want("the machine has room", spawn("7", "c"), "7>c ")
	spawn("8", "c")
	want("the machine is gone", said(c.Gone(sigma.Life{Machine: "c", Incarnation: 1})), "8>a ")
	spawn("9", "b")
	if c.Gone(sigma.Life{Machine: "a", Incarnation: 1}); len(c.aside.jobs) != 0 || len(c.aside.of) != 0 {
		t.Error("the home is gone, and its job is still aside")
	}
	begin() // leases
	for _, m := range []sigma.MachineID{"a", "b"} {
		ticket++
		of[ticket] = m
		said(c.Park(ticket, m, Offer{Memory: 1000, Ask: true}), nil)
	}
	park("a", 0, 0)
	park("b", 1000, 0)
	if want("nothing waits yet", spawn("10", "c"), ""); leases == 0 || len(c.leases) == 0 {
		t.Error("no lease is left")
	}
	want("and it goes where there is room", said(c.Hurry("10")), "10>b ")
}

// Goal: of a batch whose procs should be near one machine nothing goes elsewhere while that has
// room or is about to: what its credit cannot take, by number or by memory, waits beside the
// queues, recalls no lease, and goes there with the next credits. Other jobs of the batch take what
// is free elsewhere.
func TestNearBatch(t *testing.T) {
	for _, memory := range []sigma.Bytes{sigma.GiB, 1000} { // 64 jobs of a grant, or 10 by memory
		c := NewCore()
		of := map[Ticket]sigma.MachineID{}
		ticket, given := Ticket(0), map[sigma.MachineID]int{}
		see := func(gs []Grant, recalled []Ticket) {
			t.Helper()
			if len(recalled) > 0 {
				t.Fatalf("%d leases are recalled", len(recalled))
			}
			for _, g := range gs {
				for _, j := range g.Jobs {
					if j.Near != "" && of[g.Ticket] != j.Near {
						t.Fatalf("%s is given to %s", j.ID, of[g.Ticket])
					}
					given[of[g.Ticket]]++
				}
			}
		}
		park := func(m sigma.MachineID, memory sigma.Bytes) {
			t.Helper()
			ticket++
			of[ticket] = m
			see(c.Park(ticket, m, Offer{Memory: memory, Ask: m == "b" && ticket == 1}), nil)
		}
		for _, m := range []sigma.MachineID{"a", "b"} {
			c.Attend(life(m), 1000, sigma.GiB)
		}
		park("b", sigma.GiB) // a lease
		park("b", sigma.GiB)
		park("a", memory)
		var jobs []Job
		for i := range 200 {
			jobs = append(jobs, Job{ID: sigma.ProcID(fmt.Sprint("near", i)), Realm: "r", Memory: 100, Near: "a",
				Home: life("b")})
		}
		jobs = append(jobs, Job{ID: "any", Realm: "s", Memory: 100, Home: life("b")})
		see(c.Enqueue(jobs))
		if len(c.leases) != 1 || c.Waiting() != 0 || given["b"] != 1 {
			t.Fatalf("%d leases, %d jobs wait, given are %v", len(c.leases), c.Waiting(), given)
		}
		for n := 1; given["a"] < 200; n++ {
			if !c.Expecting("near199") || n > 20 {
				t.Fatalf("given are %v by %d credits", given, n)
			}
			park("a", memory)
		}
		if len(c.aside.jobs) != 0 || len(c.aside.hope) != 0 {
			t.Errorf("%d jobs are still aside", len(c.aside.jobs))
		}
	}
}

// Goal: who should be near a machine takes no more than others of its realm's part: with every job
// of one realm near a machine and none of the other's, both have as many.
func TestNearTakesTurns(t *testing.T) {
	c := NewCore()
	r := rand.New(rand.NewPCG(1, 1))
	name := func(i int) sigma.MachineID { return sigma.MachineID(fmt.Sprint("m", i)) }
	for i := range 4 {
		c.Attend(sigma.Life{Machine: name(i), Incarnation: 1}, 1000, sigma.GiB)
	}
	given := map[sigma.RealmID]int{}
	near := 0
	for i := range 8000 {
		for _, realm := range []sigma.RealmID{"near", "any"} {
			j := Job{ID: sigma.ProcID(fmt.Sprint(realm, i)), Realm: realm, Memory: 100, Home: sigma.Life{Machine: "m0",
				Incarnation: 1}}
			if realm == "near" {
				j.Near = name(r.IntN(4))
			}
			c.Enqueue([]Job{j})
			if i >= 20 {
				c.Hurry(sigma.ProcID(fmt.Sprint(realm, i-20)))
			}
		}
		at := name(r.IntN(4))
		for _, g := range c.Park(Ticket(i+1), at, Offer{Memory: 100}) {
			for _, j := range g.Jobs {
				given[j.Realm]++
				if j.Near == at {
					near++
				}
			}
		}
	}
	if n, a := given["near"], given["any"]; n+a != 8000 || max(n, a)-min(n, a) > 100 {
		t.Errorf("given were %v", given)
	}
	if near < given["near"]/5 {
		t.Errorf("%d of %d were near", near, given["near"])
	}
}
