package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: in small systems in which everything breaks, no machine is ever over-committed, no proc starts twice, each is answered, and nothing is left.
func TestFaults(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r, err := New(Config{Seed: seed, Machines: 5, Procs: 600, Load: 1.2, LC: 0.2, Near: 0.3 * float64(seed%2), Shards: 1 + int(seed%3), Run: 300 * time.Millisecond, Faults: true}).Run()
			if err != nil {
				t.Errorf("%v; again with: sigma sim --machines 5 --procs 600 --load 1.2 --lc 0.2 --near %g --shards %d --run 300ms --faults --seed %d", err, 0.3*float64(seed%2), 1+seed%3, seed)
			}
			if r.Faults == 0 {
				t.Error("nothing broke")
			}
		})
	}
}

// Goal: of the procs that should be near a machine, which has room most of the time, nearly all are; nobody waits much longer for that.
func TestNear(t *testing.T) {
	for _, shards := range []int{1, 2} {
		r, err := New(Config{Seed: 4, Machines: 10, Procs: 10_000, Load: 0.5, LC: 0.1, Near: 0.5, Shards: shards}).Run()
		if err != nil || r.Wished < 4000 || r.Near < r.Wished*9/10 || r.Placement.Most > 3*sigma.NearWait {
			t.Errorf("%d shards: %d of %d were near, %v was the longest wait; %v", shards, r.Near, r.Wished, r.Placement.Most, err)
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
	c.Trace = append(c.Trace, Arrival{At: 500 * time.Millisecond, Realm: "r1", Run: time.Second, Memory: 64 * sigma.MiB})
	r, err := New(c).Run()
	if err != nil || r.Predicted.Most > 200*time.Millisecond || r.Start.Most < 5*time.Second {
		t.Errorf("it waited %v, of the others one %v; %v", r.Predicted.Most, r.Start.Most, err)
	}
}

// A machine that dies and comes back all the time leaves nothing reserved, and nobody without an answer.
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

// The checks find what they are for: procs that are forgotten while others go on, and a besched that gives one realm much more than its part.
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
