// Command semaphore does something of which two procs of the realm may do it at a time.
//
//	sigma run semaphore
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"sigmaos.dev/lib/semaphore"
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
	return limited(ctx, c, func() { fmt.Println("has a permit") })
}

// limited does something while it holds one of two permits.
func limited(ctx context.Context, c *sdk.Client, do func()) error {
	s, err := semaphore.New(ctx, c, semaphore.Config{Dir: "/limits/encoders", Size: 2, TTL: 5 * time.Second})
	if err != nil {
		return err
	}
	p, err := s.Acquire(ctx) // waits in order of arrival
	if err != nil {
		return err
	}
	do() // p.Lost() tells if the permit ends before
	return p.Release(ctx)
}
