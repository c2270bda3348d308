// Package traces records what procs asked for and waited, and runs a record, or a made-up load,
// again in virtual time.
package traces

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
		newTraceCommand(a),
		newSimCommand(a),
	}
}
