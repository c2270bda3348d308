package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/apps"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/databases"
	"sigmaos.dev/cmd/sigma/faults"
	"sigmaos.dev/cmd/sigma/fleets"
	"sigmaos.dev/cmd/sigma/health"
	"sigmaos.dev/cmd/sigma/host"
	"sigmaos.dev/cmd/sigma/members"
	"sigmaos.dev/cmd/sigma/mounts"
	"sigmaos.dev/cmd/sigma/procs"
	"sigmaos.dev/cmd/sigma/programs"
	"sigmaos.dev/cmd/sigma/proxies"
	"sigmaos.dev/cmd/sigma/realms"
	"sigmaos.dev/cmd/sigma/snapshots"
	"sigmaos.dev/cmd/sigma/topo"
	"sigmaos.dev/cmd/sigma/traces"
	"sigmaos.dev/cmd/sigma/tree"
	"sigmaos.dev/sdk"
)

// groups is the table of all commands.
func groups(a *cli.App) []cli.Group {
	return []cli.Group{
		{ID: "machine", Title: "The system on this machine:", Commands: slices.Concat(host.Commands(a),
			health.Commands(a), members.Commands(a), realms.Commands(a), snapshots.Commands(a),
			[]*cobra.Command{newVersionCommand(a)})},
		{ID: "procs", Title: "Procs:", Commands: slices.Concat(procs.Commands(a), traces.Commands(a),
			faults.Commands(a), []*cobra.Command{fleets.Command(a, fleetHost(a)), realms.Usage(a), topo.Command(a),
				proxies.Command(a)})},
		{ID: "files", Title: "Files of the realm:", Commands: slices.Concat(tree.Commands(a), mounts.Commands(a),
			databases.Commands(a))},
		{ID: "apps", Title: "Apps:", Commands: apps.Commands(a)},
	}
}

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
