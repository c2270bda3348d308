// Command once does a task that any number of procs may ask for, of which one does it.
//
//	sigma run once
package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/lib/once"
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
	result, err := table(ctx, c)
	if err != nil {
		return err
	}
	fmt.Println(string(result))
	return nil
}

// table gives what was computed once, by whichever proc asked first.
func table(ctx context.Context, c *sdk.Client) ([]byte, error) {
	return once.Do(ctx, c, "/tables/squares", func(ctx context.Context, f sigma.Fence) ([]byte, error) {
		var out []byte
		for i := range 10 {
			out = fmt.Append(out, i*i, " ")
		}
		return out, ctx.Err() // the context ends if the task becomes another's
	})
}
