package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// webTown is a town of servers of HTTP over UNIX sockets, where names are in use.
func webTown(t *testing.T) *town {
	dir, err := os.MkdirTemp("", "member")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return newTown(t, dir)
}

// dial connects to one of the members that are published.
func (w *town) dial(context.Context, string, string) (net.Conn, error) {
	for range 100 {
		for _, r := range w.published() { // in any order
			if c, err := r.l.dial(); err == nil {
				return c, nil
			}
		}
	}
	return nil, sigma.Errorf("test", sigma.KindUnavailable, "nobody")
}

// web starts a server and waits until it is published.
func (w *town) web(h http.HandlerFunc) (r *resident, m *Member, over chan error) {
	w.tb.Helper()
	r, m = w.open(Options{Dir: "/svc/web"})
	over = make(chan error, 1)
	go func() { over <- m.ServeHTTP(w.tb.Context(), h) }()
	for tick := time.NewTicker(time.Millisecond); w.published()[string(r.id)] == nil; <-tick.C {
	}
	return r, m, over
}

func transport(w *town, second bool) *http.Transport {
	t := &http.Transport{DialContext: w.dial, Protocols: new(http.Protocols), MaxIdleConnsPerHost: 20}
	t.Protocols.SetHTTP1(!second)
	t.Protocols.SetUnencryptedHTTP2(second)
	return t
}

func countBytes(rw http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	fmt.Fprint(rw, n)
}

// Goal: while members come and go no request fails, also POST and with bodies that take several
// writes, of bursts after which connections are idle.
func TestDrainHTTP(t *testing.T) {
	for _, second := range []bool{false, true} {
		t.Run(map[bool]string{false: "http1", true: "http2"}[second], func(t *testing.T) {
			t.Parallel()
			w := webTown(t)
			first, _, over := w.web(countBytes)
			ends := []chan error{over}
			c := &http.Client{Transport: transport(w, second)}
			var stop atomic.Bool
			var asked atomic.Int64
			var clients sync.WaitGroup
			for range 8 {
				clients.Go(func() {
					for !stop.Load() {
						size := rand.IntN(3) * rand.IntN(10_000)
						r, err := c.Post("http://web/", "text/plain", bytes.NewReader(make([]byte, size)))
						if err != nil {
							t.Error(err)
							return
						}
						text, err := io.ReadAll(r.Body)
						r.Body.Close()
						if err != nil || string(text) != fmt.Sprint(size) {
							t.Errorf("got %.80q for %d bytes, %v", text, size, err)
							return
						}
						asked.Add(1)
						<-time.After(time.Duration(rand.IntN(30)) * time.Millisecond)
					}
				})
			}
			for range 8 {
				next, _, over := w.web(countBytes)
				ends = append(ends, over)
				close(first.evicted)
				first = next
				<-time.After(300 * time.Millisecond)
			}
			stop.Store(true)
			clients.Wait()
			close(first.evicted)
			for _, over := range ends {
				if err := <-over; err != nil {
					t.Errorf("a member ended with %v", err)
				}
			}
			t.Logf("%d requests", asked.Load())
		})
	}
}

// Goal: when there are more members, clients that keep their connections make them anew, and no
// request fails.
func TestRenewHTTP(t *testing.T) {
	for _, second := range []bool{false, true} {
		t.Run(map[bool]string{false: "http1", true: "http2"}[second], func(t *testing.T) {
			t.Parallel()
			w := webTown(t)
			_, m, _ := w.web(countBytes)
			dials := 0 // of the one goroutine that asks
			tr := transport(w, second)
			tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				dials++
				return w.dial(ctx, network, address)
			}
			c := &http.Client{Transport: tr}
			for renewals := range 4 {
				for range 50 {
					r, err := c.Post("http://web/", "text/plain", strings.NewReader("four"))
					if err != nil {
						t.Fatal(err)
					}
					io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
				if dials != renewals+1 {
					t.Errorf("after %d renewals the client dialled %d times", renewals, dials)
				}
				m.renew()
			}
			tr.CloseIdleConnections()
		})
	}
}

// Goal: a connection that is idle does not keep its member. On one machine it is ended between two
// requests: what the client had written is answered, and what it writes later is written elsewhere.
func TestIdleHTTP(t *testing.T) {
	w := webTown(t)
	old, _, over := w.web(countBytes)
	post := func(c *http.Client) {
		t.Helper()
		r, err := c.Post("http://web/", "text/plain", strings.NewReader("four"))
		if err != nil {
			t.Error(err)
			return
		}
		r.Body.Close()
	}
	var idle []*http.Client
	for range 40 {
		c := &http.Client{Transport: transport(w, false)}
		post(c)
		idle = append(idle, c)
	}
	raw, err := old.l.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	const request = "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\n\r\n"
	fmt.Fprint(raw, request, "four")
	if n, err := raw.Read(make([]byte, 1000)); err != nil || n == 0 {
		t.Fatal(err)
	}
	fmt.Fprint(raw, request) // half of the next
	next, _, newOver := w.web(countBytes)
	at := time.Now()
	close(old.evicted)
	for tick := time.NewTicker(time.Millisecond); w.published()[string(old.id)] != nil; <-tick.C {
	}
	ends := time.Now().Add(linger + idleMost) // about, of the connections
	var clients sync.WaitGroup
	for _, c := range idle {
		clients.Go(func() {
			<-time.After(time.Until(ends) + time.Duration(rand.IntN(20e6)) - 10e6)
			post(c)
		})
	}
	<-time.After(linger + idleMost/2)
	fmt.Fprint(raw, "four")
	if text, err := io.ReadAll(raw); err != nil || !bytes.Contains(text, []byte("Connection: close")) {
		t.Errorf("a request that arrives as its member leaves gets %q, %v", text, err)
	}
	raw.Close()
	clients.Wait()
	if err := <-over; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if d := time.Since(at); d > linger+straggling {
		t.Errorf("it ended after %v", d)
	}
	close(next.evicted)
	for _, c := range idle {
		c.CloseIdleConnections()
	}
	if err := <-newOver; err != nil {
		t.Errorf("the next one ended with %v", err)
	}
}

// Goal: requests are counted, failed ones too; a connection that was taken over is not in service,
// and its member waits for its end.
func TestCountHTTP(t *testing.T) {
	w := webTown(t)
	taken := make(chan net.Conn, 1)
	r, m, over := w.web(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fail":
			rw.WriteHeader(http.StatusBadGateway)
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/none":
			http.NotFound(rw, r)
		case "/flush":
			rw.(http.Flusher).Flush()
			io.Copy(rw, strings.NewReader("flushed"))
		case "/take":
			c, _, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			taken <- c
		}
	})
	c := &http.Client{Transport: transport(w, false)}
	for _, path := range []string{"/", "/fail", "/panic", "/none", "/flush"} {
		answer, err := c.Post("http://web"+path, "", nil) // which is made once
		if path == "/panic" {
			if err == nil {
				t.Error("a handler that panics answers")
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	raw, err := r.l.dial()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(raw, "GET /take HTTP/1.1\r\nHost: web\r\n\r\n")
	theirs := <-taken
	if l := m.load.take(); l.Served != 6 || l.Failed != 2 {
		t.Errorf("after 6 requests, 2 of which failed: %+v", l)
	}
	<-time.After(10 * time.Millisecond)
	if l := m.load.take(); l.Busy > 0.5 {
		t.Errorf("with a connection that was taken over: %+v", l)
	}
	close(r.evicted)
	for range 3 {
		<-time.After(straggling / 2)
		fmt.Fprint(raw, "x")
		if _, err := theirs.Read(make([]byte, 1)); err != nil {
			t.Errorf("a connection that was taken over: %v", err)
		}
	}
	if len(over) > 0 {
		t.Error("the member ended before a connection that was taken over")
	}
	raw.Close()
	theirs.Close()
	if err := <-over; err != nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
}
