// Command counterserver is a member of a fleet that counts by key, or of the directory that it is
// given. Members divide the keys among themselves as ranges, and hand ranges on when members come
// or go.
package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/examples/counter"
	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
)

func main() {
	var opts member.Options
	if len(os.Args) > 1 {
		opts.Dir = os.Args[1]
	}
	if err := run(context.Background(), opts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts member.Options) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	counters := &counter.Counters{}
	opts.Ranges, opts.Gain, opts.Handoff = counter.Ranges, counters.Gain, counters.Handoff
	if counters.Member, err = member.Open(c, opts); err != nil {
		return err
	}
	counters.Others = call.NewRouter(c.Dialer(counters.Member.Dir()).Find, call.Config{})
	defer counters.Others.Close()
	s := call.NewServer(call.Config{})
	if err := counters.Register(s); err != nil {
		return err
	}
	return counters.Member.ServeCalls(ctx, s)
}
