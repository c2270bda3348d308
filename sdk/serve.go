package sdk

import (
	"context"

	"sigmaos.dev/sigma"
)

// Serve is the whole life of a proc that serves one tree: it connects, has the tree made, listens,
// says that it has started, and serves everybody who dials until ctx ends, upon which it returns
// nil.
func Serve(ctx context.Context, open func(context.Context) (sigma.Tree, error)) error {
	return ServeClient(ctx, func(ctx context.Context, _ *Client) (sigma.Tree, error) { return open(ctx) })
}

// ServeClient is Serve for a tree that uses the connection too.
func ServeClient(ctx context.Context, open func(context.Context, *Client) (sigma.Tree, error)) error {
	c, err := Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	tree, err := open(ctx, c)
	if err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	if err := c.ServeTree(ctx, l, tree); ctx.Err() == nil {
		return err
	}
	return nil
}
