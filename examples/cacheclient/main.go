// Command cacheclient is a proc that keeps what is slow to make in a cache (docs/guide/cache.md).
// Its arguments are the fleet that the cache is, and a key.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"sigmaos.dev/apps/cache"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: cacheclient FLEET KEY")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name, key string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	clerk := cache.NewClerk(c, name)
	defer clerk.Close()
	value, err := lookUp(ctx, clerk, key)
	if err != nil {
		return err
	}
	fmt.Printf("%s is %s\n", key, value)
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}

// lookUp gives what belongs to a key: from the cache, or from where it is slow to get.
func lookUp(ctx context.Context, clerk *cache.Clerk, key string) (string, error) {
	it, found, err := clerk.Get(ctx, []byte(key))
	if err != nil {
		return "", err
	}
	if found {
		return string(it.Value), nil
	}
	value := "made anew" // by a query, for instance
	return value, clerk.Set(ctx, []byte(key), []byte(value), time.Minute)
}
