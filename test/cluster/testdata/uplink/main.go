// Command uplink sends as much as it can to another machine, or takes it, for the test of what goes
// first:
//
//	sink PATH    listens, and reads
//	flood PATH   dials, and writes
//	pour PATH    listens, and writes
//	drain PATH   dials, and reads
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, what, path string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if what == "flood" || what == "drain" {
		conn, err := c.DialPath(ctx, path)
		if err != nil {
			return err
		}
		return carry(conn, what == "flood")
	}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	if err := c.Publish(ctx, path, l.Endpoint(), 0); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go carry(conn, what == "pour")
	}
}

// carry writes, or reads, until the other side is gone.
func carry(conn net.Conn, write bool) error {
	defer conn.Close()
	if !write {
		_, err := io.Copy(io.Discard, conn)
		return err
	}
	for block := make([]byte, 64<<10); ; {
		if _, err := conn.Write(block); err != nil {
			return err
		}
	}
}
