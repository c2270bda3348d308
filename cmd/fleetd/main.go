// Command fleetd is the proc that keeps the fleets of its realm (lib/fleet/coordinator). `sigma
// fleet apply` puts it into the realm and has initd keep it; it is of no use outside a proc.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"sigmaos.dev/lib/fleet/coordinator"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "fleetd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if c.WaitEvict(ctx) == nil {
			cancel()
		}
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := coordinator.Run(ctx, coordinator.Config{Client: c, Log: log}); err != nil {
		return err
	}
	return c.Exited(context.WithoutCancel(ctx), sigma.Status{Code: sigma.StatusOK})
}
