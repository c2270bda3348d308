package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
)

type statusJSON struct {
	Running  bool            `json:"running"`
	Data     string          `json:"data"`
	PID      int             `json:"pid,omitempty"` // of the keeper, the parent of everything
	Machine  string          `json:"machine,omitempty"`
	Version  string          `json:"version,omitempty"`
	Services []serviceJSON   `json:"services"`
	Member   *membershipJSON `json:"membership,omitempty"`
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
other machines of its system, how long its certificate is good, and its services.
The exit code is 1 if no system is running.`,
		Example: `  sudo sigma status
  sudo sigma status --json`,
		Args: between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd.Context()) },
	}
}

func (a *app) status(ctx context.Context) error {
	st := statusJSON{Services: []serviceJSON{}}
	if a.addr == "" { // the socket of another place says nothing about our DATA
		dir, err := a.dataDir()
		if err != nil {
			return err
		}
		st.Data = dir
		if st.PID, st.Running, err = running(dir); err != nil {
			return err
		}
		if !st.Running {
			if a.json {
				return withCodeOnly(exitFailure, a.printJSON(st))
			}
			return notRunning(dir)
		}
	}
	c, err := a.connectTo(ctx, sigma.SystemRealm)
	if err != nil {
		return err
	}
	defer c.Close()
	services, err := c.Services(ctx)
	if err != nil {
		return err
	}
	st.Running, st.Machine, st.Version = true, string(c.Info().Principal.Machine), c.Info().Version
	for _, s := range services {
		st.Services = append(st.Services, serviceJSON{s.Name, s.State, s.Since, s.Restarts, string(s.Proc)})
	}
	m, err := a.members(ctx)
	if err != nil {
		return err
	}
	defer m.close()
	member, err := m.membership(ctx)
	if err != nil {
		return err
	}
	st.Member = membershipToJSON(member)
	if a.json {
		return a.printJSON(st)
	}
	fmt.Fprintf(a.out, "sigmaOS %s is running as machine %s on %s\n", st.Version, st.Machine, orElse(st.Data, a.socket()))
	a.printMembership(member)
	t := a.table("SERVICE", "STATE", "SINCE", "RESTARTS")
	for _, s := range st.Services {
		t.row(s.Name, s.State, ago(s.Since), s.Restarts)
	}
	return t.print()
}

// withCodeOnly is for an outcome that was told as an answer and still is a failure.
func withCodeOnly(code int, err error) error {
	if err != nil {
		return err
	}
	return exitCode(code)
}
