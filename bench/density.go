package bench

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// densityBench: how much memory does one sleeping static proc cost, with everything that exists
// because of it: its own pages, page tables, kernel objects, cgroup, init, and the growth of
// launcher and daemons? Available memory of the machine is read before and after N are asleep,
// several times. Reclaimable slab counts as available there, but what living procs hold of it
// cannot be reclaimed, so its growth is added. Others who use the machine meanwhile disturb;
// accounted_kib_per_proc is what the kernel charged to the system's own cgroups, and the launcher's
// growth, which they do not disturb, but which misses what the kernel charges to nobody. The peer
// is the same program asleep without any isolation, as often; extra_kib_per_proc is what a proc
// costs beyond it. next_start_p50_ms is the start of one more. Expected: some 100 KiB beyond the
// peer, mostly kernel objects of two processes and a PID namespace.
func densityBench() Bench {
	return Bench{Name: "density", Question: "how much memory does one sleeping static proc cost, all included?",
		Metrics: append([]string{"kib_per_proc", "extra_kib_per_proc", "accounted_kib_per_proc", "next_start_p50_ms",
			"cpu_ms_per_start", "leaked_kib_per_start"}, leakMetrics[:]...), run: runDensity}
}

type densityArms struct {
	r       *Run
	s       *system
	local   string
	program string
	n       int // procs
	probes  int // starts that are measured

	ours, accounted, theirs []float64 // KiB each
	cpu                     []float64 // ms for each start, of all who took part
	empty, full             []float64 // ms of a start, without and with n others
}

func runDensity(ctx context.Context, r *Run) error {
	a := &densityArms{r: r, n: 2000, probes: 100}
	blocks := 3
	if r.Quick {
		blocks, a.probes = 1, 30
	}
	var err error
	if a.local, err = r.buildStart(ctx); err != nil {
		return err
	}
	if a.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer a.s.down()
	leaks := a.s.watchLeaks()
	if a.program, err = a.s.install(ctx, a.local, "start"); err != nil {
		return err
	}
	if a.empty, err = a.starts(ctx); err != nil { // and warm
		return err
	}
	leaks.isWarm()
	r.note("%d blocks of %d sleeping procs", blocks, a.n)
	if err := interleave(blocks, func() error {
		return a.oursBlock(ctx)
	}, func() error { return a.peerBlock(ctx) }); err != nil {
		return err
	}
	theirs := median(a.theirs)
	lines := []Line{
		{Metric: "kib_per_proc", Unit: "KiB", Ours: median(a.ours), Theirs: &theirs,
			Ratio: pointer(median(ratios(a.theirs, a.ours))), Peer: "posix_spawn", Floor: pointer(theirs),
			N: blocks * a.n},
		{Metric: "extra_kib_per_proc", Unit: "KiB", Ours: median(a.ours) - theirs, Floor: pointer(0), N: blocks * a.n},
		{Metric: "accounted_kib_per_proc", Unit: "KiB", Ours: median(a.accounted), N: blocks * a.n},
		{Metric: "cpu_ms_per_start", Unit: "ms", Ours: median(a.cpu), N: blocks * a.n},
		{Metric: "next_start_p50_ms", Unit: "ms", Ours: median(a.full), Peer: "empty_machine",
			Theirs: pointer(median(a.empty)), Ratio: pointer(median(a.empty) / median(a.full)), N: len(a.full)},
	}
	for _, l := range lines {
		if err := r.print(l); err != nil {
			return err
		}
	}
	return leaks.report(blocks * a.n)
}

// occupied is how much memory is in use, in KiB, once two readings agree. Free pages that the
// kernel keeps at hand for each processor, which can be 100 MiB after many procs have ended, count
// as in use in its own figure; here they do not.
func occupied(ctx context.Context) float64 {
	read := func() float64 {
		os.ReadFile("/proc/sys/vm/stat_refresh") // brings the counters of all processors together
		return kibField("/proc/meminfo", "SReclaimable") - kibField("/proc/meminfo", "MemAvailable") - atHand()
	}
	last := read()
	for range 10 {
		select {
		case <-ctx.Done():
			return last
		case <-time.After(200 * time.Millisecond):
		}
		now := read()
		if now-last < 1024 && last-now < 1024 {
			return now
		}
		last = now
	}
	return last
}

// atHand is how much free memory lies in the processors' lists, in KiB.
func atHand() float64 {
	zones, _ := os.ReadFile("/proc/zoneinfo")
	pages := 0.0
	for line := range strings.Lines(string(zones)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "count:" {
			n, _ := strconv.ParseFloat(f[1], 64)
			pages += n
		}
	}
	return pages * float64(os.Getpagesize()) / 1024
}

// number reads a file that holds one; 0 if there is none.
func number(path string) float64 {
	text, _ := os.ReadFile(path)
	n, _ := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return n
}

func kibField(path, name string) float64 {
	kib, _, _ := strings.Cut(procField(path, name), " ")
	n, _ := strconv.ParseFloat(kib, 64)
	return n
}

// charged is what the kernel charges to the system's cgroups, and the launcher's own memory, in
// KiB.
func (a *densityArms) charged() float64 {
	sum := 0.0
	for _, p := range a.s.family() {
		if a.s.launcher(p) {
			sum += kibField(fmt.Sprintf("/proc/%d/smaps_rollup", p.pid), "Pss")
		}
	}
	for _, root := range a.s.cgroupRoots() {
		for _, file := range []string{"/memory.usage_in_bytes", "/memory.current"} {
			sum += number(root+file) / 1024
		}
	}
	return sum
}

// places says how much memory is where, in KiB: kinds of the kernel's, and the daemons, whose
// memory is mostly in AnonPages too.
type places map[string]float64

func (a *densityArms) where() places {
	out := places(a.s.footprint().memory)
	for _, kind := range []string{"AnonPages", "KernelStack", "PageTables", "SUnreclaim", "SReclaimable", "Percpu",
		"Shmem"} {
		out[kind] = kibField("/proc/meminfo", kind)
	}
	return out
}

func (p places) since(before places, n float64) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if v := (p[name] - before[name]) / n; v >= 0.5 || v <= -0.5 {
			text += fmt.Sprintf(" %s %.0f", name, v)
		}
	}
	return text
}

func (a *densityArms) oursBlock(ctx context.Context) error {
	machine, charged, where := occupied(ctx), a.charged(), a.where()
	cpu := a.s.cpu()
	var ids []sigma.ProcID
	for len(ids) < a.n {
		ds := make([]sigma.Descriptor, min(100, a.n-len(ids)))
		for i := range ds {
			ds[i] = sigma.Descriptor{Program: a.program, Name: "sleep", Args: []string{"sleep"},
				Memory: sigma.MemoryLeast}
		}
		more, err := a.s.Spawn(ctx, ds...)
		if err != nil {
			return err
		}
		for _, id := range more {
			if err := a.s.WaitStart(ctx, id); err != nil {
				return fmt.Errorf("the proc after %d: %w", len(ids), err)
			}
		}
		ids = append(ids, more...)
	}
	n := float64(a.n)
	a.cpu = append(a.cpu, a.r.sample("ours", "cpu_ms", (a.s.cpu()-cpu).Seconds()*1e3/n))
	a.ours = append(a.ours, a.r.sample("ours", "kib_per_proc", (occupied(ctx)-machine)/n))
	a.accounted = append(a.accounted, a.r.sample("ours", "accounted_kib_per_proc", (a.charged()-charged)/n))
	a.r.note("KiB for each, where it is:%s", a.where().since(where, n))
	ms, err := a.starts(ctx)
	if err != nil {
		return err
	}
	a.full = append(a.full, ms...)
	for _, id := range ids {
		if err := a.s.Kill(ctx, id); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if st, err := a.s.WaitExit(ctx, id); err != nil || st.Code != sigma.StatusEvicted {
			return fmt.Errorf("a sleeping proc ended as %v: %s, %w", st.Code, st.Msg, err)
		}
	}
	return nil
}

func (a *densityArms) peerBlock(ctx context.Context) error {
	runtime.GC() // so that this program's own garbage falls on no arm
	machine := occupied(ctx)
	cmd := exec.CommandContext(ctx, a.local, "hold", strconv.Itoa(a.n))
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("posix_spawn: %w", err)
	}
	a.theirs = append(a.theirs, a.r.sample("posix_spawn", "kib_per_proc", (occupied(ctx)-machine)/float64(a.n)))
	in.Close()
	return cmd.Wait()
}

// starts measures some starts, one after another, in ms.
func (a *densityArms) starts(ctx context.Context) ([]float64, error) {
	one := startArms{r: a.r, s: a.s, program: a.program, ours: startArm{name: "probe"}}
	err := one.oursBlock(ctx, a.probes, true)
	return one.ours.all, err
}
