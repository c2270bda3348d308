// Command faulty is a member of a fleet that serves HTTP as its argument says: good, sick (its
// health check fails), errors (every other request fails) or crash (it ends at once).
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"

	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, how string) error {
	if how == "crash" {
		return fmt.Errorf("this version ends at once")
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	m, err := member.Open(c, member.Options{})
	if err != nil {
		return err
	}
	var n atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if how == "sick" {
			http.Error(w, "no", http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		if how == "errors" && n.Add(1)%2 == 0 {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, os.Getenv("SIGMA_FLEET_REVISION"))
	})
	return m.ServeHTTP(ctx, mux)
}
