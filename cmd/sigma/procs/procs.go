// Package procs runs programs as procs, shows what they are, wrote, wait for and use, and ends
// them.
package procs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newRunCommand(a),
		newPsCommand(a),
		newLogsCommand(a),
		newWaitCommand(a),
		newKillCommand(a),
		newEvictCommand(a),
		newFreezeCommand(a),
		newThawCommand(a),
		newInspectCommand(a),
		newExplainCommand(a),
		newInitCommand(a),
		newCapsCommand(a),
		newEpCommand(a),
		newCallsCommand(a),
		newTopCommand(a),
		newEventsCommand(a),
	}
}

// procArgument is how help texts explain PROC.
const procArgument = "PROC is a proc's id, the start of one, or a name, as sigma ps shows them."

func newWaitCommand(a *app) *cobra.Command {
	var start bool
	cmd := &cobra.Command{
		Use:   "wait [--start] PROC...",
		Short: "Wait until procs have ended, or started",
		Long: `Wait until procs have ended, print how each did, and exit with the code of the first
one (in the order given) that did not end well. With --start, wait until they have
started, and print their ids. ` + procArgument,
		Example: `  id=$(sudo sigma run -d ./job); sudo sigma wait $id`,
		Args:    cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if start {
				return a.eachProc(cmd.Context(), args, func(ctx context.Context, c *sdk.Client, id sigma.ProcID) error {
					return c.WaitStart(ctx, id)
				})
			}
			return a.wait(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVar(&start, "start", false, "wait for the start only")
	return cmd
}

type waitJSON struct {
	ID     string         `json:"id"`
	Status *report.Status `json:"status"`
}

func (a *app) wait(ctx context.Context, words []string) error {
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	ids, err := findProcs(ctx, c, words)
	if err != nil {
		return err
	}
	code, list := 0, make([]waitJSON, len(ids))
	for i, id := range ids {
		st, err := c.WaitExit(ctx, id)
		if err != nil && ctx.Err() == nil {
			return cli.WithCode(cli.ExitRun, lostSight(id, err))
		} else if err != nil {
			return err
		}
		if code == 0 {
			code = statusCode(st)
		}
		list[i] = waitJSON{string(id), report.OfStatus(st)}
		if !a.JSON {
			fmt.Fprintf(a.Out, "%s %s\n", id, endWords(st))
		}
	}
	if a.JSON {
		if err := a.PrintJSON(list); err != nil {
			return err
		}
	}
	return cli.ExitCodeOrNil(code)
}

func newKillCommand(a *app) *cobra.Command {
	var evict bool
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "kill [--evict [--grace TIME]] PROC...",
		Short: "End procs at once, or ask them to go",
		Long: `End procs and all their processes at once. With --evict they get notice (SIGTERM) and
are killed when the grace is over; "sigma evict" is the same. Returns when the procs
are told; "sigma wait" waits for their end. ` + procArgument,
		Example: `  sudo sigma kill hello
  sudo sigma kill --evict --grace 30s hello`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.end(cmd.Context(), args, evict || cmd.Flags().Changed("grace"), grace)
		},
	}
	cmd.Flags().BoolVar(&evict, "evict", false, "give notice first")
	cmd.Flags().DurationVar(&grace, "grace", 0, "`TIME` between notice and kill, such as 30s (default: the system's)")
	return cmd
}

func newEvictCommand(a *app) *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:     "evict [--grace TIME] PROC...",
		Aliases: []string{"stop"},
		Short:   "Ask procs to go, kill them after a grace",
		Long: `Give procs notice (SIGTERM, and WaitEvict for those that use the SDK) and kill them
when the grace is over. Returns when notice is given. ` + procArgument,
		Example: `  sudo sigma evict --grace 30s hello`,
		Args:    cli.Between(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.end(cmd.Context(), args, true, grace) },
	}
	cmd.Flags().DurationVar(&grace, "grace", 0, "`TIME` between notice and kill, such as 30s (default: the system's)")
	return cmd
}

func newFreezeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "freeze PROC...",
		Aliases: []string{"pause"},
		Short:   "Stop procs where they are, until thaw",
		Long: `Stop all processes of procs where they are. They keep their memory and their
connections, use no processor, and go on after "sigma thaw". A frozen proc can be
killed; the grace of "sigma evict" passes while it is frozen. One that has not started is
waited for. ` + procArgument,
		Example: `  sudo sigma freeze hello && sudo sigma thaw hello`,
		Args:    cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachProc(cmd.Context(), args, func(ctx context.Context, c *sdk.Client, id sigma.ProcID) error {
				err := c.Freeze(ctx, id)
				if sigma.KindOf(err) == sigma.KindBusy { // it has not started
					if err = c.WaitStart(ctx, id); err == nil {
						err = c.Freeze(ctx, id)
					}
				}
				return err
			})
		},
	}
}

func newThawCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "thaw PROC...",
		Aliases: []string{"unpause"},
		Short:   "Let frozen procs go on",
		Long:    `Let procs go on that "sigma freeze" stopped. It is no error if one is not frozen. ` + procArgument,
		Example: `  sudo sigma thaw hello`,
		Args:    cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachProc(cmd.Context(), args, func(ctx context.Context, c *sdk.Client, id sigma.ProcID) error {
				return c.Thaw(ctx, id)
			})
		},
	}
}

// end kills or evicts procs.
func (a *app) end(ctx context.Context, words []string, evict bool, grace time.Duration) error {
	if grace < 0 {
		return cli.UsageError(nil, "write for example: --grace 30s", "the grace is negative")
	}
	return a.eachProc(ctx, words, func(ctx context.Context, c *sdk.Client, id sigma.ProcID) error {
		if evict {
			return c.Evict(ctx, id, grace)
		}
		return c.Kill(ctx, id)
	})
}

// eachProc does something to procs. All words are understood before the first proc is touched; a
// failure does not keep it from the others.
func (a *app) eachProc(ctx context.Context, words []string, do func(context.Context, *sdk.Client,
	sigma.ProcID) error) error {
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	ids, err := findProcs(ctx, c, words)
	if err != nil {
		return err
	}
	var failed error
	done := []string{}
	for _, id := range ids {
		if err := do(ctx, c, id); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		done = append(done, string(id))
		if !a.JSON {
			fmt.Fprintln(a.Out, id)
		}
	}
	if a.JSON {
		failed = errors.Join(failed, a.PrintJSON(done))
	}
	return failed
}
