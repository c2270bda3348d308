// Command s3d is the object store of the boot set: it serves each realm's buckets out of its data
// directory, or out of stores of S3's kind by connections that sigmad makes for it.
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // the well-known authorities: there are no files of the host here

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/trees/s3"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "s3d")
	if err := run(log); err != nil {
		log.Error("s3d ends", "err", err)
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
	var client *sdk.Client
	store, err := s3.New(s3.Config{Dir: "/data/buckets", Board: board, Elsewhere: "/data/elsewhere",
		Buckets: []string{"bin"}, Log: log,
		Dial: func(ctx context.Context, owner sigma.RealmID) (net.Conn, error) { return client.DialStore(ctx, owner) }})
	if err != nil {
		return err
	}
	defer store.Close()
	return sdk.ServeClient(ctx, func(_ context.Context, c *sdk.Client) (sigma.Tree, error) {
		client = c
		return treeserver.Admin{Tree: store, Realms: remover{store}, Changes: board.File,
			Calls: storeMethods(store)}, nil
	})
}

// storeMethods are what sigmad asks of the realms' object stores.
func storeMethods(t *s3.Tree) sigmap.Handlers[sigma.Realms] {
	return sigmap.Table(
		sigmap.Do(sigmap.CallUseStore, func(_ sigma.Realms, ctx context.Context, u sigmap.UseStore) error {
			return t.SetStore(ctx, u.Realm, u.Text)
		}),
		sigmap.On(sigmap.CallStores, func(_ sigma.Realms, ctx context.Context, a sigmap.StoresAsk) ([]byte, error) {
			list, err := t.Stores(ctx, a.After, a.Ask)
			if err != nil {
				return nil, err
			}
			return json.Marshal(list)
		}))
}

// remover is what the store knows of realms: they need no making.
type remover struct{ store *s3.Tree }

func (r remover) Create(context.Context, sigma.RealmID) error { return nil }
func (r remover) Remove(ctx context.Context, id sigma.RealmID) error {
	return r.store.RemoveRealm(ctx, id)
}
func (r remover) SetShares(context.Context, sigma.RealmID, uint32) error            { return nil }
func (r remover) SetLimits(context.Context, sigma.RealmID, sigma.RealmLimits) error { return nil }
func (r remover) List(context.Context) ([]sigma.RealmInfo, error)                   { return nil, nil }
