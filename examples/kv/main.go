// Command kv counts in a store of keys and values, by a counter that several procs may increase at
// the same time, and prints the counter each time it changes.
//
//	sigma run kv STORE N
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return sigma.Errorf("kv", sigma.KindInvalid, "usage: kv STORE N")
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	store, err := kv.Open(c, args[0])
	if err != nil {
		return err
	}
	defer store.Close()
	watching, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- watch(ctx, store, n, func() { close(watching) }) }()
	select {
	case <-watching:
	case err := <-done:
		return err
	}
	for range n {
		if err := increase(ctx, store, "counter"); err != nil {
			return err
		}
	}
	return <-done
}

// increase adds one to a counter, whoever else does at the same time.
func increase(ctx context.Context, store *kv.Clerk, key string) error {
	for {
		value, version, err := store.Get(ctx, key)
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		n, _ := strconv.Atoi(string(value)) // of a key that is missing: version 0, and no value
		_, err = store.PutIf(ctx, key, version, []byte(strconv.Itoa(n+1)), kv.Options{})
		if err == nil || sigma.KindOf(err) != sigma.KindVersion {
			return err
		}
	}
}

// watch prints n changes of the counter.
func watch(ctx context.Context, store *kv.Clerk, n int, ready func()) error {
	for e, err := range store.Watch(ctx, "counter", ready) {
		if err != nil {
			return err
		}
		fmt.Printf("counter is %s\n", e.Value)
		if n--; n == 0 {
			break
		}
	}
	return nil
}
