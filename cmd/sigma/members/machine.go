// Package members shows and changes which machines a system has: labels, cordons, drains, removal,
// who holds the control plane, and the tokens by which machines join.
package members

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newTokenCommand(a),
		newMachineCommand(a),
	}
}

// Connection is a connection to what decides about machines.
type Connection struct {
	*machines.Client
	Self   sigma.MachineID
	Realm  *sdk.Client // the system's
	served sigma.Caller
}

// Open connects to /sys/machines, until the command ends.
func Open(ctx context.Context, a *cli.App) (*Connection, error) {
	c, err := a.ClientOf(ctx, sigma.SystemRealm)
	if err != nil {
		return nil, err
	}
	s, err := cli.ServiceOf(ctx, c, sigmap.FileMachines)
	if err != nil {
		return nil, err
	}
	return &Connection{machines.NewClient(s), c.Info().Principal.Machine, c, s}, nil
}

func newMachineCommand(a *app) *cobra.Command {
	return cli.Parent("machine", "List, label, drain and remove machines of the system",
		`The machines of a system share one tree of names and one queue of procs. A machine
joins with sigma join, and is known by its name from then on.`,
		newMachineLsCommand(a), newMachineInspectCommand(a), newMachineLabelCommand(a),
		newMachineCordonCommand(a, true), newMachineCordonCommand(a, false),
		newMachineDrainCommand(a), newMachineRmCommand(a), newMachineControlCommand(a))
}

func newMachineLsCommand(a *app) *cobra.Command {
	var quiet, watch bool
	cmd := &cobra.Command{
		Use:   "ls [-q] [-w]",
		Short: "List the machines of the system",
		Long: `List the machines of the system. STATE is

  alive     it is heard
  suspect   it has not been heard for a while; it still counts as alive
  lost      it was given up: its procs are lost, and it must register again

and says also whether it gets new procs: not while it is cordoned or draining. CONTROL
says whether it holds a part of the control plane. * marks this machine.`,
		Example: `  sudo sigma machine ls
  sudo sigma machine ls --json | jq -r '.[] | select(.state == "lost") | .name'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.machineLs(cmd.Context(), quiet, watch) },
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print the list again whenever it changes, until ^C")
	return cmd
}

// watchEvery is how often a watched list is looked at.
const watchEvery = 500 * time.Millisecond

func (a *app) machineLs(ctx context.Context, quiet, watch bool) error {
	m, err := Open(ctx, a.App)
	if err != nil {
		return err
	}
	before := ""
	for {
		all, err := m.List(ctx)
		if err != nil {
			return err
		}
		var text strings.Builder
		if err := a.printMachines(&text, all, m.Self, quiet); err != nil {
			return err
		}
		if now := text.String(); now != before {
			if before != "" {
				fmt.Fprintln(a.Out)
			}
			if _, err := fmt.Fprint(a.Out, now); err != nil {
				return err
			}
			before = now
		}
		if !watch {
			return nil
		}
		if datadir.Pause(ctx, watchEvery) != nil {
			return cli.ExitCode(cli.ExitInterrupted)
		}
	}
}

func (a *app) printMachines(out *strings.Builder, all []sigma.MachineInfo, self sigma.MachineID, quiet bool) error {
	if a.JSON {
		return cli.WriteJSON(out, cli.Mapped(all, func(m sigma.MachineInfo) report.Machine {
			return report.OfMachine(m, self)
		}))
	}
	if quiet {
		for _, m := range all {
			fmt.Fprintln(out, m.ID)
		}
		return nil
	}
	t := term.NewTable(out)
	t.Row("MACHINE", "STATE", "CONTROL", "CPU", "MEMORY", "ADDRESS", "VERSION", "LABELS")
	for _, m := range all {
		name := string(m.ID)
		if m.ID == self {
			name += "*"
		}
		t.Row(name, machineState(m), yesNo(m.Control), cores(m.CPU), m.Memory, cli.OrElse(m.Address, "-"),
			cli.OrElse(m.Version, "-"), cli.OrElse(strings.Join(labelWords(m.Labels), " "), "-"))
	}
	return t.Print()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func cores(c sigma.MilliCPU) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", float64(c)/1000), "0"), ".")
}

// machineState is a state with what else keeps procs away.
func machineState(m sigma.MachineInfo) string {
	s := m.State.String()
	switch {
	case m.Draining:
		s += ",draining"
	case m.Cordoned:
		s += ",cordoned"
	}
	return s
}

func labelWords(labels map[string]string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, name+"="+labels[name])
	}
	return out
}

// find gives the machines that words name, all of them or an error.
func (m *Connection) find(ctx context.Context, words ...string) ([]sigma.MachineInfo, error) {
	all, err := m.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]sigma.MachineInfo, len(words))
	for i, w := range words {
		at := slices.IndexFunc(all, func(m sigma.MachineInfo) bool { return string(m.ID) == w })
		if at < 0 {
			return nil, NotThere(w)
		}
		out[i] = all[at]
	}
	return out, nil
}

func newMachineInspectCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect MACHINE...",
		Short: "Show all that is known about machines",
		Long: `Show all that is known about machines: where they are, what they offer, their labels,
in which life they are and when they were heard last.`,
		Example: `  sudo sigma machine inspect m2
  sudo sigma machine inspect --json m2`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.machineInspect(cmd.Context(), args) },
	}
}

func (a *app) machineInspect(ctx context.Context, words []string) error {
	m, err := Open(ctx, a.App)
	if err != nil {
		return err
	}
	found, err := m.find(ctx, words...)
	if err != nil {
		return err
	}
	if a.JSON {
		var text strings.Builder
		if err := a.printMachines(&text, found, m.Self, false); err != nil {
			return err
		}
		_, err := fmt.Fprint(a.Out, text.String())
		return err
	}
	for i, f := range found {
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		if err := a.printMachine(f); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printMachine(m sigma.MachineInfo) error {
	t := term.NewTable(a.Out)
	t.Pairs("name", m.ID, "state", machineState(m), "address", cli.OrElse(m.Address, "none: others cannot reach it"),
		"control", yesNo(m.Control), "cpu", cores(m.CPU), "memory", m.Memory)
	term.RowsOf(t, "label", labelWords(m.Labels))
	t.Pairs("version", cli.OrElse(m.Version, "-"), "incarnation", uint64(m.Incarnation))
	if m.Fence != 0 {
		t.Row("fence", uint64(m.Fence))
	}
	heard := term.Ago(m.Heard)
	if heard != "-" {
		heard += " ago"
	}
	t.Pairs("joined", m.Joined.UTC().Format(time.RFC3339), "heard", heard)
	return t.Print()
}

func NotThere(name string) error {
	return &sigma.Error{Op: "sigma.machine", Kind: sigma.KindNotFound, Msg: fmt.Sprintf("there is no machine %.80q",
		name), Hint: "list machines with: sigma machine ls"}
}

// Membership asks this machine's sigmad.
func (m *Connection) Membership(ctx context.Context) (machines.Membership, error) {
	return machines.CallMembership.Ask(ctx, m.served, sigmap.None{})
}
