package main

import (
	"context"
	"strings"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/fleets"
	"sigmaos.dev/cmd/sigma/procs"
	"sigmaos.dev/cmd/sigma/programs"
	"sigmaos.dev/sdk"
)

// fleetHost is what the commands of fleets need of those of programs and logs.
func fleetHost(a *cli.App) fleets.Host {
	return fleets.Host{
		Store: func(ctx context.Context, c *sdk.Client, word string, plan bool) (string, error) {
			return storeForFleet(ctx, a, c, word, plan)
		},
		Beside: func(ctx context.Context, c *sdk.Client, name string) (string, error) {
			local, err := programs.Beside(name)
			if err != nil {
				return "", err
			}
			defer local.Close()
			return programs.Put(ctx, a, c, local)
		},
		Log: procs.CopyLog,
	}
}

// storeForFleet is fleets.Host's Store. A word without a slash that is no local file is a program
// in /bin.
func storeForFleet(ctx context.Context, a *cli.App, c *sdk.Client, word string, plan bool) (string, error) {
	local, err := programs.Local(word)
	switch {
	case err != nil:
		return "", err
	case local == nil && !strings.Contains(word, "/"):
		return cli.BinDir + "/" + word, nil
	case local == nil:
		return word, nil
	}
	defer local.Close()
	if plan {
		if err := programs.Check(local); err != nil {
			return "", err
		}
		path, _, err := programs.Path(local)
		return path, err
	}
	return programs.Find(ctx, a, c, word, local)
}
