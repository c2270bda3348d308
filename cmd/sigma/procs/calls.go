package procs

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

func newCallsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "calls PATH",
		Short: "Show what servers of calls have answered",
		Long: `Show what servers of calls (package call) have answered: of the server that is published
at PATH, or of all in that directory, a line for each method with the number of calls, how
many of them failed, how long they took and the bytes of arguments and answers. Durations
are at most twice as long as what was measured. Servers that are something else, or do
not answer, are told of on standard error.`,
		Example: `  sudo sigma calls /ledgers
  sudo sigma calls --json /ledgers`,
		Args: cli.Between(1, 1),
		RunE: a.InRealm(a.calls),
	}
}

// callsWait is how long a member may take.
const callsWait = 10 * time.Second

// callsJSON is an element of what calls --json prints.
type callsJSON struct {
	Member  string             `json:"member"`
	Methods []call.MethodStats `json:"methods"`
	Error   string             `json:"error,omitempty"`
}

func (a *app) calls(ctx context.Context, c *sdk.Client, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, callsWait)
	defer cancel()
	group := call.NewGroup(c.Dialer(args[0]).Members, call.Config{})
	defer group.Close()
	answers, err := group.Call(ctx, call.StatsMethod, nil)
	if err != nil {
		return err
	}
	out := []callsJSON{}
	for _, x := range answers {
		j := callsJSON{Member: x.Member, Methods: []call.MethodStats{}}
		if x.Err == nil {
			j.Methods, x.Err = call.ParseStats(x.Reply)
		}
		if x.Err != nil {
			j.Error = x.Err.Error()
			a.Remark("%s: %v %s", x.Member, x.Err, sigma.HintOf(x.Err))
		}
		out = append(out, j)
	}
	if a.JSON {
		return a.PrintJSON(out)
	}
	t := a.Table("MEMBER", "METHOD", "CALLS", "FAILED", "P50", "P99", "IN", "OUT")
	for _, x := range out {
		for i := range x.Methods {
			m := &x.Methods[i]
			t.Row(x.Member, m.Method, fmt.Sprint(m.Calls), fmt.Sprint(m.FailedCalls()), m.Quantile(0.5),
				m.Quantile(0.99), sigma.Bytes(m.In), sigma.Bytes(m.Out))
		}
	}
	return t.Print()
}
