// Command leader is one of several equal procs of which one at a time keeps state in directories,
// wherever they are. It stands for election at a path; elected, it does its work again and again
// until it is told that it leads no more, and then stands again. If it is not told, because its
// machine stood still, the servers refuse what it does.
//
//	sigma run leader /svc/leader /svc/state /s3/bucket/state
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	ttl := flag.Duration("ttl", 0, "after what time without a sign of life a leader is replaced")
	stubborn := flag.Bool("stubborn", false,
		"do not stop when told to, and end when everything is refused (to see that it is)")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: leader [-ttl 5s] [-stubborn] PATH DIRECTORY...")
		os.Exit(2)
	}
	if err := run(context.Background(), flag.Arg(0), flag.Args()[1:], *ttl, *stubborn); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string, dirs []string, ttl time.Duration, stubborn bool) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // evicted, it lets another one lead at once
		err := c.WaitEvict(ctx)
		if err == nil {
			err = errEvicted
		}
		cancel(err)
	}()
	for {
		l, err := c.Campaign(ctx, sdk.Election{Path: path, Data: []byte(c.Info().Principal.Proc), TTL: ttl,
			Fenced: dirs})
		if err != nil {
			return orEvicted(ctx, err)
		}
		fmt.Printf("leads at epoch %d\n", l.Fence().Epoch)
		refused, err := lead(ctx, c, l, dirs, stubborn)
		if rerr := l.Resign(context.WithoutCancel(ctx)); err == nil {
			err = rerr
		}
		switch {
		case err != nil:
			return orEvicted(ctx, err)
		case stubborn && refused > 0:
			fmt.Printf("%d changes were refused\n", refused)
			return nil
		}
	}
}

// errEvicted says that the proc was asked to go.
var errEvicted = errors.New("evicted")

// orEvicted is nil if the proc was asked to go, whatever that interrupted.
func orEvicted(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errEvicted):
		return nil
	case cause != nil:
		return cause
	}
	return err
}

// lead works until it is told to stop, or refused. A stubborn leader goes on until it is refused
// everything, and returns how much that is.
func lead(ctx context.Context, c *sdk.Client, l *sdk.Leadership, dirs []string, stubborn bool) (refused int,
	err error) {
	for began := false; ; began = true {
		work := changes(fmt.Sprintf("epoch %d by %s\n", l.Fence().Epoch, c.Info().Principal.Proc))
		refused = 0
		for _, dir := range dirs {
			for what, change := range work {
				err := change(ctx, c, dir)
				switch kind := sigma.KindOf(err); {
				case err == nil:
				case kind == sigma.KindStale:
					fmt.Printf("%s: %s: %v\n", dir, what, err)
					refused++
				case kind == sigma.KindLost ||
					kind.Retryable(): // a server is being started again: the next round makes the change
				default:
					return refused, fmt.Errorf("%s: %s: %w", dir, what, err)
				}
			}
		}
		if refused > 0 && !stubborn || refused == len(dirs)*len(work) {
			return refused, nil
		}
		if !began {
			if err := c.Started(ctx); err != nil {
				return refused, err
			}
		}
		lost := l.Lost()
		if stubborn {
			lost = nil
		}
		select {
		case <-lost:
			fmt.Println("leads no more")
			return refused, nil
		case <-ctx.Done():
			return refused, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// changes are all that this leader does to its state, each of which is right whatever was done
// before.
func changes(state string) map[string]func(ctx context.Context, c *sdk.Client, dir string) error {
	return map[string]func(ctx context.Context, c *sdk.Client, dir string) error{
		"put": func(ctx context.Context, c *sdk.Client, dir string) error {
			_, err := c.Put(ctx, dir+"/state", []byte(state), sigma.PutOptions{})
			return err
		},
		"write": func(ctx context.Context, c *sdk.Client, dir string) error {
			h, err := c.Create(ctx, dir+"/written", sigma.OpenWrite|sigma.OpenTruncate, 0o644)
			if err != nil {
				return err
			}
			if _, err := h.Write([]byte(state)); err != nil {
				h.Close()
				return err
			}
			return h.Close()
		},
		"rename": func(ctx context.Context, c *sdk.Client, dir string) error {
			if _, err := c.Put(ctx, dir+"/next", []byte(state), sigma.PutOptions{}); err != nil {
				return err
			}
			return c.Rename(ctx, dir+"/next", dir+"/latest")
		},
		"mkdir": func(ctx context.Context, c *sdk.Client, dir string) error {
			return c.MkdirAll(ctx, dir+"/sub/sub", 0o755)
		},
		"remove": func(ctx context.Context, c *sdk.Client, dir string) error {
			if err := c.MkdirAll(ctx, dir+"/temp", 0o755); err != nil {
				return err
			}
			return c.RemoveAll(ctx, dir+"/temp")
		},
	}
}
