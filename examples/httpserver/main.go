// Command httpserver is a proc that serves HTTP/1.1, unencrypted HTTP/2 and upgraded connections by an unmodified net/http, as one of the members of the directory that it is given. When it is asked to go it leaves the
// directory, answers whom it owes an answer, and ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
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
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%s of %d bytes by %s to %s with %s\n", r.Method, n, r.RemoteAddr, c.Info().Principal.Proc, r.Proto)
	})
	mux.HandleFunc("/echo", echo)
	server := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	leave, err := c.Join(ctx, dir, l.Endpoint())
	if err != nil {
		return err
	}
	down := make(chan error, 1)
	go func() {
		if err := c.WaitEvict(ctx); err != nil {
			down <- err
			return
		}
		down <- errors.Join(leave(ctx), server.Shutdown(ctx))
	}()
	if err := c.Started(ctx); err != nil {
		return err
	}
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	if err := <-down; err != nil {
		return err
	}
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}

// echo takes the connection over, as websocket libraries do, and sends back what comes until the client has closed its half.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "echo" {
		http.Error(w, "this needs: Upgrade: echo", http.StatusUpgradeRequired)
		return
	}
	conn, both, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	io.Copy(conn, both)
}
