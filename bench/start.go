package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// startBench: how long does it take from Spawn to the first line of main of an isolated proc that
// is warm (its program is on the machine)? Starts follow one another, each after the end of the one
// before; the program tells the monotonic clock at its first line, which is the spawner's clock
// too. The floor and first peer is the least that Linux needs: posix_spawn of the same static
// program from a small C program, without any isolation. The others are containers (see there),
// posix_spawned by the same program, which counts until the first line of main too. Expected: a few
// times the floor, most of it namespaces and cgroup; bwrap some ms, runc and crun ten and more,
// docker a hundred and more. Programs in Go and Python, which take their time before the first
// line, are started beside the C program by us, posix_spawn and runc; to each container they are
// the same static files. Where the time of ours goes is told by the traces that sigmad keeps (sigma
// inspect --timing).
func startBench() Bench {
	metrics := []string{"warm_start_p50_ms", "warm_start_p99_ms", "cpu_ms_per_start"}
	for _, l := range languages() {
		metrics = append(metrics, l.name+"_start_p50_ms")
	}
	for _, phase := range phases() {
		metrics = append(metrics, "phase_"+phase+"_p50_ms")
	}
	return Bench{Name: "start", Question: "how long from Spawn to the first line of main of a warm, isolated proc?",
		Metrics: metrics, run: runStart}
}

// startArm is one way to start.
type startArm struct {
	name    string
	wrap    []string             // what the C program that spawns is run by, if it needs other surroundings
	command []string             // what the C program is to spawn; nil: itself
	daemon  func() time.Duration // processor time of what works for the command elsewhere; nil: nothing does
	n       int                  // starts per block
	all     []float64            // ms
	p50     []float64            // ms, per block
	cpu     []float64            // ms per start, per block
}

// startArms start one program.
type startArms struct {
	r       *Run
	s       *system
	spawner string // path of the C program
	local   string // path of the program here
	program string // and in the realm
	ours    startArm
	peers   []*startArm // posix_spawn is the first
	docker  *dockerd
	ids     []sigma.ProcID // of ours
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
	a := &startArms{r: r, spawner: local, local: local, ours: startArm{name: "ours", n: n},
		peers: []*startArm{{name: "posix_spawn", n: n}}}
	for _, c := range containers() {
		a.addContainer(ctx, c, n/10)
	}
	if a.docker, err = r.startDocker(ctx, local); err != nil {
		r.note("skipped docker: %v", err)
	} else {
		defer a.docker.stop()
		a.add(ctx, &startArm{name: "docker", n: max(1, n/200), command: a.docker.run(), daemon: a.docker.cpu})
	}
	if a.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer a.s.down()
	all := []*startArms{a}
	for _, l := range languages() {
		if x, err := a.inLanguage(ctx, l, n); err != nil {
			r.note("skipped %s: %v", l.name, err)
		} else {
			all = append(all, x)
		}
	}
	r.note("%d blocks of %d starts each, of containers and in other languages fewer", blocks, n)
	var arms []func() error
	for _, x := range all {
		if x.program, err = a.s.install(ctx, x.local, filepath.Base(x.local)); err != nil {
			return err
		}
		if err := x.oursBlock(ctx, 10, false); err != nil { // warm
			return err
		}
		arms = append(arms, func() error { return x.oursBlock(ctx, x.ours.n, true) })
		for _, p := range x.peers {
			arms = append(arms, func() error { return x.peerBlock(ctx, p) })
		}
	}
	if err := interleave(blocks, arms...); err != nil {
		return err
	}
	if err := a.report(); err != nil {
		return err
	}
	for i, x := range all[1:] {
		if err := x.reportLanguage(i); err != nil {
			return err
		}
	}
	return a.reportPhases(ctx)
}

// inLanguage makes arms for a program in another language. The containers are few here: what one
// adds to a start does not depend on the language.
func (a *startArms) inLanguage(ctx context.Context, l language, n int) (*startArms, error) {
	local, err := l.build(a.r, ctx)
	if err != nil {
		return nil, err
	}
	x := &startArms{r: a.r, s: a.s, spawner: a.spawner, local: local, ours: startArm{name: "ours-" + l.name, n: n / 5}}
	if err := x.add(ctx, &startArm{name: "posix_spawn", n: n / 5, command: []string{local}}); err != nil {
		return nil, err
	}
	for _, c := range containers() {
		if c.name == "runc" {
			x.addContainer(ctx, c, n/40)
		}
	}
	for _, p := range x.peers {
		p.name += "-" + l.name
	}
	return x, nil
}

// addContainer installs a container's program if it has to.
func (a *startArms) addContainer(ctx context.Context, c container, n int) {
	path, err := find(ctx, c.name, c.pack)
	p := &startArm{name: c.name, n: max(1, n)}
	if err == nil {
		p.command, err = c.command(a.r, path, a.local)
	}
	if err != nil {
		a.r.note("skipped %s: %v", c.name, err)
		return
	}
	a.add(ctx, p)
}

// add tries a peer once; one that does not run here is no peer.
func (a *startArms) add(ctx context.Context, p *startArm) error {
	_, _, err := a.spawn(ctx, p, 1)
	if _, stat := os.Stat(hybridUnified); err != nil && p.name == "crun" && stat == nil {
		p.wrap = withoutUnified()
		if _, _, err = a.spawn(ctx, p, 1); err == nil {
			a.r.note("crun refuses machines that have both versions of cgroups; it is run where it sees the first only")
		}
	}
	if err != nil {
		a.r.note("skipped %s: %v", p.name, err)
		return err
	}
	a.peers = append(a.peers, p)
	return nil
}

func (a *startArms) report() error {
	o, floor := &a.ours, a.peers[0]
	for _, p := range a.peers {
		for _, l := range []Line{
			Line{Metric: "warm_start_p50_ms", Ours: median(o.all), Theirs: pointer(median(p.all)),
				Floor: pointer(median(floor.all))}.between(ratios(p.p50, o.p50)),
			{Metric: "warm_start_p99_ms", Ours: quantile(o.all, 0.99), Theirs: pointer(quantile(p.all, 0.99)),
				Ratio: pointer(quantile(p.all, 0.99) / quantile(o.all, 0.99)), Floor: pointer(median(floor.all))},
			Line{Metric: "cpu_ms_per_start", Ours: median(o.cpu), Theirs: pointer(median(p.cpu)),
				Floor: pointer(median(floor.cpu))}.between(ratios(p.cpu, o.cpu)),
		} {
			l.Unit, l.Peer, l.N = "ms", p.name, len(o.all)
			if err := a.r.print(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// reportLanguage prints the start of a program in a language.
func (a *startArms) reportLanguage(i int) error {
	o, floor := &a.ours, a.peers[0]
	for _, p := range a.peers {
		l := Line{Metric: languages()[i].name + "_start_p50_ms", Unit: "ms", Ours: median(o.all),
			Peer: strings.TrimSuffix(p.name, "-"+languages()[i].name), Theirs: pointer(median(p.all)),
			Floor: pointer(median(floor.all)), N: len(o.all)}.between(ratios(p.p50, o.p50))
		if err := a.r.print(l); err != nil {
			return err
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
	a.ids = append(a.ids, ids...)
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
	args := slices.Concat(p.wrap, []string{a.spawner, "spawn", strconv.Itoa(n)}, p.command)
	daemon := p.daemon
	if daemon == nil {
		daemon = func() time.Duration { return 0 }
	}
	cpu = -daemon()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
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
	return ms, cpu + daemon() + cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
