package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sigma"
)

// openTick is how often spawns are sent, which go in one call then, as a busy machine's do.
const openTick = time.Millisecond

// latencies has jobs come to besched at a rate, whether or not earlier ones were placed, and tells
// how long after its intended moment each was granted, in µs. It is over when all were.
func (p *beschedProcess) latencies(ctx context.Context, rate float64, d time.Duration) (us []float64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+30*time.Second, errors.New("besched does not place what was sent"))
	defer cancel()
	base, total := p.number.Load(), int64(rate*d.Seconds())
	p.number.Add(total)
	begin := time.Now()
	all, ctx := newGroup(ctx)
	pulling, enough := context.WithCancel(ctx)
	defer enough()
	all.Go(func() error {
		tick := time.NewTicker(openTick)
		defer tick.Stop()
		for sent := int64(0); sent < total; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
			due := min(total, int64(rate*time.Since(begin).Seconds()))
			for sent < due {
				jobs := make([]besched.Job, min(due-sent, 2*placementBatch))
				for i := range jobs {
					sent++
					jobs[i] = besched.Job{ID: sigma.ProcID(fmt.Sprintf("p%019d", base+sent)),
						Realm: placementRealm(int(sent) % placementRealms), Memory: sigma.MiB}
				}
				if err := besched.CallEnqueue.Tell(ctx, p.b, jobs); err != nil {
					return err
				}
			}
		}
		return nil
	})
	var mu sync.Mutex
	for range 4 {
		all.Go(func() error {
			for {
				got, err := besched.CallPull.Ask(pulling, p.b, besched.Offer{Memory: besched.GrantMax * sigma.MiB})
				if pulling.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				now := time.Since(begin)
				charges := make([]besched.Charge, len(got.Jobs))
				mu.Lock()
				for i, j := range got.Jobs {
					charges[i] = besched.Charge{Realm: j.Realm, Used: j.Prepaid, Prepaid: j.Prepaid, Ended: 1,
						Whole: j.Prepaid, Held: -int64(j.Memory)}
					if n, err := strconv.ParseInt(string(j.ID[1:]), 10, 64); err == nil && n > base {
						us = append(us, max(0, now.Seconds()-float64(n-base)/rate)*1e6)
					}
				}
				done := int64(len(us)) >= total
				mu.Unlock()
				if done {
					enough()
					return nil
				}
				if err := besched.CallCharge.Tell(ctx, p.b, charges); err != nil {
					return err
				}
			}
		})
	}
	err = all.wait(ctx)
	return us, err
}

// printLatencies measures them at parts of a rate.
func (r *Run) printLatencies(ctx context.Context, p *beschedProcess, most float64, each time.Duration) error {
	for _, part := range placementLoads {
		us, err := p.latencies(ctx, part*most, each)
		if err != nil {
			return fmt.Errorf("at %.0f %% of the load: %w", 100*part, err)
		}
		for _, q := range [...]float64{0.5, 0.99} {
			v := r.sample("besched", fmt.Sprintf("p%.0f_us_at_%.0f", 100*q, 100*part), quantile(us, q))
			if err := r.print(Line{Metric: fmt.Sprintf("besched_p%.0f_us_at_%.0f", 100*q, 100*part), Unit: "us",
				Ours: v, N: len(us)}); err != nil {
				return err
			}
		}
	}
	return nil
}
