package apps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/lib/archive"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const (
	// kvArchive is the kind of a file that has a store. Its first record is a kvHead in JSON, the
	// others are pages of items as package store encodes them.
	kvArchive = "sigma kv store 1"
	// kvWriters is how many keys are restored at a time.
	kvWriters = 32
	// kvTellEvery is the time between two remarks on how far it is.
	kvTellEvery = 5 * time.Second
	// kvSaveTries is how often a snapshot begins anew because a group's leader has changed.
	kvSaveTries = 5
)

// kvHead says what a store was like when it was saved.
type kvHead struct {
	Store    string    `json:"store"`
	Saved    time.Time `json:"saved"`
	Shards   int       `json:"shards"`
	Groups   int       `json:"groups"`
	Replicas int       `json:"replicas"`
	Durable  bool      `json:"durable"`
	Memory   string    `json:"memory"`
	CPU      uint32    `json:"cpu"`
}

// kvSaved is what is printed of a snapshot.
type kvSaved struct {
	Path string `json:"path"`
	Keys int64  `json:"keys"`
}

func (a *app) printSaved(path string, keys int64, done string) error {
	if a.JSON {
		return a.PrintJSON(kvSaved{path, keys})
	}
	_, err := fmt.Fprintf(a.Out, "%s: %s %s\n", path, cli.Count(int(keys), "key"), done)
	return err
}

// tellProgress remarks on a number of keys again and again until the function that it gives is
// called.
func (a *app) tellProgress(what string, keys *atomic.Int64) (stop func()) {
	over := make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		ticker := time.NewTicker(kvTellEvery)
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				a.Remark("sigma: %d keys are %s", keys.Load(), what)
			}
		}
	})
	return func() { close(over); told.Wait() }
}

func newKVSnapshotCommand(a *app) *cobra.Command {
	return &cobra.Command{Use: "snapshot STORE PATH", Short: "Save a store in a file",
		Long: `Save all keys of a store in a file of the realm, as in /s3, while clients go on. The keys of a
shard are those of one moment; shards are saved one after another. The file is there when it is
whole, and not before. PATH must not exist.`,
		Example: "  sudo sigma kv snapshot orders /s3/backup/orders", Args: cli.Between(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.Client(ctx)
			if err != nil {
				return err
			}
			clerk, err := a.clerk(ctx, args[0])
			if err != nil {
				return err
			}
			defer clerk.Close()
			for try := 1; ; try++ {
				keys, err := a.saveKV(ctx, c, clerk, args[1])
				if sigma.KindOf(err) == sigma.KindStale && try < kvSaveTries {
					continue
				}
				if err != nil {
					return err
				}
				return a.printSaved(args[1], keys, "saved")
			}
		}}
}

// saveKV saves a store, and gives the number of keys.
func (a *app) saveKV(ctx context.Context, c *sdk.Client, clerk *kv.Clerk, path string) (int64, error) {
	cfg, err := clerk.Config(ctx)
	if err != nil {
		return 0, err
	}
	head, err := json.Marshal(kvHead{cfg.Name, time.Now().UTC(), len(cfg.Owners), cfg.Want, cfg.Replicas, cfg.Durable,
		cfg.Memory, cfg.CPU})
	if err != nil {
		return 0, err
	}
	w, err := archive.Create(ctx, c, path, kvArchive)
	if err != nil {
		return 0, err
	}
	var keys atomic.Int64
	defer a.tellProgress("saved", &keys)()
	err = w.Add(head)
	for shard := 0; shard < len(cfg.Owners) && err == nil; shard++ {
		err = clerk.Save(ctx, uint16(shard), func(page []byte, items int) error {
			keys.Add(int64(items))
			return w.Add(page)
		})
	}
	if err != nil {
		w.Discard()
		return 0, err
	}
	return keys.Load(), w.Close()
}

func newKVRestoreCommand(a *app) *cobra.Command {
	return &cobra.Command{Use: "restore STORE PATH", Short: "Make a store from a file",
		Long: `Make a store with the keys of a file that "sigma kv snapshot" has written, and with as many shards,
groups and members as the store had that was saved. There must be no store of that name. The
whole file is checked first. If anything fails there is no store. Keys whose time has passed are
left out; versions begin anew.`,
		Example: "  sudo sigma kv restore orders /s3/backup/orders", Args: cli.Between(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := layout.CheckName(args[0]); err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			ctx := cmd.Context()
			c, err := a.Client(ctx)
			if err != nil {
				return err
			}
			keys, err := a.restoreKV(ctx, c, args[0], args[1])
			if err != nil {
				return err
			}
			return a.printSaved(args[1], keys, "restored")
		}}
}

// readKV reads a file, and gives its items to each, if that is not nil.
func readKV(ctx context.Context, c *sdk.Client, path string, each func(store.Item) error) (head kvHead, err error) {
	first := true
	err = archive.Read(ctx, c, path, kvArchive, func(record []byte) error {
		if first {
			first = false
			return json.Unmarshal(record, &head)
		}
		items, err := store.ParseItems(record)
		for i := 0; i < len(items) && err == nil && each != nil; i++ {
			err = each(items[i])
		}
		return err
	})
	if err == nil && first {
		err = sigma.Errorf("sigma.kv", sigma.KindInvalid, "the file has no store")
	}
	return head, err
}

// restoreKV makes a store from a file, and gives the number of keys.
func (a *app) restoreKV(ctx context.Context, c *sdk.Client, name, path string) (n int64, err error) {
	head, err := readKV(ctx, c, path, nil)
	if err != nil {
		return 0, err
	}
	cfg := layout.New(name, cli.BinDir+"/kv", head.Shards, head.Groups, head.Replicas)
	cfg.Memory, cfg.CPU, cfg.Durable = head.Memory, head.CPU, head.Durable
	if err := cfg.Check(); err != nil {
		return 0, err
	}
	clerk, err := a.beginKV(ctx, c, cfg)
	if err != nil {
		return 0, err
	}
	defer clerk.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, removeKV(context.WithoutCancel(ctx), c, cfg))
		}
	}()
	if err := a.settleKV(ctx, clerk, cfg.Epoch); err != nil {
		return 0, err
	}
	var keys atomic.Int64
	defer a.tellProgress("restored", &keys)()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	items := make(chan store.Item)
	var writers sync.WaitGroup
	for range kvWriters {
		writers.Go(func() {
			for i := range items {
				if err := putItem(ctx, clerk, i); err != nil {
					cancel(err)
				}
				keys.Add(1)
			}
		})
	}
	_, err = readKV(ctx, c, path, func(i store.Item) error {
		select {
		case items <- i:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(items)
	writers.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return keys.Load(), err
}

// putItem writes an item unless its time has passed.
func putItem(ctx context.Context, clerk *kv.Clerk, i store.Item) error {
	o := kv.Options{}
	if i.Expires != 0 {
		if o.TTL = time.Until(time.UnixMilli(int64(i.Expires))); o.TTL < time.Millisecond {
			return nil
		}
	}
	_, err := clerk.Put(ctx, i.Key, []byte(i.Value), o)
	return err
}
