package sim

import (
	"fmt"
	"testing"
	"time"
)

// Goal: in small systems in which everything breaks, no machine is ever over-committed, no proc starts twice, each is answered, and nothing is left.
func TestFaults(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r, err := New(Config{Seed: seed, Machines: 5, Procs: 600, Load: 1.2, LC: 0.2, Shards: 1 + int(seed%3), Run: 300 * time.Millisecond, Faults: true}).Run()
			if err != nil {
				t.Errorf("%v; again with: sigma sim --machines 5 --procs 600 --load 1.2 --lc 0.2 --shards %d --run 300ms --faults --seed %d", err, 1+seed%3, seed)
			}
			if r.Faults == 0 {
				t.Error("nothing broke")
			}
		})
	}
}

// A seed makes the same run each time.
func TestSameSeedSameRun(t *testing.T) {
	var last string
	for range 2 {
		r, err := New(Config{Seed: 7, Machines: 8, Procs: 3000, LC: 0.1, Faults: true}).Run()
		got := fmt.Sprint(r.Virtual, r.Lost, r.WaitMean, r.Wait99, r.Faults, err)
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
