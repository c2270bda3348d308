// Package health tells how this machine and the system on it are: what runs (status), and what is
// missing, weak or down, with advice (doctor). Each finds a part by asking it, within a bounded
// time.
package health

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
		newStatusCommand(a),
		newDoctorCommand(a),
	}
}
