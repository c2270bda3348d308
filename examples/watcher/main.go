// Command watcher is a proc that prints the names of a directory each time it changes, until a file named "stop" appears in it.
package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/sdk"
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
	for {
		st, err := c.Stat(ctx, dir) // the version before the listing: what changes in between makes Watch return at once
		if err != nil {
			return err
		}
		entries, err := c.ReadDir(ctx, dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			fmt.Print(e.Name, " ")
			if e.Name == "stop" {
				fmt.Println()
				return nil
			}
		}
		fmt.Println()
		if _, err := c.Watch(ctx, dir, st.ID.Version); err != nil {
			return err
		}
	}
}
