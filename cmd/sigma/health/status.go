// Package health tells how this machine and the system on it are: what runs (status), and what is
// missing, weak or down, with advice (doctor). Each finds a part by asking it, within a bounded
// time.
package health

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newStatusCommand(a),
		newDoctorCommand(a),
	}
}

type StatusJSON struct {
	Running  bool            `json:"running"`
	Data     string          `json:"data"`
	PID      int             `json:"pid,omitempty"` // of the keeper, the parent of everything
	Machine  sigma.MachineID `json:"machine,omitempty"`
	Version  string          `json:"version,omitempty"`
	Services []serviceJSON   `json:"services"`
	Member   *membership     `json:"membership,omitempty"`
	Down     []finding       `json:"down"` // as sigma doctor says it
}

type serviceJSON struct {
	Name     string       `json:"name"`
	State    string       `json:"state"`
	Since    time.Time    `json:"since"`
	Restarts uint32       `json:"restarts"`
	Proc     sigma.ProcID `json:"proc,omitempty"`
}

// membership is this machine's place in its system, as this machine knows it.
type membership struct {
	machines.Membership
	Quorum bool `json:"quorum"`
}

func newStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs of the system on this machine",
		Long: `Show the system on this machine: its version, its machine name, how it stands with the
other machines of its system, how long its certificate is good, its services, and what
of the system does not answer. The exit code is 1 if no system is running, or if its
sigmad does not answer within 1.2 s; of what else is wrong sigma doctor has an exit code.`,
		Example: `  sudo sigma status
  sudo sigma status --json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd.Context()) },
	}
}

func (a *app) status(ctx context.Context) error {
	st := StatusJSON{Services: []serviceJSON{}, Down: []finding{}}
	if a.Addr == "" { // the socket of another place says nothing about our DATA
		dir, err := a.DataDir()
		if err != nil {
			return err
		}
		st.Data = dir
		if st.PID, st.Running, err = datadir.Running(dir); err != nil {
			return err
		}
		if !st.Running {
			if a.JSON {
				return withCodeOnly(cli.ExitFailure, a.PrintJSON(st))
			}
			return datadir.NotRunning(dir)
		}
	}
	p := a.askParts(ctx)
	if p.err != nil && (a.Addr != "" || len(p.down()) == 0) { // nobody knows that it runs, or it answered and refused
		return p.err
	}
	st.Running, st.Machine, st.Version, st.Down = true, p.machine, p.version, p.down()
	if p.member.System != "" {
		p.member.Expiries = append([]identity.Expiry{}, p.member.Expiries...) // [] if there are none
		st.Member = &membership{p.member, p.member.Quorum()}
	}
	if p.err != nil {
		p.services = []sigmap.Service{{Name: "sigmad", State: "silent"}}
	}
	st.Services = cli.Mapped(p.services, func(s sigmap.Service) serviceJSON {
		return serviceJSON{s.Name, s.State, s.Since, s.Restarts, s.Proc}
	})
	if a.JSON {
		if p.err != nil {
			return withCodeOnly(cli.ExitFailure, a.PrintJSON(st))
		}
		return a.PrintJSON(st)
	}
	at := cli.OrElse(st.Data, a.Socket())
	if p.err != nil {
		return &sigma.Error{Op: "sigma.status", Kind: sigma.KindUnavailable,
			Msg:  fmt.Sprintf("sigmaOS runs on %s, and its sigmad does not answer: %s", at, st.Down[0].Found),
			Hint: st.Down[0].Advice}
	}
	fmt.Fprintf(a.Out, "sigmaOS %s is running as machine %s on %s\n", st.Version, st.Machine, at)
	a.printMembership(p.member)
	t := a.Table("SERVICE", "STATE", "SINCE", "RESTARTS")
	for _, s := range st.Services {
		t.Row(s.Name, s.State, term.Ago(s.Since), s.Restarts)
	}
	if err := t.Print(); err != nil || len(st.Down) == 0 {
		return err
	}
	fmt.Fprintln(a.Out)
	return a.printFindings(st.Down)
}

// withCodeOnly is for an outcome that was told as an answer and still is a failure.
func withCodeOnly(code int, err error) error {
	if err != nil {
		return err
	}
	return cli.ExitCode(code)
}

// printMembership says in two lines or three how this machine stands with its system.
func (a *app) printMembership(m machines.Membership) {
	if m.System == "" {
		fmt.Fprintf(a.Out, "it is not registered with a system yet\n\n")
		return
	}
	fmt.Fprintf(a.Out, "system %s: %d of %s alive, %s\n", m.System, m.Alive, cli.Count(int(m.Machines), "machine"),
		quorumWords(m))
	for _, e := range m.Expiries {
		warning := ""
		if e.Warn {
			warning = " (it should have been renewed: sigma doctor)"
		}
		fmt.Fprintf(a.Out, "%s good for %s%s\n", e.What, left(e.At), warning)
	}
	fmt.Fprintln(a.Out)
}

func quorumWords(m machines.Membership) string {
	words := fmt.Sprintf("%d of %s", m.Voting, cli.Count(int(m.Controls), "control machine"))
	if m.Silent > 0 {
		words += fmt.Sprintf(", %d silent", m.Silent)
	}
	if !m.Quorum() {
		words += ": no quorum"
	}
	return words
}

// left is the time until at.
func left(at time.Time) string {
	if d := time.Until(at); d > 0 {
		return term.Short(d)
	}
	return "no time, since " + at.UTC().Format(time.RFC3339)
}

// memberWords judges a membership.
func memberWords(m machines.Membership, self sigma.MachineID) (out []finding) {
	if m.System == "" {
		return []finding{weak("membership", "machine "+string(self)+" is not registered with a system",
			"it tries by itself; why it does not succeed is in the log")}
	}
	found := fmt.Sprintf("machine %s of system %s, life %d, %d of %s alive", self, m.System, m.Incarnation, m.Alive,
		cli.Count(int(m.Machines), "machine"))
	if m.Alive < m.Machines {
		out = append(out, finding{"membership", findingDown, found,
			"sigma machine ls shows which are lost; those that do not come back: sigma machine rm"})
	} else {
		out = append(out, ok("membership", found))
	}
	switch {
	case !m.Quorum():
		out = append(out, finding{"quorum", findingDown, quorumWords(m),
			"nothing that needs the control plane works until more control machines are back; procs go on"})
	case m.Voting < m.Controls:
		out = append(out, weak("quorum", quorumWords(m),
			"bring the lost ones back, or replace them: sigma machine control"))
	case m.Controls%2 == 0:
		out = append(out, weak("quorum", quorumWords(m),
			"an even number bears no loss more than one less: make it 1, 3 or 5 with sigma machine control"))
	default:
		out = append(out, ok("quorum", quorumWords(m)))
	}
	for _, e := range m.Expiries {
		found := "good until " + e.At.UTC().Format(time.RFC3339)
		switch {
		case !e.Warn:
			out = append(out, ok(e.What, found))
		case e.What == "certificate":
			out = append(out, weak(e.What, found,
				"it should have been renewed before: does a control machine answer (sigma machine ls), and is this "+
					"machine's clock right? Without a certificate the machine leaves the system until it can "+
					"register again"))
		default:
			out = append(out, weak(e.What, found, "when it ends no machine is certified any more: plan a new system"))
		}
	}
	return out
}
