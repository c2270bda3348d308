package main

import (
	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/fleets"
)

// groups is the table of all commands.
func groups(base *cli.App) []cli.Group {
	a := &app{base}
	return []cli.Group{
		{ID: "machine", Title: "The system on this machine:", Commands: []*cobra.Command{newUpCommand(a),
			newJoinCommand(a), newDownCommand(a), newStatusCommand(a), newDoctorCommand(a), newTokenCommand(a),
			newMachineCommand(a), newRealmCommand(a), newSnapshotCommand(a), newVersionCommand(a)}},
		{ID: "procs", Title: "Procs:", Commands: []*cobra.Command{newRunCommand(a), newPsCommand(a),
			newLogsCommand(a), newWaitCommand(a), newKillCommand(a), newEvictCommand(a), newFreezeCommand(a),
			newThawCommand(a), newInspectCommand(a), newExplainCommand(a), newInitCommand(a),
			fleets.Command(base, a.fleetHost()), newCapsCommand(a), newEpCommand(a), newCallsCommand(a),
			newTopCommand(a), newEventsCommand(a), newUsageCommand(a), newTraceCommand(a), newSimCommand(a)}},
		{ID: "files", Title: "Files of the realm:", Commands: append(a.completePaths(newLsCommand(a),
			newCatCommand(a), newPutCommand(a), newGetCommand(a), newCpCommand(a), newRmCommand(a),
			newMkdirCommand(a), newMvCommand(a), newStatCommand(a), newLnCommand(a), newChmodCommand(a),
			newWatchCommand(a)), newLeaseCommand(a), newMountCommand(a), newUnmountCommand(a),
			newServeCommand(a), newSQLCommand(a), newS3Command(a))},
		{ID: "apps", Title: "Apps:", Commands: []*cobra.Command{newMRCommand(a)}},
	}
}
