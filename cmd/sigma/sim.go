package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sim"
	"sigmaos.dev/state"
)

// traceMax is the most of a trace that is read.
const traceMax = 10_000_000

func newSimCommand(a *app) *cobra.Command {
	var o simOptions
	cmd := &cobra.Command{
		Use:   "sim [--machines N] [--procs N] [--faults] [--seed N] [--seeds N] [--trace FILE]",
		Short: "Simulate a system's schedulers in virtual time",
		Long: `Run the schedulers' own code in virtual time, for as many machines, realms and procs as
you like, and print how long procs waited, how busy machines were and how fair it was.

Procs arrive and run by the seed: the same seed makes the same run. --load is what they
ask for, as a part of what all machines have. With --faults messages get lost, machines
and daemons die, and clocks are wrong by up to an hour.

What must hold is checked at each step: no machine is over-committed, no proc starts
twice, each is answered, no realm that waits is passed over. If something does not hold,
sim prints the seed and the command that makes it happen again, and exits with 1.

With --trace the procs are those of FILE, which is what "sigma ps --all --json" printed of a
real run; then the mean of how long they waited there is printed beside the prediction.

It needs no running system.`,
		Example: `  sigma sim --machines 100 --procs 20000 --realms 10
  sigma sim --machines 5 --procs 600 --lc 0.2 --faults --seeds 100
  sigma sim --machines 5 --cores 2 --memory 512M --trace procs.json`,
		Args: between(0, 0),
		RunE: func(*cobra.Command, []string) error { return a.sim(o) },
	}
	f := cmd.Flags()
	f.IntVar(&o.Machines, "machines", 10, "`N` machines")
	f.IntVar(&o.Realms, "realms", 4, "`N` realms")
	f.IntVar(&o.Procs, "procs", 10000, "`N` procs")
	f.IntVar(&o.Shards, "shards", 1, "`N` bescheds")
	f.IntVar(&o.Cores, "cores", 8, "`N` cores of each machine")
	f.StringVar(&o.memory, "memory", "2GiB", "`SIZE` of each machine's memory for procs")
	f.Float64Var(&o.Load, "load", 0.9, "`PART` of all memory-time that procs ask for")
	f.Float64Var(&o.LC, "lc", 0, "`PART` of the procs that are latency-critical")
	f.DurationVar(&o.Run, "run", time.Second, "mean `TIME` that a proc runs")
	f.Uint64Var(&o.Seed, "seed", 1, "`N` from which all chance comes")
	f.IntVar(&o.seeds, "seeds", 1, "make `N` runs, with this and the next seeds")
	f.BoolVar(&o.Faults, "faults", false, "break things")
	f.StringVar(&o.trace, "trace", "", "`FILE` of a real run's procs")
	return cmd
}

type simOptions struct {
	sim.Config
	memory string
	seeds  int
	trace  string
}

func (a *app) sim(o simOptions) error {
	var err error
	if o.Memory, err = sigma.ParseBytes(o.memory); err != nil {
		return withCode(exitUsage, err)
	}
	if o.Machines < 1 || o.Realms < 1 || o.Procs < 1 || o.Shards < 1 || o.Cores < 1 || o.seeds < 1 || o.Memory < 32*sigma.MemoryLeast || !(o.Load > 0) || !(o.LC >= 0 && o.LC <= 1) || o.Run <= 0 {
		return usageError(nil, "--memory is 128M or more, --lc from 0 to 1, all else more than 0", "there is nothing to simulate")
	}
	if o.trace != "" {
		if o.Trace, err = readTrace(o.trace); err != nil {
			return err
		}
	}
	for i := range o.seeds {
		c := o.Config
		c.Seed += uint64(i)
		began := time.Now()
		r, err := sim.New(c).Run()
		if err != nil {
			return &sigma.Error{Op: "sigma.sim", Kind: sigma.KindOther, Msg: err.Error(), Hint: "again with: " + o.command(c.Seed)}
		}
		printReport(a.out, c.Seed, r, time.Since(began))
	}
	return nil
}

// command makes one run happen again.
func (o *simOptions) command(seed uint64) string {
	s := fmt.Sprintf("sigma sim --machines %d --realms %d --procs %d --shards %d --cores %d --memory %v --load %g --lc %g --run %v --seed %d", o.Machines, o.Realms, o.Procs, o.Shards, o.Cores, o.Memory, o.Load, o.LC, o.Run, seed)
	if o.Faults {
		s += " --faults"
	}
	if o.trace != "" {
		s += " --trace " + o.trace
	}
	return s
}

func printReport(w io.Writer, seed uint64, r *sim.Report, took time.Duration) {
	ms := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	fmt.Fprintf(w, "seed %d: %d procs in %v, simulated in %v; %d lost, %d never placed, %d faults\n", seed, r.Procs, r.Virtual.Round(time.Millisecond), took.Round(time.Millisecond), r.Lost, r.Unplaced, r.Faults)
	fmt.Fprintf(w, "  from spawn to start: mean %v, p50 %v, p90 %v, p99 %v, most %v\n", ms(r.WaitMean), ms(r.Wait50), ms(r.Wait90), ms(r.Wait99), ms(r.Most))
	fmt.Fprintf(w, "  memory in use: %.1f %%", 100*r.Utilisation)
	if r.Jain > 0 {
		fmt.Fprintf(w, "; Jain index of the realms while all waited: %.4f", r.Jain)
	}
	fmt.Fprintln(w)
	if r.Recorded > 0 {
		fmt.Fprintf(w, "  mean wait recorded: %v, predicted: %v (%+.1f %%)\n", ms(r.Recorded), ms(r.Predicted), 100*(r.Predicted.Seconds()/r.Recorded.Seconds()-1))
	}
	fmt.Fprintln(w, "  all that must hold held")
}

// readTrace reads procs as sigma ps --json prints them: a list, or one after the other.
func readTrace(path string) ([]sim.Arrival, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	invalid := func(what string) error {
		return &sigma.Error{Op: "sigma.sim", Path: path, Kind: sigma.KindInvalid, Msg: what, Hint: "record it with: sigma ps --all --json"}
	}
	in := bufio.NewReader(f)
	d := json.NewDecoder(in)
	if first, err := in.Peek(1); err == nil && first[0] == '[' {
		d.Token()
	}
	var procs []state.Proc
	for d.More() {
		var p state.Proc
		if err := d.Decode(&p); err != nil {
			return nil, invalid("is no list of procs: " + err.Error())
		}
		if t := p.Times; t.Spawned != nil && t.Executed != nil && t.Ended != nil && !t.Ended.Before(*t.Executed) {
			procs = append(procs, p)
		}
		if len(procs) > traceMax {
			return nil, invalid("has too many procs")
		}
	}
	if len(procs) == 0 {
		return nil, invalid("has no proc that started and ended")
	}
	slices.SortStableFunc(procs, func(a, b state.Proc) int { return a.Times.Spawned.Compare(*b.Times.Spawned) })
	var out []sim.Arrival
	for _, p := range procs {
		t := p.Times
		ar := sim.Arrival{At: t.Spawned.Sub(*procs[0].Times.Spawned), Realm: sigma.RealmID(p.Realm), Run: t.Ended.Sub(*t.Executed), Memory: max(sigma.MemoryLeast, sigma.Bytes(p.Memory)), CPU: sigma.MilliCPU(1000 * p.Cores), Waited: -1}
		if t.Placed != nil {
			ar.Waited = max(0, t.Placed.Sub(*t.Spawned))
		}
		out = append(out, ar)
	}
	return out, nil
}
