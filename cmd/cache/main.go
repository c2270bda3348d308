// Command cache is a member of a cache: a proc of a fleet, or with --listen an ordinary program
// that serves stock clients at an address of this host.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"sigmaos.dev/apps/cache"
	"sigmaos.dev/apps/cache/store"
	"sigmaos.dev/apps/cache/text"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// heapMin is what the heap may have however small the cache is: values on their way to clients need
// it.
const heapMin = 24 << 20

// flags are what the program can be told.
type flags struct {
	memory string
	dir    string
	listen string
	conns  int
}

func main() {
	var f flags
	flag.StringVar(&f.memory, "memory", "64MiB", "bytes of items and what finds them; the proc needs a quarter more")
	flag.StringVar(&f.dir, "dir", "", "directory of the members, if no fleet starts the program")
	flag.StringVar(&f.listen, "listen", "", "serve outside of sigmaOS, at an address of the loopback")
	flag.IntVar(&f.conns, "connections", 0,
		"connections of stock clients at most; 0 = 10,000, or what open files allow")
	flag.Parse()
	if err := run(context.Background(), f); err != nil {
		fmt.Fprintln(os.Stderr, "cache:", err)
		if hint := sigma.HintOf(err); hint != "" {
			fmt.Fprintln(os.Stderr, "hint:", hint)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, f flags) error {
	memory, err := sigma.ParseBytes(f.memory)
	if err != nil {
		return err
	}
	debug.SetMemoryLimit(max(heapMin, int64(memory/4/8*7))) // items are not on the heap
	debug.SetGCPercent(400)                                 // up to the limit
	if f.listen != "" {
		return alone(ctx, f, memory)
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	m, err := cache.Open(c, cache.Options{Memory: memory, Dir: f.dir, ConnsMax: f.conns})
	if err != nil {
		return err
	}
	return m.Serve(ctx)
}

// alone serves until it gets SIGTERM or SIGINT. There are no passwords, so it listens on the
// loopback only.
func alone(ctx context.Context, f flags, memory sigma.Bytes) error {
	address, err := netip.ParseAddrPort(f.listen)
	if err != nil || !address.Addr().IsLoopback() {
		return &sigma.Error{Op: "cache", Kind: sigma.KindInvalid, Msg: f.listen + " is no address of the loopback",
			Hint: "for example 127.0.0.1:6379"}
	}
	items, err := store.New(store.Config{Limit: int64(memory)})
	if err != nil {
		return err
	}
	s, err := text.New(text.Config{Backend: cache.Alone{Items: items}, ConnsMax: f.conns})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, func() { l.Close() })
	fmt.Println(l.Addr())
	err = s.Serve(context.WithoutCancel(ctx), l)
	s.Shutdown(context.WithoutCancel(ctx))
	if ctx.Err() != nil {
		return nil
	}
	return err
}
