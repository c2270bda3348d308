package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sigma"
)

// fleetBench: does a fleet follow its load without losing a transaction (002 Fig 10)? Four clients
// make 10,000 transactions each (open, read 1 KiB, close, all three at one member), in five phases:
// decreasing, constant, a sudden jump and decay, constant and low, a jump to constant and high.
// Each has an intended start time. A member serves one read at a time, in a time in which it uses
// no processor, so that members are *scaled* cores of which one is soon full. The oracle knows the
// rate and what one member serves, which is measured first, and has as many members as keep the
// target at each moment.
//
// Besides: how long a first request to an empty fleet takes, and what goes through the fleet's name
// of what goes to a hard-wired member.
func fleetBench() Bench {
	return Bench{Name: "fleet",
		Question: "does a fleet follow its load, without losing a transaction or flapping?",
		Metrics: []string{"failed_transactions", "throughput_of_offered", "member_seconds_of_oracle",
			"reversals_most", "grow_reaction_ms", "from_zero_p50_ms", "through_fleet_of_direct"},
		Parts: []string{"elastic", "zero", "direct"}, run: runFleet}
}

const (
	fleetService      = 800 * time.Microsecond // of one read
	fleetTarget       = 0.7
	fleetMost         = 6
	fleetTransactions = 40_000
	fleetJump         = 2.8 // what is offered at the most, of what one member serves
)

// fleetArms is one run.
type fleetArms struct {
	r       *Run
	s       *system
	program string
	fleets  *fleet.Client
}

// newFleets boots a system whose coordinator runs.
func (r *Run) newFleets(ctx context.Context) (a *fleetArms, err error) {
	local := filepath.Join(r.dir, "fleet")
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", local,
		"./bench/programs/fleet"); err != nil {
		return nil, err
	}
	a = &fleetArms{r: r}
	if a.s, err = r.boot(ctx); err != nil {
		return nil, err
	}
	if a.program, err = a.s.install(ctx, local, "fleet"); err == nil {
		var fleetd string
		if fleetd, err = a.s.install(ctx, filepath.Join(r.Bin, "fleetd"), "fleetd"); err == nil {
			err = a.s.Register(ctx, sigma.Registration{Name: "fleetd", Descriptor: sigma.Descriptor{Program: fleetd,
				Name: "fleetd", Memory: 256 * sigma.MiB}})
		}
	}
	if err != nil {
		a.s.down()
		return nil, err
	}
	a.fleets = fleet.NewClient(a.s.Client)
	return a, nil
}

func (a *fleetArms) end() {
	a.fleets.Close()
	a.s.down()
}

// apply makes a fleet and waits until its members serve.
func (a *fleetArms) apply(ctx context.Context, s fleet.Spec) error {
	s.Program = a.program
	if _, err := a.fleets.Apply(ctx, fleet.ApplyArg{Spec: s}); err != nil {
		return err
	}
	return a.await(ctx, s.Name, func(st fleet.Status) bool { return st.Phase == "steady" && st.Ready >= st.Least })
}

func (a *fleetArms) await(ctx context.Context, name string, done func(fleet.Status) bool) error {
	for {
		st, err := a.fleets.Status(ctx, name)
		if err != nil || done(st) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func runFleet(ctx context.Context, r *Run) error {
	a, err := r.newFleets(ctx)
	if err != nil {
		return err
	}
	defer a.end()
	for part, run := range map[string]func(context.Context) error{"elastic": a.elastic, "zero": a.zero,
		"direct": a.direct} {
		if r.Only == "" || r.Only == part {
			if err := run(ctx); err != nil {
				return fmt.Errorf("%s: %w", part, err)
			}
		}
	}
	return nil
}

// fleetReport is what the clients print.
type fleetReport struct {
	Failed     int64
	FirstError string `json:"first_error"`
	Seconds    []struct{ Offered, Done int }
	Steps      []float64
	Begin      time.Time
}

func (a *fleetArms) elastic(ctx context.Context) error {
	spec := fleet.Spec{Name: "files", Args: []string{"serve", fleetService.String()}, Least: 1, Most: 1,
		Target: fleet.Target{Utilisation: fleetTarget}}
	if err := a.apply(ctx, spec); err != nil {
		return err
	}
	one, err := a.s.output(ctx, sigma.Descriptor{Program: a.program, Name: "clients", Args: []string{"full", "files"}})
	if err != nil {
		return err
	}
	capacity, err := strconv.ParseFloat(strings.TrimSpace(string(one)), 64)
	if err != nil {
		return err
	}
	a.r.note("one member serves %.0f transactions a second", capacity)
	spec.Most = fleetMost
	if err := a.apply(ctx, spec); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	sizes := sizesOf{begin: time.Now()}
	all.Go(func() { sizes.watch(watching, a.fleets, "files") })
	out, err := a.s.output(ctx, sigma.Descriptor{Program: a.program, Name: "clients", Memory: 256 * sigma.MiB,
		Args: []string{"elastic", "files", strconv.FormatFloat(fleetJump*capacity, 'f', 0, 64),
			strconv.Itoa(fleetTransactions)}})
	stop()
	all.Wait()
	if err != nil {
		return err
	}
	var rep fleetReport
	if err := json.Unmarshal(out, &rep); err != nil {
		return err
	}
	if rep.Failed > 0 {
		a.r.note("the first transaction that failed: %s", rep.FirstError)
	}
	ds, err := a.fleets.Decisions(ctx, "files")
	if err != nil {
		return err
	}
	for _, l := range []Line{
		{Metric: "failed_transactions", Unit: "1", Ours: float64(rep.Failed), N: fleetTransactions},
		{Metric: "throughput_of_offered", Unit: "1", Ours: rep.throughput(), N: len(rep.Seconds)},
		{Metric: "member_seconds_of_oracle", Unit: "1", N: 1,
			Ours: sizes.memberSeconds(rep.Begin) / rep.oracle(capacity)},
		{Metric: "reversals_most", Unit: "1", Ours: float64(rep.reversals(ds)), N: len(rep.Steps)},
		{Metric: "grow_reaction_ms", Unit: "ms", Ours: rep.reaction(ds), N: 2}} {
		if err := a.r.print(l); err != nil {
			return err
		}
	}
	return a.plot(rep, sizes, capacity)
}

// offered reports whether a second counts: none of its time is within the second after a step.
func (rep *fleetReport) counts(second int) bool {
	for _, s := range rep.Steps[1:] {
		if from := int(s); second >= from && second <= from+1 {
			return false
		}
	}
	return rep.Seconds[second].Offered > 0 && second > 0
}

// throughput is the least share of what was offered in a second that was done in it. The second in
// which the run ends is no whole one.
func (rep *fleetReport) throughput() float64 {
	last := 0
	for i, s := range rep.Seconds {
		if s.Offered > 0 {
			last = i
		}
	}
	least := math.Inf(1)
	for i := range last {
		if rep.counts(i) {
			least = min(least, float64(rep.Seconds[i].Done)/float64(rep.Seconds[i].Offered))
		}
	}
	return least
}

// oracle is the member-seconds of who knows the rate, and what a member serves in a second.
func (rep *fleetReport) oracle(capacity float64) (sum float64) {
	for _, s := range rep.Seconds {
		if s.Offered > 0 {
			sum += max(1, math.Ceil(float64(s.Offered)/capacity/fleetTarget))
		}
	}
	return sum
}

// reversals is how often the size changed its direction within a phase, at most.
func (rep *fleetReport) reversals(ds []fleet.Decision) (most int) {
	for i, from := range rep.Steps {
		n, last := 0, ""
		for _, d := range ds {
			at := d.Time.Sub(rep.Begin).Seconds()
			if at < from || i+1 < len(rep.Steps) && at >= rep.Steps[i+1] {
				continue
			}
			switch d.Reason {
			case fleet.ReasonGrow, fleet.ReasonShrink, fleet.ReasonBack:
				if last != "" && last != d.Reason {
					n++
				}
				last = d.Reason
			}
		}
		most = max(most, n)
	}
	return most
}

// reaction is how long after a jump the fleet first grew, the longer one.
func (rep *fleetReport) reaction(ds []fleet.Decision) (ms float64) {
	for _, i := range []int{2, 4} {
		for _, d := range ds {
			if at := d.Time.Sub(rep.Begin).Seconds(); d.Reason == fleet.ReasonGrow && at >= rep.Steps[i] {
				ms = max(ms, 1000*(at-rep.Steps[i]))
				break
			}
		}
	}
	return ms
}

// sizesOf are the sizes of a fleet over time.
type sizesOf struct {
	begin time.Time
	at    []time.Time
	n     []int
}

func (s *sizesOf) watch(ctx context.Context, c *fleet.Client, name string) {
	for ctx.Err() == nil {
		if st, err := c.Status(ctx, name); err == nil {
			s.at, s.n = append(s.at, time.Now()), append(s.n, st.Ready+st.Starting+st.Draining)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// memberSeconds is how long all members together were there, from a moment on.
func (s *sizesOf) memberSeconds(from time.Time) (sum float64) {
	for i := 1; i < len(s.at); i++ {
		if s.at[i-1].After(from) {
			sum += float64(s.n[i-1]) * s.at[i].Sub(s.at[i-1]).Seconds()
		}
	}
	return sum
}

func (a *fleetArms) plot(rep fleetReport, sizes sizesOf, capacity float64) error {
	offered, size := curve{name: "offered, in full members"}, curve{name: "members"}
	for i, s := range rep.Seconds {
		if s.Offered > 0 {
			offered.x = append(offered.x, float64(i))
			offered.y = append(offered.y, float64(s.Offered)/capacity)
		}
	}
	for i, at := range sizes.at {
		if x := at.Sub(rep.Begin).Seconds(); x >= 0 {
			size.x, size.y = append(size.x, x), append(size.y, float64(sizes.n[i]))
		}
	}
	return a.r.keepPlot(plotCurves(axes{title: "a fleet follows its load (002 Fig 10)", x: "s", y: "members"},
		[]curve{offered, size}))
}

func (a *fleetArms) zero(ctx context.Context) error {
	times := 20
	if a.r.Quick {
		times = 3
	}
	if err := a.apply(ctx, fleet.Spec{Name: "zero", Args: []string{"serve", "0s"}, Most: 1,
		Idle: fleet.Duration(100 * time.Millisecond)}); err != nil {
		return err
	}
	out, err := a.s.output(ctx, sigma.Descriptor{Program: a.program, Name: "clients",
		Args: []string{"zero", "zero", strconv.Itoa(times)}})
	if err != nil {
		return err
	}
	var ms []float64
	for _, f := range strings.Fields(string(out)) {
		ns, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return err
		}
		ms = append(ms, a.r.sample("sigma", "from_zero_ms", ns/1e6))
	}
	return a.r.print(Line{Metric: "from_zero_p50_ms", Unit: "ms", Ours: median(ms), N: len(ms)})
}

func (a *fleetArms) direct(ctx context.Context) error {
	if err := a.apply(ctx, fleet.Spec{Name: "direct", Args: []string{"serve", "0s"}, Least: 1, Most: 1}); err != nil {
		return err
	}
	out, err := a.s.output(ctx, sigma.Descriptor{Program: a.program, Name: "clients",
		Args: []string{"direct", "direct"}})
	if err != nil {
		return err
	}
	var soft, hard []float64
	for line := range strings.Lines(string(out)) {
		var x, y float64
		if _, err := fmt.Sscan(line, &x, &y); err != nil {
			return err
		}
		soft, hard = append(soft, x), append(hard, y)
	}
	of := ratios(soft, hard)
	theirs := median(hard)
	return a.r.print(Line{Metric: "through_fleet_of_direct", Unit: "1", Ours: median(of), Peer: "direct",
		Theirs: &theirs, Ratio: pointer(median(of)), N: len(of)})
}

// rollBench: does a service that is updated under load lose a request? Clients ask a web fleet of
// four members 500 times a second, half of them POST, while it is rolled again and again.
func rollBench() Bench {
	return Bench{Name: "roll", Question: "does a service that is updated under load lose a request?",
		Metrics: []string{"failed_requests", "roll_p50_ms"}, run: runRoll}
}

const (
	rollUpdates = 20
	rollRate    = 500
)

func runRoll(ctx context.Context, r *Run) error {
	a, err := r.newFleets(ctx)
	if err != nil {
		return err
	}
	defer a.end()
	if err := a.apply(ctx, fleet.Spec{Name: "web", Args: []string{"web"}, Least: 4, Most: 4,
		Health: fleet.Health{Kind: "http", Path: "/"}, Update: fleet.Update{Surge: 1}}); err != nil {
		return err
	}
	var failed, done int64
	var took []float64
	for _, protocol := range []string{"1", "2"} {
		args := []string{"ask", "web", strconv.Itoa(rollRate)}
		if protocol == "2" {
			args = append(args, "2")
		}
		n, bad, ms, err := a.rolls(ctx, args)
		if err != nil {
			return fmt.Errorf("HTTP/%s: %w", protocol, err)
		}
		failed, done, took = failed+bad, done+n, append(took, ms...)
	}
	return errors.Join(r.print(Line{Metric: "failed_requests", Unit: "1", Ours: float64(failed), N: int(done)}),
		r.print(Line{Metric: "roll_p50_ms", Unit: "ms", Ours: median(took), N: len(took)}))
}

// rolls updates the fleet while a client asks it.
func (a *fleetArms) rolls(ctx context.Context, args []string) (done, failed int64, ms []float64, err error) {
	ids, err := a.s.Spawn(ctx, sigma.Descriptor{Program: a.program, Name: "client", Args: args,
		Start: sigma.StartedByCall, Memory: 256 * sigma.MiB})
	if err == nil {
		err = a.s.WaitStart(ctx, ids[0])
	}
	if err != nil {
		return 0, 0, nil, err
	}
	for range rollUpdates {
		begin := time.Now()
		if _, err := a.fleets.Roll(ctx, "web"); err != nil {
			return 0, 0, nil, err
		}
		steady := func(s fleet.Status) bool { return s.Phase == "steady" && s.Ready == s.Want }
		if err := a.await(ctx, "web", steady); err != nil {
			return 0, 0, nil, err
		}
		ms = append(ms, a.r.sample("sigma", "roll_ms", float64(time.Since(begin).Microseconds())/1e3))
		time.Sleep(200 * time.Millisecond)
	}
	if err := a.s.Evict(ctx, ids[0], 20*time.Second); err != nil {
		return 0, 0, nil, err
	}
	if _, err := a.s.WaitExit(ctx, ids[0]); err != nil {
		return 0, 0, nil, err
	}
	out, _, err := a.s.Get(ctx, "/proc/"+string(ids[0])+"/stdout")
	if err != nil {
		return 0, 0, nil, err
	}
	why := ""
	if _, err := fmt.Sscanf(string(out), "%d %d %q", &done, &failed, &why); err != nil {
		return 0, 0, nil, fmt.Errorf("%q: %w", out, err)
	}
	if failed > 0 {
		a.r.note("the first request that failed: %s", why)
	}
	return done, failed, ms, nil
}
