// Package host starts and stops the system on this host: of one machine, of several, and of one
// that joins another system. It writes what the machine is into DATA, makes the sockets, and
// attends the launcher.
package host

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
		newUpCommand(a),
		newJoinCommand(a),
		newDownCommand(a),
	}
}
