package health

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/members"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

type StatusJSON struct {
	Running  bool                    `json:"running"`
	Data     string                  `json:"data"`
	PID      int                     `json:"pid,omitempty"` // of the keeper, the parent of everything
	Machine  string                  `json:"machine,omitempty"`
	Version  string                  `json:"version,omitempty"`
	Services []serviceJSON           `json:"services"`
	Member   *members.MembershipJSON `json:"membership,omitempty"`
	Down     []finding               `json:"down"` // as sigma doctor says it
}

type serviceJSON struct {
	Name     string    `json:"name"`
	State    string    `json:"state"`
	Since    time.Time `json:"since"`
	Restarts uint32    `json:"restarts"`
	Proc     string    `json:"proc,omitempty"`
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
		Args: cli.Between(0, 0),
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
	st.Running, st.Machine, st.Version, st.Member, st.Down = true, string(p.machine), p.version,
		members.MembershipToJSON(p.member), p.down()
	if p.err != nil {
		p.services = []sigmap.Service{{Name: "sigmad", State: "silent"}}
	}
	for _, s := range p.services {
		st.Services = append(st.Services, serviceJSON{s.Name, s.State, s.Since, s.Restarts, string(s.Proc)})
	}
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
