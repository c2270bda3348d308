package kv

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// Event is a change of a key. One that is Gone was deleted, or its time has passed.
type Event struct {
	Item
	Gone bool
}

// waitEach is how long one call waits for changes.
const waitEach = 10 * time.Second

// Watch gives the changes of a key from now on, until ctx ends; the error comes last. ready, unless
// nil, is called when changes from then on are seen. KindStale: the reader was behind by more
// changes than the store keeps, 1,024 of a shard and 1 MiB of them at most.
func (c *Clerk) Watch(ctx context.Context, key string, ready func()) iter.Seq2[Event, error] {
	return c.watch(ctx, key, true, ready)
}

// WatchPrefix is Watch of all keys with a prefix. The changes of one key come in order.
func (c *Clerk) WatchPrefix(ctx context.Context, prefix string, ready func()) iter.Seq2[Event, error] {
	return c.watch(ctx, prefix, false, ready)
}

func (c *Clerk) watch(ctx context.Context, prefix string, exact bool, ready func()) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		cfg, err := c.config(ctx)
		if err == nil && len(prefix) > store.KeyMax {
			err = store.TooBig(len(prefix), 0)
		}
		if err != nil {
			yield(Event{}, err)
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		w := &watcher{c: c, shards: len(cfg.Owners), prefix: prefix, exact: exact, ready: ready,
			out: make(chan []store.Change), places: map[uint16]uint64{}, moved: map[uint16]uint32{}}
		for s := range cfg.Owners {
			if !exact || Shard(prefix, len(cfg.Owners)) == uint16(s) {
				w.places[uint16(s)] = calls.Now
			}
		}
		w.unknown = len(w.places)
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel(nil)
		all.Go(func() { cancel(w.run(ctx)) })
		for {
			select {
			case changes := <-w.out:
				for _, ch := range changes {
					if !yield(Event{item(ch.Item), ch.Gone}, nil) {
						return
					}
				}
			case <-ctx.Done():
				yield(Event{}, sigma.Wrap("kv.Watch", c.name, context.Cause(ctx)))
				return
			}
		}
	}
}

// watcher repeats one call to each group that has shards of the watch.
type watcher struct {
	c      *Clerk
	shards int // of the store
	prefix string
	exact  bool
	out    chan []store.Change
	ready  func()

	mu      sync.Mutex
	places  map[uint16]uint64 // mu; where to go on
	moved   map[uint16]uint32 // mu; groups that members have named
	unknown int               // mu; places that are still calls.Now
}

// run asks until ctx ends or changes were missed.
func (w *watcher) run(ctx context.Context) error {
	for pause := pauseLeast; ctx.Err() == nil; {
		cfg, err := w.c.config(ctx)
		if err != nil {
			return err
		}
		if len(cfg.Owners) != w.shards {
			return errOther
		}
		groups := map[uint32][]store.At{}
		w.mu.Lock()
		for s, version := range w.places {
			g := cfg.Owners[s]
			if to, is := w.moved[s]; is {
				g = to
			}
			groups[g] = append(groups[g], store.At{Shard: s, Version: version})
		}
		clear(w.moved)
		w.mu.Unlock()
		began := time.Now()
		round, cancel := context.WithCancelCause(ctx)
		var all sync.WaitGroup
		for g, places := range groups {
			slices.SortFunc(places, func(a, b store.At) int { return int(a.Shard) - int(b.Shard) })
			all.Go(func() { cancel(w.ask(round, cfg, g, places)) })
		}
		all.Wait()
		err = context.Cause(round)
		cancel(nil)
		if err != nil && err != errRound && ctx.Err() == nil {
			return err
		}
		// A shard that nobody serves ends one round after another.
		if time.Since(began) > pauseMost {
			pause = pauseLeast
		}
		retry.Pause(ctx, pause)
		pause = min(2*pause, pauseMost)
	}
	return context.Cause(ctx)
}

// errOther is the error of a watch of a store that was removed, and made again otherwise.
var errOther = &sigma.Error{Op: "kv.Watch", Kind: sigma.KindStale, Msg: "the store was made again",
	Hint: "list the keys, and watch again"}

// errRound ends a round: the shards are divided among groups anew.
var errRound = sigma.Errorf("kv.Watch", sigma.KindStale, "a shard has moved")

// ask asks one group, until a shard of places has gone elsewhere.
func (w *watcher) ask(ctx context.Context, cfg *layout.Config, group uint32, places []store.At) error {
	for pause := pauseLeast; ; {
		enc := sigmap.NewEncoder(nil)
		(&calls.WatchArg{Prefix: w.prefix, Exact: w.exact, Wait: waitEach, Places: places}).Code(enc)
		out, err := w.c.askGroup(ctx, calls.Watch, group, enc.Bytes(), nil)
		var news []store.News
		if err == nil {
			news, err = store.ParseNews(out)
		}
		if err == nil {
			err = w.take(ctx, places, news)
		}
		switch {
		case err == nil:
			pause = pauseLeast
			continue
		case !again(err) || err == errRound || ctx.Err() != nil || err == errMissed:
			return err
		}
		if !retry.Pause(ctx, pause) {
			return errRound
		}
		if now := w.c.now.Load(); now != cfg {
			return errRound
		}
		pause = min(2*pause, pauseMost)
	}
}

var errMissed = &sigma.Error{Op: "kv.Watch", Kind: sigma.KindStale, Msg: "there were more changes than the store keeps",
	Hint: "list the keys, and watch again"}

// take takes an answer: it gives changes to the reader, and notes where to go on.
func (w *watcher) take(ctx context.Context, places []store.At, news []store.News) error {
	var end error
	for _, n := range news {
		i := slices.IndexFunc(places, func(at store.At) bool { return at.Shard == n.Shard })
		switch {
		case i < 0:
			return sigma.Errorf("kv.Watch", sigma.KindInvalid, "an answer tells of shard %d unasked", n.Shard)
		case n.Code == store.NotHere:
			w.mu.Lock()
			if n.Group != 0 {
				w.moved[n.Shard] = uint32(n.Group)
			}
			w.mu.Unlock()
			end = errRound
			continue
		case n.Code != store.Done:
			return errMissed
		}
		if len(n.Changes) > 0 {
			select {
			case w.out <- n.Changes:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if w.advance(&places[i], n.Version) && w.ready != nil {
			w.ready()
		}
	}
	return end
}

// advance notes where to go on, and reports whether with that all places are known.
func (w *watcher) advance(at *store.At, version uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := at.Version == calls.Now
	at.Version = version
	w.places[at.Shard] = version
	if fresh {
		w.unknown--
	}
	return fresh && w.unknown == 0
}
