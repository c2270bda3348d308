// Command group is a member of a group: one leads, and counts terms in the document; the others
// stand by.
//
//	sigma run group
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"sigmaos.dev/lib/group"
	"sigmaos.dev/sdk"
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
	return member(ctx, c, string(c.Info().Principal.Proc))
}

// member stands by, and leads when its turn has come.
func member(ctx context.Context, c *sdk.Client, name string) error {
	return group.Run(ctx, c, group.Config{Dir: "/kv"}, name, func(ctx context.Context, t *group.Term) error {
		d, err := t.Document(ctx)
		if err != nil {
			return err
		}
		terms, _ := strconv.Atoi(string(d.Data))
		if _, err := t.Change(ctx, d.Version, strconv.AppendInt(nil, int64(terms+1), 10)); err != nil {
			return err
		}
		fmt.Println("leads, term", terms+1)
		<-ctx.Done() // it leads no more
		return ctx.Err()
	})
}
