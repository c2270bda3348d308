// Command dbd serves the SQL databases of one realm: those of SQLite out of its data directory,
// others by connections that sigmad makes for it. sigmad starts one for each realm that uses
// databases; it ends with 0 when nobody needs it any more.
package main

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db"
	"sigmaos.dev/trees/treeserver"
)

// memoryLimit is what the collector aims at, beside what SQLite has (db.DefaultLimits.Heap):
// answers are made as they are read, so little is needed.
const memoryLimit = 96 << 20

func main() {
	realm := flag.String("realm", "", "the realm whose databases these are")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "dbd", "realm", *realm)
	debug.SetMemoryLimit(memoryLimit)
	if err := run(log, sigma.RealmID(*realm)); err != nil {
		log.Error("dbd ends", "err", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger, realm sigma.RealmID) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var client *sdk.Client
	tree, err := db.New(db.Config{Realm: realm, Dir: "/data", Log: log,
		Dial: func(ctx context.Context, realm sigma.RealmID, name string) (net.Conn, error) {
			return client.DialServer(ctx, realm, name)
		},
		Stuck: func(database string) {
			log.Error("dbd ends, since a statement does not", "database", database)
			os.Exit(2)
		}})
	if err != nil {
		return err
	}
	defer tree.Close()
	go func() {
		select {
		case <-tree.Unused():
			stop()
		case <-ctx.Done():
		}
	}()
	return sdk.ServeClient(ctx, func(_ context.Context, c *sdk.Client) (sigma.Tree, error) {
		client = c
		return treeserver.Admin{Tree: tree, Realms: remover{tree, realm}}, nil
	})
}

// remover is what the databases know of realms: they need no making.
type remover struct {
	tree  *db.Tree
	realm sigma.RealmID
}

func (r remover) Create(context.Context, sigma.RealmID) error { return nil }
func (r remover) Remove(ctx context.Context, id sigma.RealmID) error {
	if id != r.realm {
		return sigma.Errorf("dbd.Remove", sigma.KindPermission, "the databases here are the realm %s's", r.realm)
	}
	return r.tree.Remove(ctx)
}
func (r remover) SetShares(context.Context, sigma.RealmID, uint32) error            { return nil }
func (r remover) SetLimits(context.Context, sigma.RealmID, sigma.RealmLimits) error { return nil }
func (r remover) List(context.Context) ([]sigma.RealmInfo, error)                   { return nil, nil }
