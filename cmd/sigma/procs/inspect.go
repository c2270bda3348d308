package procs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func newInspectCommand(a *app) *cobra.Command {
	timing := false
	cmd := &cobra.Command{
		Use:   "inspect [--timing] PROC...",
		Short: "Show all that is known about procs",
		Long: `Show all that is known about procs: what they run, where, since when, what they use, what
they may use, and how they ended; also of procs that have ended, while they are
remembered. ` + procArgument + `

With --timing, show where the time of their start went:

  queue       waiting for its turn and for room on a machine
  placement   finding the program, making its pipes and its socket
  hand-over   giving it to a child of the launcher that is ready, or to a new one
  restrict    putting on the restrictions that depend on the program
  exec        replacing the child by the program
  first       until the first sign of the program
  started     until it called Started, if it does`,
		Example: `  sudo sigma inspect hello
  sudo sigma inspect --timing hello
  sudo sigma inspect --json 3kq`,
		Args: cli.Between(1, -1),
		RunE: a.InRealm(func(ctx context.Context, c *sdk.Client, args []string) error {
			return a.inspect(ctx, c, args, timing)
		}),
	}
	cmd.Flags().BoolVar(&timing, "timing", false, "show the phases of the start")
	return cmd
}

func (a *app) inspect(ctx context.Context, c *sdk.Client, words []string, timing bool) error {
	procs, err := c.List(ctx, true)
	if err != nil {
		return err
	}
	found := make([]sigma.ProcInfo, len(words))
	for i, w := range words {
		id, err := findProc(procs, w)
		if err != nil {
			return err
		}
		found[i] = procs[slices.IndexFunc(procs, func(p sigma.ProcInfo) bool { return p.ID == id })]
		if found[i].State == sigma.ProcEnded { // a list does not carry the data of a status
			if st, err := c.WaitExit(ctx, id); err == nil {
				found[i].Status = st
			}
		}
	}
	a.measureOrSay(ctx, c, found)
	if a.JSON {
		return a.PrintJSON(cli.Mapped(found, report.OfProc))
	}
	for i, p := range found {
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		show := a.printProc
		if timing {
			show = a.printTiming
		}
		if err := show(p); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printProc(p sigma.ProcInfo) error {
	t := term.NewTable(a.Out)
	t.Pairs("id", p.ID, "name", p.Name, "realm", p.Realm, "program", p.Program)
	for _, arg := range p.Args {
		t.Row("argument", fmt.Sprintf("%q", arg))
	}
	t.Pairs("parent", p.Parent, "machine", p.Machine, "class", p.Class)
	if p.CPU > 0 {
		t.Row("reserved cores", strconv.FormatFloat(float64(p.CPU)/1000, 'g', -1, 64))
	}
	frozen := ""
	if p.Frozen && p.State == sigma.ProcRunning {
		frozen = ", frozen"
	}
	t.Pairs("profile", report.OfProc(p).Profile, "memory limit", p.Memory, "state", p.State.String()+frozen)
	if p.State == sigma.ProcEnded {
		t.Pairs("status", endWords(p.Status), "exit code", p.Status.ExitCode, "message", p.Status.Msg)
		if n := len(p.Status.Data); n > 0 {
			t.Row("data", fmt.Sprintf("%d bytes", n))
		}
	}
	begin := p.Times.Spawned
	for _, at := range []struct {
		what string
		t    time.Time
	}{{"spawned", begin}, {"placed", p.Times.Placed}, {"contained", p.Times.Contained}, {"executed", p.Times.Executed},
		{"started", p.Times.Started}, {"ended", p.Times.Ended}} {
		switch {
		case at.t.IsZero() || at.t.Unix() <= 0:
		case at.what == "spawned":
			t.Row(at.what, at.t.Format(time.RFC3339Nano))
		default:
			t.Row(at.what, "+"+at.t.Sub(begin).Round(time.Microsecond).String())
		}
	}
	if p.State == sigma.ProcRunning {
		t.Pairs("tasks", p.Usage.Tasks, "memory now", p.Usage.Memory)
	}
	t.Pairs("memory peak", p.Usage.MemoryPeak, "user time", p.Usage.UserTime, "system time", p.Usage.SystemTime,
		"output", p.Usage.Output)
	if x := p.Usage.Traffic; x != (sigma.Traffic{}) {
		t.Row("sent", fmt.Sprintf("%v in %d messages, %v to other machines", x.Sent, x.Messages, x.Egress))
		t.Row("received", fmt.Sprintf("%v, %v from other machines", x.Received, x.Ingress))
	}
	return t.Print()
}

// timingCells is the width of the longest bar.
const timingCells = 40

// printTiming shows the phases of a start one below the other, each with a bar that begins where
// that of the one before ended.
func (a *app) printTiming(p sigma.ProcInfo) error {
	total := p.Timing.Total()
	fmt.Fprintf(a.Out, "%s %s\n", p.ID, term.Printable(p.Name))
	if total == 0 {
		fmt.Fprintf(a.Out, "  it has not started: %s\n", p.State)
		return nil
	}
	cell := func(d time.Duration) int { return int((d*timingCells + total/2) / total) }
	var before time.Duration
	for i, d := range p.Timing {
		from, to := cell(before), cell(before+d)
		before += d
		if d == 0 {
			continue
		}
		if to == from { // too short for its own cell, and yet it was
			from = min(from, timingCells-1)
			to = from + 1
		}
		fmt.Fprintf(a.Out, "  %-10s %9s ms %3d%%  %s%s\n", sigma.Phase(i), milliseconds(d), (d*100+total/2)/total,
			strings.Repeat(" ", from), strings.Repeat("#", to-from))
	}
	fmt.Fprintf(a.Out, "  %-10s %9s ms\n", "total", milliseconds(total))
	return nil
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.3f", float64(d)/1e6) }
