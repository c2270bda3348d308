// Command flood asks for as much of one kind as it can, until it is killed, for the bench
// neighbour:
//
//	flood KIND PROGRAM
//
// What is refused it asks for again at once. PROGRAM is what it spawns.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
)

// workers ask at the same time.
const workers = 32

func main() {
	if len(os.Args) != 3 {
		panic("usage: flood KIND PROGRAM")
	}
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err != nil {
		panic(err)
	}
	ask := kinds(ctx, c, os.Args[2])[os.Args[1]]
	if ask == nil {
		panic("no kind " + os.Args[1])
	}
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				ask(w, i)
			}
		})
	}
	all.Wait()
}

// kinds are the floods: each is one request of worker w, its i-th. Their errors are what a flood
// has to expect.
func kinds(ctx context.Context, c *sdk.Client, program string) map[string]func(w, i int) {
	here := "/flood-" + string(c.Info().Principal.Proc)
	label := func(n int) string { return fmt.Sprint(n, "=", strings.Repeat("x", sigma.LabelMax-8)) }
	var listen sync.Once
	var end sigma.Endpoint
	var list sync.Once
	object := make([]byte, 64<<10)
	db := database.Open(c, "/db/flood")
	return map[string]func(w, i int){
		"lc": func(w, i int) {
			d := sigma.Descriptor{Program: program, Class: sigma.LatencyCritical, CPU: sigma.CPUMost / 2}
			for n := range sigma.WhereMax {
				d.Where = append(d.Where, label(n))
			}
			c.Spawn(ctx, d, d, d, d)
		},
		"be": func(w, i int) { c.Spawn(ctx, sigma.Descriptor{Program: program, Args: []string{"work", "1"}}) },
		"dial": func(w, i int) { // connections that nobody accepts, nor reads
			listen.Do(func() {
				if l, err := c.Listen(ctx, sigma.FormStream); err == nil {
					end = l.Endpoint()
				}
			})
			within, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			c.Dial(within, end) // never closed
		},
		"names": func(w, i int) {
			path := fmt.Sprint(here, "-", w)
			c.Put(ctx, path, object[:64], sigma.PutOptions{Perm: 0o644})
			c.Get(ctx, path)
			within, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			c.Watch(within, path, 1<<62)
		},
		"leases": func(w, i int) { c.Lease(ctx, time.Minute) },
		"fences": func(w, i int) { // a new one each time, until there are as many as may be; then newer epochs of them
			within := sigma.WithFence(ctx, sigma.Fence{Name: fmt.Sprint("/fence-", w, "-", i%128),
				Epoch: sigma.Epoch(i/128 + 1)})
			c.Put(within, "/ux/~local"+here, nil, sigma.PutOptions{Perm: 0o644})
		},
		"events": func(w, i int) { c.Get(ctx, "/sys/events") },
		"watches": func(w, i int) { // as many as may be wait all the time
			go func() {
				within, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				c.Watch(within, here+"-watched", 1<<62)
			}()
			if i%64 == 63 {
				time.Sleep(time.Millisecond)
			}
		},
		"s3": func(w, i int) {
			c.Put(ctx, fmt.Sprint("/s3/flood", here, "-", w, "-", i%64), object, sigma.PutOptions{Perm: 0o644})
		},
		"sql": func(w, i int) {
			var n int
			db.QueryRowContext(ctx,
				"with recursive c(x) as (select 1 union all select x+1 from c limit 300000) select count(*) from "+
					"c").Scan(&n)
		},
		"list": func(w, i int) {
			list.Do(func() {
				c.Mkdir(ctx, here, 0o755)
				for n := range 2000 {
					c.Put(ctx, fmt.Sprint(here, "/", n), nil, sigma.PutOptions{Perm: 0o644})
				}
			})
			c.ReadDir(ctx, here)
		},
	}
}
