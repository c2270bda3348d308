package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// startRateBench: how many starts per second does one machine sustain, with refill of whatever is
// kept ready and teardown? First as many procs as there is room for in a window are kept in flight,
// which tells what the machine can do at most. Then load is open loop: bursts are spawned over the
// admin socket at intended times, whether or not earlier ones have started, each proc is waited for
// until it has exited and is gone, and the time of a start counts from the intended time to the
// first line of main. The highest offered rate, of fixed steps below the most, is reported whose
// p99 is within p99Most and whose backlog is gone within drainMost of its end. Client, daemons and
// procs share the machine's cores. Expected: kernel work of namespaces, cgroup and exec on all
// cores; the floor is posix_spawn of the same program on all cores.
func startRateBench() Bench {
	return Bench{Name: "startrate", Question: "how many starts per second does a machine sustain, with teardown?",
		Metrics: append([]string{"starts_per_s", "start_p99_ms", "start_p50_ms", "cpu_ms_per_start",
			"saturated_starts_per_s", "leaked_kib_per_start"}, leakMetrics[:]...),
		run: runStartRate}
}

const (
	p99Most       = 20.0 // ms
	drainMost     = time.Second
	burstEvery    = 5 * time.Millisecond
	window        = 64   // procs in flight at saturation
	sampleEvery   = 8    // of procs, whose first line is read; reading all would be load of its own
	backlogMost   = 3000 // procs; each is waited for, and a session has 4096 requests at most
	startedMemory = 4 * sigma.MiB
)

// rateTrial is one run at one offered rate.
type rateTrial struct {
	offered   float64
	starts    int
	perS      float64 // from the first intended start to the last exit
	drain     time.Duration
	ms        []float64 // sampled
	cpuMS     float64   // per start
	parts     string    // where it was used
	overwhelm bool      // it was given up because of the backlog
}

func (t rateTrial) sustained() bool {
	return !t.overwhelm && t.drain <= drainMost && quantile(t.ms, 0.99) <= p99Most
}

type rateArms struct {
	r       *Run
	s       *system
	program string
}

func runStartRate(ctx context.Context, r *Run) error {
	saturate, length, steps := 5*time.Second, 30*time.Second, []float64{0.9, 0.8, 0.7, 0.6, 0.5, 0.3}
	if r.Quick {
		saturate, length, steps = 3*time.Second, 10*time.Second, []float64{0.85, 0.5}
	}
	local, err := r.buildStart(ctx)
	if err != nil {
		return err
	}
	floor, err := r.floorRate(ctx, local, int(saturate/time.Second))
	if err != nil {
		return err
	}
	a := &rateArms{r: r}
	if a.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer a.s.down()
	leaks := a.s.watchLeaks()
	if a.program, err = a.s.install(ctx, local, "start"); err != nil {
		return err
	}
	if _, err := a.saturate(ctx, time.Second); err != nil { // warm
		return err
	}
	leaks.isWarm()
	most, err := a.saturate(ctx, saturate)
	if err != nil {
		return err
	}
	r.note("at most %.0f starts/s with %d in flight", most.perS, window)
	starts := most.starts
	var best rateTrial
	for _, step := range steps {
		t, err := a.open(ctx, step*most.perS, length)
		if err != nil {
			return err
		}
		starts += t.starts
		r.note("offered %.0f/s for %v: %.0f/s, p50 %.2f ms, p99 %.2f ms, the last were through %v after the end",
			t.offered, length, t.perS, median(t.ms), quantile(t.ms, 0.99), t.drain.Round(time.Millisecond))
		if best.starts == 0 || t.sustained() || quantile(t.ms, 0.99) < quantile(best.ms, 0.99) {
			best = t
		}
		if t.sustained() {
			break
		}
	}
	if !best.sustained() {
		r.note("no offered rate was sustained with a p99 of %v ms; the figures are of the one with the lowest", p99Most)
	}
	r.note("ms of processors for each start:%s", best.parts)
	if err := a.report(best, most, floor); err != nil {
		return err
	}
	return leaks.report(starts)
}

func (a *rateArms) report(t, most rateTrial, floor float64) error {
	for _, v := range t.ms {
		a.r.sample("ours", "start_ms", v)
	}
	for _, l := range []Line{
		{Metric: "starts_per_s", Unit: "1/s", Ours: t.perS, Peer: "posix_spawn", Theirs: &floor,
			Ratio: pointer(t.perS / floor), Floor: pointer(floor), N: t.starts},
		{Metric: "start_p99_ms", Unit: "ms", Ours: quantile(t.ms, 0.99), N: len(t.ms)},
		{Metric: "start_p50_ms", Unit: "ms", Ours: median(t.ms), N: len(t.ms)},
		{Metric: "cpu_ms_per_start", Unit: "ms", Ours: t.cpuMS, Peer: "posix_spawn",
			Theirs: pointer(1e3 * float64(runtime.NumCPU()) / floor),
			Ratio:  pointer(1e3 * float64(runtime.NumCPU()) / floor / t.cpuMS), N: t.starts},
		{Metric: "saturated_starts_per_s", Unit: "1/s", Ours: most.perS, Peer: "posix_spawn", Theirs: &floor,
			Ratio: pointer(most.perS / floor), Floor: pointer(floor), N: most.starts},
	} {
		if err := a.r.print(l); err != nil {
			return err
		}
	}
	return nil
}

// floorRate is how often per second the machine can posix_spawn the program and wait for it, on all
// cores.
func (r *Run) floorRate(ctx context.Context, local string, seconds int) (float64, error) {
	var total atomic.Int64
	g, ctx := newGroup(ctx)
	for range runtime.NumCPU() {
		g.Go(func() error {
			out, err := exec.CommandContext(ctx, local, "rate", strconv.Itoa(seconds)).Output()
			if err != nil {
				return fmt.Errorf("posix_spawn: %w", err)
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
			total.Add(n)
			return err
		})
	}
	err := g.wait(ctx)
	return float64(total.Load()) / float64(seconds), err
}

func (a *rateArms) descriptor() sigma.Descriptor {
	return sigma.Descriptor{Program: a.program, Name: "start", Memory: startedMemory}
}

// saturate keeps a window of procs in flight for a time.
func (a *rateArms) saturate(ctx context.Context, length time.Duration) (t rateTrial, err error) {
	var n atomic.Int64
	begin := time.Now()
	g, ctx := newGroup(ctx)
	for range window {
		g.Go(func() error {
			for time.Since(begin) < length {
				id, err := a.s.Spawn(ctx, a.descriptor())
				if err != nil {
					return err
				}
				if err := a.exited(ctx, id[0]); err != nil {
					return err
				}
				n.Add(1)
			}
			return nil
		})
	}
	err = g.wait(ctx)
	t.starts = int(n.Load())
	t.perS = float64(t.starts) / time.Since(begin).Seconds()
	return t, err
}

// exited waits for a proc's end, which must be a good one.
func (a *rateArms) exited(ctx context.Context, id sigma.ProcID) error {
	st, err := a.s.WaitExit(ctx, id)
	if err == nil && !st.OK() {
		err = errors.New(st.Msg)
	}
	if err != nil {
		return fmt.Errorf("proc %s ended badly: %w", id, err)
	}
	return nil
}

// rateRun is a trial that runs.
type rateRun struct {
	a       *rateArms
	g       *group
	pending atomic.Int64

	mu sync.Mutex
	t  rateTrial // mu
}

// open offers a rate for a time.
func (a *rateArms) open(ctx context.Context, rate float64, length time.Duration) (rateTrial, error) {
	x := &rateRun{a: a, t: rateTrial{offered: rate}}
	x.g, ctx = newGroup(ctx)
	cpu, begin := a.s.cpuByPart(), time.Now()
	beginNS := monotonic()
	spawned := 0
	tick := time.NewTicker(burstEvery)
	defer tick.Stop()
	for burst := 1; ctx.Err() == nil; burst++ {
		at := time.Duration(burst) * burstEvery
		if at > length {
			break
		}
		for time.Since(begin) < at {
			<-tick.C
		}
		// Never more than asked for so far: a burst that is late is not made up for by a larger
		// one, for the bursts that were missed follow at once.
		n := int(rate*at.Seconds()) - spawned
		if n <= 0 {
			continue
		}
		if x.pending.Load() > backlogMost {
			x.t.overwhelm = true
			break
		}
		first := spawned
		spawned += n
		x.pending.Add(int64(n))
		x.g.Go(func() error { return x.burst(ctx, first, n, beginNS+at.Nanoseconds()) })
	}
	offered := time.Now()
	err := x.g.wait(ctx)
	x.t.drain = time.Since(offered)
	x.t.starts = spawned
	x.t.perS = float64(spawned) / time.Since(begin).Seconds()
	parts := a.s.cpuByPart()
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		ms := (parts[part] - cpu[part]).Seconds() * 1e3 / float64(max(spawned, 1))
		x.t.cpuMS += ms
		x.t.parts += fmt.Sprintf(" %s %.2f", part, ms)
	}
	return x.t, err
}

// burst spawns n procs that were intended for a moment on the monotonic clock, and waits for them.
func (x *rateRun) burst(ctx context.Context, first, n int, intended int64) error {
	ds := make([]sigma.Descriptor, n)
	for i := range ds {
		ds[i] = x.a.descriptor()
	}
	ids, err := x.a.s.Spawn(ctx, ds...)
	if err != nil {
		return err
	}
	for i, id := range ids {
		x.g.Go(func() error {
			err := x.a.exited(ctx, id)
			x.pending.Add(-1)
			if err != nil || (first+i)%sampleEvery != 0 {
				return err
			}
			text, _, err := x.a.s.Get(ctx, "/proc/"+string(id)+"/stdout")
			if err != nil {
				return err
			}
			mark, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				return fmt.Errorf("proc %s printed %q", id, text)
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.t.ms = append(x.t.ms, float64(mark-intended)/1e6)
			return nil
		})
	}
	return nil
}
