// Command named is the name service of the boot set of control machines: each keeps a member of one store (an embedded etcd) in its data directory, and one of them leads and serves the roots of all realms.
//
//	named [--initial TEXT]           TEXT is what member-add of the leading named answered, for a machine that joins
//	named --check FILE               reads a snapshot to its end and prints how many keys it has, for sigma snapshot
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/changeboard"
	"sigmaos.dev/named"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// dataDir is where the launcher puts a service's data directory.
const dataDir = "/data"

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "named")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	flags := flag.NewFlagSet("named", flag.ExitOnError)
	initial := flags.String("initial", "", "what member-add of the leading named answered")
	file := flags.String("check", "", "check this snapshot and end")
	flags.Parse(os.Args[1:])
	var err error
	if *file != "" {
		err = check(*file)
	} else {
		err = run(ctx, log, *initial)
	}
	if err != nil {
		if *file != "" {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		log.Error("named ends", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, log *slog.Logger, initial string) error {
	board, err := changeboard.New()
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := named.EnterSocketDir(dataDir); err != nil {
		return err
	}
	m, err := named.OpenMember(named.MemberConfig{Config: named.Config{Dir: dataDir, Log: log, Board: board}, Machine: c.Info().Principal.Machine, Initial: initial, Peers: peers{c}})
	if err != nil {
		return err
	}
	defer m.Close()
	l, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancelCause(context.WithoutCancel(ctx)) // until the lead is handed over, so that who waits for an answer gets it
	var member sync.WaitGroup
	defer member.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end() // if serving ends by itself
	member.Go(func() { stop(m.Run(ctx)) })
	member.Go(func() { ready(ctx, c, m, log) })
	if err := c.ServeTree(serving, l, m); serving.Err() == nil {
		return err
	}
	if cause := context.Cause(serving); !errors.Is(cause, context.Canceled) {
		return cause // the store ended by itself
	}
	return nil
}

// readyMax is how long a machine that joins is waited for. After that it is said to serve all the same: it does as far as it can.
const readyMax = 20 * time.Second

func ready(ctx context.Context, c *sdk.Client, m *named.Member, log *slog.Logger) {
	soon, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	if err := m.Ready(soon); err != nil && ctx.Err() == nil {
		log.Warn("this machine's part of the store of names is not complete yet", "err", err)
	}
	if err := c.Started(ctx); err != nil && ctx.Err() == nil {
		log.Error("sigmad cannot be told that named serves", "err", err)
	}
}

// peers reaches the named of other machines over sigmad's links.
type peers struct{ c *sdk.Client }

func (p peers) Dial(ctx context.Context, m sigma.MachineID) (net.Conn, error) {
	return p.c.DialStream(ctx, m, "named")
}

func (p peers) Listen(ctx context.Context) (sigma.Listener, error) {
	return p.c.Listen(ctx, sigma.FormStream)
}

func check(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	keys, err := named.CheckSnapshot(f)
	if err == nil {
		fmt.Println(keys)
	}
	return err
}
