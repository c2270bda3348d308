// Command s3d is the object store of the boot set: it serves each realm's buckets out of its data directory.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"sigmaos.dev/changeboard"
	"sigmaos.dev/s3"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "s3d")
	if err := run(); err != nil {
		log.Error("s3d ends", "err", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	board, err := changeboard.New()
	if err != nil {
		return err
	}
	store, err := s3.New(s3.Config{Dir: "/data/buckets", Board: board})
	if err != nil {
		return err
	}
	defer store.Close()
	return sdk.Serve(ctx, func(context.Context) (sigma.Tree, error) {
		return treekit.Admin{Tree: store, Realms: remover{store}, Changes: board.File}, nil
	})
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
