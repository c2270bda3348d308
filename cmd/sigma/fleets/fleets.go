// Package fleets are the commands of services: sigma fleet (docs/reference/fleet.md). What they do
// they do by calls of the coordinator, which any program may make.
package fleets

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/lib/fleet/sim"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// exitChanges is the code of a plan that has changes; one that has none ends with 0, one that
// failed with 255, as people know it from other tools.
const (
	exitChanges    = 1
	exitPlanFailed = 255
)

// Host is what the commands need of others.
type Host struct {
	// Store stores the program that a word of the command line names, if it is a local file, and
	// gives its path in the realm; with plan it only says what that would be.
	Store func(ctx context.Context, c *sdk.Client, word string, plan bool) (path string, err error)
	// Beside stores a program that lies beside sigma.
	Beside func(ctx context.Context, c *sdk.Client, name string) (path string, err error)
	// Log copies a stream of a proc, from its last lines on (-1 = all), until ended is closed.
	Log func(ctx context.Context, c *sdk.Client, id sigma.ProcID, stream string, lines int, to io.Writer,
		ended <-chan struct{}) error
}

// app gives the commands of this package what all commands share.
type app struct {
	*cli.App
	host Host
}

// Command is sigma fleet.
func Command(base *cli.App, host Host) *cobra.Command {
	a := &app{base, host}
	return cli.Parent("fleet", "Services: fleets of procs that grow, shrink, roll and explain themselves",
		`A fleet is a service of many procs, its members, that clients dial by one path,
/fleet/NAME/members. A description says how many there may be, how busy they should be, and
how a new version takes the place of the old one (docs/reference/fleet.md). A coordinator, which
is a proc of the realm that initd keeps, starts and ends members accordingly. "apply" starts it.`,
		newFleetPlanCommand(a), newFleetApplyCommand(a),
		&cobra.Command{
			Use: "ls", Short: "List the realm's fleets",
			Long:    "List the realm's fleets: how many members are wanted and serve, and how busy they are.",
			Example: "  sudo sigma fleet ls",
			RunE:    a.verb(a.fleetLs)},
		&cobra.Command{
			Use: "status NAME", Short: "Show a fleet and its members",
			Args: cli.Between(1, 1),
			Long: `Show a fleet and its members: wanted, starting, ready or draining, how busy each is (the share
of the last time in which it served), and how many requests a second it serves.`,
			Example: "  sudo sigma fleet status web",
			RunE: a.verb(func(ctx context.Context, c *fleet.Client, args []string) error {
				s, err := c.Status(ctx, args[0])
				if err != nil {
					return err
				}
				return a.showFleet(s)
			})},
		newFleetWatchCommand(a), newFleetLogsCommand(a), newFleetScaleCommand(a), newFleetPolicyCommand(a),
		a.fleetChange("roll NAME", "Replace all members by new ones", `Replace all members of a fleet by new ones of the same description, as a change of its program
would: for a program that was stored anew under the same path.`, (*fleet.Client).Roll),
		a.fleetChange("undo NAME", "Go back to the description before", `Go back: to the revision that is being replaced, while members are, else to the description that
was in force before.`, (*fleet.Client).Undo),
		cli.Listing(a.App, &cobra.Command{
			Use: "history NAME", Short: "List what was in force",
			Args:    cli.Between(1, 1),
			Long:    "List the descriptions of a fleet that were in force, oldest first: who set them and what it was.",
			Example: "  sudo sigma fleet history web",
		}, func(ctx context.Context, args []string) (rs []fleet.Record, err error) {
			err = a.withFleets(ctx, func(ctx context.Context, c *fleet.Client) error {
				rs, err = c.History(ctx, args[0])
				return err
			})
			return rs, err
		}, func(r fleet.Record) []any {
			return []any{r.Generation, r.Revision, r.At.Format(time.DateTime), cli.OrElse(r.By, "-"), r.What}
		}, "GENERATION", "REVISION", "TIME", "BY", "WHAT"),
		newFleetExplainCommand(a),
		&cobra.Command{
			Use: "rm NAME...", Short: "Remove fleets",
			Args: cli.Between(1, -1),
			Long: `Remove fleets. Their members are asked to go and have their grace; then what there is of
the fleet goes. It does not wait for that.`,
			Example: "  sudo sigma fleet rm web",
			RunE: a.verb(func(ctx context.Context, c *fleet.Client, args []string) error {
				return cli.EachDone(a.App, args, func(name string) error { return c.Remove(ctx, name) })
			})})
}

func newFleetPlanCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "plan FILE", Short: "Tell what apply would change",
		Args: cli.Between(1, 1),
		Long: `Tell what "apply" of a description would change, and change nothing. The exit code is 0 if that
is nothing, 1 if there are changes, and 255 if it could not be found out. FILE - is the standard input.`,
		Example: "  sudo sigma fleet plan web.toml",
		RunE: func(cmd *cobra.Command, args []string) error {
			reply, err := a.fleetApply(cmd.Context(), args[0], true)
			if err != nil {
				a.PrintError(err)
				return cli.ExitCode(exitPlanFailed)
			}
			if err := a.showPlan(reply, "would be "); err != nil {
				return err
			}
			if len(reply.Changes) > 0 {
				return cli.ExitCode(exitChanges)
			}
			return nil
		}}
}

func newFleetApplyCommand(a *app) *cobra.Command {
	wait := time.Duration(0)
	cmd := &cobra.Command{
		Use: "apply [--wait TIME] FILE", Short: "Put a description of a fleet in force",
		Args: cli.Between(1, 1),
		Long: `Put a description in force: make the fleet, or change it. What is in force already changes
nothing. If members have to be replaced, they are while others serve (keys of [update]). The first apply in a
realm stores fleetd, which must lie beside sigma, and has initd keep it. FILE is TOML, or JSON if its
name ends in .json; - is the standard input. A program that is a local file is stored first.

With --wait it returns when the members are as many as wanted and of the new description, and fails if that takes
longer, or if the change was undone because new members fail.`,
		Example: "  sudo sigma fleet apply web.toml\n  sudo sigma fleet apply --wait 30s web.toml",
		RunE: func(cmd *cobra.Command, args []string) error {
			reply, err := a.fleetApply(cmd.Context(), args[0], false)
			if err != nil {
				return err
			}
			if err := a.showPlan(reply, ""); err != nil || wait == 0 {
				return err
			}
			return a.withFleets(cmd.Context(), func(ctx context.Context, c *fleet.Client) error {
				return awaitFleet(ctx, c, reply.Record, wait)
			})
		}}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait for `TIME` at most until the members are as described")
	return cmd
}

// withFleets connects to the realm and its coordinator.
func (a *app) withFleets(ctx context.Context, do func(context.Context, *fleet.Client) error) error {
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	if _, err := c.Lstat(ctx, fleet.Root); err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return &sigma.Error{Op: "sigma.fleet", Kind: sigma.KindNotFound, Msg: "this realm has no fleets",
			Hint: "sigma fleet apply FILE makes one"}
	}
	fleets := fleet.NewClient(c)
	defer fleets.Close()
	within, cancel := context.WithTimeout(ctx, coordinatorMax)
	defer cancel()
	if _, err := fleets.List(within); err != nil { // so that what is waited for is the coordinator alone
		return err
	}
	return do(ctx, fleets)
}

// verb makes a command of what works with the coordinator.
func (a *app) verb(do func(context.Context, *fleet.Client, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.withFleets(cmd.Context(), func(ctx context.Context, c *fleet.Client) error { return do(ctx, c, args) })
	}
}

// change changes a fleet and shows what is in force then.
func (a *app) change(ctx context.Context, do func(context.Context, *fleet.Client) (fleet.Record, error)) error {
	return a.withFleets(ctx, func(ctx context.Context, c *fleet.Client) error {
		r, err := do(ctx, c)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(r)
		}
		fmt.Fprintf(a.Out, "%s: generation %d, revision %d: %s\n", r.Spec.Name, r.Generation, r.Revision, r.What)
		return nil
	})
}

// coordinatorMax is how long a coordinator may take to lead, after the death of another.
const coordinatorMax = 15 * time.Second

// fleetApply reads a description and has it applied, or only planned.
func (a *app) fleetApply(ctx context.Context, file string, plan bool) (reply fleet.ApplyReply, err error) {
	spec, err := readSpec(a.In, file)
	if err != nil {
		return reply, err
	}
	c, err := a.Client(ctx)
	if err != nil {
		return reply, err
	}
	if spec.Program != "" {
		if spec.Program, err = a.host.Store(ctx, c, spec.Program, plan); err != nil {
			return reply, err
		}
	}
	if err := spec.Check(); err != nil {
		return reply, cli.WithCode(cli.ExitUsage, sigma.Wrap("sigma.fleet", file, err))
	}
	if plan {
		if _, err := c.Lstat(ctx, fleet.Leader); err != nil && sigma.KindOf(err) == sigma.KindNotFound {
			return fleet.ApplyReply{Record: fleet.Record{Spec: spec}, Made: true,
				Changes: fleet.Changes(nil, &spec)}, nil
		}
	} else if err := a.startFleetd(ctx, c); err != nil {
		return reply, err
	}
	fleets := fleet.NewClient(c)
	defer fleets.Close()
	ctx, cancel := context.WithTimeout(ctx, coordinatorMax)
	defer cancel()
	return fleets.Apply(ctx, fleet.ApplyArg{Spec: spec, Plan: plan})
}

// readSpec reads a description, of which nothing but the form is checked.
func readSpec(in io.Reader, file string) (s fleet.Spec, err error) {
	text, err := []byte(nil), error(nil)
	if file == "-" {
		text, err = io.ReadAll(io.LimitReader(in, fleet.SpecMax+1))
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return s, sigma.Wrap("sigma.fleet", file, err)
	}
	if !strings.HasSuffix(file, ".json") && !strings.HasPrefix(strings.TrimSpace(string(text)), "{") {
		var table map[string]any
		if _, err := toml.Decode(string(text), &table); err != nil {
			return s, cli.WithCode(cli.ExitUsage, &sigma.Error{Op: "sigma.fleet", Path: file, Kind: sigma.KindInvalid,
				Msg: strings.TrimPrefix(err.Error(), "toml: "), Hint: "docs/reference/fleet.md shows a description"})
		}
		if text, err = json.Marshal(table); err != nil {
			return s, err
		}
	}
	if s, err = fleet.DecodeSpec(text); err != nil {
		return s, cli.WithCode(cli.ExitUsage, sigma.Wrap("sigma.fleet", file, err))
	}
	return s, nil
}

// fleetdName is under which the coordinator is registered.
const fleetdName = "fleetd"

// startFleetd has initd keep a coordinator, if it does not yet.
func (a *app) startFleetd(ctx context.Context, c *sdk.Client) error {
	if _, err := c.Lstat(ctx, fleet.Leader); err == nil {
		return nil
	}
	program, err := a.host.Beside(ctx, c, fleetdName)
	if err != nil {
		return err
	}
	err = c.Register(ctx, sigma.Registration{Name: fleetdName, Descriptor: sigma.Descriptor{Program: program,
		Name: fleetdName, Memory: 256 * sigma.MiB, Start: sigma.StartedByCall}})
	if sigma.KindOf(err) == sigma.KindExists {
		return nil
	}
	return err
}

// showPlan prints what changed.
func (a *app) showPlan(r fleet.ApplyReply, would string) error {
	if a.JSON {
		return a.PrintJSON(r)
	}
	name := r.Record.Spec.Name
	switch {
	case len(r.Changes) == 0:
		fmt.Fprintf(a.Out, "%s is as described\n", name)
		return nil
	case r.Made:
		fmt.Fprintf(a.Out, "%s %smade, with %d to %d members\n", name, would, r.Record.Spec.Least, r.Record.Spec.Most)
	case r.Rolls:
		fmt.Fprintf(a.Out, "%s %schanged, and its members %sreplaced\n", name, would, would)
	default:
		fmt.Fprintf(a.Out, "%s %schanged; its members stay\n", name, would)
	}
	for _, c := range r.Changes {
		switch {
		case c.Old == "":
			fmt.Fprintf(a.Out, "  + %s = %s\n", c.Key, c.New)
		case c.New == "":
			fmt.Fprintf(a.Out, "  - %s = %s\n", c.Key, c.Old)
		default:
			fmt.Fprintf(a.Out, "  ~ %s = %s (was %s)\n", c.Key, c.New, c.Old)
		}
	}
	return nil
}

// awaitFleet waits until a fleet is as a record says.
func awaitFleet(ctx context.Context, c *fleet.Client, r fleet.Record, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	name := r.Spec.Name
	var s fleet.Status
	for {
		var err error
		if s, err = c.Status(ctx, name); err != nil {
			return err
		}
		if s.Generation > r.Generation && s.Revision < r.Revision {
			return &sigma.Error{Op: "sigma.fleet", Path: fleet.Dir(name), Kind: sigma.KindInvalid,
				Msg: "the change was undone", Hint: "sigma fleet explain " + name + " tells why"}
		}
		if s.Phase == "steady" && s.Ready >= s.Want && s.Ready >= s.Least && s.Starting == 0 {
			return nil
		}
		if datadir.Pause(ctx, 100*time.Millisecond) != nil {
			return &sigma.Error{Op: "sigma.fleet", Path: fleet.Dir(name), Kind: sigma.KindTimeout,
				Msg:  fmt.Sprintf("%d of %d members serve after %v (%s)", s.Ready, s.Want, wait, s.Phase),
				Hint: "sigma fleet explain " + name + " tells why"}
		}
	}
}

// fleetChange is a command that changes the fleet of a name.
func (a *app) fleetChange(use, short, long string, do func(*fleet.Client, context.Context, string) (fleet.Record,
	error)) *cobra.Command {
	verb, _, _ := strings.Cut(use, " ")
	return &cobra.Command{
		Use: use, Short: short, Long: long, Example: "  sudo sigma fleet " + verb + " web",
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.change(cmd.Context(), func(ctx context.Context, c *fleet.Client) (fleet.Record, error) {
				return do(c, ctx, args[0])
			})
		}}
}

func newFleetScaleCommand(a *app) *cobra.Command {
	var least, most int
	cmd := &cobra.Command{
		Use: "scale NAME [--least N] [--most N]", Short: "Set how many members a fleet has",
		Args:    cli.Between(1, 1),
		Long:    "Set the bounds of a fleet's size. Between them the load decides. --least above most raises both.",
		Example: "  sudo sigma fleet scale web --least 2 --most 16",
		RunE: func(cmd *cobra.Command, args []string) error {
			arg := fleet.ScaleArg{Name: args[0]}
			if cmd.Flags().Changed("least") {
				arg.Least = &least
			}
			if cmd.Flags().Changed("most") {
				arg.Most = &most
			}
			if arg.Least == nil && arg.Most == nil {
				return cli.UsageError(cmd, "", "give --least, --most or both")
			}
			return a.change(cmd.Context(), func(ctx context.Context, c *fleet.Client) (fleet.Record, error) {
				return c.Scale(ctx, arg)
			})
		}}
	cmd.Flags().IntVar(&least, "least", 0, "`N` members at least")
	cmd.Flags().IntVar(&most, "most", 0, "`N` members at most")
	return cmd
}

func newFleetPolicyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "policy NAME CHOICE [MEMBER=WEIGHT...]", Short: "Set how clients choose a member",
		Args: cli.Between(2, -1),
		Long: `Set how clients choose a member: turn, random, two-choices (of two members the one to which the
client has fewer connections), least, local (on the client's machine, if there is one), hash (by a key
that the client gives) or weights. Clients follow within 20 ms.`,
		Example: "  sudo sigma fleet policy web two-choices",
		RunE: func(cmd *cobra.Command, args []string) error {
			p := sdk.Policy{Choice: args[1]}
			for _, w := range args[2:] {
				name, text, _ := strings.Cut(w, "=")
				var n uint32
				if _, err := fmt.Sscanf(text, "%d", &n); err != nil || name == "" {
					return cli.UsageError(cmd, "", "%.80q is no MEMBER=WEIGHT", w)
				}
				if p.Weights == nil {
					p.Weights = map[string]uint32{}
				}
				p.Weights[name] = n
			}
			if err := p.Check(); err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			return a.change(cmd.Context(), func(ctx context.Context, c *fleet.Client) (fleet.Record, error) {
				return c.SetPolicy(ctx, args[0], p)
			})
		}}
}

// Simulate runs a script of a fleet in virtual time and prints what the coordinator decides.
func Simulate(out io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return sigma.Wrap("sigma.sim", file, err)
	}
	defer f.Close()
	return cli.WithCode(cli.ExitUsage, sigma.Wrap("sigma.sim", file, sim.RunScript(f, out)))
}
