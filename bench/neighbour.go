package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// neighbourBench: what does a flood by one realm cost another? Two procs of one realm
// (programs/flood) ask for as much of one kind as they can, in 32 loops each, while a
// latency-critical proc of another realm (programs/probe) reads a name and starts best-effort
// procs, one after the other; beside SQL it asks a database of its realm too. Each flood has a
// realm of its own, which is removed after it. theirs is the same measured before the flood; ratio
// is quiet by beside, so that 0.33 is three times as long. Expected: the flood's own programs take
// processor time, of which the other realm has its part; beyond that, requests of one realm do not
// wait for more than a turn of the other's (ADR 34), so that no p99 is beyond 3 times quiet.
func neighbourBench() Bench {
	b := Bench{Name: "neighbour",
		Question: "how much longer do a realm's reads and starts take beside a flood by another realm?",
		Parts:    neighbourFloods, run: runNeighbour}
	for _, f := range neighbourFloods {
		b.Metrics = append(b.Metrics, f+"_get_p99_ms", f+"_spawn_p99_ms")
	}
	b.Metrics = append(b.Metrics, "sql_select_p99_ms")
	return b
}

// neighbourFloods are the kinds of programs/flood, and sessions, which the bench makes.
var neighbourFloods = []string{"lc", "be", "dial", "names", "leases", "fences", "events", "watches", "s3", "sql",
	"list", "sessions"}

// neighbour is one run of the bench.
type neighbour struct {
	r              *Run
	s              *system
	share, program string        // local files: what is started, and the flood
	start, probe   string        // in the realm: what is started, and the program that measures
	window         time.Duration // of one measurement
}

func runNeighbour(ctx context.Context, r *Run) (err error) {
	n := &neighbour{r: r, window: 10 * time.Second}
	if r.Quick {
		n.window = 1500 * time.Millisecond
	}
	if n.share, err = r.buildShare(ctx); err != nil {
		return err
	}
	n.program = filepath.Join(r.dir, "flood")
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", r.dir, "./bench/programs/flood",
		"./bench/programs/probe"); err != nil {
		return err
	}
	if n.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer n.s.down()
	if n.start, err = n.s.install(ctx, n.share, "share"); err != nil {
		return err
	}
	if n.probe, err = n.s.install(ctx, filepath.Join(r.dir, "probe"), "probe"); err != nil {
		return err
	}
	if err := n.s.command(ctx, "sql", "create", "probe"); err != nil {
		return err
	}
	if _, err := n.measure(ctx, "warm", "sql"); err != nil {
		return err
	}
	for _, flood := range neighbourFloods {
		if r.Only != "" && r.Only != flood {
			continue
		}
		if err := n.beside(ctx, flood); err != nil {
			return fmt.Errorf("beside %s: %w", flood, err)
		}
	}
	return nil
}

// measure gives the 99th percentiles of a window, in ms, by metric.
func (n *neighbour) measure(ctx context.Context, arm, flood string) (map[string]float64, error) {
	args := []string{n.window.String(), n.start}
	if flood == "sql" {
		args = append(args, "/db/probe")
	}
	ids, err := n.s.Spawn(ctx, sigma.Descriptor{Program: n.probe, Args: args, Class: sigma.LatencyCritical,
		CPU: probeCPU, Memory: probeMemory})
	if err != nil {
		return nil, err
	}
	st, err := n.s.WaitExit(ctx, ids[0])
	if err != nil || !st.OK() {
		said, _, _ := n.s.Get(ctx, "/proc/"+string(ids[0])+"/stderr")
		return nil, fmt.Errorf("the probe ended with %+v, %w: %s", st, err, said)
	}
	said, _, err := n.s.Get(ctx, "/proc/"+string(ids[0])+"/stdout")
	var took map[string][]float64
	if err == nil {
		err = json.Unmarshal(said, &took)
	}
	if err != nil {
		return nil, err
	}
	p99 := map[string]float64{}
	for metric, all := range took {
		for _, ms := range all {
			n.r.sample(arm, metric, ms)
		}
		p99[metric] = quantile(all, 0.99)
	}
	return p99, nil
}

// Of the proc that measures, which asks for one thing at a time.
const (
	probeCPU    = 500
	probeMemory = 64 * sigma.MiB
)

// beside measures quiet, and beside one flood.
func (n *neighbour) beside(ctx context.Context, flood string) error {
	if err := awaitIdle(ctx); err != nil {
		return err
	}
	quiet, err := n.measure(ctx, "quiet", flood)
	if err != nil {
		return err
	}
	end, err := n.flood(ctx, flood)
	if err == nil {
		var beside map[string]float64
		if beside, err = n.measure(ctx, flood, flood); err == nil {
			for _, metric := range slices.Sorted(maps.Keys(quiet)) {
				q := quiet[metric]
				l := Line{Metric: flood + "_" + strings.TrimSuffix(metric, "_ms") + "_p99_ms", Ours: beside[metric],
					Theirs: &q, Unit: "ms", Peer: "quiet", Ratio: pointer(q / beside[metric]), N: 1}
				if err = n.r.print(l); err != nil {
					break
				}
			}
		}
	}
	if e := end(); err == nil {
		err = e
	}
	return err
}

// awaitIdle waits until the host's processors had little to do for half a second: what a flood left
// behind is being removed.
func awaitIdle(ctx context.Context) error {
	const look, most = 500 * time.Millisecond, 20 * time.Second
	for began := time.Now(); ; {
		before := idleTime()
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return ctx.Err()
		}
		if idleTime()-before > look*time.Duration(runtime.NumCPU())*3/4 {
			return nil
		}
		if time.Since(began) > most {
			return fmt.Errorf("the host is not idle %v after the last flood: quiet cannot be measured", most)
		}
	}
}

// flood begins one, and gives it half a second; end ends it, and removes its realm.
func (n *neighbour) flood(ctx context.Context, flood string) (end func() error, err error) {
	name := sigma.RealmID("flood-" + flood)
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	end = func() error {
		stop()
		all.Wait()
		return n.s.command(context.WithoutCancel(ctx), "realm", "rm", "--force", string(name))
	}
	if err := n.s.Realms().Create(ctx, name); err != nil {
		return end, err
	}
	c, err := sdk.Connect(ctx, filepath.Join(n.s.data, "sigmad", "admin.sock"), name)
	if err != nil {
		return end, err
	}
	context.AfterFunc(ctx, c.Close)
	of := &system{r: n.r, Client: c}
	program, err := of.install(ctx, n.share, "share")
	if err != nil {
		return end, err
	}
	switch flood {
	case "sessions":
		for range 16 {
			all.Go(func() {
				for ctx.Err() == nil {
					if c, err := sdk.Connect(ctx, filepath.Join(n.s.data, "sigmad", "admin.sock"), name); err == nil {
						c.Get(ctx, "/nothing")
						c.Close()
					}
				}
			})
		}
	case "sql":
		err = n.s.command(ctx, "--realm", string(name), "sql", "create", "flood")
	case "s3":
		err = c.Mkdir(ctx, "/s3/flood", 0o755)
	}
	if err == nil && flood != "sessions" {
		var local string
		if local, err = of.install(ctx, n.program, "flood"); err == nil {
			d := sigma.Descriptor{Program: local, Args: []string{flood, program}, Memory: 256 * sigma.MiB}
			_, err = c.Spawn(ctx, d, d)
		}
	}
	select {
	case <-time.After(n.window / 3):
	case <-ctx.Done():
	}
	return end, err
}
