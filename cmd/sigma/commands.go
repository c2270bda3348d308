package main

import (
	"slices"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/apps"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/databases"
	"sigmaos.dev/cmd/sigma/fleets"
	"sigmaos.dev/cmd/sigma/health"
	"sigmaos.dev/cmd/sigma/host"
	"sigmaos.dev/cmd/sigma/members"
	"sigmaos.dev/cmd/sigma/mounts"
	"sigmaos.dev/cmd/sigma/procs"
	"sigmaos.dev/cmd/sigma/realms"
	"sigmaos.dev/cmd/sigma/snapshots"
	"sigmaos.dev/cmd/sigma/topo"
	"sigmaos.dev/cmd/sigma/traces"
	"sigmaos.dev/cmd/sigma/tree"
)

// groups is the table of all commands.
func groups(a *cli.App) []cli.Group {
	return []cli.Group{
		{ID: "machine", Title: "The system on this machine:", Commands: slices.Concat(host.Commands(a),
			health.Commands(a), members.Commands(a), realms.Commands(a), snapshots.Commands(a),
			[]*cobra.Command{newVersionCommand(a)})},
		{ID: "procs", Title: "Procs:", Commands: slices.Concat(procs.Commands(a), traces.Commands(a),
			[]*cobra.Command{fleets.Command(a, fleetHost(a)), realms.Usage(a), topo.Command(a)})},
		{ID: "files", Title: "Files of the realm:", Commands: slices.Concat(tree.Commands(a), mounts.Commands(a),
			databases.Commands(a))},
		{ID: "apps", Title: "Apps:", Commands: apps.Commands(a)},
	}
}
