// Command webload is a proc that asks a fleet by HTTP, half of the requests POST, with so many at a
// time, for some time:
//
//	webload FLEET AT_ONCE TIME [http2]
//
// It tells how many requests were answered, with what, and which were not.
package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: webload FLEET AT_ONCE TIME [http2]")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], len(os.Args) > 4); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name, atOnce, long string, second bool) error {
	workers, err := strconv.Atoi(atOnce)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(long)
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: c.Dialer(fleet.Members(name)).DialContext, Protocols: new(http.Protocols),
		MaxConnsPerHost: workers, MaxIdleConnsPerHost: workers}
	transport.Protocols.SetHTTP1(!second)
	transport.Protocols.SetUnencryptedHTTP2(second)
	client := &http.Client{Transport: transport}
	if err := c.Started(ctx); err != nil {
		return err
	}
	answers := ask(client, workers, time.Now().Add(d))
	for _, answer := range slices.Sorted(maps.Keys(answers)) {
		fmt.Printf("%d times %s\n", answers[answer], answer)
	}
	return nil
}

// ask asks until the time has come, and counts the answers.
func ask(client *http.Client, workers int, until time.Time) map[string]int {
	var mu sync.Mutex
	answers := map[string]int{} // mu
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				answer := one(client, n%2 == 0)
				mu.Lock()
				answers[answer]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return answers
}

// one makes a request.
func one(client *http.Client, post bool) string {
	ask := func() (*http.Response, error) { return client.Get("http://web/") }
	if post {
		ask = func() (*http.Response, error) {
			return client.Post("http://web/", "text/plain", strings.NewReader("good morning"))
		}
	}
	r, err := ask()
	if err != nil {
		return "failed: " + err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return fmt.Sprintf("failed: %s, %v", r.Status, err)
	}
	return "answered: " + strings.TrimSpace(string(text))
}
