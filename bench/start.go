package bench

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

//go:embed programs/start.c
var startSource string

// startBench: how long does it take from Spawn to the first line of main of an isolated proc that is warm (its program is on the machine)? Starts follow one another, each
// after the end of the one before; the program tells the monotonic clock at its first line, which is the spawner's clock too. The floor and first peer is the least that Linux
// needs: posix_spawn of the same static program from a small C program, without any isolation. The others are containers (see there), posix_spawned by the same
// program, which counts until the first line of main too. Expected: a few times the floor, most of it namespaces and cgroup; bwrap some ms, runc and crun ten and more.
func startBench() Bench {
	return Bench{Name: "start", Question: "how long from Spawn to the first line of main of a warm, isolated proc?",
		Metrics: []string{"warm_start_p50_ms", "warm_start_p99_ms", "cpu_ms_per_start"}, run: runStart}
}

// startArm is one way to start.
type startArm struct {
	name    string
	command []string  // what the C program is to spawn; nil: itself
	n       int       // starts per block
	all     []float64 // ms
	p50     []float64 // ms, per block
	cpu     []float64 // ms per start, per block
}

type startArms struct {
	r       *Run
	s       *system
	local   string // path of the program here
	program string // and in the realm
	ours    startArm
	peers   []*startArm // posix_spawn is the first
}

func runStart(ctx context.Context, r *Run) error {
	blocks, n := 10, 400
	if r.Quick {
		blocks, n = 5, 200
	}
	local, err := r.buildStart(ctx)
	if err != nil {
		return err
	}
	a := &startArms{r: r, local: local, ours: startArm{name: "ours", n: n}, peers: []*startArm{{name: "posix_spawn", n: n}}}
	a.findPeers(ctx, n)
	if a.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer a.s.down()
	if a.program, err = a.s.install(ctx, a.local, "start"); err != nil {
		return err
	}
	if err := a.oursBlock(ctx, 10, false); err != nil { // warm
		return err
	}
	r.note("%d blocks of %d starts each, of containers fewer", blocks, n)
	arms := []func() error{func() error { return a.oursBlock(ctx, n, true) }}
	for _, p := range a.peers {
		arms = append(arms, func() error { return a.peerBlock(ctx, p) })
	}
	if err := interleave(blocks, arms...); err != nil {
		return err
	}
	return a.report()
}

// buildStart compiles programs/start.c and returns where it is.
func (r *Run) buildStart(ctx context.Context) (string, error) {
	local := filepath.Join(r.dir, "start")
	if err := os.WriteFile(local+".c", []byte(startSource), 0o644); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "cc", "-static", "-O2", "-o", local, local+".c").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the program to start: %w\n%s", err, out)
	}
	return local, nil
}

// findPeers tries each container once; one that does not run here is no peer.
func (a *startArms) findPeers(ctx context.Context, n int) {
	for _, c := range containers() {
		path, err := c.find(ctx)
		var p *startArm
		if err == nil {
			p = &startArm{name: c.name, n: n / 10}
			p.command, err = c.command(a.r, path, a.local)
		}
		if err == nil {
			_, _, err = a.spawn(ctx, p, 1)
		}
		if err != nil {
			a.r.note("skipped %s: %v", c.name, err)
			continue
		}
		a.peers = append(a.peers, p)
	}
	a.r.note("skipped docker: it needs a running dockerd, which this bench does not start")
}

func (a *startArms) report() error {
	o, floor := &a.ours, a.peers[0]
	for _, p := range a.peers {
		for _, l := range []Line{
			{Metric: "warm_start_p50_ms", Ours: median(o.all), Theirs: pointer(median(p.all)), Ratio: pointer(median(ratios(p.p50, o.p50))), Floor: pointer(median(floor.all))},
			{Metric: "warm_start_p99_ms", Ours: quantile(o.all, 0.99), Theirs: pointer(quantile(p.all, 0.99)), Ratio: pointer(quantile(p.all, 0.99) / quantile(o.all, 0.99)), Floor: pointer(median(floor.all))},
			{Metric: "cpu_ms_per_start", Ours: median(o.cpu), Theirs: pointer(median(p.cpu)), Ratio: pointer(median(ratios(p.cpu, o.cpu))), Floor: pointer(median(floor.cpu))},
		} {
			l.Unit, l.Peer, l.N = "ms", p.name, len(o.all)
			if err := a.r.print(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// monotonic is the clock that programs/start.c reads.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return t.Nano()
}

func (a *startArms) oursBlock(ctx context.Context, n int, count bool) error {
	d := sigma.Descriptor{Program: a.program, Name: "start", Memory: 16 * sigma.MiB}
	ids, begun := make([]sigma.ProcID, n), make([]int64, n)
	cpu := a.s.cpu()
	for i := range n {
		begun[i] = monotonic()
		id, err := a.s.Spawn(ctx, d)
		if err != nil {
			return err
		}
		ids[i] = id[0]
		st, err := a.s.WaitExit(ctx, id[0])
		if err == nil && !st.OK() {
			err = errors.New(st.Msg)
		}
		if err != nil {
			return fmt.Errorf("proc %s ended badly: %w", id[0], err)
		}
	}
	cpu = a.s.cpu() - cpu
	var ms []float64
	for i, id := range ids {
		text, _, err := a.s.Get(ctx, "/proc/"+string(id)+"/stdout")
		if err != nil {
			return err
		}
		mark, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return fmt.Errorf("proc %s printed %q", id, text)
		}
		ms = append(ms, float64(mark-begun[i])/1e6)
	}
	if !count {
		return nil
	}
	a.r.add(&a.ours, ms, cpu, n)
	return nil
}

func (a *startArms) peerBlock(ctx context.Context, p *startArm) error {
	ms, cpu, err := a.spawn(ctx, p, p.n)
	if err != nil {
		return err
	}
	a.r.add(p, ms, cpu, p.n)
	return nil
}

// add takes a block's figures.
func (r *Run) add(a *startArm, ms []float64, cpu time.Duration, n int) {
	for _, v := range ms {
		a.all = append(a.all, r.sample(a.name, "start_ms", v))
	}
	a.p50 = append(a.p50, median(ms))
	a.cpu = append(a.cpu, r.sample(a.name, "cpu_ms", cpu.Seconds()*1e3/float64(n)))
}

// spawn has the C program start the peer's command n times.
func (a *startArms) spawn(ctx context.Context, p *startArm, n int) (ms []float64, cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, a.local, append([]string{"spawn", strconv.Itoa(n)}, p.command...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w: %.500s", p.name, err, strings.TrimSpace(errs.String()))
	}
	for line := range bytes.Lines(out) {
		ns, err := strconv.ParseInt(strings.TrimSpace(string(line)), 10, 64)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: printed %q", p.name, line)
		}
		ms = append(ms, float64(ns)/1e6)
	}
	return ms, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
