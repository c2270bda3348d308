// Command client is a proc that waits until a server is published at the path it is given, and asks
// it something by HTTP.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"sigmaos.dev/sdk"
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
	if err := c.WaitFor(ctx, path); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.DialPath(ctx, path) },
	}}
	r, err := client.Get("http://server/world")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(os.Stdout, r.Body)
	return err
}
