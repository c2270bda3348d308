// Command asker asks a web fleet, on a new connection each time, until it is asked to go:
//
//	asker DIRECTORY RATE
//
// It prints as JSON how many requests each revision answered, and how many failed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, rate string) error {
	perSecond, err := strconv.Atoi(rate)
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	asking, stop := context.WithCancel(ctx)
	go func() {
		c.WaitEvict(ctx)
		stop()
	}()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: c.Dialer(dir).DialContext}}
	counts := map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	if err := c.Started(ctx); err != nil {
		return err
	}
	for tick := time.Tick(time.Second / time.Duration(perSecond)); asking.Err() == nil; <-tick {
		all.Go(func() {
			by := ask(client)
			mu.Lock()
			defer mu.Unlock()
			counts[by]++
		})
	}
	all.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(counts); err != nil {
		return err
	}
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}

// ask makes one request, and gives the revision that answered.
func ask(client *http.Client) string {
	r, err := client.Get("http://fleet/")
	if err != nil {
		return "failed: " + err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return "failed: " + err.Error()
	}
	if r.StatusCode != http.StatusOK {
		return "refused"
	}
	return strings.TrimSpace(string(b))
}
