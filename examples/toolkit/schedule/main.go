// Command schedule prints reports at times; of several procs one does.
//
//	sigma run schedule
package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/lib/schedule"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return reports(ctx, c)
}

// entries say what is done when, and what becomes of times that were missed.
const entries = `
report  once  30 4 * * *
beat    skip  @every 1s
`

// reports fires the entries while this proc leads. The file that must be made has each effect once.
func reports(ctx context.Context, c *sdk.Client) error {
	if err := schedule.Set(ctx, c, "/reports", entries); err != nil {
		return err
	}
	return schedule.Run(ctx, c, schedule.Config{Dir: "/reports"}, func(ctx context.Context, f schedule.Firing) error {
		_, err := c.Put(ctx, "/reports/"+f.Key(), nil, sigma.PutOptions{MustMake: true})
		if err != nil && sigma.KindOf(err) != sigma.KindExists {
			return err // it is fired again
		}
		fmt.Println(f.Key())
		return nil
	})
}
