package fleets

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func (a *app) fleetLs(ctx context.Context, c *fleet.Client, _ []string) error {
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	return cli.PrintList(a.App, all, false, func(s fleet.Status) []any {
		return []any{s.Name, s.Phase, fmt.Sprintf("%d/%d", s.Ready, s.Want), fmt.Sprintf("%d-%d", s.Least, s.Most),
			s.Revision, percentOf(s.Busy), fmt.Sprintf("%.0f/s", s.Rate), s.Choice}
	}, "NAME", "PHASE", "READY", "SIZE", "REVISION", "BUSY", "RATE", "POLICY")
}

func percentOf(share float64) string { return strconv.Itoa(int(100*share+0.5)) + "%" }

func (a *app) showFleet(s fleet.Status) error {
	if a.JSON {
		return a.PrintJSON(s)
	}
	fmt.Fprintf(a.Out, "%s: %s, %d of %d members serve (%d to %d allowed), revision %d", s.Name, s.Phase, s.Ready,
		s.Want, s.Least, s.Most, s.Revision)
	if s.Old != 0 {
		fmt.Fprintf(a.Out, " takes the place of %d", s.Old)
	}
	fmt.Fprintf(a.Out, "; %s busy, %.0f requests/s, policy %s\n", percentOf(s.Busy), s.Rate, s.Choice)
	t := a.Table("PROC", "REVISION", "STATE", "SINCE", "MACHINE", "BUSY", "IN FLIGHT", "RATE", "FAILED", "WHY")
	for _, m := range s.Members {
		t.Row(m.Proc, m.Revision, m.State, term.Ago(m.Since), cli.OrElse(string(m.Machine), "-"),
			percentOf(m.Load.Busy),
			fmt.Sprintf("%.1f", m.Load.InFlight), fmt.Sprintf("%.0f/s", m.Rate), m.Load.Failed, cli.OrElse(m.Why, "-"))
	}
	return t.Print()
}

func newFleetWatchCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "watch NAME", Short: "Follow what the coordinator of a fleet decides",
		Args:    cli.Between(1, 1),
		Long:    "Follow what the coordinator of a fleet decides, one line for each decision, until ^C.",
		Example: "  sudo sigma fleet watch web",
		RunE: a.verb(func(ctx context.Context, c *fleet.Client, args []string) error {
			for last := uint64(0); ; {
				ds, err := c.Decisions(ctx, args[0])
				if err != nil {
					return err
				}
				for _, d := range ds {
					if d.Seq <= last {
						continue
					}
					last = d.Seq
					if err := a.showDecision(d); err != nil {
						return err
					}
				}
				if err := datadir.Pause(ctx, 200*time.Millisecond); err != nil {
					return err
				}
			}
		})}
}

func (a *app) showDecision(d fleet.Decision) error {
	if a.JSON {
		return a.PrintJSON(d)
	}
	_, err := fmt.Fprintf(a.Out, "%s  %-8s  %s%s\n", d.Time.Local().Format("15:04:05.000"), d.Reason,
		term.Printable(d.Why), numbersOf(d.Numbers))
	return err
}

// numbersOf prints the numbers of a decision, by name.
func numbersOf(ns map[string]float64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(ns)) {
		parts = append(parts, fmt.Sprintf("%s %g", strings.ReplaceAll(k, "_", " "), ns[k]))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func newFleetExplainCommand(a *app) *cobra.Command {
	last := 0
	cmd := &cobra.Command{
		Use: "explain [--last N] NAME", Short: "Tell why a fleet is as it is",
		Args: cli.Between(1, 1),
		Long: `Tell why a fleet has the size that it has, why its members are where they are, why its last update
went as it did, and what was decided lately; read from what the coordinator noted when it decided, also one that is gone.`,
		Example: "  sudo sigma fleet explain web\n  sudo sigma fleet explain --last 100 --json web",
		RunE: a.verb(func(ctx context.Context, c *fleet.Client, args []string) error {
			s, err := c.Status(ctx, args[0])
			if err != nil {
				return err
			}
			ds, err := c.Decisions(ctx, args[0])
			if err != nil {
				return err
			}
			return a.explainFleet(s, ds, last)
		})}
	cmd.Flags().IntVar(&last, "last", 20, "the last `N` decisions")
	return cmd
}

// explainFleet tells the last decision about each question, and then the latest of all.
func (a *app) explainFleet(s fleet.Status, ds []fleet.Decision, last int) error {
	latest := ds[max(0, len(ds)-max(0, last)):]
	if a.JSON {
		return a.PrintJSON(struct {
			Status    fleet.Status     `json:"status"`
			Decisions []fleet.Decision `json:"decisions"`
		}{s, latest})
	}
	newest := func(reasons ...string) string {
		for i := len(ds) - 1; i >= 0; i-- {
			for _, r := range reasons {
				if ds[i].Reason == r {
					return fmt.Sprintf("%s, %s ago%s", term.Printable(ds[i].Why), term.Ago(ds[i].Time),
						numbersOf(ds[i].Numbers))
				}
			}
		}
		return "nothing was decided yet"
	}
	fmt.Fprintf(a.Out, "size    %d members are wanted, %d serve: %s\n", s.Want, s.Ready,
		newest(fleet.ReasonGrow, fleet.ReasonShrink, fleet.ReasonBack, fleet.ReasonWanted))
	fmt.Fprintf(a.Out, "place   %s: %s\n", placesOf(s), newest(fleet.ReasonNear))
	fmt.Fprintf(a.Out, "update  revision %d, %s: %s\n", s.Revision, s.Phase,
		newest(fleet.ReasonUndone, fleet.ReasonRolled,
			fleet.ReasonCanary, fleet.ReasonRoll))
	fmt.Fprintf(a.Out, "failed  %s\n\n", newest(fleet.ReasonReplace, fleet.ReasonPause))
	for _, d := range latest {
		if err := a.showDecision(d); err != nil {
			return err
		}
	}
	return nil
}

// placesOf says how many members are on which machine.
func placesOf(s fleet.Status) string {
	on := map[string]int{}
	for _, m := range s.Members {
		if m.State != fleet.Draining {
			on[cli.OrElse(string(m.Machine), "a machine not known yet")]++
		}
	}
	var parts []string
	for _, m := range slices.Sorted(maps.Keys(on)) {
		parts = append(parts, fmt.Sprintf("%d on %s", on[m], term.Printable(m)))
	}
	return cli.OrElse(strings.Join(parts, ", "), "no members")
}

func newFleetLogsCommand(a *app) *cobra.Command {
	follow, tail := false, 0
	cmd := &cobra.Command{
		Use: "logs [-f] [--tail N] NAME", Short: "Show what the members of a fleet wrote",
		Args: cli.Between(1, 1),
		Long: `Show what the members of a fleet wrote to both streams, each line after the member's id; with -f go
on until ^C, also with members that come.`,
		Example: "  sudo sigma fleet logs -f web",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("tail") {
				tail = -1
			}
			return a.fleetLogs(cmd.Context(), follow, tail, args[0])
		}}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until ^C")
	cmd.Flags().IntVar(&tail, "tail", 0, "begin with the last `N` lines of each stream (default: all)")
	return cmd
}

func (a *app) fleetLogs(ctx context.Context, follow bool, tail int, name string) error {
	if err := fleet.CheckName(name); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	var mu sync.Mutex
	for known := map[sigma.ProcID]bool{}; ; {
		procs, err := c.List(ctx, true)
		if err != nil {
			return err
		}
		for _, p := range procs {
			if of, _, ok := fleet.ParseMemberName(p.Name); !ok || of != name || known[p.ID] {
				continue
			}
			known[p.ID] = true
			all.Go(func() { a.memberLogs(ctx, c, follow, tail, p.ID, &mu) })
		}
		if len(known) == 0 && !follow {
			return &sigma.Error{Op: "sigma.fleet", Path: fleet.Dir(name), Kind: sigma.KindNotFound,
				Msg:  "no member is known",
				Hint: "sigma fleet ls lists the fleets"}
		}
		if !follow {
			return nil
		}
		if err := datadir.Pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// memberLogs shows what one member writes, until it has ended if that is followed.
func (a *app) memberLogs(ctx context.Context, c *sdk.Client, follow bool, tail int, id sigma.ProcID, mu *sync.Mutex) {
	ended := make(chan struct{})
	if follow {
		go func() {
			defer close(ended)
			c.WaitExit(ctx, id)
		}()
	} else {
		close(ended)
	}
	var streams sync.WaitGroup
	for name, to := range map[string]io.Writer{"stdout": a.Out, "stderr": a.Err} {
		streams.Go(func() {
			w := &prefixed{to: term.Raw(to), mu: mu, prefix: []byte(id + "  ")}
			if err := a.host.Log(ctx, c, id, name, tail, w, ended); err != nil && ctx.Err() == nil {
				a.Remark("sigma: %s: %v", string(id), err)
			}
			w.Write([]byte("\n")) // what is left of a line
		})
	}
	streams.Wait()
}

// prefixed writes whole lines, each after a prefix. The lock keeps lines of several apart.
type prefixed struct {
	to     io.Writer
	mu     *sync.Mutex
	prefix []byte
	rest   []byte
}

// lineMax is where a line is broken that does not end.
const lineMax = 64 << 10

func (w *prefixed) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 && len(w.rest) < lineMax {
			return len(p), nil
		}
		line := w.rest
		if i >= 0 {
			line = w.rest[:i]
		}
		w.rest = w.rest[min(len(line)+1, len(w.rest)):]
		if len(line) == 0 {
			continue
		}
		w.mu.Lock()
		_, err := w.to.Write(append(append(append([]byte{}, w.prefix...), line...), '\n'))
		w.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
}
