package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

func newUsageCommand(a *app) *cobra.Command {
	hours := false
	cmd := &cobra.Command{
		Use:   "usage [REALM...]",
		Short: "Show what realms have used of this machine",
		Long: `Show what the procs of each realm, or of those named, have used of this machine: starts,
ends, processor time and memory over time, which is what procs had a right to for as long
as they had it. --hours shows each hour of the last 31 days in which there was something.
What runs counts until some seconds ago. A realm that is removed takes its usage along.`,
		Example: `  sudo sigma usage
  sudo sigma usage --hours default
  sudo sigma usage --json`,
		Args: between(0, 1000),
		RunE: func(cmd *cobra.Command, args []string) error { return a.usage(cmd.Context(), args, hours) },
	}
	cmd.Flags().BoolVar(&hours, "hours", false, "show each hour")
	return cmd
}

func (a *app) usage(ctx context.Context, only []string, hours bool) error {
	c, err := a.connectTo(ctx, sigma.SystemRealm)
	if err != nil {
		return err
	}
	defer c.Close()
	text, _, err := c.Get(ctx, "/sys/usage")
	if err != nil {
		return err
	}
	out := []state.RealmUsage{}
	for line := range bytes.Lines(text) {
		var u state.RealmUsage
		if err := json.Unmarshal(line, &u); err != nil {
			return sigma.Wrap("sigma.usage", "/sys/usage", err)
		}
		if len(only) > 0 && !slices.Contains(only, u.Realm) {
			continue
		}
		if last := len(out) - 1; !hours && last >= 0 && out[last].Realm == u.Realm { // lines are in order of realms, then of time
			out[last].Starts += u.Starts
			out[last].Ended += u.Ended
			out[last].CPU += u.CPU
			out[last].Memory += u.Memory
			continue
		}
		out = append(out, u)
	}
	if a.json {
		return a.printJSON(out)
	}
	t := a.table("REALM", "FROM", "STARTS", "ENDED", "CPU", "MEMORY")
	for _, u := range out {
		t.row(u.Realm, u.From.Local().Format("2006-01-02 15:04"), u.Starts, u.Ended, time.Duration(u.CPU*float64(time.Second)).Round(time.Millisecond), fmt.Sprintf("%.3g GiB h", u.Memory/float64(sigma.GiB)/3600))
	}
	return t.print()
}
