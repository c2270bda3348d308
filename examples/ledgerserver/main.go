// Command ledgerserver is a proc that serves ledger.Ledger, a service of generated code, as a
// member of the fleet that started it, or of the directory that it is given. When it is asked to go
// it answers what it was asked, and ends.
package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/examples/ledger"
	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
)

func main() {
	var opts member.Options
	if len(os.Args) > 1 {
		opts.Dir = os.Args[1]
	}
	if err := run(context.Background(), opts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts member.Options) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	s := call.NewServer(call.Config{})
	if err := ledger.RegisterLedger(s, &ledger.Book{}); err != nil {
		return err
	}
	opts.Drain = func(context.Context) error { return call.WriteMetrics(os.Stderr, "server", s.Stats()) }
	m, err := member.Open(c, opts)
	if err != nil {
		return err
	}
	return m.ServeCalls(ctx, s)
}
