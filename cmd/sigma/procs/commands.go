// Package procs runs programs as procs, shows what they are, wrote, wait for and use, and ends
// them.
package procs

import (
	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newRunCommand(a),
		newPsCommand(a),
		newLogsCommand(a),
		newWaitCommand(a),
		newKillCommand(a),
		newEvictCommand(a),
		newFreezeCommand(a),
		newThawCommand(a),
		newInspectCommand(a),
		newExplainCommand(a),
		newInitCommand(a),
		newCapsCommand(a),
		newEpCommand(a),
		newCallsCommand(a),
		newTopCommand(a),
		newEventsCommand(a),
	}
}
