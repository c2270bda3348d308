package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// burstBench: how long does it take until a burst of latency-critical procs, each of which reserves
// a core, all run on machines that they fill to the last core (000 §6.2, Table 6.2: 720 procs on
// ten machines)? The machines are those of sigma up --machines on this host, and their cores are
// *scaled*: each proc reserves so small a part of a core that all reservations together are what
// the machines offer. What is measured is therefore what placing and starting cost on this host's
// cores together, not on ten machines. warm: the program is on all machines; cold: on none, it is
// fetched from the object store; spin: as warm, but each proc computes as soon as it runs, so that
// the last ones start on a host whose processors are busy (in 000 each had its own). The time is
// from before the first Spawn to the first line of main of the last. The peer is docker run with a
// daemon of the bench's own, the same burst, of at most burstPeers containers; what is compared is
// how many per second. The table of 000: 2.03 s with all machines at hand, 6.65 and 22.07 s with
// growing, Lambda 1.79 and 2.26, Kubernetes 80 and 104.
func burstBench() Bench {
	return Bench{Name: "burst",
		Question: "how long until a burst of procs that reserve all cores of several machines runs?",
		Metrics: []string{"burst_warm_s", "burst_cold_s", "burst_spin_s", "burst_start_p50_ms",
			"burst_procs_per_s"},
		AnyMachines: true, run: runBurst}
}

const (
	burstPeers   = 24 // containers
	burstClients = 8  // docker commands that begin at a time
	burstChunk   = 60 // procs in one call
	burstMemory  = 4 * sigma.MiB
	paperBurst   = 2.03 // s, of 000 with all machines at hand
)

// burstArms is one run.
type burstArms struct {
	r        *Run
	c        *testenv.Cluster
	s        *system
	local    string // the program
	machines int
	procs    int
	colds    int
	curves   []curve
}

func runBurst(ctx context.Context, r *Run) (err error) {
	a := &burstArms{r: r, machines: 10, procs: 720}
	blocks := 5
	if r.Quick {
		a.machines, a.procs, blocks = 3, 72, 3
	}
	if r.Machines > 0 {
		a.machines = r.Machines
	}
	if a.local, err = r.buildStart(ctx); err != nil {
		return err
	}
	r.note("booting a system of %d machines; each proc reserves a scaled core, which is %d thousandths of a core",
		a.machines, a.scaled())
	if a.c, err = testenv.StartCluster(testenv.ClusterOptions{Kind: testenv.Local, Machines: a.machines,
		CPU: runtime.NumCPU(), Bin: r.Bin, Realms: []sigma.RealmID{realm}}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.c.Close()) }()
	client, err := a.c.Machine(0).Client(ctx, realm)
	if err != nil {
		return err
	}
	defer client.Close()
	a.s = &system{r: r, Client: client}
	program, err := a.s.install(ctx, a.local, "start")
	if err != nil {
		return err
	}
	if _, err := a.burst(ctx, program, "stay"); err != nil { // warm
		return err
	}
	arms := map[string][]float64{}
	var starts, rates []float64
	arm := func(name string, run func() ([]float64, error)) func() error {
		return func() error {
			ms, err := run()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			slices.Sort(ms)
			last := ms[len(ms)-1] / 1e3
			arms[name] = append(arms[name], r.sample(name, "burst_s", last))
			if name == "warm" {
				starts = append(starts, ms...)
				rates = append(rates, float64(a.procs)/last)
			}
			if len(arms[name]) == 1 {
				a.curves = append(a.curves, running(name, ms))
			}
			return nil
		}
	}
	if err := interleave(blocks, arm("warm", func() ([]float64, error) { return a.burst(ctx, program, "stay") }),
		arm("cold", func() ([]float64, error) { return a.cold(ctx) }),
		arm("spin", func() ([]float64, error) { return a.burst(ctx, program, "spin") })); err != nil {
		return err
	}
	theirs, err := a.docker(ctx)
	if err != nil {
		r.note("docker: %v", err)
	}
	paper := paperBurst
	for _, l := range []Line{{Metric: "burst_warm_s", Unit: "s", Ours: median(arms["warm"]), Peer: "thesis_720_cores",
		Theirs: &paper, N: blocks * a.procs},
		{Metric: "burst_cold_s", Unit: "s", Ours: median(arms["cold"]), N: blocks * a.procs},
		{Metric: "burst_spin_s", Unit: "s", Ours: median(arms["spin"]), N: blocks * a.procs},
		{Metric: "burst_start_p50_ms", Unit: "ms", Ours: median(starts), N: len(starts)}} {
		if err := r.print(l); err != nil {
			return err
		}
	}
	line := Line{Metric: "burst_procs_per_s", Unit: "1/s", Ours: median(rates), N: len(rates)}
	if theirs > 0 {
		line.Peer, line.Theirs, line.Ratio = "docker", &theirs, pointer(median(rates)/theirs)
	}
	if err := r.print(line); err != nil {
		return err
	}
	return r.keepPlot(plotCurves(axes{title: fmt.Sprintf("%d procs on %d machines of one host with %d cores (scaled)",
		a.procs, a.machines, runtime.NumCPU()), x: "s since the first Spawn", y: "procs that run"}, a.curves))
}

// scaled is the part of a core that a proc reserves.
func (a *burstArms) scaled() sigma.MilliCPU {
	return sigma.MilliCPU(1000 * runtime.NumCPU() * a.machines / a.procs)
}

// running is how many of a burst ran when; ms are in order.
func running(name string, ms []float64) curve {
	c := curve{name: name, x: []float64{0}, y: []float64{0}}
	for i, at := range ms {
		c.x, c.y = append(c.x, at/1e3), append(c.y, float64(i+1))
	}
	return c
}

// burst spawns all procs, and tells how long after the first Spawn each was at its first line, in
// ms. Then it ends them.
func (a *burstArms) burst(ctx context.Context, program, mode string) (ms []float64, err error) {
	ds := slices.Repeat([]sigma.Descriptor{{Program: program, Args: []string{mode}, Name: "burst", Memory: burstMemory,
		Class: sigma.LatencyCritical, CPU: a.scaled()}}, a.procs)
	begin := monotonic()
	var ids []sigma.ProcID
	for chunk := range slices.Chunk(ds, burstChunk) {
		some, err := a.s.Spawn(ctx, chunk...)
		if err != nil {
			return nil, err
		}
		ids = append(ids, some...)
	}
	g, gctx := newGroup(ctx)
	for _, id := range ids {
		g.Go(func() error { return a.s.WaitStart(gctx, id) })
	}
	if err := g.wait(gctx); err != nil {
		return nil, err
	}
	for _, id := range ids {
		at, err := a.mark(ctx, id)
		if err != nil {
			return nil, err
		}
		ms = append(ms, float64(at-begin)/1e6)
	}
	g, gctx = newGroup(ctx)
	for _, id := range ids {
		g.Go(func() error {
			if err := a.s.Kill(gctx, id); err != nil {
				return err
			}
			_, err := a.s.WaitExit(gctx, id)
			return err
		})
	}
	return ms, g.wait(gctx)
}

// markMost is how long a proc that has started may take to its first line, on a host whose
// processors are all busy.
const markMost = 20 * time.Second

// mark reads what a proc printed, as soon as it has.
func (a *burstArms) mark(ctx context.Context, id sigma.ProcID) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, markMost)
	defer cancel()
	for {
		text, _, err := a.s.Get(ctx, "/proc/"+string(id)+"/stdout")
		if err != nil {
			return 0, err
		}
		if line, _, whole := strings.Cut(string(text), "\n"); whole {
			return strconv.ParseInt(line, 10, 64)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("proc %s printed nothing: %w", id, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// cold is a burst of a program that no machine has.
func (a *burstArms) cold(ctx context.Context) ([]float64, error) {
	a.colds++
	name := fmt.Sprintf("cold%d", a.colds)
	bytes, err := os.ReadFile(a.local)
	if err != nil {
		return nil, err
	}
	copied := a.local + "-" + name
	if err := os.WriteFile(copied, fmt.Append(bytes, name),
		0o755); err != nil { // what is behind its end makes another file of it
		return nil, err
	}
	program, err := a.s.install(ctx, copied, name)
	if err != nil {
		return nil, err
	}
	return a.burst(ctx, program, "stay")
}

// docker tells how many containers run per second after a burst of docker run.
func (a *burstArms) docker(ctx context.Context) (perS float64, err error) {
	d, err := a.r.startDocker(ctx, a.local)
	if err != nil {
		return 0, err
	}
	var ends sync.WaitGroup
	defer ends.Wait()
	defer d.stop()
	n := min(a.procs, burstPeers)
	command := append(d.run(), "stay")
	marks, slots := make([]float64, n), make(chan struct{}, burstClients)
	g, gctx := newGroup(ctx)
	begin := monotonic()
	for i := range n {
		g.Go(func() error {
			slots <- struct{}{}
			defer func() { <-slots }()
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				return err
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			ends.Go(func() { cmd.Wait() }) // with its container
			if err != nil {
				return fmt.Errorf("docker run: %w", err)
			}
			at, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			marks[i] = float64(at-begin) / 1e6
			return err
		})
	}
	if err := g.wait(gctx); err != nil {
		return 0, err
	}
	slices.Sort(marks)
	a.curves = append(a.curves, running("docker", marks))
	last := a.r.sample("docker", "burst_s", marks[n-1]/1e3)
	a.r.note("docker: %d containers in %.2f s", n, last)
	return float64(n) / last, nil
}
