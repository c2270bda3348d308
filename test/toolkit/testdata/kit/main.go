// Command kit is the service and the workers of the toolkit's system test.
//
//	kit serve|work DIR
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"sigmaos.dev/lib/once"
	"sigmaos.dev/lib/queue"
	"sigmaos.dev/lib/queue/server"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err == nil {
		go func() {
			if c.WaitEvict(ctx) == nil {
				os.Exit(0)
			}
		}()
		err = map[string]func(context.Context, *sdk.Client, string) error{"serve": serve,
			"work": work}[os.Args[1]](ctx, c, os.Args[2])
	}
	fmt.Fprintln(os.Stderr, err) // no role ends by itself
	os.Exit(1)
}

func serve(ctx context.Context, c *sdk.Client, dir string) error {
	return server.Serve(ctx, c, server.Config{Dir: dir, Lease: time.Second, Attempts: 1000, Keep: 1_000_000}, nil)
}

// work ends each task with its attempt. Of tasks whose data say so it makes an effect, once.
func work(ctx context.Context, c *sdk.Client, dir string) error {
	q := queue.Open(c, dir)
	defer q.Close()
	return q.Work(ctx, 4, func(ctx context.Context, t queue.Held) ([]byte, error) {
		word := fmt.Append(nil, t.ID, " ", t.Attempt)
		if string(t.Data) != "once" {
			return word, nil
		}
		return once.Do(ctx, c, "/effects/"+t.Key, func(ctx context.Context, f sigma.Fence) ([]byte, error) {
			_, err := c.Put(sigma.WithFence(ctx, f), "/effects/log", append(word, '\n'), sigma.PutOptions{Append: true})
			return word, err
		})
	})
}
