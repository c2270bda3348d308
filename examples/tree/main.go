// Command tree is a proc that serves a tree of its own, in memory, at the path it is given.
// Everybody in the realm walks into it as into any directory.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	tree, err := filled(ctx, c.Info().Principal)
	if err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	lease, _, err := c.Lease(ctx, 10*time.Second)
	if err != nil {
		return err
	}
	if err := c.Publish(ctx, path, l.Endpoint(), lease); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return c.ServeTree(ctx, l, tree)
}

// filled makes a tree with one file in it.
func filled(ctx context.Context, p sigma.Principal) (sigma.Tree, error) {
	tree := memfs.New(memfs.Config{SizeMax: 16 * sigma.MiB})
	root, err := tree.Attach(ctx, p, "")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	_, _, err = treeserver.Put(ctx, root, []string{"greeting"}, []byte("served by "+string(p.Proc)+"\n"),
		sigma.PutOptions{Perm: 0o644})
	return tree, err
}
