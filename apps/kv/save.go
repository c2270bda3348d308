package kv

import (
	"context"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// Save gives the keys of a shard as they were at one moment, in pages that package store encoded.
// All writes that were acknowledged before Save was called are in them. KindStale: the group's
// leader has changed meanwhile, and each has got only a part.
func (c *Clerk) Save(ctx context.Context, shard uint16, each func(page []byte, items int) error) error {
	a := calls.ExportArg{Shard: shard, Part: calls.Saved}
	for group := uint32(0); ; {
		cfg, err := c.config(ctx)
		if err != nil {
			return err
		}
		if a.Version == 0 {
			group = cfg.Owners[shard]
		}
		enc := sigmap.NewEncoder(nil)
		a.Code(enc)
		r, err := c.AskGroup(ctx, group, calls.Export, enc.Bytes())
		switch {
		case err != nil:
			return err
		case r.Code == store.Done:
		case a.Version == 0: // the shard moves, or others save
			if !retry.Pause(ctx, pauseMost) {
				return sigma.Wrap("kv.Save", c.name, ctx.Err())
			}
			continue
		default:
			return sigma.Errorf("kv.Save", sigma.KindStale, "the leader of group %d has changed meanwhile", group)
		}
		items, err := store.ParseItems(r.Value)
		if err != nil || len(items) == 0 {
			return err
		}
		if err := each(r.Value, len(items)); err != nil {
			return err
		}
		a.Version, a.After = r.Version, items[len(items)-1].Key
	}
}
