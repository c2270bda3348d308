// Command server is a proc that serves HTTP on an endpoint, which it publishes at the path it is
// given. Clients reach it from anywhere in the realm; no port is open.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
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
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	lease, _, err := c.Lease(ctx, 10*time.Second) // the name goes when this proc does
	if err != nil {
		return err
	}
	if err := c.Publish(ctx, path, l.Endpoint(), lease); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello %s, this is %s\n", r.URL.Path, c.Info().Principal.Proc)
	})}
	go func() {
		if c.WaitEvict(ctx) == nil {
			server.Shutdown(ctx)
		}
	}()
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}
