// Command kv is the client, and for sigmaOS the servers, of the bench of key-value stores:
//
//	kv run ring|shared|socket STORE CLIENTS SPAN    measures a store of sigmaOS, as a proc
//	kv run redis NETWORK:ADDRESS CLIENTS SPAN       measures a Redis
//	kv run etcd ADDRESS,... CLIENTS SPAN            measures an etcd
//	kv follow KIND STORE CLIENTS SPAN SIZE          measures in the course of time (series.go)
//	kv member STORE GROUP INDEX MEMORY              is a member of a store, as a proc
//	kv balancer STORE                               is a balancer of a store, as a proc
//
// Each client makes one request at a time: for one SPAN puts, then for one SPAN gets, of values of
// 100 bytes at random among 10,000 keys. Clients have a connection each; those of the kinds shared
// and etcd share one. It prints what was done in a second, and how long a request took, as JSON.
// Members of the store "socket" use sockets alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/balancer"
	"sigmaos.dev/apps/kv/member"
	"sigmaos.dev/sdk"
	"sigmaos.dev/wire/ring"
)

const (
	keys       = 10_000
	valueBytes = 100
	socket     = "socket" // the store, and the kind, without rings
	shared     = "shared" // the kind with one clerk for all clients
)

// client is one connection.
type client interface {
	put(ctx context.Context, key string, value []byte) error
	get(ctx context.Context, key string) (value []byte, err error)
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, args []string) error {
	switch args[0] {
	case "member", "balancer":
		return serve(ctx, args)
	}
	n, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	span, err := time.ParseDuration(args[4])
	if err != nil {
		return err
	}
	connect, err := connector(ctx, args[1], args[2])
	if err != nil {
		return err
	}
	var rep any
	if args[0] == "follow" {
		size, bad := strconv.Atoi(args[5])
		if bad != nil {
			return bad
		}
		rep, err = follow(ctx, connect, n, size, span)
	} else {
		rep, err = measure(ctx, connect, n, span)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(rep)
}

// connector gives what connects to a service of a kind.
func connector(ctx context.Context, kind, address string) (func(context.Context) (client, error), error) {
	switch kind {
	case "redis":
		return redisClient(address), nil
	case "etcd":
		return etcdClient(address)
	}
	return sigmaClient(ctx, kind, address)
}

// serve is a proc of a store.
func serve(ctx context.Context, args []string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if args[1] == socket {
		c.UseTransport(ring.Socket)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	started := func() error { return c.Started(ctx) }
	if args[0] == "balancer" {
		if err := started(); err != nil {
			return err
		}
		return balancer.Run(ctx, c, args[1], log)
	}
	group, err := strconv.ParseUint(args[2], 10, 32)
	if err != nil {
		return err
	}
	index, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	memory, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	return member.Run(ctx, c, member.Place{Store: args[1], Group: uint32(group), Index: index}, memory, log, started)
}

// sigmaClient connects clerks to a store.
func sigmaClient(ctx context.Context, kind, store string) (func(context.Context) (client, error), error) {
	c, err := sdk.Open(ctx)
	if err != nil {
		return nil, err
	}
	if kind == socket {
		c.UseTransport(ring.Socket)
	}
	if kind == shared {
		clerk, err := kv.Open(c, store)
		return func(context.Context) (client, error) { return sigmaConn{clerk}, err }, nil
	}
	return func(context.Context) (client, error) {
		clerk, err := kv.Open(c, store)
		return sigmaConn{clerk}, err
	}, nil
}

type sigmaConn struct{ clerk *kv.Clerk }

func (c sigmaConn) put(ctx context.Context, key string, value []byte) error {
	_, err := c.clerk.Put(ctx, key, value, kv.Options{})
	return err
}

func (c sigmaConn) get(ctx context.Context, key string) ([]byte, error) {
	value, _, err := c.clerk.Get(ctx, key)
	return value, err
}

// report is what was measured.
type report struct {
	Puts float64 `json:"put_per_s"`
	Gets float64 `json:"get_per_s"`
	Put  float64 `json:"put_p50_us"`
	Get  float64 `json:"get_p50_us"`
	Ops  int     `json:"ops"` // of both, and those of the filling and warming
}

func measure(ctx context.Context, connect func(context.Context) (client, error), n int, span time.Duration) (r report,
	err error) {
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("key:%012d", i)
	}
	value := make([]byte, valueBytes)
	clients := make([]client, n)
	for i := range clients {
		if clients[i], err = connect(ctx); err != nil {
			return r, err
		}
	}
	filled, err := fill(ctx, connect, clients[0], names, value)
	if err != nil {
		return r, err
	}
	for _, c := range clients { // so that all are connected
		if _, err := c.get(ctx, names[0]); err != nil {
			return r, err
		}
	}
	ops := 0
	r.Puts, r.Put, ops, err = load(clients, names, span, func(c client, key string) error {
		return c.put(ctx, key, value)
	})
	if err != nil {
		return r, err
	}
	r.Ops = filled + n + ops
	r.Gets, r.Get, ops, err = load(clients, names, span, func(c client, key string) error {
		got, err := c.get(ctx, key)
		if err == nil && len(got) != valueBytes {
			err = fmt.Errorf("%s has %d bytes", key, len(got))
		}
		return err
	})
	r.Ops += ops
	return r, err
}

// fill puts a value of each key, unless the last key has one already, and tells how many it put.
func fill(ctx context.Context, connect func(context.Context) (client, error), first client, names []string,
	value []byte) (n int, err error) {
	last := len(names) - 1
	if got, err := first.get(ctx, names[last]); err == nil && len(got) == len(value) {
		return 0, nil
	}
	const fillers = 32
	errs := make([]error, fillers)
	var all sync.WaitGroup
	for i := range fillers {
		c, err := connect(ctx)
		if err != nil {
			return 0, err
		}
		all.Go(func() {
			for k := i; k < last && errs[i] == nil; k += fillers {
				errs[i] = c.put(ctx, names[k], value)
			}
		})
	}
	all.Wait()
	return len(names), errors.Join(append(errs, first.put(ctx, names[last], value))...)
}

// load has each client make requests, one after the other. The first fifth of the time warms up.
func load(clients []client, names []string, span time.Duration, do func(client, string) error) (perSecond,
	median float64, ops int, err error) {
	began := time.Now()
	counted, until := began.Add(span/5), began.Add(span/5+span)
	var mu sync.Mutex
	var took []float64 // mu; microseconds
	var all sync.WaitGroup
	for i, c := range clients {
		rng := rand.New(rand.NewPCG(uint64(i), 0))
		all.Go(func() {
			var own []float64
			count := 0
			var failed error
			for now := time.Now(); now.Before(until) && failed == nil; count++ {
				failed = do(c, names[rng.IntN(len(names))])
				end := time.Now()
				if now.After(counted) {
					own = append(own, float64(end.Sub(now).Nanoseconds())/1e3)
				}
				now = end
			}
			mu.Lock()
			defer mu.Unlock()
			took, ops = append(took, own...), ops+count
			if err == nil {
				err = failed
			}
		})
	}
	all.Wait()
	if err != nil || len(took) == 0 {
		return 0, 0, ops, err
	}
	slices.Sort(took)
	return float64(len(took)) / time.Since(counted).Seconds(), took[len(took)/2], ops, nil
}
