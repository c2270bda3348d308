package lcsched

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

func realm(r sigma.RealmID) func(*Job) { return func(j *Job) { j.Realm = r } }

// Goal: what is kept for a realm nobody else can reserve, at whatever time; the realm can, again
// and again; what is not kept is everybody's.
func TestMinimumOfRealm(t *testing.T) {
	d := newDesk(t)
	d.attend("m1", "m2")
	d.step(Limited{[]Limits{{Realm: "vip", Min: Amount{4000, 4 * sigma.GiB}}}})
	if k := d.c.Kept("vip"); k != (Amount{4000, 4 * sigma.GiB}) {
		t.Errorf("kept are %v", k)
	}
	d.want("others have the rest", d.enqueue(job("a", 4000, sigma.GiB)), "a>m2")
	d.want("and no more", d.enqueue(job("b", 1, 1)), "")
	if w :=
		d.c.Waiting(); w[0].Why != "what is reserved, or kept for realms by their minima, leaves no machine with 0.001 cores and 1B of memory" {
		t.Errorf("it waits because %s", w[0].Why)
	}
	for i := range 3 {
		id := fmt.Sprint("v", i)
		d.want("the realm itself", d.enqueue(job(id, 4000, 4*sigma.GiB, realm("vip"))), id+">m1")
		d.want("what it gives back is its own again", d.release("m1", id), "")
	}
	d.wait(time.Minute) // no machine is kept for one that only a minimum stops
	d.step(Ticked{})
	d.want("the realm after long", d.enqueue(job("v", 4000, sigma.GiB, realm("vip"))), "v>m1")
	d.release("m1", "v")
	d.want("without a minimum", d.step(Limited{}), "b>m1")
}

// Goal: a minimum that finds no room, as others have reserved, has it as they give back; what the
// realm has reserved counts; a machine that goes takes its pieces along, which are found elsewhere.
func TestMinimumFindsRoom(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.enqueue(job("a", 3000, sigma.GiB), job("v", 1000, sigma.GiB, realm("vip")))
	d.step(Limited{[]Limits{{Realm: "vip", Min: Amount{CPU: 2000}}}})
	if k := d.c.Kept("vip"); k.CPU != 1000 {
		t.Errorf("kept are %v", k)
	}
	d.release("m1", "a")
	if k := d.c.Kept("vip"); k.CPU != 2000 {
		t.Errorf("with room kept are %v", k)
	}
	d.want("others have the rest", d.enqueue(job("b", 2001, sigma.GiB)), "")
	d.step(Canceled{life("m1"), "b"})
	d.attend("m2")
	d.step(Left{life("m1")})
	if k := d.c.Kept("vip"); k.CPU != 2000 {
		t.Errorf("without its machine kept are %v", k)
	}
}

// Goal: a realm reserves no more than it may, of a machine and of all; who waits for that is told
// so, who would wait for ever is refused, and others are not held up.
func TestReservationLimitsOfRealm(t *testing.T) {
	d := newDesk(t)
	d.attend("m1", "m2")
	d.step(Limited{[]Limits{{Realm: "r", Max: Amount{CPU: 2000},
		Reservable: Amount{CPU: 3000, Memory: 2 * sigma.GiB}}}})
	d.wait(settle)
	d.want("more than of a machine", d.enqueue(job("a", 2001, 1)),
		"a!it reserves 2 cores and 1B of memory; its realm may have at each machine 2 cores")
	d.want("more than of all", d.enqueue(job("b", 1, 3*sigma.GiB)),
		"b!it reserves 0.001 cores and 3GiB of memory; its realm may reserve at all machines 3 cores and 2GiB of "+
			"memory")
	d.want("all of a machine", d.enqueue(job("c", 2000, 1)), "c>m1")
	d.want("the next", d.enqueue(job("d", 1000, 1)), "d>m2")
	d.want("one too many", d.enqueue(job("e", 500, 1)), "")
	if w :=
		d.c.Waiting(); w[0].Why != "its realm has reserved 3 cores and 2B of memory; it may reserve 3 cores and 2GiB of memory" {
		t.Errorf("it waits because %s", w[0].Why)
	}
	d.wait(2 * patience)
	d.step(Ticked{})
	d.want("another realm", d.enqueue(job("f", 3000, 1, realm("s"))), "f>m2")
	d.want("one ends", d.release("m2", "d"), "e>m2")
}

// Goal: no machine is kept for a job that its own realm's limits stop there; one that was is
// everybody's as soon as they do.
func TestNothingIsKeptForWhoMayNot(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.step(Limited{[]Limits{{Realm: "r", Max: Amount{CPU: 3000}}}})
	d.want("most of what the realm may have", d.enqueue(job("a", 2000, 1)), "a>m1")
	d.want("too much for the realm", d.enqueue(job("b", 1500, 1)), "")
	d.wait(2 * patience)
	d.step(Ticked{})
	d.want("another realm", d.enqueue(job("c", 2000, 1, realm("s"))), "c>m1")
	d.release("m1", "c")

	d.want("without a maximum", d.step(Limited{}), "b>m1")
	d.want("large", d.enqueue(job("d", 3500, 1)), "")
	d.wait(2 * patience)
	d.step(Ticked{})
	d.want("the machine is kept", d.enqueue(job("e", 100, 1, realm("s"))), "")
	d.want("with a maximum again", d.step(Limited{[]Limits{{Realm: "r", Max: Amount{CPU: 3600}}}}), "e>m1")
}

// Goal: what is kept for a realm's minimum it has at once, also at a machine that is kept for
// another realm's job, and no more than that there.
func TestMinimumAtKeptMachine(t *testing.T) {
	d := newDesk(t)
	d.attend("m1")
	d.step(Limited{[]Limits{{Realm: "vip", Min: Amount{1000, sigma.GiB}}}})
	d.want("another realm", d.enqueue(job("a", 2000, 1)), "a>m1")
	d.want("its next", d.enqueue(job("b", 2000, 1)), "")
	d.wait(2 * patience)
	d.step(Ticked{})
	d.want("more than the minimum", d.enqueue(job("v", 1001, 1, realm("vip"))), "")
	d.want("the minimum", d.enqueue(job("w", 1000, sigma.GiB, realm("vip"))), "w>m1")
	d.want("beyond it", d.enqueue(job("x", 1, 1, realm("vip"))), "")
	d.want("who it is kept for", d.release("m1", "a"), "b>m1 x>m1")
}

// Goal: whatever comes in whatever order, no machine is over-committed, no realm beyond its limits,
// and whoever has a minimum that is kept in one piece is granted it at once.
func TestLimitsRandom(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 8))
		d := newDesk(t)
		d.attend("m1", "m2", "m3")
		at := map[string]string{}
		limits := Limits{Realm: "vip", Min: Amount{2000, sigma.GiB}}
		d.step(Limited{[]Limits{limits, {Realm: "r0", Reservable: Amount{CPU: 5000}},
			{Realm: "r1", Max: Amount{CPU: 1500}}}})
		for i := range 300 {
			d.now = d.now.Add(time.Second)
			var fs []Effect
			switch n := r.IntN(10); {
			case n < 6:
				fs = d.c.Step(d.now, Enqueued{[]Job{job(fmt.Sprint(i), sigma.MilliCPU(1+r.IntN(2000)),
					sigma.Bytes(1+r.IntN(1000))*sigma.MiB, realm(sigma.RealmID(fmt.Sprint("r", r.IntN(3)))))}})
			case n < 9:
				for id, m := range at {
					delete(at, id)
					fs = d.c.Step(d.now, Released{life(m), []sigma.ProcID{sigma.ProcID(id)}})
					break
				}
			default:
				fs = d.c.Step(d.now, Ticked{})
			}
			for _, f := range fs {
				if g, ok := f.(Grant); ok {
					at[string(g.Job.ID)] = string(g.To.Machine)
				}
			}
			if k := d.c.Kept("vip"); k != limits.Min {
				t.Fatalf("seed %d: kept are %v", seed, k)
			}
			var all sigma.MilliCPU
			for name, m := range d.c.machines {
				if m.heldCPU+m.aside.CPU > m.cpu || m.heldMem+m.aside.Memory > m.memory || m.of["r1"].CPU > 1500 {
					t.Fatalf("seed %d: %s has %v and %v beside %v", seed, name, m.heldCPU, m.heldMem, m.aside)
				}
				all += m.of["r0"].CPU
			}
			if all > 5000 {
				t.Fatalf("seed %d: %v are reserved", seed, all)
			}
		}
	}
}
