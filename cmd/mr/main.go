// Command mr is the program of the procs of a MapReduce job: its first argument says whether it
// coordinates, maps or reduces (apps/mr). `sigma mr` puts it into the realm and starts the
// coordinator; it is of no use outside a proc.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"sigmaos.dev/apps/mr"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "mr:", err)
		if hint := sigma.HintOf(err); hint != "" {
			fmt.Fprintln(os.Stderr, "hint:", hint)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	limitMemory()
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	who := c.Info().Principal
	s := mr.Do(ctx, mr.Self{Names: c, Procs: c, Proc: who.Proc, Machine: who.Machine, Args: os.Args[1:]})
	if !s.OK() {
		fmt.Fprintln(os.Stderr, "mr:", s.Msg)
	}
	return c.Exited(ctx, s)
}

// limitMemory tells the garbage collector how much memory the proc was given, less what is not on
// its heap, so that it collects before the limit kills the proc.
func limitMemory() {
	memory := uint64(mr.MemoryCoordinator)
	if len(os.Args) > 4 {
		if n, err := strconv.ParseUint(os.Args[4], 10, 62); err == nil {
			memory = n
		}
	}
	debug.SetMemoryLimit(int64(memory / 8 * 7))
	debug.SetGCPercent(400)
}
