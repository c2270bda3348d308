// Command streams is a proc at one end of a pipe: "print PIPE" prints what it reads there, "pour
// PIPE" writes there without end.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err == nil {
		err = run(ctx, c, os.Args[1], os.Args[2])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v: %v\n", sigma.KindOf(err), err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c *sdk.Client, what, pipe string) error {
	if what == "print" {
		h, err := c.Open(ctx, pipe, sigma.OpenRead)
		if err != nil {
			return err
		}
		defer h.Close()
		if _, err := io.Copy(os.Stdout, h); err != nil {
			return err
		}
		_, err = fmt.Fprintln(os.Stderr, "the end")
		return err
	}
	h, err := c.Open(ctx, pipe, sigma.OpenWrite)
	if err != nil {
		return err
	}
	defer h.Close()
	for n := 0; ; n++ {
		if _, err := fmt.Fprintf(h, "line %d\n", n); err != nil {
			return err
		}
	}
}
