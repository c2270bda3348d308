// Command shard is one of several procs among which ten shards are divided.
//
//	sigma run shard
package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/lib/shard"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return member(ctx, c, string(c.Info().Principal.Proc))
}

// member has its part of the shards, and one of the members balances.
func member(ctx context.Context, c *sdk.Client, name string) error {
	cfg := shard.Config{Dir: "/cache", Shards: 10}
	ended := make(chan error, 2)
	go func() { ended <- shard.Balance(ctx, c, cfg) }()
	go func() {
		ended <- shard.Own(ctx, c, cfg, name, shard.Callbacks{
			Gain: func(_ context.Context, n int, f sigma.Fence) { fmt.Println("gained", n, "at epoch", f.Epoch) },
			Lose: func(n int) { fmt.Println("lost", n) },
		})
	}()
	return <-ended
}
