package members

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func newMachineLabelCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "label MACHINE NAME=VALUE... | NAME-...",
		Short: "Set and take away labels of a machine",
		Long: `Set labels of a machine, and take away those written with a - at the end. Labels say in
which failure domains a machine is, such as zone=a or rack=7, or what it has. A name and
a value are 1 to 63 of a-z, A-Z, 0-9, '.', '_' and '-'; a machine has at most 16.`,
		Example: `  sudo sigma machine label m2 zone=a rack=7
  sudo sigma machine label m2 rack-`,
		Args: cli.Between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.machineLabel(cmd.Context(), args[0], args[1:]) },
	}
}

func (a *app) machineLabel(ctx context.Context, name string, words []string) error {
	labels := make([]string, len(words))
	for i, w := range words {
		key, value, set := strings.Cut(w, "=")
		bare, drop := strings.CutSuffix(w, "-")
		switch {
		case set && key != "" && value != "":
			labels[i] = w
		case !set && drop && bare != "":
			labels[i] = bare + "="
		default:
			return cli.UsageError(nil, "set one with NAME=VALUE, take one away with NAME-", "%.80q is no label", w)
		}
	}
	return a.changeMachines(ctx, []string{name}, func(m *Connection, id sigma.MachineID) error {
		return m.Label(ctx, id, labels)
	})
}

// changeMachines changes machines one after the other and prints their names.
func (a *app) changeMachines(ctx context.Context, names []string,
	change func(m *Connection, id sigma.MachineID) error) error {
	m, err := Open(ctx, a.App)
	if err != nil {
		return err
	}
	if _, err := m.find(ctx, names...); err != nil { // all are looked at before one is changed
		return err
	}
	return cli.EachDone(a.App, names, func(n string) error { return change(m, sigma.MachineID(n)) })
}

func newMachineCordonCommand(a *app, on bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cordon MACHINE...",
		Short: "Keep new procs away from machines",
		Long: `Keep new procs away from machines. Procs that run there go on. A machine gets none any more
when the command has ended, unless it says that the machine does not answer.`,
		Example: `  sudo sigma machine cordon m2
  sudo sigma machine uncordon m2`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeMachines(cmd.Context(), args, func(m *Connection, id sigma.MachineID) error {
				acts, err := m.Cordon(cmd.Context(), id, on)
				if err == nil && !acts {
					a.Remark("machine %s does not answer: it does so as soon as it hears of it", id)
				}
				return err
			})
		},
	}
	if !on {
		cmd.Use, cmd.Short, cmd.Long = "uncordon MACHINE...", "Let machines have new procs again",
			"Let machines that were cordoned or drained have new procs again."
		cmd.Example = "  sudo sigma machine uncordon m2"
	}
	return cmd
}

func newMachineDrainCommand(a *app) *cobra.Command {
	detach, timeout := false, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "drain [--detach] [--timeout TIME] MACHINE...",
		Short: "Ask the procs of machines to go, and keep new ones away",
		Long: `Keep new procs away from machines and ask those that run there to go, then wait until no
proc runs there. A proc that is not gone after its grace is killed. Procs that end are
not started elsewhere by sigmaOS: that is up to who spawned them; procs that were still
queued run on other machines.

A machine that was drained stays as it is until sigma machine uncordon, or can be
removed with sigma machine rm. ^C ends the waiting, not the draining.`,
		Example: `  sudo sigma machine drain m2 && sudo sigma machine rm m2`,
		Args:    cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.machineDrain(cmd.Context(), args, detach, timeout)
		},
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait")
	cmd.Flags().DurationVar(&timeout, "timeout", 0,
		"fail if procs still run after `TIME` (default: wait as long as it takes)")
	return cmd
}

// drainEvery is how often it is looked what still runs.
const drainEvery = 200 * time.Millisecond

func (a *app) machineDrain(ctx context.Context, names []string, detach bool, timeout time.Duration) error {
	m, err := Open(ctx, a.App)
	if err != nil {
		return err
	}
	if _, err := m.find(ctx, names...); err != nil {
		return err
	}
	for _, n := range names {
		if err := m.Drain(ctx, sigma.MachineID(n)); err != nil {
			return err
		}
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return cli.EachDone(a.App, names, func(n string) error {
		if detach {
			return nil
		}
		return a.awaitDrained(ctx, m, sigma.MachineID(n))
	})
}

// awaitDrained waits until no proc runs on a machine, and shows how many have gone.
func (a *app) awaitDrained(ctx context.Context, m *Connection, id sigma.MachineID) error {
	var bar term.Progress
	first := 0
	for {
		now, err := m.find(ctx, string(id))
		switch {
		case err != nil:
			return err
		case now[0].State == sigma.MachineLost:
			a.Remark("machine %s is lost, and its procs with it", id)
			return nil
		case !now[0].Draining:
			return &sigma.Error{Op: "sigma.machineDrain", Kind: sigma.KindStale,
				Msg: fmt.Sprintf("machine %s is not being drained any more", id), Hint: "somebody has uncordoned it"}
		}
		n, err := a.procsOn(ctx, m.Realm, id)
		if err != nil {
			return a.drainError(ctx, err, id, n)
		}
		if bar == nil {
			first = n
			bar = a.Progress(fmt.Sprintf("draining %s: procs gone", id), int64(first))
			defer func() { bar.Done() }()
		}
		bar.Set(int64(max(first-n, 0)))
		if n == 0 {
			return nil
		}
		if err := datadir.Pause(ctx, drainEvery); err != nil {
			return a.drainError(ctx, err, id, n)
		}
	}
}

func (a *app) drainError(ctx context.Context, err error, id sigma.MachineID, left int) error {
	if ctx.Err() == context.DeadlineExceeded {
		return &sigma.Error{Op: "sigma.machineDrain", Kind: sigma.KindTimeout,
			Msg:  fmt.Sprintf("%s still run on machine %s, which goes on draining", cli.Count(left, "proc"), id),
			Hint: "wait on with the same command, or end it with: sigma machine uncordon " + string(id)}
	}
	return err
}

// procsOn counts the procs of all realms that have been given to a machine and have not ended.
func (a *app) procsOn(ctx context.Context, system *sdk.Client, id sigma.MachineID) (n int, err error) {
	realms, err := system.Realms().List(ctx)
	if err != nil {
		return 0, err
	}
	for _, r := range realms {
		var procs []sigma.ProcInfo
		c, err := a.ClientOf(ctx, r.ID)
		if err == nil {
			procs, err = c.List(ctx, false)
		}
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound { // it may have been removed meanwhile
			return 0, err
		}
		for _, p := range procs {
			if p.Machine == id && (p.State == sigma.ProcStarting || p.State == sigma.ProcRunning) {
				n++
			}
		}
	}
	return n, nil
}

func newMachineRmCommand(a *app) *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use:   "rm [--force] MACHINE...",
		Short: "Remove machines from the system",
		Long: `Remove machines from the system: their links end, their certificates are refused from
then on, and their names are free. A machine that is alive and was not drained is only
removed with --force, which loses its procs. One that holds a part of the control plane
must give it up first: sigma machine control MACHINE off.

To take a machine in again, make a token and join with a fresh DATA.`,
		Example: `  sudo sigma machine drain m2 && sudo sigma machine rm m2
  sudo sigma machine rm --force m3`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeMachines(cmd.Context(), args, func(m *Connection, id sigma.MachineID) error {
				return m.Remove(cmd.Context(), id, force)
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also if procs may run there: lose them")
	return cmd
}

func newMachineControlCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "control MACHINE on|off",
		Short: "Make a machine hold a part of the control plane, or no longer",
		Long: `Make a machine hold a part of the control plane, or give its part up. A system has 1, 3
or 5 control machines: with 3, the loss of one goes unnoticed, with 5 that of two. With
an even number the system bears no loss more than with one less.

A machine that joins with sigma join --control takes its part by itself, and no other
machine has the programs for it. A machine whose part was taken away, because it is lost
or is to go, can be removed then.`,
		Example: `  sudo sigma machine control m2 off && sudo sigma machine rm m2`,
		Args:    cli.Between(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] != "on" && args[1] != "off" {
				return cli.UsageError(cmd, "write on or off", "machine control: %.20q is neither on nor off", args[1])
			}
			return a.changeMachines(cmd.Context(), args[:1], func(m *Connection, id sigma.MachineID) error {
				return m.Control(cmd.Context(), id, args[1] == "on")
			})
		},
	}
}
