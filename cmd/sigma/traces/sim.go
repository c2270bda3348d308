package traces

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/fleets"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sched/sim"
	"sigmaos.dev/sigma"
)

func newSimCommand(a *app) *cobra.Command {
	var o simOptions
	script := ""
	cmd := &cobra.Command{
		Use:   "sim [--machines N] [--procs N] [--faults] [--seed N] [--seeds N] [--trace FILE | --fleet SCRIPT]",
		Short: "Simulate a system's schedulers in virtual time",
		Long: `Run the schedulers' own code in virtual time, for as many machines, realms and procs as
you like, and print how long procs waited, how busy machines were and how fair it was.

Procs arrive and run by the seed: the same seed makes the same run. --load is what they
ask for, as a part of what all machines have. With --faults messages get lost, machines
and daemons die, and clocks are wrong by up to an hour.

What must hold is checked at each step: no machine is over-committed, no proc starts
twice, each is answered, no realm that waits is passed over or has much less than its
part, of each registered proc one instance runs or soon will, and never two. If something does not hold, sim prints the seed and the command that makes it
happen again, and exits with 1.

With --trace the procs are those of FILE, which "sigma trace record" made of a real run, on
the machines that it had unless flags say others; then what they waited there is printed
beside the prediction. What procs waited there that found room at once, for daemons and for
a processor, is taken to be part of each wait.

With --fleet it runs the coordinator of a fleet by a SCRIPT (docs/reference/fleet.md), and prints what
it decides; nothing else is simulated then.

It needs no running system.`,
		Example: `  sigma sim --machines 100 --procs 20000 --realms 10
  sigma sim --machines 5 --procs 600 --lc 0.2 --faults --seeds 100
  sigma sim --trace procs.trace --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if script != "" {
				return fleets.Simulate(a.Out, script)
			}
			o.sized = cmd.Flags().Changed("cores") || cmd.Flags().Changed("memory")
			o.counted = cmd.Flags().Changed("machines")
			return a.sim(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Machines, "machines", 10, "`N` machines")
	f.IntVar(&o.Realms, "realms", 4, "`N` realms")
	f.IntVar(&o.Procs, "procs", 10000, "`N` procs")
	f.IntVar(&o.Shards, "shards", 1, "`N` bescheds")
	f.StringVar(&o.cores, "cores", "8", "`N` cores of each machine; 8,2 for different ones in turn")
	f.StringVar(&o.memory, "memory", "2GiB",
		"`SIZE` of each machine's memory for procs; 2GiB,1GiB for different ones in turn")
	f.Float64Var(&o.Load, "load", 0.9, "`PART` of all memory-time that procs ask for")
	f.Float64Var(&o.LC, "lc", 0, "`PART` of the procs that are latency-critical")
	f.Float64Var(&o.Near, "near", 0, "`PART` of the procs that should be near a machine's data")
	f.IntVar(&o.Registered, "registered", 0, "`N` procs that are registered with initd, besides --procs")
	f.DurationVar(&o.Run, "run", time.Second, "mean `TIME` that a proc runs")
	f.Uint64Var(&o.Seed, "seed", 1, "`N` from which all chance comes")
	f.IntVar(&o.seeds, "seeds", 1, "make `N` runs, with this and the next seeds")
	f.BoolVar(&o.Faults, "faults", false, "break things")
	f.StringVar(&o.trace, "trace", "", "`FILE` of a real run's procs")
	f.StringVar(&script, "fleet", "", "`SCRIPT` of what happens to a fleet")
	return cmd
}

// simGC is how much more memory than it needs a simulation may use, in percent.
const simGC = 250

// What can be simulated at most. Procs are bounded by patience, all else by memory.
const (
	simProcsMax = 1_000_000_000
	simLoadMax  = 1000.0
	simRunMax   = 366 * 24 * time.Hour
)

type simOptions struct {
	sim.Config
	cores, memory  string
	sized, counted bool // flags say what machines there are, or how many
	seeds          int
	trace          string
}

func (a *app) sim(ctx context.Context, o simOptions) error {
	if err := o.fill(); err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(
		simGC)) // of large systems all is alive, and a third of the time would go into looking
	reports := []simReport{}
	for i := range o.seeds {
		c := o.Config
		c.Seed += uint64(i)
		began := time.Now()
		r, err := runSim(ctx, c)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return &sigma.Error{Op: "sigma.sim", Kind: sigma.KindOther, Msg: err.Error(),
				Hint: "again with: " + o.command(c.Seed)}
		}
		if took := time.Since(began); a.JSON {
			reports = append(reports, reportOf(c.Seed, r, took))
		} else {
			printReport(a.Out, c.Seed, r, took)
		}
	}
	if a.JSON {
		return a.PrintJSON(reports)
	}
	return nil
}

// runSim makes one run. One that is interrupted goes on until the program ends, which it does then.
func runSim(ctx context.Context, c sim.Config) (*sim.Report, error) {
	type result struct {
		r   *sim.Report
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := sim.New(c).Run()
		done <- result{r, err}
	}()
	select {
	case got := <-done:
		return got.r, got.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fill checks the flags, and makes of them what is simulated.
func (o *simOptions) fill() error {
	if o.Machines < 1 || o.Realms < 1 || o.Procs < 1 || o.Shards < 1 || o.seeds < 1 || o.Registered < 0 ||
		o.Registered > initd.LookMax || !(o.Load > 0) || !(o.LC >= 0 && o.LC <= 1) || !(o.Near >= 0 && o.Near <= 1) ||
		o.Run <= 0 {
		return cli.UsageError(nil, "--lc and --near are from 0 to 1, --registered from 0 to 128, all else more than 0",
			"there is nothing to simulate")
	}
	if o.Machines > sim.MachinesMax || o.Procs > simProcsMax || o.Realms > simProcsMax || o.Shards > o.Machines ||
		o.Load > simLoadMax || o.Run > simRunMax {
		return cli.UsageError(nil, "",
			"that is too much to simulate: %d machines, %d procs and realms, a besched for each machine, --load %g "+
				"and --run %v are the most", sim.MachinesMax, simProcsMax, simLoadMax, simRunMax)
	}
	if err := o.sizes(); err != nil {
		return err
	}
	if o.trace == "" {
		return nil
	}
	t, err := readTrace(o.trace)
	if err != nil {
		return err
	}
	o.Trace, o.SharesOf = t.Arrivals, t.Shares
	if len(t.Sizes) > 0 && !o.sized {
		if o.Sizes = t.Sizes; !o.counted {
			o.Machines = len(t.Sizes)
		}
	}
	if o.Shards > o.Machines {
		return cli.UsageError(nil, "give it fewer with --shards, or more machines with --machines",
			"%d bescheds are more than the %d machines of %s", o.Shards, o.Machines, o.trace)
	}
	var largest sim.Size
	for i := range min(o.Machines, len(o.Sizes)) {
		largest.CPU, largest.Memory = max(largest.CPU, o.Sizes[i].CPU), max(largest.Memory, o.Sizes[i].Memory)
	}
	for i, p := range o.Trace {
		if p.Memory > largest.Memory || p.CPU > largest.CPU {
			return &sigma.Error{Op: "sigma.sim", Path: o.trace, Kind: sigma.KindInvalid,
				Msg: fmt.Sprintf(
					"its proc %d (realm %s, %v, %g cores) fits on no machine: the most that they have are %v and %g "+
						"cores",
					i+1, p.Realm, p.Memory, float64(p.CPU)/1000, largest.Memory, float64(largest.CPU)/1000),
				Hint: "simulate larger machines, with --memory and --cores"}
		}
	}
	return nil
}

// sizes are those of --cores and --memory, in turn.
func (o *simOptions) sizes() error {
	cores, memory := strings.Split(o.cores, ","), strings.Split(o.memory, ",")
	if len(cores) > o.Machines || len(memory) > o.Machines {
		return cli.UsageError(nil, "", "--cores and --memory name more than the %d machines", o.Machines)
	}
	n := 1
	if len(cores) > 1 || len(memory) > 1 {
		n = o.Machines
	}
	for i := range n {
		c, err := strconv.ParseFloat(cores[i%len(cores)], 64)
		if err != nil || !(c >= 0.01 && c <= 1e6) {
			return cli.UsageError(nil, "write for example --cores 8, or --cores 8,2",
				"--cores %.40q is not numbers of cores", o.cores)
		}
		m, err := sigma.ParseBytes(memory[i%len(memory)])
		if err != nil {
			return cli.WithCode(cli.ExitUsage, err)
		}
		if m < 32*sigma.MemoryLeast || m > 1<<50 {
			return cli.UsageError(nil, "write for example --memory 2GiB, or --memory 2GiB,1GiB",
				"--memory is from %v to 1 PiB", 32*sigma.MemoryLeast)
		}
		o.Sizes = append(o.Sizes, sim.Size{CPU: sigma.MilliCPU(math.Round(c * 1000)), Memory: m})
	}
	return nil
}

func readTrace(path string) (*sim.Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, sigma.Wrap("sigma.sim", path, err)
	}
	defer f.Close()
	t, err := sim.ReadTrace(f)
	if sigma.KindOf(err) == sigma.KindInvalid {
		return nil, &sigma.Error{Op: "sigma.sim", Path: path, Kind: sigma.KindInvalid, Msg: err.Error(),
			Hint: "record one with: sigma trace record FILE"}
	}
	return t, sigma.Wrap("sigma.sim", path, err)
}

// command makes one run happen again.
func (o *simOptions) command(seed uint64) string {
	s := fmt.Sprintf("sigma sim --realms %d --procs %d --shards %d --load %g --lc %g --run %v --seed %d", o.Realms,
		o.Procs, o.Shards, o.Load, o.LC, o.Run, seed)
	if o.counted || o.trace == "" {
		s += fmt.Sprintf(" --machines %d", o.Machines)
	}
	if o.sized {
		s += fmt.Sprintf(" --cores %s --memory %s", o.cores, o.memory)
	}
	if o.Near > 0 {
		s += fmt.Sprintf(" --near %g", o.Near)
	}
	if o.Registered > 0 {
		s += fmt.Sprintf(" --registered %d", o.Registered)
	}
	if o.Faults {
		s += " --faults"
	}
	if o.trace != "" {
		s += " --trace " + o.trace
	}
	return s
}

func printReport(w io.Writer, seed uint64, r *sim.Report, took time.Duration) {
	fmt.Fprintf(w, "seed %d: %d procs in %v, simulated in %v; %d lost, %d never placed, %d faults\n", seed, r.Procs,
		r.Virtual.Round(time.Millisecond), took.Round(time.Millisecond), r.Lost, r.Unplaced, r.Faults)
	fmt.Fprintf(w, "  from spawn to placement: %s\n", waitsWords(r.Placement))
	fmt.Fprintf(w, "  from spawn to start: %s\n", waitsWords(r.Start))
	fmt.Fprintf(w, "  memory in use: %.1f %%", 100*r.Utilisation)
	if r.Jain > 0 {
		fmt.Fprintf(w, "; Jain index of realms that waited: %.4f, the worst had %.1f %% of its part", r.Jain,
			100*r.Worst)
	}
	fmt.Fprintln(w)
	if r.Leaders > 0 {
		fmt.Fprintf(w, "  registered procs were started %d times, by %d leaders of initd\n", r.Restarts, r.Leaders)
	}
	if r.Wished > 0 {
		fmt.Fprintf(w, "  near their data: %d of %d that should be\n", r.Near, r.Wished)
	}
	if r.Recorded.Most > 0 {
		fmt.Fprintf(w,
			"  recorded: %s\n  predicted: %s\n  in each: %v for daemons and processors, as of procs that found room "+
				"at once\n  difference: mean %s, p50 %s, p90 %s\n", waitsWords(r.Recorded), waitsWords(r.Predicted),
			r.Least.Round(10*time.Microsecond),
			beside(r.Predicted.Mean, r.Recorded.Mean), beside(r.Predicted.P50, r.Recorded.P50),
			beside(r.Predicted.P90, r.Recorded.P90))
	}
	fmt.Fprintln(w, "  all that must hold held")
}

func waitsWords(w sim.Waits) string {
	ms := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	return fmt.Sprintf("mean %v, p50 %v, p90 %v, p99 %v, most %v", ms(w.Mean), ms(w.P50), ms(w.P90), ms(w.P99),
		ms(w.Most))
}

func beside(predicted, recorded time.Duration) string {
	if recorded == 0 {
		return "-"
	}
	return fmt.Sprintf("%+.1f %%", 100*(predicted.Seconds()/recorded.Seconds()-1))
}

// simReport is an object of "sigma sim --json".
type simReport struct {
	Seed        uint64  `json:"seed"`
	Procs       int     `json:"procs"`
	Lost        int     `json:"lost"`
	Unplaced    int     `json:"never_placed"`
	Faults      int     `json:"faults"`
	Virtual     float64 `json:"virtual_s"`
	Took        float64 `json:"took_s"`
	Utilisation float64 `json:"utilisation"`
	Jain        float64 `json:"jain,omitempty"`  // none: no two realms waited at a time
	Worst       float64 `json:"worst,omitempty"` // part of its ideal part that the worst served realm had
	// procs that should be near a machine's data, and started
	Wished    int       `json:"wished,omitempty"`
	Near      int       `json:"near,omitempty"`              // those of them that were
	Restarts  int       `json:"registered_starts,omitempty"` // of registered procs
	Leaders   int       `json:"initd_leaders,omitempty"`
	Placement simWaits  `json:"placement"`
	Start     simWaits  `json:"start"`
	Recorded  *simWaits `json:"recorded,omitempty"` // of a trace with waits
	Predicted *simWaits `json:"predicted,omitempty"`
	// part of each predicted wait: what procs waited that found room at once
	Least float64 `json:"least_s,omitempty"`
}

type simWaits struct {
	Mean float64 `json:"mean_s"`
	P50  float64 `json:"p50_s"`
	P90  float64 `json:"p90_s"`
	P99  float64 `json:"p99_s"`
	Most float64 `json:"most_s"`
}

func reportOf(seed uint64, r *sim.Report, took time.Duration) simReport {
	waits := func(w sim.Waits) simWaits {
		return simWaits{w.Mean.Seconds(), w.P50.Seconds(), w.P90.Seconds(), w.P99.Seconds(), w.Most.Seconds()}
	}
	out := simReport{Seed: seed, Procs: r.Procs, Lost: r.Lost, Unplaced: r.Unplaced, Faults: r.Faults,
		Virtual: r.Virtual.Seconds(), Took: took.Seconds(), Utilisation: r.Utilisation, Jain: r.Jain, Worst: r.Worst,
		Wished: r.Wished, Near: r.Near, Restarts: r.Restarts, Leaders: r.Leaders,
		Placement: waits(r.Placement), Start: waits(r.Start)}
	if r.Recorded.Most > 0 {
		recorded, predicted := waits(r.Recorded), waits(r.Predicted)
		out.Recorded, out.Predicted, out.Least = &recorded, &predicted, r.Least.Seconds()
	}
	return out
}
