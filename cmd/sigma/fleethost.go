package main

import (
	"context"
	"io"
	"strings"

	"sigmaos.dev/cmd/sigma/fleets"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// fleetHost is what the commands of fleets need of those of programs and logs.
func (a *app) fleetHost() fleets.Host {
	return fleets.Host{Store: a.storeForFleet, Beside: func(ctx context.Context, c *sdk.Client, name string) (string,
		error) {
		local, err := programBeside(name)
		if err != nil {
			return "", err
		}
		defer local.Close()
		return a.putProgram(ctx, c, local)
	}, Log: func(ctx context.Context, c *sdk.Client, id sigma.ProcID, stream string, lines int, to io.Writer,
		ended <-chan struct{}) error {
		t := logsOptions{tail: lines}.open(c, id, stream, to)
		return t.follow(ctx, ended, t.copy)
	}}
}

// storeForFleet is fleets.Host's Store. A word without a slash that is no local file is a program
// in /bin.
func (a *app) storeForFleet(ctx context.Context, c *sdk.Client, word string, plan bool) (string, error) {
	local, err := localFile(word)
	switch {
	case err != nil:
		return "", err
	case local == nil && !strings.Contains(word, "/"):
		return binDir + "/" + word, nil
	case local == nil:
		return word, nil
	}
	defer local.Close()
	if plan {
		if err := checkProgram(local); err != nil {
			return "", err
		}
		path, _, err := programPath(local)
		return path, err
	}
	return a.findProgram(ctx, c, word, local)
}
