package bench

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// lcbeBench: what does a latency-critical server notice of best-effort work that takes all the rest of its machine (001 §6.4, Fig 11), and does that work get the rest? The server has requests that arrive at random whether or not it
// has done the last (open loop), each of 1 ms of processor time, 400 a second; it reserves one core. Beside it, four processes for each core compute, or write and read files. Arms: solo (sigmaOS, nothing beside it); ours; shares: the
// same two programs in two plain cgroups, with the weights that k8s would give (1024 for the core, 2 for the rest), which is what 001 does; docker, with the same by --cpu-shares. In a full run also each way that the kernel has
// to let one cgroup yield to another, from which ADR 21 chose. Each arm's group outweighs whatever else the host does. Arms take turns, with the same arrivals, and the latencies of all turns of an arm are one
// sample: the 99th percentile of a turn alone is its fourth slowest request or so, and two arms of the same kind differed by a half. How single turns compare is beside it. Expected: within 1.15 of solo for ours; docker as shares.
func lcbeBench() Bench {
	return Bench{Name: "lc-be", Question: "what does a latency-critical server notice of best-effort work beside it?", Parts: []string{"compute", "io"},
		Metrics: []string{"lc_p50_ms", "lc_p99_ms", "lc_p99_of_solo", "be_of_what_lc_leaves", "io_lc_p50_ms", "io_lc_p99_ms", "io_lc_p99_of_solo", "io_be_of_what_lc_leaves", "yield_cpu"}, run: runLCBE}
}

const (
	lcbeRate    = 400  // requests a second
	lcbeWork    = 1000 // µs of each
	lcbeThreads = 4
	lcbeCores   = 1000 // that the server reserves
)

// yielding is a way to let one cgroup yield to another.
type yielding struct {
	name   string
	lc, be int  // shares
	idle   bool // the class of the one that yields
	slice  int  // ns, of the server
	quota  bool // a loop takes processor time away from the one that yields while the other waits
}

// yieldings are what there is to choose from.
var yieldings = [...]yielding{
	{name: "equal", lc: 1024, be: 1024},
	{name: "slice", lc: 1024, be: 1024, slice: 100000},
	{name: "idle", lc: 1024, be: 1024, idle: true},
	{name: "idle+slice", lc: 1024, be: 1024, idle: true, slice: 100000},
	{name: "weights", lc: 16384, be: 2},
	{name: "weights+slice", lc: 16384, be: 2, slice: 100000},
	{name: "weights+quota", lc: 16384, be: 2, quota: true},
	{name: "weights+idle", lc: 16384, be: 2, idle: true},
	{name: "weights+idle+quota", lc: 16384, be: 2, idle: true, quota: true},
}

// served is what came of one run of the server.
type served struct {
	latency []float64     // ms
	cpu, be time.Duration // processor time of it, and of the work beside it
	left    time.Duration // that the machine had beside the server and what is no part of the arm
}

// lcbe is one run of the bench.
type lcbe struct {
	r               *Run
	s               *system
	group           string // of s
	local           string // the C program
	program, filer  string // of procs: it, and the one in Go
	plain           hostGroup
	docker          *dockerd
	each            time.Duration
	block           int
	latency, p99    map[string][]float64
	share           map[string][]float64
	containers      int
	bestEffortProcs int
}

func runLCBE(ctx context.Context, r *Run) (err error) {
	a := &lcbe{r: r, each: 5 * time.Second, latency: map[string][]float64{}, p99: map[string][]float64{}, share: map[string][]float64{}, bestEffortProcs: 4 * runtime.NumCPU()}
	blocks := 7
	if r.Quick {
		blocks, a.each = 5, time.Second
	}
	if a.local, err = r.buildShare(ctx); err != nil {
		return err
	}
	filer := filepath.Join(r.dir, "besteffort")
	if err := r.make(ctx, "go", "build", "-trimpath", "-o", filer, "./bench/programs/besteffort"); err != nil {
		return err
	}
	if a.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer a.s.down()
	if a.program, err = a.s.install(ctx, a.local, "share"); err != nil {
		return err
	}
	if a.filer, err = a.s.install(ctx, filer, "besteffort"); err != nil {
		return err
	}
	if err := a.s.MkdirAll(ctx, "/s3/load", 0o755); err != nil {
		return err
	}
	if a.group, err = a.s.instanceGroup(); err != nil {
		return err
	}
	if err := weigh(a.group, mostShares); err != nil {
		return err
	}
	if a.plain, err = makeHostGroup(filepath.Base(r.dir)+"-plain", "lc", "be"); err != nil {
		return err
	}
	defer a.plain.remove()
	if a.docker, err = r.startDocker(ctx, a.local); err != nil {
		r.note("NO docker arm: %v", err)
	} else {
		defer a.docker.stop()
		if err := weigh(a.docker.group, mostShares); err != nil {
			return err
		}
	}
	if err := interleave(blocks, a.arms(ctx)...); err != nil {
		return err
	}
	if err := a.print(); err != nil {
		return err
	}
	return a.printPrice(ctx)
}

// arms are what each block runs.
func (a *lcbe) arms(ctx context.Context) (all []func() error) {
	arm := func(name string, run func() (served, error)) {
		if only := a.r.Only; only != "" && name != "solo" && strings.HasPrefix(name, "io ") != (only == "io") {
			return
		}
		all = append(all, func() error {
			got, err := run()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return a.note(name, got)
		})
	}
	shares := yielding{name: "shares", lc: 1024, be: 2}
	arm("solo", func() (served, error) { a.block++; return a.ours(ctx, "") })
	arm("ours", func() (served, error) { return a.ours(ctx, "be") })
	arm("shares", func() (served, error) { return a.inGroups(ctx, shares, "be") })
	if a.docker != nil {
		arm("docker", func() (served, error) { return a.inContainers(ctx, "be") })
	}
	arm("io ours", func() (served, error) { return a.ours(ctx, "io") })
	arm("io shares", func() (served, error) { return a.inGroups(ctx, shares, "io") })
	if a.docker != nil {
		arm("io docker", func() (served, error) { return a.inContainers(ctx, "io") })
	}
	if a.r.Quick {
		return all
	}
	for _, y := range yieldings {
		arm("yield "+y.name, func() (served, error) { return a.inGroups(ctx, y, "be") })
	}
	return all
}

// note keeps what came of an arm.
func (a *lcbe) note(name string, got served) error {
	if len(got.latency) < 10 {
		return fmt.Errorf("%s: only %d requests", name, len(got.latency))
	}
	for _, ms := range got.latency {
		a.r.sample(name, "ms", ms)
	}
	a.latency[name] = append(a.latency[name], got.latency...)
	a.p99[name] = append(a.p99[name], quantile(got.latency, 0.99))
	a.share[name] = append(a.share[name], a.r.sample(name, "be_share", float64(got.be)/float64(max(1, got.left))))
	return nil
}

// server are the arguments of the server.
func (a *lcbe) server(slice int) []string {
	return []string{"lc", fmt.Sprint(a.each.Seconds()), strconv.Itoa(lcbeRate), strconv.Itoa(lcbeWork), strconv.Itoa(lcbeThreads), strconv.Itoa(a.block), strconv.Itoa(slice)}
}

// load is for how long those beside the server work at most.
func (a *lcbe) load() string { return fmt.Sprint((a.each + 5*time.Second).Seconds()) }

// measure runs the server beside what has been started. All of the arm is in group. What LC leaves is what the machine has without the server, and without what runs outside of the arm.
func (a *lcbe) measure(run func() ([]byte, error), group string, be func() time.Duration) (got served, err error) {
	time.Sleep(100 * time.Millisecond) // they begin
	others := func() time.Duration { return busy() - groupCPU(group) }
	began, before, outside := time.Now(), be(), others()
	out, err := run()
	wall := time.Since(began)
	got.be, outside = be()-before, others()-outside
	if err != nil {
		return got, err
	}
	defer func() { got.left = time.Duration(runtime.NumCPU())*wall - got.cpu - outside }()
	for i, f := range strings.Fields(string(out)) {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return got, fmt.Errorf("the server printed %.100q", out)
		}
		if i == 0 {
			got.cpu = time.Duration(v * float64(time.Second))
		} else {
			got.latency = append(got.latency, v)
		}
	}
	return got, nil
}

// ours runs server and best-effort work as procs; kind "" is no work.
func (a *lcbe) ours(ctx context.Context, kind string) (served, error) {
	var ds []sigma.Descriptor
	used := func() time.Duration { return groupCPU(a.group + "/rest/be") }
	for i := range a.bestEffortProcs {
		switch kind {
		case "be":
			ds = append(ds, sigma.Descriptor{Program: a.program, Args: []string{"be", a.load(), "1"}, Memory: 16 * sigma.MiB})
		case "io":
			ds = append(ds, sigma.Descriptor{Program: a.filer, Args: []string{a.load(), []string{"/ux/~local", "/s3/load"}[i%2]}})
		}
	}
	if kind == "io" { // what daemons do for it is its work too
		used = func() time.Duration {
			return groupCPU(a.group + "/rest")
		}
	}
	var ids []sigma.ProcID
	defer func() {
		for _, id := range ids {
			a.s.Kill(ctx, id)
		}
		for _, id := range ids {
			a.s.WaitExit(ctx, id)
		}
	}()
	for _, d := range ds {
		one, err := a.s.Spawn(ctx, d)
		if err != nil {
			return served{}, err
		}
		ids = append(ids, one...)
	}
	for _, id := range ids {
		if err := a.s.WaitStart(ctx, id); err != nil {
			return served{}, err
		}
	}
	return a.measure(func() ([]byte, error) {
		return a.s.output(ctx, sigma.Descriptor{Program: a.program, Args: a.server(0), Class: sigma.LatencyCritical, CPU: lcbeCores})
	}, a.group, used)
}

// inGroups runs both as ordinary processes in two cgroups.
func (a *lcbe) inGroups(ctx context.Context, y yielding, kind string) (got served, err error) {
	lc, be := a.plain.name+"/lc", a.plain.name+"/be"
	if err := idle(be, false); err != nil && y.idle {
		return got, err
	}
	for group, shares := range map[string]int{lc: y.lc, be: y.be} {
		if err := weigh(group, shares); err != nil {
			return got, err
		}
	}
	if y.idle {
		if err := idle(be, true); err != nil {
			return got, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	load := a.plain.command(ctx, "be", a.local, kind, a.load(), strconv.Itoa(a.bestEffortProcs), a.r.dir)
	if err := load.Start(); err != nil {
		return got, err
	}
	all.Go(func() { load.Wait() })
	if y.quota {
		all.Go(func() { quotaLoop(ctx, lc, be) })
	}
	return a.measure(func() ([]byte, error) {
		return a.plain.command(ctx, "lc", append([]string{a.local}, a.server(y.slice)...)...).Output()
	}, a.plain.name, func() time.Duration { return groupCPU(be) })
}

// quotaLoop lowers what be may use while threads of lc wait for a processor, and raises it while they do not.
func quotaLoop(ctx context.Context, lc, be string) {
	path := cpuFile(be, "cpu.cfs_quota_us")
	if path == "" {
		path = cpuFile(be, "cpu.max")
	}
	defer writeQuota(path, -1)
	most := 10000 * runtime.NumCPU()
	quota, waited := most, time.Duration(0)
	for {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return
		}
		now := runDelay(lc)
		if now-waited > 500*time.Microsecond {
			quota = max(1000, quota/2)
		} else {
			quota = min(most, quota+most/20)
		}
		waited = now
		writeQuota(path, quota)
	}
}

// ofSolo is how many times solo's 99th percentile that of an arm is, over all blocks.
func (a *lcbe) ofSolo(name string) float64 {
	return quantile(a.latency[name], 0.99) / quantile(a.latency["solo"], 0.99)
}

// print puts out ours beside each peer.
func (a *lcbe) print() error {
	for _, name := range slices.Sorted(maps.Keys(a.latency)) { // the table of ADR 21
		all := a.latency[name]
		a.r.note("%-24s p50 %.2f p99 %.2f ms, %.2f of solo's (blocks: %.2f ms, %.2f to %.2f; %.2f of solo's), best effort had %.2f of what it left", name, median(all), quantile(all, 0.99), a.ofSolo(name), median(a.p99[name]), quantile(a.p99[name], 0),
			quantile(a.p99[name], 1), median(ratios(a.p99[name], a.p99["solo"])), median(a.share[name]))
	}
	for _, kind := range []string{"", "io "} {
		metric, ours := strings.ReplaceAll(kind, " ", "_"), kind+"ours"
		if a.latency[ours] == nil { // it was not asked for
			continue
		}
		figures := map[string]func(name string) float64{
			"lc_p50_ms": func(name string) float64 { return median(a.latency[name]) },
			"lc_p99_ms": func(name string) float64 { return quantile(a.latency[name], 0.99) },
		}
		for _, peer := range []string{"solo", kind + "shares", kind + "docker"} {
			if a.latency[peer] == nil {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(figures)) {
				l := Line{Metric: metric + name, Unit: "ms", Ours: figures[name](ours), Peer: strings.TrimPrefix(peer, kind), Theirs: pointer(figures[name](peer)), N: len(a.latency[ours])}
				l.Ratio = pointer(*l.Theirs / l.Ours)
				if err := a.r.print(l); err != nil {
					return err
				}
			}
			if peer == "solo" {
				continue
			}
			if err := a.r.print(Line{Metric: metric + "lc_p99_of_solo", Unit: "1", Ours: a.ofSolo(ours), Peer: strings.TrimPrefix(peer, kind), Theirs: pointer(a.ofSolo(peer)), N: len(a.latency[ours])}); err != nil {
				return err
			}
		}
		if err := a.r.print(Line{Metric: metric + "be_of_what_lc_leaves", Unit: "1", Ours: median(a.share[ours]), Peer: "shares", Theirs: pointer(median(a.share[kind+"shares"])), N: len(a.share[ours])}); err != nil {
			return err
		}
	}
	return nil
}

// printPrice tells which part of a processor the launcher's loop has taken while it looked every few milliseconds.
func (a *lcbe) printPrice(ctx context.Context) error {
	text, _, err := a.s.Get(ctx, "/sys/metrics")
	if err != nil {
		return err
	}
	figure := func(name string) (v float64) {
		_, after, _ := strings.Cut(string(text), "\nsigma_yield_"+name+" ")
		fmt.Sscan(after, &v)
		return v
	}
	looks, pushes, cpu := figure("looks_total"), figure("pushes_total"), figure("cpu_seconds_total")
	a.r.note("the launcher looked %.0f times, for %.1f us each, and pushed best-effort work aside after %.0f", looks, cpu/max(1, looks)*1e6, pushes)
	arms := len(a.p99["ours"]) + len(a.p99["io ours"]) // in which both compute
	return a.r.print(Line{Metric: "yield_cpu", Unit: "1", Ours: cpu / (float64(arms) * a.each.Seconds()), N: int(looks)})
}

// inContainers runs both as docker containers.
func (a *lcbe) inContainers(ctx context.Context, kind string) (got served, err error) {
	a.containers++
	name := fmt.Sprintf("be-%d", a.containers)
	start := a.docker.command("run", "--detach", "--name", name, "--network", "none", "--cpu-shares", "2", dockerImage, "/start", kind, a.load(), strconv.Itoa(a.bestEffortProcs), "/")
	if out, err := exec.CommandContext(ctx, start[0], start[1:]...).CombinedOutput(); err != nil {
		return got, fmt.Errorf("%w: %.200s", err, bytes.TrimSpace(out))
	}
	defer func() {
		stop := a.docker.command("rm", "--force", name)
		exec.CommandContext(ctx, stop[0], stop[1:]...).Run()
	}()
	containers := func() time.Duration { return groupCPU(a.docker.group + "/containers") }
	serve := a.docker.command(append([]string{"run", "--rm", "--network", "none", "--cpu-shares", "1024", dockerImage, "/start"}, a.server(0)...)...)
	got, err = a.measure(func() ([]byte, error) { return exec.CommandContext(ctx, serve[0], serve[1:]...).Output() }, a.docker.group, containers)
	got.be -= got.cpu
	return got, err
}
