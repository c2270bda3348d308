// Command besched is the queue of best-effort procs of the boot set. It keeps nothing on disk.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/decision"
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
	s, decided := besched.NewService(), decision.NewSender()
	s.Decided = decided.Note
	return sdk.ServeClient(ctx, func(_ context.Context, c *sdk.Client) (sigma.Tree, error) {
		go decided.Run(ctx, c.Tree)
		return s, nil
	})
}
