package procs

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/members"
	"sigmaos.dev/cmd/sigma/programs"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// interruptGrace is what a proc gets to end in good order when ^C is pressed at its run.
const interruptGrace = time.Second

type runOptions struct {
	name    string
	env     []string
	memory  string
	profile string
	view    []string
	lc      string
	where   []string
	spread  string
	near    string
	detach  bool
}

func newRunCommand(a *app) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use: "run [--name NAME] [-e NAME=VALUE] [-m SIZE] [--profile PROFILE] [--view ENTRY]... [--lc CORES] " +
			"[--near PATH] [-d] PROGRAM [ARG...]",
		Short: "Run a program as a proc and show its output",
		Long: `Run a program as an isolated proc, show what it writes, and exit with its code.

PROGRAM is a local file or a program of the realm: ./hello and build/hello are local;
/bin/hello is the realm's if the realm has it, else local; hello is local if there is
such a file here, else the realm's /bin/hello. A local program is stored in the realm as
/bin/NAME-HASH first, once. It must be a statically linked Linux executable.

With --view the proc sees only what the entries show: at PATH what the realm has at
TARGET (default: PATH), with RIGHTS ro (read; the default), rc (read and call), rw (all)
or none (hide). --view none shows nothing. See docs/reference/views.md.

With --lc the proc is latency-critical: it is placed on a machine where CORES (as in 0.5)
and its memory are not reserved by others, and keeps them for itself; best-effort procs
give way. It waits while there is no such machine, and fails if there never can be. --where
names labels that the machine must have. Procs of the same --name are spread over machines,
or over the values of the label that --spread names.

With --near the proc runs on the machine whose scratch storage PATH is in (as /ux/m2/in),
if that has room for it within a tenth of a second, else anywhere. In a PATH that begins
with /ux/~local it is the machine that sigma talks to.

A proc gets no standard input in this version: reading it gives the end at once. Its
environment is what -e says.

^C (or SIGTERM) asks the proc to end and kills it a second later; a second one kills it
at once. Exit codes: the proc's; 128+n if signal n ended it; 125 if sigmaOS failed; 126 if
the program cannot be executed; 127 if there is none.`,
		Example: `  sudo sigma run ./hello world
  sudo sigma run --view /in=/s3/data:ro --view /out=/results/7:rw ./mapper
  sudo sigma run --name job -e LEVEL=debug -m 256M -d ./server --port-file /port`,
		Args:        cli.Between(1, -1),
		Annotations: map[string]string{cli.OwnSignals: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.WithCodeUnless(cli.ExitRun, a.run(cmd.Context(), o, args))
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().StringVar(&o.name, "name", "", "`NAME` of the proc for people (default: the program's)")
	cmd.Flags().BoolVarP(&o.detach, "detach", "d", false, "print the proc's id and do not wait")
	return cmd
}

// flags are those that say what a descriptor has.
func (o *runOptions) flags(f *pflag.FlagSet) {
	f.SetInterspersed(false) // what follows PROGRAM is the program's
	f.StringArrayVarP(&o.env, "env", "e", nil,
		"`NAME=VALUE` for the proc's environment; NAME alone takes the value from here")
	f.StringVarP(&o.memory, "memory", "m", "", "`SIZE` of memory the proc may use at most, such as 256M (default 64M)")
	f.StringVar(&o.memory, "mem", "", "the same as --memory")
	f.StringVar(&o.profile, "profile", "",
		"`PROFILE` of the calls the proc may make: sigma, or linux for unmodified programs (default sigma)")
	f.StringArrayVar(&o.view, "view", nil,
		"`ENTRY` of what the proc sees: PATH=TARGET:RIGHTS, as in /in=/s3/data:ro; can be repeated (default: all of "+
			"the realm)")
	f.StringVar(&o.lc, "lc", "", "be latency-critical and reserve `CORES`, as in 0.5 (default: best-effort)")
	f.StringArrayVar(&o.where, "where", nil,
		"`NAME=VALUE`, a label that the machine must have; with --lc; can be repeated")
	f.StringVar(&o.spread, "spread", "",
		"`LABEL` whose values are failure domains, as in zone; with --lc (default: each machine is one)")
	f.StringVar(&o.near, "near", "", "`PATH` of data in /ux, on whose machine the proc should run")
	f.Lookup("mem").Hidden = true
}

// descriptor makes what Spawn takes; Program is filled in later.
func (a *app) descriptor(o runOptions, args []string) (sigma.Descriptor, error) {
	d := sigma.Descriptor{Program: "/", Name: o.name, Args: args[1:], Profile: sigma.Profile(o.profile)}
	if d.Name == "" {
		base := args[0][strings.LastIndexByte(args[0], '/')+1:]
		d.Name = base[:min(len(base), 64)]
	}
	if o.memory != "" {
		m, err := sigma.ParseBytes(o.memory)
		if err != nil {
			return d, cli.WithCode(cli.ExitUsage, err)
		}
		d.Memory = m
	}
	for _, e := range o.env {
		name, _, given := strings.Cut(e, "=")
		switch {
		case name == "":
			return d, cli.UsageError(nil, "write for example: -e LEVEL=debug", "%.80q sets no variable", e)
		case !given:
			value := a.Getenv(name)
			if value == "" {
				continue // as docker does: what is not set here is not set there
			}
			e += "=" + value
		}
		d.Env = append(d.Env, e)
	}
	if o.lc != "" {
		cores, err := strconv.ParseFloat(o.lc, 64)
		if err != nil || !(cores >= 0.001 && cores <= float64(sigma.CPUMost)/1000) {
			return d, cli.UsageError(nil, "write for example: --lc 0.5", "%.80q is no number of cores", o.lc)
		}
		d.Class, d.CPU = sigma.LatencyCritical, sigma.MilliCPU(math.Round(1000*cores))
	}
	d.Where, d.Spread = o.where, o.spread
	view, err := parseView(o.view)
	if err != nil {
		return d, err
	}
	d.View = view
	if err := d.Check(); err != nil {
		return d, cli.WithCode(cli.ExitUsage, err)
	}
	return d, nil
}

func (a *app) run(ctx context.Context, o runOptions, args []string) error {
	d, err := a.descriptor(o, args)
	if err != nil {
		return err
	}
	local, err := programs.Local(args[0])
	if err != nil {
		return err
	}
	if local != nil {
		defer local.Close()
		if !strings.HasPrefix(args[0], "/") { // it is meant, so what is wrong with it can be said without a system
			if err := programs.Check(local); err != nil {
				return err
			}
		}
	}
	connecting, in := newInterrupts(ctx)
	defer in.stop()
	c, err := a.Client(connecting)
	if err != nil {
		return in.cause(err)
	}
	if d.Near, err = machineOf(connecting, c, o.near); err != nil {
		return in.cause(err)
	}
	if d.Program, err = programs.Find(connecting, a.App, c, args[0], local); err != nil {
		return in.cause(err)
	}
	if in.first() != 0 {
		return in.cause(nil)
	}
	ids, err := c.Spawn(ctx, d)
	if err != nil {
		return cli.WithCode(startCode(sigma.KindOf(err)), err)
	}
	if o.detach {
		if err := a.printID(ids[0]); err != nil || d.Class != sigma.LatencyCritical {
			return err
		}
		return refused(ctx, c, ids[0])
	}
	return a.attend(ctx, c, ids[0], d.Name, in)
}

// refusedWait is how long run -d looks whether a latency-critical proc is refused, which happens at
// once where no machine could ever take it.
const refusedWait = time.Second

// refused is the reason why a proc cannot start, if that is known soon.
func refused(ctx context.Context, c sigma.Procs, id sigma.ProcID) error {
	look, cancel := context.WithTimeout(ctx, refusedWait)
	defer cancel()
	err := c.WaitStart(look, id)
	if err == nil || look.Err() != nil && ctx.Err() == nil { // it runs, or waits
		return nil
	}
	return cli.WithCode(startCode(sigma.KindOf(err)), err)
}

// machineOf is the machine that has the data at a path; none of no path. Data that is not there yet
// is to be made there.
func machineOf(ctx context.Context, c *sdk.Client, path string) (sigma.MachineID, error) {
	if path == "" {
		return "", nil
	}
	abs, err := c.AbsPath(ctx, path)
	missing := sigma.KindOf(err) == sigma.KindNotFound
	if missing {
		abs, err = path, nil
	}
	if sigma.KindOf(err) == sigma.KindInvalid {
		return "", cli.WithCode(cli.ExitUsage, err)
	}
	if err != nil {
		return "", err
	}
	rest, ok := strings.CutPrefix(abs, "/ux/")
	name, _, _ := strings.Cut(rest, "/")
	if id := sigma.MachineID(name); ok && id.Check() == nil {
		if missing {
			if _, err := c.Stat(ctx, "/ux/"+name); sigma.KindOf(err) == sigma.KindNotFound {
				return "", members.NotThere(name)
			}
		}
		return id, nil
	}
	return "", cli.WithCode(cli.ExitUsage, &sigma.Error{Op: "sigma.run", Path: path, Kind: sigma.KindInvalid,
		Msg:  "is on no machine of its own",
		Hint: "name data in scratch storage, as in --near /ux/m2/in, or the machine's directory itself"})
}

func (a *app) printID(id sigma.ProcID) error {
	if a.JSON {
		return a.PrintJSON(map[string]string{"id": string(id)})
	}
	_, err := fmt.Fprintln(a.Out, id)
	return err
}

// attend shows a proc's output until it has ended, and ends it when interrupted.
func (a *app) attend(ctx context.Context, c *sdk.Client, id sigma.ProcID, name string, in *interrupts) error {
	type result struct {
		status sigma.Status
		err    error
	}
	ended := make(chan result, 1)
	go func() {
		st, err := c.WaitExit(ctx, id)
		ended <- result{st, err}
	}()
	out := a.follow(ctx, c, id)
	defer out.cancel()
	for count := 0; ; {
		select {
		case r := <-ended:
			out.finish(in.patience())
			if n := in.first(); n != 0 {
				return cli.ExitCode(cli.ExitBySignal + n)
			}
			if r.err != nil {
				return cli.WithCode(cli.ExitRun, lostSight(id, r.err))
			}
			a.explainEnd(id, name, r.status)
			return cli.ExitCodeOrNil(statusCode(r.status))
		case <-out.broken: // nobody reads our output any more
			in.number.CompareAndSwap(0, int32(syscall.SIGPIPE))
			count++
			go c.Kill(ctx, id)
		case <-in.signals:
			switch count++; {
			case count > 2:
				return cli.ExitCode(cli.ExitBySignal + in.first())
			case count == 2:
				go c.Kill(ctx, id)
			default:
				go c.Evict(ctx, id, interruptGrace)
			}
		}
	}
}

// lostSight is the error when the system did not tell how a proc ended.
func lostSight(id sigma.ProcID, err error) error {
	hint := sigma.HintOf(err)
	if sigma.KindOf(err) == sigma.KindLost {
		hint = "the system was stopped or died, and its procs with it: see sigma status"
	}
	return &sigma.Error{Op: "sigma.attend", Kind: sigma.KindOf(err), Msg: fmt.Sprintf("lost sight of proc %s", id),
		Hint: hint, Err: err}
}

// startCode is run's exit code when a proc could not be started for a reason.
func startCode(k sigma.Kind) int {
	switch k {
	case sigma.KindNoExec:
		return cli.ExitNoExec
	case sigma.KindNotFound:
		return cli.ExitNoProgram
	}
	return cli.ExitRun
}

// statusCode is run's and wait's exit code for how a proc ended.
func statusCode(s sigma.Status) int {
	switch {
	case s.Code == sigma.StatusOK:
		return cli.ExitOK
	case s.Code == sigma.StatusLost:
		return cli.ExitRun
	case s.ExitCode > 0:
		return min(s.ExitCode, 255)
	case s.Code == sigma.StatusError && s.Kind != sigma.KindOther:
		return startCode(s.Kind)
	case s.Code == sigma.StatusOOM || s.Code == sigma.StatusEvicted:
		return cli.ExitBySignal + int(syscall.SIGKILL)
	}
	return cli.ExitFailure
}

// explainEnd says what the exit code alone does not.
func (a *app) explainEnd(id sigma.ProcID, name string, s sigma.Status) {
	name = term.Printable(name)
	msg := term.Printable(s.Msg)
	switch s.Code {
	case sigma.StatusOOM:
		a.Remark(
			"sigma: %s was killed because it used more memory than it may\nhint: give it more with: sigma run -m SIZE",
			name)
	case sigma.StatusLost:
		a.Remark("sigma: %s was lost: %s\nhint: it may have done all, some or none of its work", name,
			cli.OrElse(msg, "its machine or scheduler died"))
	case sigma.StatusCrashed, sigma.StatusEvicted:
		a.Remark("sigma: %s (%s) %s", name, id, endWords(s))
	case sigma.StatusError:
		if s.Kind != sigma.KindOther || s.ExitCode <= 0 {
			a.Remark("sigma: %s: %s", name, cli.OrElse(msg, s.Kind.String()))
		}
	}
}

// endWords says in a few words how a proc ended.
func endWords(s sigma.Status) string {
	words := s.Code.String()
	switch {
	case s.ExitCode > cli.ExitBySignal && s.ExitCode < cli.ExitBySignal+65 && s.Code != sigma.StatusError:
		words += " (" + syscall.Signal(s.ExitCode-cli.ExitBySignal).String() + ")"
	case s.ExitCode > 0:
		words += fmt.Sprintf(" (%d)", s.ExitCode)
	}
	if s.Msg != "" && s.Kind != sigma.KindOther {
		words += ": " + term.Printable(s.Msg)
	}
	return words
}

// interrupts are the signals that came during a run.
type interrupts struct {
	came, pipe chan os.Signal
	signals    chan os.Signal // those that came, in turn
	number     atomic.Int32   // of the first
}

// newInterrupts takes the signals of this process. The first ends the context.
func newInterrupts(ctx context.Context) (context.Context, *interrupts) {
	ctx, cancel := context.WithCancel(ctx)
	in := &interrupts{came: make(chan os.Signal, 4), pipe: make(chan os.Signal, 1), signals: make(chan os.Signal, 4)}
	signal.Notify(in.came, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	signal.Notify(in.pipe, syscall.SIGPIPE) // so that writing says EPIPE and the proc can be ended before we go
	go func() {
		defer cancel()
		for s := range in.came {
			in.number.CompareAndSwap(0, int32(s.(syscall.Signal)))
			cancel()
			select {
			case in.signals <- s:
			default: // who does not take four takes no fifth
			}
		}
	}()
	return ctx, in
}

func (in *interrupts) stop() {
	signal.Stop(in.came)
	signal.Stop(in.pipe)
	close(in.came)
}

// first is the number of the first signal, or 0.
func (in *interrupts) first() int { return int(in.number.Load()) }

// patience is how long output may still be drained.
func (in *interrupts) patience() time.Duration {
	if in.first() != 0 {
		return interruptGrace
	}
	return 0
}

// cause replaces an error that a signal made.
func (in *interrupts) cause(err error) error {
	if n := in.first(); n != 0 {
		return cli.ExitCode(cli.ExitBySignal + n)
	}
	return err
}
