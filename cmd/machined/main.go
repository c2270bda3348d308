// Command machined decides who is a machine of the system and which machines are alive. It runs in the boot set of control machines. It keeps the authority's key in its data directory, readable by itself alone, and
// everything else in a file of the system realm, through named.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/machines"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Where things are. The directory of the state is of the system realm, to which no tenant has access.
const (
	authorityFile = "/data/authority"
	stateDir      = "/machines"
	stateFile     = stateDir + "/state"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "machined")
	if err := run(log); err != nil {
		log.Error("machined ends", "err", err)
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
	defer c.Close()
	if err := c.MkdirAll(ctx, stateDir, 0o700); err != nil {
		return err
	}
	d, err := machines.NewDaemon(machines.DaemonConfig{Self: c.Info().Principal.Machine, Namespace: c, Path: stateFile, Log: log,
		Authority: func(fresh bool) (*identity.Authority, error) {
			return identity.OpenAuthority(authorityFile, fresh, time.Now())
		}})
	if err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	var daemon sync.WaitGroup
	defer daemon.Wait()
	defer stop() // before that, if serving ends by itself
	daemon.Go(func() { d.Run(ctx) })
	if err := c.ServeTree(ctx, l, d); ctx.Err() == nil {
		return err
	}
	return nil
}
