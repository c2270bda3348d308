// Command besched is the queue of best-effort procs of the boot set. It keeps nothing on disk.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"sigmaos.dev/besched"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "besched")
	if err := run(); err != nil {
		log.Error("besched ends", "err", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	return sdk.Serve(ctx, func(context.Context) (sigma.Tree, error) { return besched.NewService(), nil })
}
