package procs

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/programs"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// initPath is where registered procs are listed.
const initPath = "/sys/init"

func newInitCommand(a *app) *cobra.Command {
	return cli.Parent("init", "Keep procs running: register, list, restart and remove them",
		`Registered procs are started again when they end, when their machine is lost, and after a
restart of the whole system. One instance of each runs at a time.`,
		newInitAddCommand(a), newInitLsCommand(a),
		&cobra.Command{Use: "rm NAME...", Short: "Let registered procs end for good",
			Long: `Remove registrations. Each proc is asked to go, and killed if it has not within 5 s; then its
registration is gone. The name may be registered again at once: the new proc is started when
the old one has ended.`, Example: "  sudo sigma init rm web", Args: cli.Between(1, -1),
			RunE: a.initEach((*sdk.Client).Unregister)},
		&cobra.Command{Use: "restart NAME...", Short: "End instances of registered procs and start others",
			Long: `Ask the procs of registrations to go, and kill those that have not within 5 s. Another is
started when each has ended; at once if none runs, also of those that have ended, given up or
wait for a pause to pass. A proc with --most N may be started N times again then.`, Example: "  sudo sigma init restart web", Args: cli.Between(1, -1),
			RunE: a.initEach((*sdk.Client).Restart)},
		cli.Listing(a.App, &cobra.Command{Use: "log NAME", Short: "Show the instances that a registered proc had",
			Long: `Show the latest 32 instances of a registered proc, oldest first: when each was spawned, how
long it was there, and how it ended.`, Example: "  sudo sigma init log web\n  sudo sigma init log --json web",
			Args: cli.Between(1, 1)}, a.initLog, func(i report.Instance) []any {
			lasted, end := time.Since(i.Begun), "-"
			if i.Ended != nil {
				lasted = i.Ended.Sub(i.Begun)
			}
			if s := i.Status; s != nil {
				end = fmt.Sprintf("%s (%d)", s.Code, s.ExitCode)
				if s.Message != "" {
					end += ": " + s.Message
				}
			}
			return []any{i.Begun.Format(time.DateTime), lasted.Round(time.Millisecond), i.Proc, end}
		}, "BEGUN", "LASTED", "PROC", "END"),
	)
}

func newInitAddCommand(a *app) *cobra.Command {
	var o runOptions
	restart, most, replace := string(sigma.RestartAlways), uint32(0), false
	cmd := &cobra.Command{
		Use: "add [--replace] [--restart POLICY] [--most N] [-e NAME=VALUE] [-m SIZE] [--profile PROFILE] [--view " +
			"ENTRY]... [--lc CORES] NAME PROGRAM [ARG...]",
		Short: "Register a proc and keep it running",
		Long: `Register a proc under NAME and keep it running. PROGRAM and the flags that say what the
proc is given mean what they mean for "sigma run".

With --restart always, the default, it is started again whenever it ends; with on-failure
unless it ended with the exit code 0. In any case it is when it was lost. The first time it
is after 0.2 s, then after twice as long each time, up to 30 s, until an instance lasts for
30 s; the time that it waits in a queue does not count. With --most N it is started N times
and not again.

With --replace it takes the place of what is registered under NAME, if anything is: that
proc is asked to go as by "sigma init rm", and the new one is started when it has ended.`,
		Example: `  sudo sigma init add web ./server --port-file /port
  sudo sigma init add --restart on-failure --most 5 migrate /bin/migrate`,
		Args: cli.Between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.initAdd(cmd.Context(), o, sigma.Registration{Name: args[0], Restart: sigma.Restart(restart),
				Most: most}, args[1:], replace)
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().StringVar(&restart, "restart", restart, "`POLICY`: always or on-failure")
	cmd.Flags().BoolVar(&replace, "replace", false, "take the place of what is registered under NAME")
	cmd.Flags().Uint32Var(&most, "most", 0, "start it `N` times at most (default: without an end)")
	return cmd
}

func newInitLsCommand(a *app) *cobra.Command {
	all := false
	cmd := cli.Listing(a.App, &cobra.Command{Use: "ls [--all]", Short: "List registered procs",
		Long: `List registered procs: running (an instance was spawned and has not ended), waiting (the next
is due soon), ended (its policy wants no more), given-up (it was started as often as --most
says), restarting (the instance was asked to go) or removing.`, Example: "  sudo sigma init ls"},
		func(ctx context.Context, _ []string) ([]report.Registration, error) { return a.registrations(ctx, all) },
		func(r report.Registration) []any {
			return []any{r.Realm, r.Name, r.State, cli.OrElse(r.Proc, "-"), r.Starts, r.Restart, term.Ago(r.Added),
				strings.Join(append([]string{r.Program}, r.Args...), " ")}
		}, "REALM", "NAME", "STATE", "PROC", "STARTS", "RESTART", "AGE", "PROGRAM")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "of all realms")
	return cmd
}

func (a *app) initAdd(ctx context.Context, o runOptions, r sigma.Registration, args []string, replace bool) error {
	if strings.HasPrefix(args[0], "-") {
		return cli.UsageError(nil, "write flags before NAME: sigma init add "+args[0]+" ... "+r.Name+
			" PROGRAM; flags of the program come after PROGRAM",
			"%.80q comes after the name %s, where the program is named", args[0], r.Name)
	}
	o.name = r.Name
	d, err := a.descriptor(o, args)
	if err != nil {
		return err
	}
	r.Descriptor = d
	if err := r.Check(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	local, err := programs.Local(args[0])
	if err != nil {
		return err
	}
	if local != nil {
		defer local.Close()
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	if r.Descriptor.Program, err = programs.Find(ctx, a.App, c, args[0], local); err != nil {
		return err
	}
	if r.Descriptor.Near, err = machineOf(ctx, c, o.near); err != nil {
		return err
	}
	add := c.Register
	if replace {
		add = c.Replace
	}
	if err := add(ctx, r); err != nil {
		return err
	}
	fmt.Fprintln(a.Out, r.Name)
	return nil
}

// initEach does something to registrations, one after another.
func (a *app) initEach(do func(*sdk.Client, context.Context, string) error) func(*cobra.Command, []string) error {
	return a.InRealm(func(ctx context.Context, c *sdk.Client, names []string) error {
		return cli.EachDone(a.App, names, func(n string) error { return sigma.Wrap("sigma.init", n, do(c, ctx, n)) })
	})
}

// registrations reads those of the realm, or of all.
func (a *app) registrations(ctx context.Context, all bool) ([]report.Registration, error) {
	realm := sigma.RealmID(a.Realm)
	if all {
		realm = sigma.SystemRealm
	}
	c, err := a.ClientOf(ctx, realm)
	if err != nil {
		return nil, err
	}
	return cli.Lines[report.Registration](ctx, c, initPath)
}

func (a *app) initLog(ctx context.Context, args []string) ([]report.Instance, error) {
	rs, err := a.registrations(ctx, false)
	for _, r := range rs {
		if r.Name == args[0] {
			return r.History, nil
		}
	}
	return nil, cmp.Or(err, error(&sigma.Error{Op: "sigma.initLog", Kind: sigma.KindNotFound,
		Msg: fmt.Sprintf("no registered proc %.64q", args[0]), Hint: "sigma init ls lists them"}))
}
