// Package members shows and changes which machines a system has: labels, cordons, drains, removal,
// who holds the control plane, and the tokens by which machines join.
package members

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
		newTokenCommand(a),
		newMachineCommand(a),
	}
}
