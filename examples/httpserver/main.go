// Command httpserver is a proc that serves HTTP/1.1, unencrypted HTTP/2, websockets and otherwise
// upgraded connections by an unmodified net/http, as one of the members of the directory that it is
// given. When it is asked to go it leaves the directory, answers whom it owes an answer, and ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/websocket"

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
		fmt.Fprintf(w, "%s of %d bytes by %s to %s with %s\n", r.Method, n, r.RemoteAddr, c.Info().Principal.Proc,
			r.Proto)
	})
	mux.HandleFunc("/echo", echo)
	mux.Handle("/socket", websocket.Handler(func(c *websocket.Conn) { io.Copy(c, c) }))
	var leaving atomic.Bool
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		mux.ServeHTTP(w, r)
	})
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols), IdleTimeout: idle}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	var open sync.WaitGroup // connections
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Done()
		}
	}
	leave, err := c.Join(ctx, dir, l.Endpoint())
	if err != nil {
		return err
	}
	left := make(chan error, 1)
	go func() {
		err := c.WaitEvict(ctx)
		if err == nil {
			err = leave(ctx)
		}
		leaving.Store(true)
		left <- errors.Join(err, l.Close())
	}()
	if err := c.Started(ctx); err != nil {
		return err
	}
	patient := &patient{Listener: l}
	if err := server.Serve(patient); !errors.Is(err, net.ErrClosed) { // who had dialled before has been accepted
		return err
	}
	if err := errors.Join(<-left, end(ctx, server, &open, &patient.open)); err != nil {
		return err
	}
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}

const (
	// straggling is how long a connection may take to bring its next request.
	straggling = 3 * time.Second
	// idle is how long a connection that brings none lasts. That is over before straggling is:
	// Shutdown closes idle connections of HTTP/1 without a word, and a request that a client begins
	// on one at that moment fails.
	idle = 1500 * time.Millisecond
)

// end shuts the server down, whose answers close their connections by now. Shutdown alone drops a
// request that it has not begun to handle, such as the first one of a client that connected just
// before; so connections are first given the time to end with the request that comes next.
func end(ctx context.Context, server *http.Server, open, patient *sync.WaitGroup) error {
	ended := make(chan struct{})
	go func() {
		open.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(straggling):
	}
	err := server.Shutdown(ctx)
	patient.Wait()
	return err
}

// patient is a listener whose connections end when both sides have: net/http closes an HTTP/2
// connection a second after it has told the client so, and a client that has not heard it by then
// would fail to write its next request. Now the client reads the announcement and the end, in this
// order, and makes the request anew on another connection.
type patient struct {
	net.Listener
	open sync.WaitGroup // connections
}

// patienceMax is how long a client may take to end its side.
const patienceMax = 10 * time.Second

func (l *patient) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	p := &patientConn{Conn: c}
	p.drain = sync.OnceFunc(func() {
		go func() {
			defer l.open.Done()
			defer c.Close()
			c.SetReadDeadline(time.Now().Add(patienceMax))
			io.Copy(io.Discard, c)
		}()
	})
	return p, nil
}

type patientConn struct {
	net.Conn
	drain func() // reads what still comes, and closes the connection
}

// Close ends what the server says.
func (c *patientConn) Close() error {
	err := c.Conn.(interface{ CloseWrite() error }).CloseWrite()
	c.drain()
	return err
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
