package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// fairBench: do realms that compete have equal parts of the processors, and those with shares parts
// in their ratio (001 §6.4, Fig 10)? Four realms start one after the other and keep more procs than
// the machine has room for on its cores: two of them 64 procs of 10 ms, so that some wait all the
// time, two of them 8 of 1 s of processor time. Of all of them 32 fit into memory; the others wait
// at two shards of besched. Then three of them go on with 1, 2 and 4 shares. What each realm's
// procs use is read of their cgroups each second; the index is Jain's, over what each has for each
// of its shares, of each whole second from 1 s after the last change. No peer: 001 prints a plot.
// Expected: the kernel sees to it on each machine, so near 1 as long as each realm has as many
// procs running as there are cores.
func fairBench() Bench {
	return Bench{Name: "fair",
		Question: "do realms that compete have equal parts of the processors, or parts in the ratio of their shares?",
		Metrics:  []string{"jain_least", "jain_median", "shares_error", "cpu_busy"}, run: runFair}
}

// fairRealms are the realms of the bench, in the order in which they start.
var fairRealms = [...]struct {
	name   sigma.RealmID
	ms     int // of processor time of each proc
	procs  int // at a time
	shares uint32
	goes   bool // before those with shares compete
}{
	{name: "one", ms: 10, procs: 64, shares: 1}, {name: "two", ms: 1000, procs: 8, shares: 2},
	{name: "three", ms: 10, procs: 64, shares: 4}, {name: "four", ms: 1000, procs: 8, goes: true},
}

// fairWindow is one second.
type fairWindow struct {
	at     float64    // s after the begin
	used   [4]float64 // s of processor time of each realm
	active int        // realms that compete, the first ones
	shares bool
	counts bool // it began at least 1 s after the last change
	busy   float64
}

// parts is what each realm that competes used, for each of its shares.
func (w *fairWindow) parts() (out []float64) {
	for i, used := range w.used[:w.active] {
		if w.shares {
			used /= float64(fairRealms[i].shares)
		}
		out = append(out, used)
	}
	return out
}

// jain is the index of Jain, Chiu and Hawe: 1 is equal parts, 1/n is all for one.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum, squares = sum+v, squares+v*v
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(x)) * squares)
}

// fair is one run of the bench.
type fair struct {
	r       *Run
	s       *system
	group   string
	driver  string // the local file of the program that spawns
	drivers string // its path in each realm
	program string
	memory  sigma.Bytes // of each proc
	windows []fairWindow
}

// fairSlots procs fit into the machine's memory at a time; the others wait at the two shards, which
// decide who is next.
const fairSlots = 32

// slot is the memory of a proc of which fairSlots fit.
func (f *fair) slot(ctx context.Context) (sigma.Bytes, error) {
	n, err := f.s.metric(ctx, "sigma_schedd_memory_capacity_bytes")
	return sigma.Bytes(n) / fairSlots &^ 0xffff, err
}
func runFair(ctx context.Context, r *Run) error {
	step := 30
	if r.Quick {
		step = 6
	}
	local, err := r.buildShare(ctx)
	if err != nil {
		return err
	}
	f := &fair{r: r, driver: filepath.Join(r.dir, "driver")}
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", f.driver,
		"./bench/programs/driver"); err != nil {
		return err
	}
	if f.s, err = r.bootIn(ctx, "data", "--bescheds", "2"); err != nil {
		return err
	}
	defer f.s.down()
	if f.group, err = f.s.instanceGroup(); err != nil {
		return err
	}
	clients, err := f.realms(ctx, local)
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	if err != nil {
		return err
	}
	if f.memory, err = f.slot(ctx); err != nil {
		return err
	}
	var drivers []sigma.ProcID
	for i, c := range clients {
		id, err := f.drive(ctx, i, c)
		if err != nil {
			return err
		}
		drivers = append(drivers, id)
		if err := f.watch(ctx, step, i+1, false); err != nil {
			return err
		}
	}
	for i, c := range clients {
		if fairRealms[i].goes {
			err = c.Evict(ctx, drivers[i], driverGrace)
		} else {
			err = f.s.Realms().SetShares(ctx, fairRealms[i].name, fairRealms[i].shares)
		}
		if err != nil {
			return err
		}
	}
	if err := f.watch(ctx, step+2, len(clients)-1, true); err != nil {
		return err
	}
	for i, c := range clients {
		c.Evict(ctx, drivers[i], driverGrace) // the fourth's may have ended by now
		if st, err := c.WaitExit(ctx, drivers[i]); err != nil || !st.OK() && st.Code != sigma.StatusEvicted {
			return fmt.Errorf("the driver of %s ended as %+v: %w", fairRealms[i].name, st, err)
		}
	}
	return f.print()
}

// realms makes the realms with the program in each.
func (f *fair) realms(ctx context.Context, local string) (clients []*sdk.Client, err error) {
	for i := range fairRealms {
		name := fairRealms[i].name
		if err := f.s.Realms().Create(ctx, name); err != nil {
			return clients, err
		}
		c, err := sdk.Connect(ctx, filepath.Join(f.s.data, "sigmad", "admin.sock"), name)
		if err != nil {
			return clients, err
		}
		clients = append(clients, c)
		in := &system{r: f.r, Client: c}
		if f.program, err = in.install(ctx, local, "share"); err != nil {
			return clients, err
		}
		if f.drivers, err = in.install(ctx, f.driver, "driver"); err != nil {
			return clients, err
		}
	}
	return clients, nil
}

// drive starts the proc that keeps a realm's procs spawned. It is a best-effort proc of the realm
// like them.
func (f *fair) drive(ctx context.Context, i int, c *sdk.Client) (sigma.ProcID, error) {
	w := fairRealms[i]
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: f.drivers, Memory: driverMemory,
		Args: []string{fmt.Sprint(w.procs), fmt.Sprint(uint64(f.memory)), f.program, "work", fmt.Sprint(w.ms)}})
	if err != nil {
		return "", err
	}
	return ids[0], c.WaitStart(ctx, ids[0])
}

// driverMemory is that of a driver, which is a small Go program.
const driverMemory = 32 * sigma.MiB

// driverGrace is how long a driver has to kill its procs.
const driverGrace = 5 * time.Second

// watch reads what the realms use for some seconds.
func (f *fair) watch(ctx context.Context, seconds, active int, shares bool) error {
	read := func() (out [4]float64) {
		for i := range fairRealms {
			out[i] = groupCPU(f.group + "/rest/be/" + string(fairRealms[i].name)).Seconds()
		}
		return out
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, idleBefore, last := read(), idleTime(), time.Now()
	for n := range seconds {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now, idleNow, at := read(), idleTime(), time.Now()
		w := fairWindow{at: float64(len(f.windows) + 1), active: active, shares: shares, counts: n >= 1}
		for i := range now {
			w.used[i] = f.r.sample(string(fairRealms[i].name), "cpu_s", now[i]-before[i])
		}
		w.busy = 1 - (idleNow-idleBefore).Seconds()/(at.Sub(last).Seconds()*float64(runtime.NumCPU()))
		f.windows = append(f.windows, w)
		f.r.note("%2.0f s: Jain's index %.3f of%s", w.at, jain(w.parts()), f.describe(w))
		before, idleBefore, last = now, idleNow, at
	}
	return nil
}

// describe tells what each realm that competes used in a window, and how many processes it has,
// with those that the launcher keeps ready.
func (f *fair) describe(w fairWindow) string {
	var b strings.Builder
	for i := range w.active {
		name := string(fairRealms[i].name)
		fmt.Fprintf(&b, " %s %.2f s", name, w.used[i])
		for _, root := range cgroupMounts() {
			if at := filepath.Join(root, f.group, "rest/be", name, "pids.current"); exists(at) {
				fmt.Fprintf(&b, " (%.0f processes)", number(at))
				break
			}
		}
	}
	return b.String()
}

// print puts out the indices, and the plot.
func (f *fair) print() error {
	var indices, busy []float64
	var sums [4]float64
	for _, w := range f.windows {
		if !w.counts {
			continue
		}
		busy = append(busy, w.busy)
		if w.shares {
			for i := range w.active {
				sums[i] += w.used[i]
			}
		}
		if w.active > 1 {
			indices = append(indices, f.r.sample("ours", "jain", jain(w.parts())))
		}
	}
	total, weight, worst := 0.0, 0.0, 0.0
	for i := range 3 {
		total, weight = total+sums[i], weight+float64(fairRealms[i].shares)
	}
	for i := range 3 {
		is := sums[i] / total / (float64(fairRealms[i].shares) / weight)
		f.r.note("realm %s with %d shares had %.3f of its part", fairRealms[i].name, fairRealms[i].shares, is)
		worst = max(worst, math.Abs(is-1))
	}
	for _, l := range []Line{{Metric: "jain_least", Unit: "1", Ours: quantile(indices, 0), N: len(indices)},
		{Metric: "jain_median", Unit: "1", Ours: median(indices), N: len(indices)},
		{Metric: "shares_error", Unit: "1", Ours: worst, N: 3}, {Metric: "cpu_busy", Unit: "1", Ours: median(busy),
			N: len(busy)}} {
		if err := f.r.print(l); err != nil {
			return err
		}
	}
	return f.r.keepPlot(f.plot())
}

// plot draws what each realm used in each second, one above the other, and the index of each below.
func (f *fair) plot() string {
	const width, height, low = 720, 240, 60
	colours := [...]string{"#4269d0", "#efb118", "#3ca951", "#ff725c"}
	n, most := len(f.windows), float64(runtime.NumCPU())
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="-40 -20 %d %d" font-family="sans-serif" font-size="11">`+"\n",
		width+140, height+low+60)
	each := float64(width) / float64(n)
	for at, w := range f.windows {
		y := float64(height)
		for i, used := range w.used {
			h := used / most * height
			y -= h
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", float64(at)*each, y,
				each-1, h, colours[i])
		}
		if w.counts && w.active > 1 {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2"/>`+"\n", (float64(at)+0.5)*each,
				float64(height)+20+low*(1-jain(w.parts())))
		}
	}
	for i := range fairRealms {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s (%d ms)</text>`+"\n", width+6, height-10-16*i, colours[i],
			fairRealms[i].name, fairRealms[i].ms)
	}
	fmt.Fprintf(&b,
		`<text x="-36" y="8">%.0f cores</text><text x="-36" y="%d">Jain 1</text><text x="0" y="%d">%d s</text>`+
			"\n</svg>\n", most, height+24, height+low+36, n)
	return b.String()
}

// idleTime is for how long the host's processors had nothing to do.
func idleTime() time.Duration {
	stat, _ := os.ReadFile("/proc/stat")
	f := strings.Fields(string(stat))
	if len(f) < 6 {
		return 0
	}
	var sum time.Duration
	for _, ticks := range f[4:6] { // idle, iowait
		var n int64
		fmt.Sscan(ticks, &n)
		sum += time.Duration(n) * time.Second / 100
	}
	return sum
}
