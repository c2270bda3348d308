package procs

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func newEpCommand(a *app) *cobra.Command {
	return cli.Parent("ep", "List endpoints and connections, and take endpoints back",
		`What listens at this machine, who is connected with whom, and what happened to connections
lately. sigma ep revoke takes an endpoint back and ends its connections.`,
		cli.Listing(a.App, &cobra.Command{Use: "ls", Short: "List who listens at this machine",
			Long: `List the endpoints of procs that listen at this machine, with the connections that wait there
to be accepted.`, Example: "  sudo sigma ep ls"}, cli.FileOf[report.Endpoint](a.App, "/sys/endpoints"),
			func(e report.Endpoint) []any { return []any{e.Realm, e.Proc, e.Machine, e.Form, e.Waiting} },
			"REALM", "PROC", "MACHINE", "FORM", "WAITING"),
		cli.Listing(a.App, &cobra.Command{Use: "stat", Short: "Show which connections there are, and what they carried",
			Long: `Show the connections that procs of this machine have: who dialled whom, by which transport
(unix, ring: memory that both share; with another machine tcp, or relay: sigmad passes it on),
since when. Bytes of tcp are the kernel's account; all else is what the procs have counted
themselves: messages, round trips, time spun; bytes of the others.`,
			Example: "  sudo sigma ep stat\n  sudo sigma ep stat --json"},
			cli.FileOf[report.Connection](a.App, "/sys/connections"), func(c report.Connection) []any {
				spun := "-"
				if c.Spun != nil {
					spun = fmt.Sprint(time.Duration(*c.Spun).Round(time.Microsecond))
				}
				return []any{c.Realm, who(c.From, c.FromOn), who(c.Proc, c.On), c.Transport, tallied(c.Sent),
					tallied(c.Received), tallied(c.Messages), tallied(c.Turns), spun,
					time.Since(c.Began).Round(time.Second)}
			}, "REALM", "FROM", "TO", "TRANSPORT", "SENT", "RECEIVED", "MESSAGES", "TURNS", "SPUN", "AGE"),
		&cobra.Command{Use: "revoke PATH...", Short: "Take endpoints back and end their connections",
			Long: `Take back the endpoints in the files PATH: nobody dials them any more, and the connections
that were made to them are ended, on this machine and with others. The files stay.`, Example: "  sudo sigma ep revoke /svc/web", Args: cli.Between(1, -1), ValidArgsFunction: a.Complete,
			RunE: a.InRealm(a.epRevoke)},
		cli.Listing(a.App, &cobra.Command{Use: "log", Short: "Show what happened to connections lately",
			Long: `Show the latest connections that were dialled, revoked, or cut because the other machine was
lost, oldest first.`, Example: "  sudo sigma ep log"}, a.epLog, func(e report.ConnectionEvent) []any {
			return []any{e.Time.Format("15:04:05.000"), e.Event, e.Realm, who(e.From, e.FromOn), who(e.Proc, e.On),
				e.Transport}
		}, "TIME", "EVENT", "REALM", "FROM", "TO", "TRANSPORT"),
	)
}

func (a *app) epLog(ctx context.Context, _ []string) ([]report.ConnectionEvent, error) {
	c, err := a.Client(ctx)
	if err != nil {
		return nil, err
	}
	text, err := c.ConnectionLog(ctx)
	if err != nil {
		return nil, err
	}
	return cli.LinesOf[report.ConnectionEvent]("the log of connections", text)
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
