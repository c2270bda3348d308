// Command httpclient is a proc that asks the servers in a directory by HTTP, with a few requests at
// a time, until a file exists:
//
//	httpclient DIRECTORY FILE [http1|http2]
//
// Servers may come and go meanwhile. It tells how many requests were answered, and which were not,
// with the proc they were sent to.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"sync/atomic"

	"sigmaos.dev/sdk"
)

func main() {
	protocol := "http1"
	if len(os.Args) > 3 {
		protocol = os.Args[3]
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], protocol); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// atOnce is how many requests are made at a time.
const atOnce = 4

func run(ctx context.Context, dir, until, protocol string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	// Without a bound net/http dials for each request that finds no idle connection, and keeps
	// dialling when one becomes free meanwhile.
	transport := &http.Transport{DialContext: telling(c.Dialer(dir).DialContext), Protocols: new(http.Protocols),
		MaxConnsPerHost: atOnce, MaxIdleConnsPerHost: atOnce}
	transport.Protocols.SetHTTP1(protocol == "http1")
	transport.Protocols.SetUnencryptedHTTP2(protocol == "http2")
	client := &http.Client{Transport: transport}
	asking, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	var mu sync.Mutex
	answered, failed := 0, 0 // mu
	for worker := range atOnce {
		workers.Go(func() {
			for n := 0; asking.Err() == nil; n++ {
				to, err := ask(ctx, client, worker*n%100_000)
				mu.Lock()
				if err == nil {
					answered++
				} else if failed++; failed <= 100 {
					fmt.Printf("failed at %s: %v\n", to, err)
				}
				mu.Unlock()
			}
		})
	}
	err = c.WaitFor(ctx, until)
	stop()
	workers.Wait()
	fmt.Printf("%d answered, %d failed\n", answered, failed)
	return err
}

// telling is dial that tells the trace of the request whom it has dialled.
func telling(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string,
	string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if trace := httptrace.ContextClientTrace(ctx); err == nil && trace != nil && trace.ConnectDone != nil {
			trace.ConnectDone(network, conn.RemoteAddr().String(), nil)
		}
		return conn, err
	}
}

// ask makes a request with a body of some size, and says to which address it went.
func ask(ctx context.Context, client *http.Client, size int) (to string, err error) {
	var last atomic.Value // to whom; of this goroutine, and of one that dials
	last.Store("nobody")
	defer func() { to = last.Load().(string) }()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:     func(string) { last.Store("nobody") },
		ConnectDone: func(_, address string, _ error) { last.CompareAndSwap("nobody", address) },
		GotConn:     func(i httptrace.GotConnInfo) { last.Store(i.Conn.RemoteAddr().String()) },
	})
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://server/thing",
		bytes.NewReader(make([]byte, size)))
	if err != nil {
		return to, err
	}
	r.Header["Idempotency-Key"] =
		nil // not sent; it tells net/http to ask again if a server closes a connection that was idle
	answer, err := client.Do(r)
	if err != nil {
		return to, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK ||
		!bytes.HasPrefix(text, fmt.Appendf(nil, "PUT of %d bytes by ", size))) {
		err = fmt.Errorf("%s: %q", answer.Status, text)
	}
	return to, err
}
