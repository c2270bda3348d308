// Package tree lists, reads, copies, changes and watches files of a realm, and holds its leases.
package tree

import (
	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return append(a.CompletePaths(
		newLsCommand(a),
		newCatCommand(a),
		newPutCommand(a),
		newGetCommand(a),
		newCpCommand(a),
		newRmCommand(a),
		newMkdirCommand(a),
		newMvCommand(a),
		newStatCommand(a),
		newLnCommand(a),
		newChmodCommand(a),
		newWatchCommand(a),
	), newLeaseCommand(a), newS3Command(a))
}
