// Command dbd serves each realm's SQL databases: those of SQLite out of its data directory, others by connections that sigmad makes for it. It is of the boot set, and started when a database is first used.
package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"sigmaos.dev/db"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// memoryLimit is what the collector aims at, beside what SQLite has (db.DefaultLimits.Heap): answers are made as they are read, so little is needed.
const memoryLimit = 256 << 20

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "dbd")
	debug.SetMemoryLimit(memoryLimit)
	if err := run(log); err != nil {
		log.Error("dbd ends", "err", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var client *sdk.Client
	tree, err := db.New(db.Config{Dir: "/data/realms", Log: log, Dial: func(ctx context.Context, realm sigma.RealmID, name string) (net.Conn, error) {
		return client.DialServer(ctx, realm, name)
	}})
	if err != nil {
		return err
	}
	defer tree.Close()
	return sdk.ServeClient(ctx, func(_ context.Context, c *sdk.Client) (sigma.Tree, error) {
		client = c
		return treekit.Admin{Tree: tree, Realms: remover{tree}}, nil
	})
}

// remover is what the databases know of realms: they need no making.
type remover struct{ tree *db.Tree }

func (r remover) Create(context.Context, sigma.RealmID) error { return nil }
func (r remover) Remove(ctx context.Context, id sigma.RealmID) error {
	return r.tree.RemoveRealm(ctx, id)
}
func (r remover) SetShares(context.Context, sigma.RealmID, uint32) error            { return nil }
func (r remover) SetLimits(context.Context, sigma.RealmID, sigma.RealmLimits) error { return nil }
func (r remover) List(context.Context) ([]sigma.RealmInfo, error)                   { return nil, nil }
