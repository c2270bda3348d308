package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// lcbeBench: what does a latency-critical (LC) service notice of best-effort (BE) work that takes
// all the rest of its machine (001 §6.4, Fig 11), and how much does that work get done? The service
// is two procs (programs/service): one makes calls over an endpoint at random times whether or not
// those before are answered (open loop), 400 a second; the other computes for 1 ms for each, and
// for each third reads a name and a file of 4 KiB first. Beside them four processes for each core
// compute, or write and read files of 256 KiB. The same program is in all arms: solo and ours are
// procs of sigmaOS, with nothing and with that work beside them; plain_solo and shares are ordinary
// processes in two cgroups, with the weights that k8s would give (1024 for the core, 2 for the
// rest), which is what 001 does, with a UNIX socket and files of the host; docker is as shares, by
// --cpu-shares. Each arm's group outweighs whatever else the host does. Arms take turns, with the
// same arrivals, and the latencies of all turns of an arm are one sample: the 99th percentile of a
// turn alone is its fourth slowest call or so. Best-effort work is compared in operations and bytes
// a second, and in processor time. A realm's file costs more than a host's: there is a protocol,
// and another process, between; so fewer operations are to be expected when files are written.
// Expected: within 1.15 of its own solo for ours.
func lcbeBench() Bench {
	b := Bench{Name: "lc-be", Question: "what does a latency-critical service notice of best-effort work beside it?",
		Parts: []string{"compute", "files"}, run: runLCBE}
	for _, prefix := range []string{"", "io_"} {
		for _, m := range []string{"lc_p50_ms", "lc_p99_ms", "lc_p99_of_solo", "be_of_what_lc_leaves", "be_ops_per_s"} {
			b.Metrics = append(b.Metrics, prefix+m)
		}
	}
	b.Metrics = append(b.Metrics, "io_be_bytes_per_s", "yield_cpu")
	return b
}

const (
	lcbeRate    = 400  // calls a second
	lcbeWork    = 1000 // µs of each
	lcbeServer  = 1000 // that the server reserves
	lcbeCaller  = 250
	lcbeShares  = 1024 // of what is latency-critical, where there are only shares
	lcbeLeast   = 2    // of what is not
	lcbeRunning = 300 * time.Millisecond
	lcbeDelay   = 2 * time.Second // until calls are made in a container
)

// served is what came of one run of the service.
type served struct {
	begin, end int64         // ns of the wall clock
	latency    []float64     // ms
	cpu, be    time.Duration // processor time of both its processes, and of the work beside them
	left       time.Duration // that the machine had beside the service and what is no part of the arm
	ops, bytes float64       // of the work beside it, a second
}

// lcbe is one run of the bench.
type lcbe struct {
	r               *Run
	s               *system
	group           string // of s
	local, program  string // programs/service, and where it is in the realm
	plain           hostGroup
	docker          *dockerd
	each            time.Duration
	block           int
	of              map[string]*lcbeArm
	containers      int
	bestEffortProcs int
}

// lcbeArm is what came of all blocks of an arm.
type lcbeArm struct{ latency, p99, share, ops, bytes []float64 }

func runLCBE(ctx context.Context, r *Run) (err error) {
	a := &lcbe{r: r, each: 5 * time.Second, of: map[string]*lcbeArm{}, bestEffortProcs: 4 * runtime.NumCPU()}
	blocks := 7
	if r.Quick {
		blocks, a.each = 5, time.Second
	}
	a.local = filepath.Join(r.dir, "service")
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", a.local,
		"./bench/programs/service"); err != nil {
		return err
	}
	if err := os.MkdirAll(a.files(), 0o755); err != nil {
		return err
	}
	if a.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer a.s.down()
	if a.program, err = a.s.install(ctx, a.local, "service"); err != nil {
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
	for group, shares := range map[string]int{"lc": lcbeShares, "be": lcbeLeast} {
		if err := weigh(a.plain.name+"/"+group, shares); err != nil {
			return err
		}
	}
	if r.Quick {
		r.note("NO docker arm in a quick run: containers take seconds to start beside the work")
	} else if a.docker, err = r.startDocker(ctx, a.local); err != nil {
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

// files is the directory of plain processes and containers.
func (a *lcbe) files() string { return filepath.Join(a.r.dir, "files") }

// arms are what each block runs.
func (a *lcbe) arms(ctx context.Context) (all []func() error) {
	arm := func(name string, run func(kind string) (served, error), kind string) {
		all = append(all, func() error {
			got, err := run(kind)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return a.note(name, got)
		})
	}
	ours := func(kind string) (served, error) { return a.ours(ctx, kind) }
	plain := func(kind string) (served, error) { return a.inGroups(ctx, kind) }
	contained := func(kind string) (served, error) { return a.inContainers(ctx, kind) }
	arm("solo", func(kind string) (served, error) { a.block++; return ours(kind) }, "")
	arm("plain_solo", plain, "")
	for _, kind := range []string{"compute", "files"} {
		if a.r.Only != "" && a.r.Only != kind {
			continue
		}
		prefix := map[string]string{"files": "io "}[kind]
		arm(prefix+"ours", ours, kind)
		arm(prefix+"shares", plain, kind)
		if a.docker != nil {
			arm(prefix+"docker", contained, kind)
		}
	}
	return all
}

// note keeps what came of an arm.
func (a *lcbe) note(name string, got served) error {
	if len(got.latency) < 10 {
		return fmt.Errorf("%s: only %d calls", name, len(got.latency))
	}
	for _, ms := range got.latency {
		a.r.sample(name, "ms", ms)
	}
	if a.of[name] == nil {
		a.of[name] = &lcbeArm{}
	}
	arm := a.of[name]
	arm.latency = append(arm.latency, got.latency...)
	arm.p99 = append(arm.p99, quantile(got.latency, 0.99))
	arm.share = append(arm.share, a.r.sample(name, "be_share", float64(got.be)/float64(max(1, got.left))))
	arm.ops = append(arm.ops, a.r.sample(name, "be_ops_per_s", got.ops))
	arm.bytes = append(arm.bytes, a.r.sample(name, "be_bytes_per_s", got.bytes))
	return nil
}

// caller and work give arguments of programs/service.
func (a *lcbe) caller(place string, delay time.Duration) []string {
	return []string{"call", place, fmt.Sprint(delay.Seconds()), fmt.Sprint(a.each.Seconds()), strconv.Itoa(lcbeRate),
		strconv.Itoa(lcbeWork), strconv.Itoa(a.block)}
}

func (a *lcbe) work(kind, place string, processes int) []string {
	return []string{kind, place, fmt.Sprint((a.each + time.Minute).Seconds()), strconv.Itoa(processes)} // at most
}

// measure runs the caller beside what has been started. All of the arm is in group, and the work in
// be. What LC leaves is what the machine has without the service, and without what runs outside of
// the arm.
func (a *lcbe) measure(call func() ([]byte, error), group string, be func() time.Duration) (got served, err error) {
	time.Sleep(lcbeRunning) // they begin
	others := func() time.Duration { return busy() - groupCPU(group) }
	began, before, outside := time.Now(), be(), others()
	out, err := call()
	wall := time.Since(began)
	got.be, outside = be()-before, others()-outside
	if err != nil {
		return got, err
	}
	f := strings.Fields(string(out))
	if len(f) < 3 {
		return got, fmt.Errorf("the caller printed %.100q", out)
	}
	for i, text := range f {
		v, err := strconv.ParseFloat(text, 64)
		switch {
		case err != nil:
			return got, fmt.Errorf("the caller printed %.100q", out)
		case i == 0:
			got.begin = int64(v)
		case i == 1:
			got.end = int64(v)
		case i == 2:
			got.cpu = time.Duration(v * float64(time.Second))
		default:
			got.latency = append(got.latency, v)
		}
	}
	got.left = time.Duration(runtime.NumCPU())*wall - got.cpu - outside
	return got, nil
}

// did counts what best-effort work, which printed this, has done while calls were made.
func (s *served) did(printed []byte) {
	type point struct{ at, ops, bytes float64 }
	all := map[string][]point{} // of each process
	for line := range strings.Lines(string(printed)) {
		var pid string
		var p point
		if n, _ := fmt.Sscan(line, &pid, &p.at, &p.ops, &p.bytes); n == 4 {
			all[pid] = append(all[pid], p)
		}
	}
	// between two points it went on evenly, before the first and after the last it did nothing
	until := func(points []point, at float64) point {
		i := sort.Search(len(points), func(i int) bool { return points[i].at > at })
		if i == 0 || i == len(points) {
			return points[min(i, len(points)-1)]
		}
		p, q := points[i-1], points[i]
		part := (at - p.at) / (q.at - p.at)
		return point{at, p.ops + part*(q.ops-p.ops), p.bytes + part*(q.bytes-p.bytes)}
	}
	over := float64(s.end-s.begin) / 1e9
	for _, points := range all {
		from, to := until(points, float64(s.begin)), until(points, float64(s.end))
		s.ops += (to.ops - from.ops) / over
		s.bytes += (to.bytes - from.bytes) / over
	}
}

// ours runs service and best-effort work as procs; kind "" is no work.
func (a *lcbe) ours(ctx context.Context, kind string) (got served, err error) {
	var ids []sigma.ProcID
	end := func() {
		for _, id := range ids {
			a.s.Kill(ctx, id)
		}
		for _, id := range ids {
			a.s.WaitExit(ctx, id)
		}
	}
	defer end()
	start := func(d sigma.Descriptor) error {
		d.Program = a.program
		one, err := a.s.Spawn(ctx, d)
		if err == nil {
			ids = append(ids, one...)
			err = a.s.WaitStart(ctx, one[0])
		}
		return err
	}
	const objects = "sigma:/s3/load"
	if err := start(sigma.Descriptor{Args: []string{"serve", objects}, Class: sigma.LatencyCritical,
		CPU: lcbeServer}); err != nil {
		return got, err
	}
	for i := range a.bestEffortProcs {
		if kind == "" {
			break
		}
		if err := start(sigma.Descriptor{Args: a.work(kind, []string{"sigma:/ux/~local", objects}[i%2], 1),
			Memory: 64 * sigma.MiB}); err != nil {
			return got, err
		}
	}
	used := func() time.Duration { return groupCPU(a.group + "/rest/be") }
	if kind == "files" { // what daemons do for it is its work too
		used = func() time.Duration { return groupCPU(a.group + "/rest") }
	}
	got, err = a.measure(func() ([]byte, error) {
		return a.s.output(ctx, sigma.Descriptor{Program: a.program, Args: a.caller(objects, 0),
			Class: sigma.LatencyCritical, CPU: lcbeCaller})
	}, a.group, used)
	if err != nil {
		return got, err
	}
	all := ids[1:]
	end()
	ids = nil
	var printed []byte
	for _, id := range all {
		text, _, err := a.s.Get(ctx, "/proc/"+string(id)+"/stdout")
		if err != nil {
			return got, err
		}
		for line := range bytes.Lines(text) { // procs may have equal pids
			printed = append(append(append(printed, id...), ':'), line...)
		}
	}
	got.did(printed)
	return got, nil
}

// inGroups runs both as ordinary processes in two cgroups.
func (a *lcbe) inGroups(ctx context.Context, kind string) (got served, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var printed bytes.Buffer
	start := func(child string, out io.Writer, args ...string) error {
		cmd := a.plain.command(ctx, child, append([]string{a.local}, args...)...)
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			return err
		}
		all.Go(func() { cmd.Wait() })
		return nil
	}
	if err := start("lc", nil, "serve", a.files()); err != nil {
		return got, err
	}
	if kind != "" {
		if err := start("be", &printed, a.work(kind, a.files(), a.bestEffortProcs)...); err != nil {
			return got, err
		}
	}
	got, err = a.measure(func() ([]byte, error) {
		return a.plain.command(ctx, "lc", append([]string{a.local}, a.caller(a.files(), 0)...)...).Output()
	}, a.plain.name, func() time.Duration { return groupCPU(a.plain.name + "/be") })
	cancel()
	all.Wait()
	got.did(printed.Bytes())
	return got, err
}

// inContainers runs all as docker containers.
func (a *lcbe) inContainers(ctx context.Context, kind string) (got served, err error) {
	a.containers++
	docker := func(args ...string) *exec.Cmd {
		args = a.docker.command(args...)
		return exec.CommandContext(ctx, args[0], args[1:]...)
	}
	run := func(shares int, args ...string) []string {
		return append([]string{"run", "--network", "none", "--cpu-shares", strconv.Itoa(shares), "--volume",
			a.files() + ":/files"}, args...)
	}
	start := func(role string, shares int, args ...string) (name string, err error) {
		name = fmt.Sprintf("%s-%d", role, a.containers)
		out, err := docker(run(shares, append([]string{"--detach", "--name", name, dockerImage, "/start"},
			args...)...)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %.200s", err, bytes.TrimSpace(out))
		}
		return name, err
	}
	server, err := start("server", lcbeShares, "serve", "/files")
	defer func() { docker("rm", "--force", server).Run() }()
	if err != nil {
		return got, err
	}
	args := append(run(lcbeShares, "--rm", dockerImage, "/start"), a.caller("/files", lcbeDelay)...)
	called := make(chan struct{})
	var out []byte
	var failed error
	go func() {
		defer close(called)
		out, failed = docker(args...).Output()
	}()
	defer func() { <-called }()
	time.Sleep(lcbeDelay / 2) // beside best-effort work it takes up to 10 s until a container has started
	work, err := start("work", lcbeLeast, a.work(kind, "/files", a.bestEffortProcs)...)
	defer func() { docker("rm", "--force", work).Run() }()
	if err != nil {
		return got, err
	}
	containers := func() time.Duration { return groupCPU(a.docker.group + "/containers") }
	got, err = a.measure(func() ([]byte, error) { <-called; return out, failed }, a.docker.group, containers)
	if err != nil {
		return got, err
	}
	got.be -= got.cpu
	printed, err := docker("logs", work).Output()
	got.did(printed)
	return got, err
}

// solo is what an arm is compared with: the same service with nothing beside it.
func (a *lcbe) solo(name string) string {
	if strings.HasSuffix(name, "ours") || name == "solo" {
		return "solo"
	}
	return "plain_solo"
}

// ofSolo is how many times solo's 99th percentile that of an arm is, over all blocks.
func (a *lcbe) ofSolo(name string) float64 {
	return quantile(a.of[name].latency, 0.99) / quantile(a.of[a.solo(name)].latency, 0.99)
}

// print puts out ours beside each peer.
func (a *lcbe) print() error {
	for _, name := range slices.Sorted(maps.Keys(a.of)) {
		arm := a.of[name]
		a.r.note(
			"%-12s p50 %.2f p99 %.2f ms, %.2f of solo's (blocks: %.2f ms, %.2f to %.2f; %.2f of solo's), best effort "+
				"had %.2f of what it left, did %.0f operations and %.1f MB a second", name, median(arm.latency),
			quantile(arm.latency, 0.99),
			a.ofSolo(name), median(arm.p99), quantile(arm.p99, 0), quantile(arm.p99, 1),
			median(ratios(arm.p99, a.of[a.solo(name)].p99)), median(arm.share), median(arm.ops), median(arm.bytes)/1e6)
	}
	for _, prefix := range []string{"", "io "} {
		if a.of[prefix+"ours"] == nil { // it was not asked for
			continue
		}
		for _, peer := range []string{"shares", "docker"} {
			if a.of[prefix+peer] == nil {
				continue
			}
			for _, f := range a.figures(prefix) {
				l := Line{Metric: strings.ReplaceAll(prefix, " ", "_") + f.metric, Unit: f.unit,
					Ours: f.of(prefix + "ours"), Peer: peer, Theirs: pointer(f.of(prefix + peer)),
					N: len(a.of[prefix+"ours"].latency)}
				l.Ratio = pointer(l.Ours / *l.Theirs)
				if f.less {
					l.Ratio = pointer(*l.Theirs / l.Ours)
				}
				if err := a.r.print(l); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// lcbeFigure is one that is printed of an arm.
type lcbeFigure struct {
	metric, unit string
	less         bool // is better
	of           func(arm string) float64
}

func (a *lcbe) figures(prefix string) []lcbeFigure {
	all := []lcbeFigure{
		{"lc_p50_ms", "ms", true, func(arm string) float64 { return median(a.of[arm].latency) }},
		{"lc_p99_ms", "ms", true, func(arm string) float64 { return quantile(a.of[arm].latency, 0.99) }},
		{"lc_p99_of_solo", "1", true, a.ofSolo},
		{"be_of_what_lc_leaves", "1", false, func(arm string) float64 { return median(a.of[arm].share) }},
		{"be_ops_per_s", "1/s", false, func(arm string) float64 { return median(a.of[arm].ops) }},
	}
	if prefix != "" {
		all = append(all, lcbeFigure{"be_bytes_per_s", "B/s", false, func(arm string) float64 {
			return median(a.of[arm].bytes)
		}})
	}
	return all
}

// printPrice tells which part of a processor the launcher's loop has taken while it looked every
// few milliseconds.
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
	a.r.note("the launcher looked %.0f times, for %.1f us each, and pushed best-effort work aside after %.0f", looks,
		cpu/max(1, looks)*1e6, pushes)
	arms := 0 // in which both compute
	for _, name := range []string{"ours", "io ours"} {
		if arm := a.of[name]; arm != nil {
			arms += len(arm.p99)
		}
	}
	return a.r.print(Line{Metric: "yield_cpu", Unit: "1", Ours: cpu / (float64(arms) * a.each.Seconds()),
		N: int(looks)})
}
