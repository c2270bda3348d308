package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/apps/cache"
	"sigmaos.dev/sdk"
)

// clerk is load by a proc whose goroutines share a clerk of the cache in dir: each makes one
// operation at a time, nine of ten of them gets. All keys are stored before.
func clerk(ctx context.Context, dir string, goroutines, size, keys int, during time.Duration) (res result, err error) {
	c, err := sdk.Open(ctx)
	if err != nil {
		return res, err
	}
	if err := c.Started(ctx); err != nil {
		return res, err
	}
	k := cache.NewClerkOf(c, dir)
	defer k.Close()
	value := bytes.Repeat([]byte("v"), size)
	errs := make([]error, goroutines)
	var all sync.WaitGroup
	each := func(do func(i int) error) error {
		for i := range goroutines {
			all.Go(func() { errs[i] = do(i) })
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := each(func(i int) error {
		for at := i; at < keys; at += goroutines {
			if err := k.Set(ctx, appendKey(nil, uint64(at)), value, 0); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return res, err
	}
	var mu sync.Mutex // of res
	began := time.Now()
	err = each(func(i int) error {
		r := rand.New(rand.NewPCG(uint64(i), 4))
		var took []float64
		ops, hits := 0.0, 0.0
		var key []byte
		for now := began; now.Sub(began) < during; {
			key = appendKey(key[:0], r.Uint64N(uint64(keys)))
			if r.IntN(10) == 0 {
				if err := k.Set(ctx, key, value, 0); err != nil {
					return err
				}
			} else {
				it, found, err := k.Get(ctx, key)
				if err != nil || found && len(it.Value) != size {
					return fmt.Errorf("%s: %d bytes, %w", key, len(it.Value), err)
				}
				if found {
					hits++
				}
			}
			end := time.Now()
			if len(took) < 1000 {
				took = append(took, float64(end.Sub(now).Nanoseconds())/1e3)
			}
			now = end
			ops++
		}
		mu.Lock()
		defer mu.Unlock()
		res.Ops, res.Hits, res.Micros = res.Ops+ops, res.Hits+hits, append(res.Micros, took...)
		return nil
	})
	res.Seconds = time.Since(began).Seconds()
	slices.Sort(res.Micros)
	return res, err
}
