package procs

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

func newEpCommand(a *app) *cobra.Command {
	return cli.Parent("ep", "List endpoints and connections, and take endpoints back",
		`What listens at this machine, who is connected with whom, and what happened to connections
lately. sigma ep revoke takes an endpoint back and ends its connections.`,
		&cobra.Command{Use: "ls", Short: "List who listens at this machine",
			Long: `List the endpoints of procs that listen at this machine, with the connections that wait there
to be accepted.`, Example: "  sudo sigma ep ls", Args: cli.Between(0, 0), RunE: func(cmd *cobra.Command, _ []string) error {
				return a.epList(cmd.Context())
			}},
		&cobra.Command{Use: "stat", Short: "Show which connections there are, and what they carried",
			Long: `Show the connections that procs of this machine have: who dialled whom, by which transport
(unix, ring: memory that both share; with another machine tcp, or relay: sigmad passes it on),
since when. Bytes of tcp are the kernel's account; all else is what the procs have counted
themselves: messages, round trips, time spun; bytes of the others.`, Example: "  sudo sigma ep stat\n  sudo sigma ep stat --json", Args: cli.Between(0, 0), RunE: func(cmd *cobra.Command, _ []string) error {
				return a.epStat(cmd.Context())
			}},
		&cobra.Command{Use: "revoke PATH...", Short: "Take endpoints back and end their connections",
			Long: `Take back the endpoints in the files PATH: nobody dials them any more, and the connections
that were made to them are ended, on this machine and with others. The files stay.`, Example: "  sudo sigma ep revoke /svc/web", Args: cli.Between(1, -1), ValidArgsFunction: a.Complete,
			RunE: a.InRealm(a.epRevoke)},
		&cobra.Command{Use: "log", Short: "Show what happened to connections lately",
			Long: `Show the latest connections that were dialled, revoked, or cut because the other machine was
lost, oldest first.`, Example: "  sudo sigma ep log", Args: cli.Between(0, 0), RunE: func(cmd *cobra.Command, _ []string) error {
				return a.epLog(cmd.Context())
			}},
	)
}

// epLines prints lines of the system's state as a table, or as JSON.
func epLines[T any](ctx context.Context, a *app, read func(c *sdk.Client) ([]T, error), heads []string,
	row func(t *term.Table, one *T)) error {
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	all, err := read(c)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(all)
	}
	t := a.Table(heads...)
	for i := range all {
		row(t, &all[i])
	}
	return t.Print()
}

func epFile[T any](ctx context.Context, path string) func(c *sdk.Client) ([]T, error) {
	return func(c *sdk.Client) ([]T, error) { return cli.Lines[T](ctx, c, path) }
}

func (a *app) epList(ctx context.Context) error {
	return epLines(ctx, a, epFile[state.Endpoint](ctx, "/sys/endpoints"),
		[]string{"REALM", "PROC", "MACHINE", "FORM", "WAITING"},
		func(t *term.Table, e *state.Endpoint) {
			t.Row(e.Realm, e.Proc, e.Machine, e.Form, e.Waiting)
		})
}

func (a *app) epStat(ctx context.Context) error {
	return epLines(ctx, a, epFile[state.Connection](ctx, "/sys/connections"),
		[]string{"REALM", "FROM", "TO", "TRANSPORT", "SENT",
			"RECEIVED", "MESSAGES", "TURNS", "SPUN", "AGE"}, func(t *term.Table, c *state.Connection) {
			spun := "-"
			if c.Spun != nil {
				spun = fmt.Sprint(time.Duration(*c.Spun).Round(time.Microsecond))
			}
			t.Row(c.Realm, who(c.From, c.FromOn), who(c.Proc, c.On), c.Transport, tallied(c.Sent), tallied(c.Received),
				tallied(c.Messages), tallied(c.Turns), spun, time.Since(c.Began).Round(time.Second))
		})
}

func (a *app) epLog(ctx context.Context) error {
	read := func(c *sdk.Client) ([]state.ConnectionEvent, error) {
		text, err := c.ConnectionLog(ctx)
		if err != nil {
			return nil, err
		}
		return cli.LinesOf[state.ConnectionEvent]("the log of connections", text)
	}
	return epLines(ctx, a, read, []string{"TIME", "EVENT", "REALM", "FROM", "TO", "TRANSPORT"},
		func(t *term.Table, e *state.ConnectionEvent) {
			t.Row(e.Time.Format("15:04:05.000"), e.Event, e.Realm, who(e.From, e.FromOn), who(e.Proc, e.On),
				e.Transport)
		})
}

func who(proc, machine string) string {
	return cli.OrElse(proc, "outside") + "@" + machine
}

func tallied(n *uint64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func (a *app) epRevoke(ctx context.Context, c *sdk.Client, paths []string) error {
	for _, path := range paths {
		text, err := c.ReadLink(ctx, path)
		if err != nil {
			return err
		}
		e, err := sigma.ParseEndpoint(strings.TrimSpace(text))
		if err != nil {
			return sigma.Wrap("sigma.ep", path, err)
		}
		if err := c.Revoke(ctx, e); err != nil {
			return sigma.Wrap("sigma.ep", path, err)
		}
	}
	return nil
}
