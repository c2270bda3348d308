// Command watcher is a proc that prints what happens in a directory, until a file named "stop"
// appears in it.
package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/trees/resolve"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	for e, err := range c.Follow(ctx, dir) { // first of what is there, then of what changes
		if err != nil {
			return err
		}
		fmt.Println(e.Kind, e.Name)
		if e.Kind == resolve.Created && e.Name == "stop" {
			break
		}
	}
	return nil
}
