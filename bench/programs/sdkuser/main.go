// Command sdkuser links the SDK as a proc does, and uses it only when asked to, so that the bench
// sdk measures what linking it costs.
package main

import (
	"context"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if len(os.Args) < 2 {
		return
	}
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err != nil {
		panic(err)
	}
	c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}
