// Command kv answers the calls that the tests of the Python SDK make, as a member of the directory
// that it is given.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	s := call.NewServer(call.Config{})
	for name, h := range map[string]call.Unary{
		"kv/Echo": func(_ context.Context, arg, reply []byte) ([]byte, error) { return append(reply, arg...), nil },
		"kv/Fail": func(context.Context, []byte, []byte) ([]byte, error) {
			return nil, &sigma.Error{Op: "kv", Path: "/k", Kind: sigma.KindNoSpace, Msg: "it is full", Hint: "buy more"}
		},
		"kv/Slow": func(ctx context.Context, _, reply []byte) ([]byte, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Minute):
				return reply, nil
			}
		},
	} {
		if err := s.Handle(&call.Method{Name: name}, h); err != nil {
			return err
		}
	}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	if _, err := c.Join(ctx, dir, l.Endpoint()); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return s.Serve(ctx, l)
}
