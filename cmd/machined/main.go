// Command machined decides who is a machine of the system and which machines are alive. It runs in
// the boot set of control machines. It keeps the authority's key in its data directory, readable by
// itself alone, and everything else in a file of the system realm, through named.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// Where things are. The directory of the state is of the system realm, to which no tenant has
// access.
const (
	authorityFile = "/data/authority"
	stateDir      = "/machines"
	stateFile     = stateDir + "/state"
)

// namesPause is between attempts to reach the names.
const namesPause = 200 * time.Millisecond

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
	d, err := machines.NewDaemon(machines.DaemonConfig{Self: c.Info().Principal.Machine, Namespace: c, Path: stateFile,
		Names: names{c}, Log: log,
		Fetch:  func(ctx context.Context) error { return fetch(ctx, c) },
		Forget: func() error { return os.Remove(authorityFile) },
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
	daemon.Go(func() {
		if awaitNames(ctx, c, log) == nil {
			d.Run(ctx)
		}
	})
	if err := c.ServeTree(ctx, l, d); ctx.Err() == nil {
		return err
	}
	return nil
}

// awaitNames waits until the directory of the state is there. named may need this machine to be
// served before it answers, when all control machines start at once.
func awaitNames(ctx context.Context, c *sdk.Client, log *slog.Logger) error {
	for said := ""; ; {
		err := c.MkdirAll(ctx, stateDir, 0o700)
		if err == nil {
			return nil
		}
		if text := err.Error(); text != said {
			said = text
			log.Warn("the state of the machines cannot be reached yet", "err", err)
		}
		if !retry.Pause(ctx, namesPause) {
			return ctx.Err()
		}
	}
}

// fetch gets the authority from the machined that decides, and keeps it.
func fetch(ctx context.Context, c *sdk.Client) error {
	text, err := machines.CallAuthority.Ask(ctx, sigmap.At(c, sigma.JoinPath(sigma.NameSys, sigmap.FileMachines)),
		sigmap.None{})
	if err != nil {
		return err
	}
	a, err := identity.ParseAuthority(text)
	if err != nil {
		return err
	}
	return identity.KeepAuthority(authorityFile, a)
}

// names is the store of names, by way of sigmad.
type names struct{ c *sdk.Client }

func (n names) at() sigma.Caller {
	return sigmap.At(n.c, sigma.JoinPath(sigma.NameSys, sigmap.FileNames))
}

// Expel implements machines.Fence.
func (n names) Expel(ctx context.Context, m sigma.MachineID) error {
	return sigmap.CallExpel.Tell(ctx, n.at(), m)
}

// Admit implements machines.Fence.
func (n names) Admit(ctx context.Context, m sigma.MachineID) error {
	return sigmap.CallAdmit.Tell(ctx, n.at(), m)
}

// RemoveMember implements machines.Names.
func (n names) RemoveMember(ctx context.Context, m sigma.MachineID) error {
	return sigmap.CallMemberRemove.Tell(ctx, n.at(), m)
}
