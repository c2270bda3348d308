// Package mounts shows the realm to programs of this host: as a directory, by FUSE, and to clients
// of 9P2000.L.
package mounts

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
		newMountCommand(a),
		newUnmountCommand(a),
		newServeCommand(a),
	}
}
