// Command named is the name service of the boot set of control machines: each keeps a member of one
// store (an embedded etcd) in its data directory, and one of them leads and serves the roots of all
// realms.
//
//	named [--initial TEXT]           TEXT is what member-add of the leading named answered, for a machine that joins
//	named --check FILE               reads a snapshot to its end and prints how many keys it has, for sigma snapshot
//	named --probe DIR                tells whether the names of the named of that data directory can be in the etcd that standard input describes, for sigma up
//
// Where the names are in an etcd of the operator's, sigmad says so and connects named to it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/trees/named/member"
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
	dir := flags.String("probe", "",
		"look at the etcd that standard input describes for the named of this data directory, and end")
	flags.Parse(os.Args[1:])
	var err error
	switch {
	case *file != "":
		err = check(*file)
	case *dir != "":
		err = probe(ctx, *dir)
	default:
		err = run(ctx, log, *initial)
	}
	if err != nil {
		if *dir != "" {
			json.NewEncoder(os.Stdout).Encode(probed{Kind: sigma.KindOf(err), Msg: err.Error(),
				Hint: sigma.HintOf(err)})
			os.Exit(1)
		}
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
	if err := member.EnterSocketDir(dataDir); err != nil {
		return err
	}
	external, err := etcdOf(ctx, c)
	if err != nil {
		return err
	}
	m, err := member.Open(member.Config{Dir: dataDir, Config: named.Config{Log: log, Board: board},
		Machine: c.Info().Principal.Machine, Initial: initial, Peers: peers{c}, External: external,
		Succeed: func(record []byte) ([]byte, error) { return machines.Succeed(record, c.Info().Principal.Machine) }})
	if err != nil {
		return err
	}
	defer m.Close()
	l, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	serving,
		stop :=
		context.WithCancelCause(context.WithoutCancel(
			ctx)) // until the lead is handed over, so that who waits for an answer gets it
	var running sync.WaitGroup
	defer running.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end() // if serving ends by itself
	running.Go(func() { stop(m.Run(ctx)) })
	running.Go(func() { ready(ctx, c, m, log) })
	if err := c.ServeTree(serving, l, m); serving.Err() == nil {
		return err
	}
	if cause := context.Cause(serving); !errors.Is(cause, context.Canceled) {
		return cause // the store ended by itself
	}
	return nil
}

// readyMax is how long a machine that joins is waited for. After that it is said to serve all the
// same: it does as far as it can.
const readyMax = 20 * time.Second

func ready(ctx context.Context, c *sdk.Client, m *member.Member, log *slog.Logger) {
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

// etcdOf is the etcd that sigmad says; nil = the one in this process.
func etcdOf(ctx context.Context, c *sdk.Client) (*member.External, error) {
	e, err := c.Etcd(ctx)
	if err != nil || e == nil {
		return nil, err
	}
	return &member.External{Etcd: *e, Dial: c.DialEtcd}, nil
}

// probed is what --probe prints of an error.
type probed struct {
	Kind sigma.Kind
	Msg  string
	Hint string
}

// describedMax bounds the description of an etcd.
const describedMax = 128 << 10

func probe(ctx context.Context, dir string) error {
	text, err := io.ReadAll(io.LimitReader(os.Stdin, describedMax))
	if err != nil {
		return err
	}
	x := &member.External{}
	if err := json.Unmarshal(text, &x.Etcd); err != nil {
		return err
	}
	x.Dial = func(ctx context.Context, name string) (net.Conn, error) {
		for _, m := range x.Members {
			if m.Name == name {
				return new(net.Dialer).DialContext(ctx, "tcp", m.Address)
			}
		}
		return nil, fmt.Errorf("%s is no member", name)
	}
	return member.ProbeExternal(ctx, dir, x)
}

func check(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	keys, err := member.CheckSnapshot(f)
	if err == nil {
		fmt.Println(keys)
	}
	return err
}
