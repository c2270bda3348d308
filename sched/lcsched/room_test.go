package lcsched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// checkRooms compares what the core keeps up to date with what it would be if it were made from
// nothing.
func checkRooms(t *testing.T, c *Core) {
	t.Helper()
	if !slices.IsSortedFunc(c.rooms.byRoom, byRoom) {
		t.Fatal("machines are out of order")
	}
	listed, open, keeping, shaped := 0, 0, 0, 0
	kept := map[sigma.RealmID]Amount{}
	for _, m := range c.machines {
		var aside, pieced, held Amount
		for realm, p := range m.pieces {
			aside, pieced = aside.plus(m.piece(realm)), pieced.plus(p)
			kept[realm] = kept[realm].plus(p)
		}
		for _, r := range m.held {
			held = held.plus(Amount{r.CPU, r.Memory})
		}
		if aside != m.aside || pieced != m.pieced || held != (Amount{m.heldCPU, m.heldMem}) {
			t.Fatalf("%s: %v of %v are aside, not %v of %v; %v held", m.life.Machine, m.aside, m.pieced, aside, pieced,
				held)
		}
		if taken := held.plus(aside); taken.CPU > m.cpu || taken.Memory > m.memory {
			t.Fatalf("%s: %v held, %v aside for minima, of %v and %v", m.life.Machine, held, aside, m.cpu, m.memory)
		}
		if m.listed != m.left.IsZero() || m.listed && !slices.Contains(c.rooms.byRoom, m) {
			t.Fatalf("%s is listed: %v", m.life.Machine, m.listed)
		}
		if m.listed {
			listed++
			if !m.closed {
				open++
			}
		}
		if m.keptFor != nil {
			keeping++
		}
	}
	for _, s := range c.rooms.shapes {
		shaped += s.many
	}
	if listed != len(c.rooms.byRoom) || open != c.rooms.open || keeping != c.keeping || shaped != len(c.machines) ||
		len(kept) != len(c.minima.kept) {
		t.Fatalf("%d machines attend, %d open, %d kept, %d shaped; the core says %d, %d, %d, %d", listed, open, keeping,
			shaped, len(c.rooms.byRoom), c.rooms.open, c.keeping, len(c.machines))
	}
	for realm, l := range c.limits {
		if lack := l.Min.less(kept[realm]); lack != c.minima.lack[realm] || kept[realm] != c.minima.kept[realm] ||
			(lack != Amount{}) != slices.Contains(c.minima.short, realm) {
			t.Fatalf("realm %s lacks %v, the core says %v", realm, lack, c.minima.lack[realm])
		}
	}
	for _, w := range c.queue {
		if bars, _ := c.bars(&w.Job); bars || w.gone || w.hopes {
			continue
		}
		for _, m := range c.machines {
			if c.takes(m, w) && m.keptFor == nil { // one that is kept may be its realm's own by now
				t.Fatalf("%s waits, and %s has room", w.ID, m.life.Machine)
			}
		}
	}
}

// Goal: with limits that change, machines that come and go, and whatever is asked for, all that is
// kept up to date step by step is what it would be from nothing: rooms, shapes, pieces, what realms
// lack. Nobody waits for what there is, and at the next step no realm lacks what there is.
func TestRoomsRandom(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 9))
		c, now := NewCore(), start
		up := map[sigma.MachineID]sigma.Life{}
		held := map[sigma.ProcID]sigma.Life{}
		var ids []sigma.ProcID
		lives := sigma.Incarnation(0)
		realms := []sigma.RealmID{"a", "b", "c"}
		step := func(e Event) {
			for _, f := range c.Step(now, e) {
				if g, ok := f.(Grant); ok {
					held[g.Job.ID] = g.To
					ids = append(ids, g.Job.ID)
				}
			}
			checkRooms(t, c)
		}
		for i := range 300 {
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			m := sigma.MachineID(fmt.Sprint("m", r.IntN(5)))
			switch n := r.IntN(20); {
			case n < 3:
				if l, ok := up[m]; ok && r.IntN(2) == 0 {
					delete(up, m)
					step(Left{l})
				} else {
					lives++
					up[m] = sigma.Life{Machine: m, Incarnation: lives}
					step(Attended{Life: up[m], CPU: 4000, Memory: sigma.Bytes(2+r.IntN(3)) * sigma.GiB,
						Closed: r.IntN(8) == 0, Labels: map[string]string{"zone": string(m[1:])}})
				}
			case n < 11:
				j := job(fmt.Sprint("j", i), sigma.MilliCPU(r.IntN(3000)), sigma.Bytes(r.IntN(3000))*sigma.MiB,
					realm(realms[r.IntN(3)]), named(fmt.Sprint(r.IntN(2))))
				if r.IntN(4) == 0 {
					j.Spread = "zone"
				}
				if r.IntN(3) == 0 {
					j.Near = sigma.MachineID(fmt.Sprint("m", r.IntN(5)))
				}
				j.Home = up[m]
				step(Enqueued{[]Job{j}})
			case n < 16 && len(ids) > 0:
				k := r.IntN(len(ids))
				id := ids[k]
				ids = slices.Delete(ids, k, k+1)
				if r.IntN(4) == 0 {
					step(Declined{held[id], id})
				} else {
					step(Released{held[id], []sigma.ProcID{id}})
				}
			case n < 17:
				var ls []Limits
				for _, realm := range realms {
					l := Limits{Realm: realm}
					if r.IntN(2) == 0 {
						l.Min = Amount{sigma.MilliCPU(r.IntN(6000)), sigma.Bytes(r.IntN(5)) * sigma.GiB}
					}
					if r.IntN(4) == 0 {
						l.Reservable = Amount{CPU: 2000 + sigma.MilliCPU(r.IntN(4000))}
					}
					ls = append(ls, l)
				}
				step(Limited{ls})
			case n < 18:
				step(Canceled{up[m], sigma.ProcID(fmt.Sprint("j", r.IntN(i+1)))})
			default:
				step(Ticked{})
			}
			c.assign() // what this step's grants made possible, which the next would see to
			before := fmt.Sprint(c.minima.kept)
			for _, m := range c.machines {
				c.minima.roomier[m] = true
			}
			if c.assign(); fmt.Sprint(c.minima.kept) != before {
				t.Fatalf("seed %d: kept were %s, and could be %v", seed, before, c.minima.kept)
			}
		}
	}
}

// BenchmarkManyMachines is what a step costs in a system of 10,000 machines and 1,000 realms with
// minima, of which half have not all of theirs, while 10,000 jobs wait: a proc that ends and is
// followed by another, a job that comes and waits, the look once a second, and a machine that comes
// back.
func BenchmarkManyMachines(b *testing.B) {
	const machines, realms, jobs = 10_000, 1_000, 10_000
	setup := func() (*Core, time.Time) {
		c, now := NewCore(), start
		r := rand.New(rand.NewPCG(1, 1))
		for i := range machines {
			id := fmt.Sprint("m", i)
			c.Step(now, Attended{Life: life(id), CPU: 8000, Memory: 16 * sigma.GiB,
				Held: []Held{{sigma.ProcID("h" + id), "r", "h", 6000, 12 * sigma.GiB}}})
		}
		var ls []Limits
		for i := range realms {
			ls = append(ls, Limits{Realm: sigma.RealmID(fmt.Sprint("r", i)), Min: Amount{40_000, 80 * sigma.GiB}})
		}
		c.Step(now, Limited{ls})
		for i := range jobs {
			c.Step(now, Enqueued{[]Job{job(fmt.Sprint("w", i), 1000+sigma.MilliCPU(r.IntN(3000)),
				sigma.Bytes(1+r.IntN(8))*sigma.GiB, realm(sigma.RealmID(fmt.Sprint("r", r.IntN(2*realms)))))}})
		}
		return c, now.Add(time.Minute)
	}
	c, now := setup()
	b.Logf("%d wait, %d realms lack something", len(c.queue), len(c.minima.short))
	b.Run("end", func(b *testing.B) {
		for i := range b.N {
			id := fmt.Sprint("m", i%machines)
			h := sigma.ProcID("h" + id)
			c.Step(now, Released{life(id), []sigma.ProcID{h}})
			c.Step(now, Enqueued{[]Job{{ID: h, Realm: "r", Name: "h", CPU: 6000, Memory: 12 * sigma.GiB,
				Home: life(id)}}})
		}
	})
	b.Run("wait", func(b *testing.B) {
		for i := range b.N {
			id := sigma.ProcID(fmt.Sprint("x", i))
			c.Step(now, Enqueued{[]Job{job(string(id), 7500, sigma.GiB)}})
			c.Step(now, Canceled{life("m1"), id})
		}
	})
	b.Run("tick", func(b *testing.B) {
		for i := range b.N {
			c.Step(now.Add(time.Duration(i)*time.Second), Ticked{})
		}
	})
	b.Run("machine", func(b *testing.B) {
		for i := range b.N {
			id := fmt.Sprint("m", i%machines)
			c.Step(now, Left{life(id)})
			c.Step(now, Attended{Life: life(id), CPU: 8000, Memory: 16 * sigma.GiB})
		}
	})
}

// Goal: a job that should be near a machine is given to it, though others have more room; waits for
// it for a while if it has none, and is overtaken meanwhile by who fits; then it goes anywhere; at
// once if the machine can never take it.
func TestNearMachine(t *testing.T) {
	near := func(m sigma.MachineID) func(*Job) { return func(j *Job) { j.Near = m } }
	d := newDesk(t)
	d.attend("m1", "m2", "m3:zone=a")
	d.want("where it should be", d.enqueue(job("a", 1000, sigma.GiB, near("m3"))), "a>m3")
	d.want("with the first of its group", d.enqueue(job("b", 1000, sigma.GiB, near("m3"), named("a"))), "b>m3")
	d.want("the rest of it", d.enqueue(job("c", 2000, sigma.GiB, near("m3"))), "c>m3")
	d.want("no room", d.enqueue(job("d", 1000, sigma.GiB, near("m3"))), "")
	if w := d.c.Waiting(); w[0].Why != "it should be near machine m3, which has no room, and waits 100ms for it" {
		t.Errorf("it waits because %s", w[0].Why)
	}
	d.want("another", d.enqueue(job("e", 1000, sigma.GiB)), "e>m1")
	d.wait(sigma.NearWait / 2)
	d.want("not yet", d.step(Ticked{}), "")
	d.want("room there", d.release("m3", "a"), "d>m3")
	d.enqueue(job("f", 1000, sigma.GiB, near("m3")))
	if at := d.c.Wakes(d.now); at.Sub(d.now) != sigma.NearWait {
		t.Errorf("it is woken in %v", at.Sub(d.now))
	}
	d.wait(sigma.NearWait)
	d.want("after a while", d.step(Ticked{}), "f>m1")
	d.want("too large for it", d.enqueue(job("g", 1000, sigma.GiB, near("m3"), where("zone=b"))), "")
	if w := d.c.Waiting(); len(w) != 1 || w[0].Why != "there is no machine with zone=b" {
		t.Errorf("it waits: %v", w)
	}
	d.step(Canceled{life("m1"), "g"})
	d.want("one that is not known", d.enqueue(job("h", 1000, sigma.GiB, near("m9"))), "h>m1")
	d.enqueue(job("i", 500, sigma.GiB, near("m3")))
	d.want("its machine is gone", d.step(Left{life("m3")}), "i>m1")
}
