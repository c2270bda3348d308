// Package faults are the commands with which a service is tested under faults: sigma chaos kills
// and pauses procs (lib/chaos), sigma verify checks what clients were told meanwhile (lib/history).
package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/lib/chaos"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{newChaosCommand(a), newVerifyCommand(a)}
}

// chaosFlags are those of chaos.
type chaosFlags struct {
	chaos.Config
	faults []string
	fleets []string
	procs  []string
	plan   bool
}

func newChaosCommand(a *app) *cobra.Command {
	f := &chaosFlags{}
	cmd := &cobra.Command{
		Use: "chaos {--fleet NAME | --proc PROC}... --for TIME [--every TIME] [--faults LIST] [--pause TIME] " +
			"[--spare N] [--seed N] [--plan]",
		Short: "Kill and pause procs by a plan, to test what depends on them",
		Long: `Kill and pause procs of the realm, each time one that is drawn among those that run: members of
fleets, and procs by id, start of that, or name. A name also means procs that take the place of a
killed one, as with "sigma init". What the caller may not kill or freeze it does not reach.

The plan follows from the seed, which is told; --plan prints it and does nothing. Each fault is
printed as a line of JSON once it is over, with its times in nanoseconds since 1970, so that
"sigma verify" can show it beside a history. Pauses end with the command, also by ^C; if it is
killed itself, "sigma thaw" lets procs go on.`,
		Example: `  sudo sigma chaos --fleet web --for 30s --every 2s --spare 1
  sudo sigma chaos --proc store --faults pause --pause 5s --for 1m --seed 7 --plan`,
		Args:        cli.Between(0, 0),
		Annotations: map[string]string{cli.TidiesUp: ""},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.fleets)+len(f.procs) == 0 {
				return cli.UsageError(cmd, "", "say which procs: --fleet NAME or --proc PROC")
			}
			if !cmd.Flags().Changed("seed") {
				f.Seed = uint64(time.Now().UnixNano()) % 1e9
			}
			return a.chaos(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.fleets, "fleet", nil, "the members of fleet `NAME`")
	flags.StringArrayVar(&f.procs, "proc", nil, "the procs with id, start of it or name `PROC`")
	flags.DurationVar(&f.For, "for", 0, "go on for `TIME`")
	flags.DurationVar(&f.Every, "every", 2*time.Second, "do a fault every `TIME`, on average")
	flags.StringSliceVar(&f.faults, "faults", []string{"kill", "pause"}, "`LIST` of the faults that are done")
	flags.DurationVar(&f.PauseMost, "pause", 3*time.Second, "pause for `TIME` at most, and a tenth of it at least")
	flags.IntVar(&f.Spare, "spare", 0, "leave `N` procs alone at any time")
	flags.Uint64Var(&f.Seed, "seed", 0, "draw from `N` (default: one by the clock)")
	flags.BoolVar(&f.plan, "plan", false, "print the plan and do nothing")
	return cmd
}

// matcher gives what tells the targets from other procs.
func (f *chaosFlags) matcher() (func(sigma.ProcInfo) bool, error) {
	for _, name := range f.fleets {
		if err := fleet.CheckName(name); err != nil {
			return nil, cli.WithCode(cli.ExitUsage, err)
		}
	}
	if slices.Contains(f.procs, "") {
		return nil, cli.UsageError(nil, "list procs with: sigma ps", "--proc is empty")
	}
	return func(p sigma.ProcInfo) bool {
		of, _, member := fleet.ParseMemberName(p.Name)
		return member && slices.Contains(f.fleets, of) || slices.ContainsFunc(f.procs, func(word string) bool {
			return p.Name == word || strings.HasPrefix(string(p.ID), word)
		})
	}, nil
}

// planned is a step of --plan.
type planned struct {
	After  string       `json:"after"`
	Fault  chaos.Kind   `json:"fault"`
	Long   string       `json:"for,omitempty"`
	Target string       `json:"target,omitempty"` // of the procs that run now
	Proc   sigma.ProcID `json:"proc,omitempty"`
}

func (a *app) chaos(ctx context.Context, f *chaosFlags) error {
	for _, kind := range f.faults {
		f.Kinds = append(f.Kinds, chaos.Kind(kind))
	}
	steps, err := f.Plan()
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	match, err := f.matcher()
	if err != nil {
		return err
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	procs, err := c.List(ctx, false)
	if err != nil {
		return err
	}
	var targets []chaos.Target // also those that start
	for _, p := range procs {
		if match(p) {
			targets = append(targets, chaos.Target{Name: p.Name, Proc: p.ID})
		}
	}
	if len(targets) <= f.Spare {
		return &sigma.Error{Op: "sigma.chaos", Kind: sigma.KindNotFound,
			Msg:  fmt.Sprintf("procs that match: %d; to be spared: %d", len(targets), f.Spare),
			Hint: "list procs with: sigma ps"}
	}
	a.Remark("seed %d: %s in %v, among %s", f.Seed, cli.Count(len(steps), "fault"), f.For,
		cli.Count(len(targets), "proc"))
	if f.plan {
		return a.printPlan(f, steps, targets)
	}
	return a.runChaos(ctx, c, f.Config, match)
}

// printPlan prints what would be done if the procs that run now stayed.
func (a *app) printPlan(f *chaosFlags, steps []chaos.Step, targets []chaos.Target) error {
	for _, s := range steps {
		t, _ := s.Choose(targets, f.Spare)
		p := planned{After: s.At.Round(time.Millisecond).String(), Fault: s.Kind, Target: t.Name, Proc: t.Proc}
		if s.Long > 0 {
			p.Long = s.Long.Round(time.Millisecond).String()
		}
		if err := a.printLine(p); err != nil {
			return err
		}
	}
	return nil
}

// runChaos does the faults. One that failed is in its line, and does not make the command fail.
func (a *app) runChaos(ctx context.Context, c *sdk.Client, cfg chaos.Config, match func(sigma.ProcInfo) bool) error {
	var printed error
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := chaos.Run(ctx, cfg, c, match, func(f chaos.Fault) {
		if err := a.printLine(f); err != nil && printed == nil {
			printed = err
			stop(err) // nobody reads it
		}
	})
	if printed != nil {
		return printed
	}
	return err
}

func (a *app) printLine(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = a.Out.Write(append(b, '\n'))
	return err
}
