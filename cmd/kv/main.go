// Command kv is what the procs of a kv store run: members of its groups and balancers. `sigma kv
// create` has them started.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"

	"sigmaos.dev/apps/kv/balancer"
	"sigmaos.dev/apps/kv/member"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	err := run(context.Background(), os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "kv:", err)
	if hint := sigma.HintOf(err); hint != "" {
		fmt.Fprintln(os.Stderr, "hint:", hint)
	}
	os.Exit(1)
}

var errUsage = &sigma.Error{Op: "kv", Kind: sigma.KindInvalid,
	Msg: "usage: kv member STORE GROUP MEMORY | kv balancer STORE", Hint: "stores are made with: sigma kv create NAME"}

// errEvicted ends a proc that was asked to go.
var errEvicted = errors.New("the proc was asked to go")

func run(ctx context.Context, args []string) error {
	var group, memory uint64
	switch {
	case len(args) == 2 && args[0] == "balancer":
	case len(args) == 4 && args[0] == "member":
		var err1, err2 error
		group, err1 = strconv.ParseUint(args[2], 10, 32)
		memory, err2 = strconv.ParseUint(args[3], 10, 62)
		if err1 != nil || err2 != nil || memory == 0 {
			return errUsage
		}
	default:
		return errUsage
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		err := c.WaitEvict(ctx)
		if err == nil {
			err = errEvicted
		}
		cancel(err)
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("store", args[1])
	if args[0] == "balancer" {
		if err = c.Started(ctx); err == nil {
			err = balancer.Run(ctx, c, args[1], log)
		}
	} else {
		debug.SetMemoryLimit(int64(memory / 8 * 7))
		debug.SetGCPercent(400) // up to the limit
		err = member.Run(ctx, c, args[1], uint32(group), int(memory), log.With("group", group),
			func() error { return c.Started(ctx) })
	}
	if context.Cause(ctx) == errEvicted {
		return c.Exited(context.WithoutCancel(ctx), sigma.Status{Code: sigma.StatusOK})
	}
	return err
}
