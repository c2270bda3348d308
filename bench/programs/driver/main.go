// Command driver keeps procs of one program spawned, for the bench fair, until it is evicted; then
// it kills them:
//
//	driver PROCS BYTES PROGRAM [ARGUMENT ...]
//
// Each has BYTES of memory. One that fails ends the driver, which fails.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("usage: driver PROCS BYTES PROGRAM [ARGUMENT ...]")
	}
	procs, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	bytes, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Started(ctx); err != nil {
		return err
	}
	working, stop := context.WithCancelCause(ctx)
	go func() {
		c.WaitEvict(working)
		stop(nil)
	}()
	d := sigma.Descriptor{Program: args[2], Args: args[3:], Memory: sigma.Bytes(bytes)}
	var all sync.WaitGroup
	for range procs {
		all.Go(func() {
			if err := keep(working, ctx, c, d); err != nil {
				stop(err)
			}
		})
	}
	all.Wait()
	if err := context.Cause(working); err != context.Canceled {
		return err
	}
	return nil
}

// keep keeps one proc spawned until working ends, and kills it then.
func keep(working, ctx context.Context, c *sdk.Client, d sigma.Descriptor) error {
	for working.Err() == nil {
		ids, err := c.Spawn(ctx, d)
		if err != nil {
			return err
		}
		over := context.AfterFunc(working, func() { c.Kill(ctx, ids[0]) })
		st, err := c.WaitExit(ctx, ids[0])
		switch {
		case !over():
			return nil
		case err != nil:
			return err
		case !st.OK():
			return fmt.Errorf("a proc ended as %+v", st)
		}
	}
	return nil
}
