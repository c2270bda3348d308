// Command liar is a proc that serves trees that lie, one for each way to: DIR/silence and so on.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
	"sigmaos.dev/wire/session"
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
	if err := c.Mkdir(ctx, dir, 0o755); err != nil {
		return err
	}
	over := make(chan error)
	for _, how := range treetest.Lies() {
		l, err := c.Listen(ctx, sigma.FormTree)
		if err != nil {
			return err
		}
		if err := c.Publish(ctx, dir+"/"+how, l.Endpoint(), 0); err != nil {
			return err
		}
		go func() { over <- serve(l, how) }()
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return <-over
}

func serve(l net.Listener, how string) error {
	for {
		nc, err := l.Accept()
		if err != nil {
			return err
		}
		f, err := nc.(interface{ File() (*os.File, error) }).File()
		nc.Close()
		if err != nil {
			return err
		}
		conn, err := session.FromFile(f)
		if err != nil {
			return err
		}
		go treetest.Lie(how, conn)
	}
}
