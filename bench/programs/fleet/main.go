// Command fleet is both sides of the benches fleet and roll.
//
//	fleet serve SERVICE     a member that serves one request at a time, each for SERVICE: a scaled core
//	fleet web               a member that serves HTTP
//	fleet full NAME         how many transactions a second one member serves
//	fleet elastic NAME MOST TRANSACTIONS  the five phases of 002 Fig 10; prints a report as JSON
//	fleet zero NAME TIMES   how long a first request to the empty fleet takes, in ns, a line each
//	fleet direct NAME       requests through the fleet's name and to its one member, in turns
//	fleet ask NAME RATE     asks a web fleet RATE times a second until it is asked to go; prints counts
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, role string, args []string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	switch role {
	case "serve":
		service, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		return serve(ctx, c, service)
	case "web":
		return web(ctx, c)
	case "full":
		return full(ctx, c, args[0])
	case "elastic":
		return elastic(ctx, c, args)
	case "zero":
		return zero(ctx, c, args)
	case "direct":
		return direct(ctx, c, args[0])
	case "ask":
		return ask(ctx, c, args)
	}
	return fmt.Errorf("no role %q", role)
}

// The three calls of a transaction: open a file, read 1 KiB of it, close it.
var (
	openMethod  = &call.Method{Name: "bench.Files/Open"}
	readMethod  = &call.Method{Name: "bench.Files/Read"}
	closeMethod = &call.Method{Name: "bench.Files/Close"}
)

const block = 1024 // bytes that a transaction reads

// serve is a member with one scaled core: it serves one read at a time, for which it takes a time
// in which it uses no processor, so that several members are several cores also on a small host.
func serve(ctx context.Context, c *sdk.Client, service time.Duration) error {
	m, err := member.Open(c, member.Options{})
	if err != nil {
		return err
	}
	var core sync.Mutex
	content := make([]byte, block)
	s := call.NewServer(call.Config{})
	small := func(_ context.Context, _, reply []byte) ([]byte, error) { return append(reply, 1), nil }
	for method, do := range map[*call.Method]call.Unary{openMethod: small, closeMethod: small,
		readMethod: func(_ context.Context, _, reply []byte) ([]byte, error) {
			core.Lock()
			defer core.Unlock()
			time.Sleep(service)
			return append(reply, content...), nil
		}} {
		if err := s.Handle(method, do); err != nil {
			return err
		}
	}
	return m.ServeCalls(ctx, s)
}

func web(ctx context.Context, c *sdk.Client) error {
	m, err := member.Open(c, member.Options{})
	if err != nil {
		return err
	}
	return m.ServeHTTP(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, "hello")
	}))
}
