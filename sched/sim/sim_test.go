package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sigma"
)

// Goal: in small systems in which everything breaks, no machine is ever over-committed, no proc
// starts twice, each is answered, and nothing is left.
func TestFaults(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r, err := New(Config{Seed: seed, Machines: 5, Procs: 600, Load: 1.2, LC: 0.2, Near: 0.3 * float64(seed%2),
				Shards: 1 + int(seed%3), Run: 300 * time.Millisecond, Faults: true}).Run()
			if err != nil {
				t.Errorf(
					"%v; again with: sigma sim --machines 5 --procs 600 --load 1.2 --lc 0.2 --near %g --shards %d "+
						"--run 300ms --faults --seed %d", err, 0.3*float64(seed%2), 1+seed%3, seed)
			}
			if r.Faults == 0 {
				t.Error("nothing broke")
			}
		})
	}
}

// Goal: limits of realms hold whatever breaks: r1 never has more memory of a machine than it may,
// and all of its procs run all the same.
func TestFaultsWithLimits(t *testing.T) {
	for seed := range uint64(8) {
		c := Config{Seed: seed, Machines: 5, Procs: 500, Load: 1.2, LC: 0.2, Shards: 1 + int(seed%2),
			Run: 300 * time.Millisecond, Faults: true,
			Limits: map[sigma.RealmID]sigma.RealmLimits{"r1": {MaxMemory: 256 * sigma.MiB, MaxCPU: 5000},
				"r2": {MinCPU: 4000, MinMemory: 512 * sigma.MiB}, "r3": {ReserveCPU: 8000}}}
		if _, err := New(c).Run(); err != nil {
			t.Error(err)
		}
	}
}

// Goal: without faults maxima and quotas hold, and what a realm may always reserve it gets within
// the time in which best-effort procs give way, though another realm wants to reserve more than all
// machines have, for minutes, and best-effort procs take all that they leave.
func TestLimitsHold(t *testing.T) {
	for seed := range uint64(4) {
		c := Config{Seed: seed, Machines: 4, Cores: 8, Shards: 1 + int(seed%2),
			Limits: map[sigma.RealmID]sigma.RealmLimits{
				"sure":  {MinCPU: 4000, MinMemory: 512 * sigma.MiB},
				"quota": {ReserveCPU: 3000, ReserveMemory: 512 * sigma.MiB}, "bound": {MaxMemory: 256 * sigma.MiB,
					MaxCPU: 1000}}}
		r := rand.New(rand.NewPCG(seed, 3))
		add := func(realm sigma.RealmID, every, run time.Duration, cpu sigma.MilliCPU, memory sigma.Bytes) {
			for at := time.Duration(r.Int64N(int64(every))); at < time.Minute; at += every {
				c.Trace = append(c.Trace,
					Arrival{At: at, Realm: realm, Run: run/2 + time.Duration(r.Int64N(int64(run))), CPU: cpu,
						Memory: memory, Waited: -1})
			}
		}
		add("hog", 500*time.Millisecond, 30*time.Second, 1500, 200*sigma.MiB)
		add("sure", 3*time.Second, 8*time.Second, 1000, 128*sigma.MiB)
		add("quota", time.Second, 4*time.Second, 500, 100*sigma.MiB)
		add("bound", 300*time.Millisecond, 3*time.Second, 0, 100*sigma.MiB)
		add("bound", 5*time.Second, 3*time.Second, 500, 64*sigma.MiB)
		add("many", 50*time.Millisecond, 3*time.Second, 0, 64*sigma.MiB)
		slices.SortStableFunc(c.Trace, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
		s := New(c)
		if _, err := s.Run(); err != nil {
			t.Error(err)
		}
		for _, id := range []sigma.RealmID{"sure", "quota", "bound"} {
			if s.realms[id].reserved != (lcsched.Amount{}) || s.realms[id].waiting != 0 {
				t.Errorf("seed %d: realm %s has %v reserved, %d procs wait", seed, id, s.realms[id].reserved,
					s.realms[id].waiting)
			}
		}
	}
}

// Goal: of the procs that should be near a machine, which has room most of the time, nearly all
// are; nobody waits much longer for that.
func TestNear(t *testing.T) {
	for _, shards := range []int{1, 2} {
		r, err := New(Config{Seed: 4, Machines: 10, Procs: 10_000, Load: 0.5, LC: 0.1, Near: 0.5, Shards: shards}).Run()
		if err != nil || r.Wished < 4000 || r.Near < r.Wished*9/10 || r.Placement.Most > 3*sigma.NearWait {
			t.Errorf("%d shards: %d of %d were near, %v was the longest wait; %v", shards, r.Near, r.Wished,
				r.Placement.Most, err)
		}
	}
}

// A seed makes the same run each time.
func TestSameSeedSameRun(t *testing.T) {
	var last string
	for range 2 {
		r, err := New(Config{Seed: 7, Machines: 8, Procs: 3000, LC: 0.1, Faults: true}).Run()
		got := fmt.Sprint(r.Virtual, r.Lost, r.Start, r.Placement, r.Faults, err)
		if last != "" && got != last {
			t.Errorf("got %s, then %s", last, got)
		}
		last = got
	}
}

// 001 §4.3: realms with work get equal parts, or such as their shares say, also over two shards.
func TestFairOverShards(t *testing.T) {
	for _, c := range []Config{{}, {Shards: 2}, {Shards: 2, Shares: []uint32{1, 2, 4}, Realms: 3}} {
		c.Seed, c.Machines, c.Procs, c.Load, c.Run = 3, 20, 20000, 3, 500*time.Millisecond
		r, err := New(c).Run()
		if err != nil || r.Jain < 0.99 {
			t.Errorf("%d shards, shares %v: Jain %.4f, %v", c.Shards, c.Shares, r.Jain, err)
		}
	}
}

// 100,000 procs of one realm do not keep another's only proc from its turn.
func TestOneAmongAHundredThousand(t *testing.T) {
	c := Config{Seed: 5, Machines: 50, Shards: 2}
	for range 100_000 {
		c.Trace = append(c.Trace, Arrival{Realm: "r0", Run: 100 * time.Millisecond, Memory: 64 * sigma.MiB, Waited: -1})
	}
	c.Trace = append(c.Trace, Arrival{At: 500 * time.Millisecond, Realm: "r1", Run: time.Second,
		Memory: 64 * sigma.MiB})
	r, err := New(c).Run()
	if err != nil || r.Predicted.Most > 200*time.Millisecond || r.Start.Most < 5*time.Second {
		t.Errorf("it waited %v, of the others one %v; %v", r.Predicted.Most, r.Start.Most, err)
	}
}

// A machine that dies and comes back all the time leaves nothing reserved, and nobody without an
// answer.
func TestFlappingMachine(t *testing.T) {
	s := New(Config{Seed: 6, Machines: 4, Procs: 2000, LC: 0.3, Faults: true, Run: 200 * time.Millisecond})
	flaps := 0
	var flap func()
	flap = func() {
		m := s.machines[0]
		if flaps++; flaps > 40 {
			return
		}
		if m.up {
			m.dies()
		} else {
			m.begin()
		}
		s.after(300*time.Millisecond, flap)
	}
	s.after(time.Second, flap)
	if _, err := s.Run(); err != nil {
		t.Error(err)
	}
}

// The checks find what they are for: procs that are forgotten while others go on, and a besched
// that gives one realm much more than its part.
func TestChecksFindFaults(t *testing.T) {
	forgets := New(Config{Seed: 9, Machines: 2, Procs: 400, Load: 4, Run: 50 * time.Millisecond})
	forgets.after(100*time.Millisecond, func() {
		for id, p := range forgets.procs {
			if p.placed < 0 && p.Realm == "r1" {
				forgets.shards[0].core.Cancel(id)
			}
		}
	})
	if _, err := forgets.Run(); err == nil || !strings.Contains(err.Error(), "realm r1 has") {
		t.Errorf("procs were forgotten: %v", err)
	}
	unfair := New(Config{Seed: 9, Machines: 2, Realms: 2, Procs: 40_000, Load: 20, Run: 50 * time.Millisecond})
	unfair.shards[0].core.Shares(map[sigma.RealmID]uint32{"r0": 100})
	if r, err := unfair.Run(); err == nil || !strings.Contains(err.Error(), "less than its part") {
		t.Errorf("one realm was given more than its part: Jain %.3f, worst %.3f, %v", r.Jain, r.Worst, err)
	}
}

// Goal: in small systems in which everything breaks, of each registered proc one instance at most
// runs, and soon one does, or waits in its pause; those that fail are started ever more seldom,
// none more often than was asked for; those that are removed go.
func TestFaultsWithRegistered(t *testing.T) {
	for seed := range uint64(12) {
		c := Config{Seed: seed, Machines: 2 + int(seed%4), Procs: 600, Load: 1.2, LC: 0.2, Shards: 1 + int(seed%2),
			Run: 300 * time.Millisecond, Registered: 12, Faults: true}
		r, err := New(c).Run()
		if err != nil {
			t.Errorf(
				"%v; again with: sigma sim --machines %d --procs 600 --load 1.2 --lc 0.2 --shards %d --run 300ms "+
					"--registered 12 --faults --seed %d", err, c.Machines, c.Shards, seed)
		}
		if r.Restarts < 12 || r.Leaders < 2 {
			t.Errorf("seed %d: %d starts, %d leaders", seed, r.Restarts, r.Leaders)
		}
	}
}

// The checks of registered procs find what they are for: one that runs and is noted as ended, so
// that another is started, and a leader that stands still for ever.
func TestChecksFindFaultsOfInitd(t *testing.T) {
	c := Config{Seed: 9, Machines: 3, Procs: 2000, Run: 5 * time.Second, Registered: 3}
	for want, fault := range map[string]func(*registry){
		"while": func(in *registry) {
			g := in.all[0]
			v := in.files[g.key].Record
			v.History = slices.Clone(v.History)
			v.History[len(v.History)-1].Ended = start
			in.put(g.key, v)
			in.leader.news()
		},
		"has had no proc": func(in *registry) { in.leader.turn++ },
	} {
		s := New(c)
		s.after(time.Second, func() { fault(s.initd) })
		if _, err := s.Run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}
