package placement

import (
	"testing"
	"time"

	"sigmaos.dev/kernel/meter"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// Goal: each second that a proc used while others waited is charged once, whether it was looked at
// before its end or not, and what was prepaid for it is given back once; nothing is noted for what
// is used under a lease.
func TestChargesOnce(t *testing.T) {
	c, now := newCharges(), time.Unix(1000, 0)
	c.attend("one")
	c.contended.Store(&now)
	ended := func(id sigma.ProcID, placed time.Time, cpu time.Duration) {
		p := &schedd.Proc{ProcInfo: sigma.ProcInfo{ID: id, Realm: "r", Times: sigma.Times{Placed: placed,
			Ended: placed.Add(10 * time.Second)}, Usage: sigma.Usage{UserTime: cpu}}}
		c.ended(p, 1000, sigma.GiB)
	}
	check := func(what string, want besched.Charge) {
		t.Helper()
		want.Realm = "r"
		if got := c.take("one"); len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %+v, want %+v", what, got, want)
		}
	}
	c.given(now, "one", []besched.Job{{ID: "long", Realm: "r", Prepaid: time.Second},
		{ID: "never", Realm: "r", Prepaid: time.Minute}})
	if old := c.old(now.Add(chargeEvery)); len(old) != 2 || old["long"] != "r" {
		t.Errorf("%v are looked at", old)
	}
	so := func(id sigma.ProcID, placed, at time.Time, cost time.Duration) {
		c.so(at, &schedd.Proc{ProcInfo: sigma.ProcInfo{ID: id, Realm: "r", Times: sigma.Times{Placed: placed}}}, cost)
	}
	so("long", now, now.Add(3*time.Second), 3*time.Second)
	check("a look", besched.Charge{Used: 3 * time.Second, Prepaid: time.Second})
	so("long", now, now.Add(5*time.Second), 5*time.Second)
	check("a second look", besched.Charge{Used: 2 * time.Second})
	ended("long", now, 8*time.Second)
	check("the end", besched.Charge{Used: 3 * time.Second, Ended: 1, Whole: 8 * time.Second})
	c.over("never")
	check("a job that never came", besched.Charge{Prepaid: time.Minute})
	c.given(now, "one", []besched.Job{{ID: "twice", Realm: "r", Prepaid: 7}})
	c.given(now, "one", []besched.Job{{ID: "twice", Realm: "r", Prepaid: 9}})
	check("a job that was given twice", besched.Charge{Prepaid: 7})
	ended("twice", now, 4)
	check("its end", besched.Charge{Used: 4, Prepaid: 9, Ended: 1, Whole: 4})
	ended("before", now.Add(-5*time.Second), 8*time.Second)
	check("one that ran half of its time under a lease", besched.Charge{Used: 4 * time.Second, Ended: 1,
		Whole: 8 * time.Second})
	so("earlier", now.Add(-5*time.Second), now, 5*time.Second)
	so("earlier", now.Add(-5*time.Second), now.Add(time.Second), 6*time.Second)
	check("a look at one that ran under a lease, and has been looked at since", besched.Charge{Used: time.Second})
	ended("earlier", now.Add(-5*time.Second), 8*time.Second)
	check("its end", besched.Charge{Used: 2 * time.Second, Ended: 1, Whole: 8 * time.Second})
	c.given(now, "one", []besched.Job{{ID: "leased", Realm: "r", Prepaid: 7}})
	c.lease(true)
	if c.idle() {
		t.Error("a job that was given is forgotten")
	}
	ended("leased", now, time.Second)
	if got := c.take("one"); len(got) != 0 || !c.idle() {
		t.Errorf("under a lease %v is owed", got)
	}
}

// ran is a proc that has been placed on a machine of one core, where memory costs nothing.
func ran(id sigma.ProcID, placed time.Time) *schedd.Proc {
	p := &schedd.Proc{}
	p.ID, p.Realm, p.State, p.Times.Placed = id, "r", sigma.ProcRunning, placed
	return p
}

// contendedSince has somebody wait since a moment.
func (c *charges) contendedSince(at time.Time) { c.contended.Store(&at) }

// Goal: of a proc that ran while nobody waited its realm is charged with what it cost from then on
// when somebody did, to the first look at it as after that, and at its end; what it cost while
// nobody waited is charged never, however often that changes.
func TestChargedFromWhenSomebodyWaits(t *testing.T) {
	const shard = besched.Shard("m1/1")
	begin := time.Now()
	at := func(s float64) time.Time { return begin.Add(time.Duration(s * 1e9)) }
	cost := func(s float64) time.Duration { return time.Duration(s * 1e9) }
	charged := func(c *charges, what string, want float64) {
		t.Helper()
		var got time.Duration
		for _, ch := range c.take(shard) {
			got += ch.Used - ch.Prepaid
		}
		if d := got - cost(want); d < -time.Millisecond || d > time.Millisecond {
			t.Errorf("%s: charged are %v, want %v", what, got, cost(want))
		}
	}
	end := func(c *charges, p *schedd.Proc, s float64) {
		p.State, p.Times.Ended, p.Usage.UserTime = sigma.ProcEnded, at(s), cost(s)
		c.ended(p, 1000, 0)
	}

	c := newCharges()
	c.attend(shard)
	p := ran("early", at(0)) // uses a whole core
	c.contendedSince(at(10))
	c.so(at(14), p, cost(14))
	charged(c, "at the first look", 4)
	c.so(at(15), p, cost(15))
	charged(c, "at the next", 1)
	c.lease(true)
	c.so(at(16), p, cost(16))
	charged(c, "while nobody waits", 0)
	c.contendedSince(at(20))
	c.so(at(22), p, cost(22))
	charged(c, "when somebody waits again", 2)
	end(c, p, 23)
	charged(c, "at its end", 1)

	p = ran("unseen", at(0))
	end(c, p, 30)
	charged(c, "one that was never looked at", 10)

	c.given(at(20), shard, []besched.Job{{ID: "given", Realm: "r", Prepaid: cost(0.5)}})
	p = ran("given", at(20))
	c.so(at(21), p, cost(1)) // it began at 20
	charged(c, "one that was given", 0.5)
	c.lease(true)
	c.contendedSince(at(25))
	p.State, p.Times.Ended, p.Usage.UserTime = sigma.ProcEnded, at(27), cost(7)
	c.ended(p, 1000, 0)
	charged(c, "its end, after a time when nobody waited", 2)
	if n := c.tracked.Load(); n != 0 {
		t.Errorf("%d procs are noted still", n)
	}
	c.given(at(25), shard, []besched.Job{{ID: "never", Realm: "r", Prepaid: cost(0.5)}})
	c.over("never")
	charged(c, "one that never came", -0.5)
}

// Goal: what services of this machine do for a realm while somebody waits counts for its turns as
// what its procs use does, and as one sum; what they did before does not, nor is a job of the realm
// thought to cost more.
func TestServicesCountInTurns(t *testing.T) {
	begin := time.Now()
	p, worked := lonePlacement(), meter.NewWorks()
	c := p.sched.charges
	countWork := func(now time.Time, service string, used time.Duration, works []sigma.Work) {
		worked.Count(now, service, used, works, func(from time.Time, done sigma.Work) { p.Served(from, now, done) })
	}
	c.attend("one")
	works := func(cpu time.Duration) []sigma.Work {
		return []sigma.Work{{Realm: "r", Requests: 1, CPU: cpu}, {Realm: sigma.SystemRealm, CPU: cpu}}
	}
	owed := func(what string, want time.Duration) {
		t.Helper()
		got := c.take("one")
		if want == 0 && len(got) == 0 {
			return
		}
		if len(got) != 1 || got[0] != (besched.Charge{Realm: "r", Used: want}) {
			t.Errorf("%s: %+v is owed, want %v", what, got, want)
		}
	}
	c.contendedSince(begin)
	countWork(begin.Add(time.Second), "some", 2*time.Second, works(time.Second))
	owed("not known since when", 0)
	countWork(begin.Add(2*time.Second), "some", 2*time.Second, works(time.Second))
	countWork(begin.Add(3*time.Second), "some", 4*time.Second, works(time.Second))
	owed("while somebody waits", 3*time.Second)
	c.lease(true)
	countWork(begin.Add(4*time.Second), "some", 2*time.Second, works(time.Second))
	owed("while nobody does", 0)
	c.contendedSince(begin.Add(6 * time.Second))
	countWork(begin.Add(8*time.Second), "some", 4*time.Second, works(time.Second))
	owed("half of the time", time.Second)
	c.contendedSince(begin.Add(60 * time.Second))
	countWork(begin.Add(65*time.Second), "some", 10*time.Second, works(5*time.Second))
	owed("5 s after a minute without work, of which a service says nothing", 2500*time.Millisecond)
	c.contendedSince(begin.Add(69 * time.Second))
	countWork(begin.Add(73*time.Second), "some", 8*time.Second, works(4*time.Second))
	owed("half of the time since the last report", 2*time.Second)
}

// Goal: a proc that ends while the launcher is asked what it uses is charged at its end, once, and
// is not noted any more.
func TestEndsWhileLookedAt(t *testing.T) {
	s := loneScheduler()
	c := s.charges
	c.attend("one")
	c.claim() // nobody sends
	placed := time.Now().Add(-10 * time.Second)
	c.contendedSince(placed)
	step := func(e schedd.Event) {
		s.all.cfg.Procs.End("r", "p", e, s.ended)
	}
	var used time.Duration
	owed := func() time.Duration {
		for _, o := range c.take("one") {
			used += o.Used
		}
		return used
	}
	step(schedd.Adopted{Info: sigma.ProcInfo{ID: "p", Realm: "r", Times: sigma.Times{Placed: placed}}, Launch: 1})
	u := sigma.Usage{UserTime: 8 * time.Second}
	s.looked("r", "p", u)
	if got := owed(); got < u.UserTime || c.tracked.Load() != 1 {
		t.Fatalf("charged are %v while it runs, for %d procs", got, c.tracked.Load())
	}
	step(schedd.Gone{ID: "p", Exit: launch.Exited{User: 9 * time.Second}})
	all := owed()
	if all < 9*time.Second {
		t.Fatalf("charged are %v", all)
	}
	s.looked("r", "p", u) // asked before its end
	if got := owed(); got != all || c.tracked.Load() != 0 {
		t.Errorf("charged are %v more after its end, and %d procs are noted", got-all, c.tracked.Load())
	}
	step(schedd.RealmGone{Realm: "r"})
	s.looked("r", "p", u)
	if got := owed(); got != all {
		t.Errorf("charged are %v more for one that is forgotten", got-all)
	}
}

// Goal: besched is told of each change of what a realm's procs hold once: a shard of what others
// gave, all of them of ends, whether somebody waits or not, of jobs that do not run after all, and
// of what ran under a lease; and a shard that is new of all that there is.
func TestChargesTellWhatIsHeld(t *testing.T) {
	c, now := newCharges(), time.Unix(1000, 0)
	c.attend("one")
	c.attend("two")
	c.contendedSince(now)
	check := func(what string, one, two int64) {
		t.Helper()
		for shard, want := range map[besched.Shard]int64{"one": one, "two": two} {
			got := int64(0)
			for _, ch := range c.take(shard) {
				got += ch.Held
			}
			if got != want {
				t.Errorf("%s: %s is told of %d, want %d", what, shard, got, want)
			}
		}
	}
	proc := func(id sigma.ProcID, memory sigma.Bytes) *schedd.Proc {
		p := ran(id, now)
		p.Memory, p.Times.Ended = memory, now.Add(time.Second)
		return p
	}
	c.given(now, "one", []besched.Job{{ID: "a", Realm: "r", Memory: 7}, {ID: "b", Realm: "r", Memory: 5},
		{ID: "c", Realm: "r", Memory: 3}})
	check("jobs that one gave", 0, 15)
	c.given(now, "two", []besched.Job{{ID: "a", Realm: "r", Memory: 7}})
	check("a job that two gave again", -7+7, -7)
	c.ended(proc("a", 7), 1000, sigma.GiB)
	check("an end", -7, -7)
	c.over("b")
	check("a job that does not run", -5, -5)
	c.so(now.Add(time.Second), proc("leased", 11), 0)
	c.so(now.Add(2*time.Second), proc("leased", 11), 0)
	check("looks at one that was placed under a lease", 11, 11)
	c.attend("two")
	check("two attends anew", 0, 3+11)
	c.lease(true)
	if !c.ended(proc("c", 3), 1000, sigma.GiB) {
		t.Error("an end under a lease is not sent")
	}
	if c.ended(proc("other", 9), 1000, sigma.GiB) {
		t.Error("an end of which besched knows nothing is sent")
	}
	check("ends under a lease", -3, -3)
	c.contendedSince(now)
	c.ended(proc("leased", 11), 1000, sigma.GiB)
	check("its end", -11, -11)
}
