package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// series is what clients did in the course of time.
type series struct {
	Bucket float64   `json:"bucket_s"` // seconds
	Began  float64   `json:"began"`    // seconds since 1970, when the first bucket begins
	Ops    []float64 `json:"ops"`      // requests that were answered in each bucket
	Slow   []float64 `json:"slow_ms"`  // the longest request that ended in each bucket
	Failed int       `json:"failed"`
}

const (
	bucket       = 50 * time.Millisecond
	keysOfClient = 1000 // as in 000 §6.2
)

// stopKey is a key whose value ends follow.
const stopKey = "stop"

// follow has clients put and get, by turns, keys of their own until there is stopKey, or span is
// over. All keys have a value before it begins.
func follow(ctx context.Context, connect func(context.Context) (client, error), n, size int, span time.Duration) (
	s series, err error) {
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	clients := make([]client, n)
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range clients {
		if clients[i], err = connect(ctx); err != nil {
			return s, err
		}
		all.Go(func() {
			for k := 0; k < keysOfClient && errs[i] == nil; k++ {
				errs[i] = clients[i].put(ctx, keyOf(i, k), value)
			}
		})
	}
	all.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return s, errs[i]
	}
	began := time.Now()
	s = series{Bucket: bucket.Seconds(), Began: float64(began.UnixMicro()) / 1e6,
		Ops: make([]float64, int(span/bucket)+1)}
	s.Slow = make([]float64, len(s.Ops))
	var stopped atomic.Bool
	looks, err := connect(ctx)
	if err != nil {
		return s, err
	}
	all.Go(func() {
		for !stopped.Load() && time.Since(began) < span {
			if _, err := looks.get(ctx, stopKey); err == nil {
				stopped.Store(true)
			}
			time.Sleep(bucket)
		}
	})
	var mu sync.Mutex // of s
	for i, c := range clients {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		all.Go(func() {
			ops, slow, failed := make([]float64, len(s.Ops)), make([]float64, len(s.Ops)), 0
			for turn, now := 0, began; now.Sub(began) < span && !stopped.Load(); turn++ {
				key := keyOf(i, rng.IntN(keysOfClient))
				var err error
				if turn%2 == 0 {
					err = c.put(ctx, key, value)
				} else {
					_, err = c.get(ctx, key)
				}
				end := time.Now()
				if err != nil {
					failed++
				}
				if at := int(end.Sub(began) / bucket); at < len(ops) {
					ops[at]++
					slow[at] = max(slow[at], end.Sub(now).Seconds()*1e3)
				}
				now = end
			}
			mu.Lock()
			defer mu.Unlock()
			s.Failed += failed
			for at := range ops {
				s.Ops[at] += ops[at]
				s.Slow[at] = max(s.Slow[at], slow[at])
			}
		})
	}
	all.Wait()
	last := min(int(time.Since(began)/bucket), len(s.Ops)) - 1 // which was not over
	s.Ops, s.Slow = s.Ops[:last], s.Slow[:last]
	return s, nil
}

func keyOf(client, k int) string { return fmt.Sprintf("client:%02d:key:%04d", client, k) }
