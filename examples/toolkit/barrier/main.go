// Command barrier is one of three procs that do a step each, round after round, in step.
//
//	sigma run barrier
package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/lib/barrier"
	"sigmaos.dev/sdk"
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
	return steps(ctx, c, string(c.Info().Principal.Proc))
}

// steps does ten steps, each when all three parties have done the one before.
func steps(ctx context.Context, c *sdk.Client, name string) error {
	p, err := barrier.Join(ctx, c, barrier.Config{Dir: "/simulation", N: 3}, name)
	if err != nil {
		return err
	}
	for range 10 {
		round, err := p.Await(ctx)
		if err != nil {
			return err // KindLost names the party that died
		}
		fmt.Println("round", round)
	}
	return p.Leave(ctx)
}
