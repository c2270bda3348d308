// Command ledgerserver is a proc that serves ledger.Ledger, a service of generated code, as one of
// the members of the directory that it is given. When it is asked to go it leaves the directory,
// answers what it was asked, and ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"sigmaos.dev/call"
	"sigmaos.dev/examples/ledger"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	s := call.NewServer(call.Config{})
	if err := ledger.RegisterLedger(s, &ledger.Book{}); err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	leave, err := c.Join(ctx, dir, l.Endpoint())
	if err != nil {
		return err
	}
	left := make(chan error, 1)
	go func() {
		err := c.WaitEvict(ctx)
		if err == nil {
			err = leave(ctx)
		}
		left <- errors.Join(err, l.Close(), s.Shutdown(ctx))
	}()
	if err := c.Started(ctx); err != nil {
		return err
	}
	if err := s.Serve(ctx, l); !errors.Is(err, net.ErrClosed) {
		return err
	}
	if err := <-left; err != nil {
		return err
	}
	if err := call.WriteMetrics(os.Stderr, "server", s.Stats()); err != nil {
		return err
	}
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}
