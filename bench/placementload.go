package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// placementLoads are the parts of the most that is started per second at which starts are timed, on
// the machines of sigma up --machines N (001 §6.1 has 24 real ones, which start 36,650 procs per
// second, p50 5.8 and p90 11.6 ms). First each machine keeps a window of procs in flight, which
// tells the most; then each is offered its part of 10, 50 and 90 % of that, open loop, as startrate
// does: whether or not earlier procs have started. A start counts from the moment that was intended
// to the first line of main. All machines are on this host, so its cores, not the schedulers, bound
// the rate. Expected: a start of some ms at 10 and 50 %, on whatever machine; at 90 % the queue for
// the host's processors.
var placementLoads = [...]float64{0.1, 0.5, 0.9}

const placementMachinesDefault = 3

func (r *Run) placementLoads(ctx context.Context) (err error) {
	n, saturate, each := placementMachinesDefault, 5*time.Second, 20*time.Second
	if r.Machines > 0 {
		n = r.Machines
	}
	if r.Quick {
		saturate, each = 2*time.Second, 6*time.Second
	}
	local, err := r.buildStart(ctx)
	if err != nil {
		return err
	}
	r.note("booting a system of %d machines", n)
	c, err := testenv.StartCluster(testenv.ClusterOptions{Kind: testenv.Local, Machines: n, CPU: runtime.NumCPU(),
		Bin: r.Bin, Realms: []sigma.RealmID{realm}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var arms []*rateArms
	for i, m := range c.Machines() {
		client, err := sdk.Connect(ctx, filepath.Join(m.DataDir, "sigmad", "admin.sock"), realm)
		if err != nil {
			return err
		}
		defer client.Close()
		a := &rateArms{r: r, s: &system{r: r, data: m.DataDir, Client: client}}
		if a.s.pid, err = a.s.keeper(); err != nil {
			return err
		}
		if a.program = "/bin/start"; i == 0 {
			if _, err = a.s.install(ctx, local, "start"); err != nil {
				return err
			}
		}
		arms = append(arms, a)
	}
	if _, err := onEach(ctx, arms, func(ctx context.Context, a *rateArms) (rateTrial, error) {
		return a.saturate(ctx, time.Second)
	}); err != nil { // warm
		return err
	}
	most, err := onEach(ctx, arms, func(ctx context.Context, a *rateArms) (rateTrial, error) {
		return a.saturate(ctx, saturate)
	})
	if err != nil {
		return err
	}
	paper := 36650.0
	if err := r.print(Line{Metric: "machines_starts_per_s", Unit: "1/s, each run", Ours: most.perS,
		Peer: "paper_24_machines", Theirs: &paper, N: most.starts}); err != nil {
		return err
	}
	curves := []curve{{name: "p50"}, {name: "p90"}}
	for _, part := range placementLoads {
		t, err := onEach(ctx, arms, func(ctx context.Context, a *rateArms) (rateTrial, error) {
			return a.open(ctx, part*most.perS/float64(n), each)
		})
		if err != nil {
			return err
		}
		r.note("offered %.0f/s on %d machines: %.0f/s, the last were through %v after the end", part*most.perS, n,
			t.perS, t.drain.Round(time.Millisecond))
		for i, q := range [...]float64{0.5, 0.9} {
			ms := quantile(t.ms, q)
			curves[i].x, curves[i].y = append(curves[i].x, part*most.perS), append(curves[i].y, ms)
			if err := r.print(Line{Metric: fmt.Sprintf("machines_start_p%.0f_ms_at_%.0f", 100*q, 100*part), Unit: "ms",
				Ours: ms, N: len(t.ms)}); err != nil {
				return err
			}
		}
		for _, ms := range t.ms {
			r.sample(fmt.Sprintf("load_%.0f", 100*part), "start_ms", ms)
		}
	}
	return r.keepPlot(plotCurves(axes{title: fmt.Sprintf("starts on %d machines of one host with %d cores", n,
		runtime.NumCPU()), x: "procs offered per second", y: "ms until main"}, curves))
}

// onEach has all machines do the same at a time, and adds up what came of it.
func onEach(ctx context.Context, arms []*rateArms, do func(context.Context, *rateArms) (rateTrial,
	error)) (sum rateTrial, err error) {
	trials := make([]rateTrial, len(arms))
	g, gctx := newGroup(ctx)
	for i, a := range arms {
		g.Go(func() (err error) {
			trials[i], err = do(gctx, a)
			return err
		})
	}
	err = g.wait(gctx)
	for _, t := range trials {
		sum.starts += t.starts
		sum.perS += t.perS
		sum.drain = max(sum.drain, t.drain)
		sum.ms = append(sum.ms, t.ms...)
		sum.overwhelm = sum.overwhelm || t.overwhelm
	}
	return sum, err
}
