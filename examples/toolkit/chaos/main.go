// Command chaos is a proc that kills and pauses the members of a fleet for some time, and prints
// each fault:
//
//	chaos FLEET TIME
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"sigmaos.dev/lib/chaos"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: chaos FLEET TIME")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name, long string) error {
	d, err := time.ParseDuration(long)
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return disturb(ctx, c, name, d)
}

// disturb has one member in ten seconds killed or paused, as long as two others serve.
func disturb(ctx context.Context, c *sdk.Client, name string, long time.Duration) error {
	cfg := chaos.Config{Seed: uint64(time.Now().UnixNano()), For: long, Every: 10 * time.Second, Spare: 2}
	members := func(p sigma.ProcInfo) bool {
		of, _, ok := fleet.ParseMemberName(p.Name)
		return ok && of == name
	}
	out := json.NewEncoder(os.Stdout)
	return chaos.Run(ctx, cfg, c, members, func(f chaos.Fault) { out.Encode(f) })
}
