// Command httpserver is a proc that serves HTTP/1.1, unencrypted HTTP/2, websockets and otherwise
// upgraded connections by an unmodified net/http, as a member of the fleet that started it, or of
// the directory that it is given. When it is asked to go it answers whom it owes an answer, and
// ends.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"golang.org/x/net/websocket"

	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
)

func main() {
	var opts member.Options
	if len(os.Args) > 1 {
		opts.Dir = os.Args[1]
	}
	if err := run(context.Background(), opts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts member.Options) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	m, err := member.Open(c, opts)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%s of %d bytes by %s to %s with %s\n", r.Method, n, r.RemoteAddr, c.Info().Principal.Proc,
			r.Proto)
	})
	mux.HandleFunc("/echo", echo)
	mux.Handle("/socket", websocket.Handler(func(c *websocket.Conn) { io.Copy(c, c) }))
	return m.ServeHTTP(ctx, mux)
}

// echo takes the connection over, as websocket libraries do, and sends back what comes until the
// client has closed its half.
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
