// Command named is the name service of the boot set: it keeps the roots of all realms in an embedded etcd in its data directory.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"sigmaos.dev/changeboard"
	"sigmaos.dev/named"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "named")
	if err := run(log); err != nil {
		log.Error("named ends", "err", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	board, err := changeboard.New()
	if err != nil {
		return err
	}
	s, err := named.Open(ctx, named.Config{Dir: "/data", Log: log, Board: board})
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { cancel(s.Run(ctx)) }()
	err = sdk.Serve(ctx, func(context.Context) (sigma.Tree, error) {
		return treekit.Admin{Tree: s, Realms: s, Changes: board.File}, nil
	})
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause // etcd ended by itself
	}
	return err
}
