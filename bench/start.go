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
// after the end of the one before; the program tells the monotonic clock at its first line, which is the spawner's clock too. The peer is the least that Linux needs:
// posix_spawn of the same static program from a small C program, without any isolation. Expected: a few times the peer, most of it namespaces and cgroup.
func startBench() Bench {
	return Bench{Name: "start", Question: "how long from Spawn to the first line of main of a warm, isolated proc?",
		Metrics: []string{"warm_start_p50_ms", "warm_start_p99_ms", "cpu_ms_per_start"}, run: runStart}
}

type startArms struct {
	r       *Run
	s       *system
	local   string // path of the program here
	program string // and in the realm
	n       int    // starts per block

	ours, theirs       []float64 // ms, all
	oursP50, theirsP50 []float64 // per block
	oursCPU, theirsCPU []float64 // ms per start, per block
}

func runStart(ctx context.Context, r *Run) error {
	a := &startArms{r: r, local: filepath.Join(r.dir, "start"), n: 400}
	blocks := 10
	if r.Quick {
		a.n, blocks = 200, 5
	}
	source := a.local + ".c"
	if err := os.WriteFile(source, []byte(startSource), 0o644); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cc", "-static", "-O2", "-o", a.local, source).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the program to start: %w\n%s", err, out)
	}
	var err error
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
	r.note("%d blocks of %d starts each", blocks, a.n)
	err = interleave(blocks, func() error { return a.oursBlock(ctx, a.n, true) }, func() error { return a.peerBlock(ctx) })
	if err != nil {
		return err
	}
	for _, q := range []struct {
		metric string
		q      float64
		ratio  float64
	}{{"warm_start_p50_ms", 0.5, median(ratios(a.theirsP50, a.oursP50))}, {"warm_start_p99_ms", 0.99, quantile(a.theirs, 0.99) / quantile(a.ours, 0.99)}} {
		theirs := quantile(a.theirs, q.q)
		if err := r.print(Line{Metric: q.metric, Unit: "ms", Ours: quantile(a.ours, q.q), Peer: "posix_spawn", Theirs: &theirs, Ratio: pointer(q.ratio), Floor: pointer(median(a.theirs)), N: len(a.ours)}); err != nil {
			return err
		}
	}
	theirs := median(a.theirsCPU)
	return r.print(Line{Metric: "cpu_ms_per_start", Unit: "ms", Ours: median(a.oursCPU), Peer: "posix_spawn", Theirs: &theirs, Ratio: pointer(median(ratios(a.theirsCPU, a.oursCPU))), Floor: pointer(theirs), N: len(a.ours)})
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
	for _, v := range ms {
		a.ours = append(a.ours, a.r.sample("ours", "start_ms", v))
	}
	a.oursP50 = append(a.oursP50, median(ms))
	a.oursCPU = append(a.oursCPU, a.r.sample("ours", "cpu_ms", float64(cpu)/float64(time.Millisecond)/float64(n)))
	return nil
}

func (a *startArms) peerBlock(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, a.local, "spawn", strconv.Itoa(a.n))
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("posix_spawn: %w", err)
	}
	var ms []float64
	for line := range bytes.Lines(out) {
		ns, err := strconv.ParseInt(strings.TrimSpace(string(line)), 10, 64)
		if err != nil {
			return fmt.Errorf("posix_spawn: printed %q", line)
		}
		ms = append(ms, a.r.sample("posix_spawn", "start_ms", float64(ns)/1e6))
	}
	a.theirs = append(a.theirs, ms...)
	a.theirsP50 = append(a.theirsP50, median(ms))
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	a.theirsCPU = append(a.theirsCPU, a.r.sample("posix_spawn", "cpu_ms", float64(cpu)/float64(time.Millisecond)/float64(a.n)))
	return nil
}
