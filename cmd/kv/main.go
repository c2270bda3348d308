// Command kv is what the procs of a kv store run: members of its groups and balancers. `sigma kv
// create` has them started.
package main

import (
	"cmp"
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
	Msg: "usage: kv member STORE GROUP INDEX MEMORY | kv balancer STORE", Hint: "stores are made with: sigma kv create NAME"}

func run(ctx context.Context, args []string) error {
	var group, index, memory uint64
	switch {
	case len(args) == 2 && args[0] == "balancer":
	case len(args) == 5 && args[0] == "member":
		var err1, err2, err3 error
		group, err1 = strconv.ParseUint(args[2], 10, 32)
		index, err2 = strconv.ParseUint(args[3], 10, 8)
		memory, err3 = strconv.ParseUint(args[4], 10, 62)
		if err1 != nil || err2 != nil || err3 != nil || memory == 0 {
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
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("store", args[1])
	if args[0] == "balancer" {
		going, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() { cancel(cmp.Or(c.WaitEvict(going), member.ErrAsked)) }()
		if err = c.Started(going); err == nil {
			err = balancer.Run(going, c, args[1], log)
		}
		if context.Cause(going) == member.ErrAsked {
			err = member.ErrAsked
		}
	} else {
		debug.SetMemoryLimit(int64(memory / 8 * 7))
		debug.SetGCPercent(400) // up to the limit
		err = member.Run(ctx, c, member.Place{Store: args[1], Group: uint32(group), Index: int(index)}, int(memory),
			log.With("group", group), func() error { return c.Started(ctx) })
	}
	if errors.Is(err, member.ErrAsked) {
		return c.Exited(context.WithoutCancel(ctx), sigma.Status{Code: sigma.StatusOK})
	}
	return err
}
