package kv

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/apps/kv/store"
)

// shardsAtATime is how many shards one Scan reads at a time.
const shardsAtATime = 16

// item makes an Item of a member's.
func item(i store.Item) Item {
	out := Item{Key: i.Key, Value: []byte(i.Value), Version: i.Version}
	if i.Expires != 0 {
		out.Expires = time.UnixMilli(int64(i.Expires))
	}
	return out
}

// GetMany gives those of some keys that there are. The keys of one shard are read at one moment, as
// far as they fit one answer.
func (c *Clerk) GetMany(ctx context.Context, keys ...string) (map[string]Item, error) {
	cfg, err := c.config(ctx)
	if err != nil {
		return nil, err
	}
	shards := map[uint16][]string{}
	for _, key := range keys {
		if len(key) > store.KeyMax {
			return nil, store.TooBig(len(key), 0)
		}
		s := Shard(key, len(cfg.Owners))
		shards[s] = append(shards[s], key)
	}
	found := map[string]Item{}
	var mu sync.Mutex
	err = each(ctx, shards, func(ctx context.Context, s uint16, keys []string) error {
		for len(keys) > 0 {
			some := batch(keys)
			q := store.Request{Op: store.GetMany, Shard: s, Value: store.EncodeKeys(some)}
			var items []store.Item
			var bad error
			r, err := c.do(ctx, &q, "", func(r store.Result) { items, bad = store.ParseItems(r.Value) })
			if err == nil {
				err = bad
			}
			if err != nil {
				return err
			}
			keys = keys[min(max(int(r.Version), 1), len(some)):]
			mu.Lock()
			for _, i := range items {
				found[i.Key] = item(i)
			}
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// batch gives the first keys that fit one request.
func batch(keys []string) []string {
	n, size := 0, 0
	for n < min(len(keys), store.BatchMax) && (n == 0 || size+len(keys[n]) <= store.PageMax) {
		size += len(keys[n])
		n++
	}
	return keys[:n]
}

// each calls do for each shard, for some at a time, until one fails.
func each[T any](ctx context.Context, shards map[uint16]T, do func(context.Context, uint16, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	room := make(chan struct{}, shardsAtATime)
	var all sync.WaitGroup
	for s, v := range shards {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			if ctx.Err() != nil {
				return
			}
			if err := do(ctx, s, v); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// Range lists keys of one shard in order: from first on, up to last, which is not among them ("" =
// to the end), limit of them at most. Each page of up to 256 KiB is read at one moment.
func (c *Clerk) Range(ctx context.Context, shard uint16, first, last string, limit int) ([]Item, error) {
	return c.pages(ctx, store.Request{Op: store.Range, Shard: shard, Value: []byte(last)}, first, limit)
}

// Keys is Range to the end without values.
func (c *Clerk) Keys(ctx context.Context, shard uint16, first string, limit int) ([]Item, error) {
	return c.pages(ctx, store.Request{Op: store.Range, Shard: shard, TTL: 1}, first, limit)
}

func (c *Clerk) pages(ctx context.Context, q store.Request, first string, limit int) (items []Item, err error) {
	for len(items) < limit {
		q.If = uint64(min(limit-len(items), store.BatchMax))
		var page []store.Item
		var bad error
		_, err := c.do(ctx, &q, first, func(r store.Result) { page, bad = store.ParseItems(r.Value) })
		if err == nil {
			err = bad
		}
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		for _, i := range page {
			items = append(items, item(i))
		}
		if first = next(page[len(page)-1].Key); first == "" {
			break
		}
	}
	return items, nil
}

// Scan lists the keys with a prefix in order, limit of them at most, all shards together. It is no
// picture of one moment: keys that are written meanwhile may be as before or after.
func (c *Clerk) Scan(ctx context.Context, prefix string, limit int) ([]Item, error) {
	cfg, err := c.config(ctx)
	if err != nil {
		return nil, err
	}
	shards := map[uint16]struct{}{}
	for s := range cfg.Owners {
		shards[uint16(s)] = struct{}{}
	}
	var mu sync.Mutex
	var all []Item
	err = each(ctx, shards, func(ctx context.Context, s uint16, _ struct{}) error {
		items, err := c.Range(ctx, s, prefix, after(prefix), limit)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, items...)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Item) int { return strings.Compare(a.Key, b.Key) })
	return all[:min(len(all), limit)], nil
}

// next is the first key behind a key; "" = there is none. A key that has no room for a longer one
// is a prefix of itself only.
func next(key string) string {
	if len(key) < store.KeyMax {
		return key + "\x00"
	}
	return after(key)
}

// after is the first key behind all with a prefix; "" = there is none.
func after(prefix string) string {
	b := []byte(prefix)
	for len(b) > 0 {
		if b[len(b)-1]++; b[len(b)-1] != 0 {
			return string(b)
		}
		b = b[:len(b)-1]
	}
	return ""
}
