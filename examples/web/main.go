// Command web is a service of HTTP that a fleet runs (docs/guide/services.md). GREETING is what it
// says; "" makes it a version that does not work.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	greeting, set := os.LookupEnv("GREETING")
	if !set {
		greeting = "hello"
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		<-time.After(5 * time.Millisecond) // it would ask others
		fmt.Fprintln(w, greeting)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if greeting == "" {
			http.Error(w, "there is no greeting", http.StatusInternalServerError)
		}
	})
	return serve(ctx, mux)
}

// serve serves as a member of the fleet that started the program.
func serve(ctx context.Context, handler http.Handler) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	m, err := member.Open(c, member.Options{})
	if err != nil {
		return err
	}
	return m.ServeHTTP(ctx, handler)
}
