// Command named is the name service of the boot set: it keeps the roots of all realms in an embedded etcd in its data directory.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

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
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	s, err := named.Open(ctx, named.Config{Dir: "/data", Log: log})
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { cancel(s.Run(ctx)) }()
	if err := c.Started(ctx); err != nil {
		return err
	}
	err = c.ServeTree(ctx, l, treekit.Admin{Tree: s, Realms: s})
	if ctx.Err() != nil {
		if err = context.Cause(ctx); err == context.Canceled {
			return nil // asked to end
		}
	}
	return err
}
