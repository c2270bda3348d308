package cli

import (
	"context"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// ServiceOf finds the file of that name in /sys, which answers calls. It ends with the client.
func ServiceOf(ctx context.Context, c *sdk.Client, name string) (sigma.Caller, error) {
	f, _, err := c.Root().Walk(ctx, []string{sigma.NameSys, name})
	if err != nil {
		return nil, err
	}
	if caller, ok := f.(sigma.Caller); ok {
		return caller, nil
	}
	f.Close()
	return nil, sigma.PathError("sigma.service", sigma.KindNotFound, "/sys/"+name)
}
