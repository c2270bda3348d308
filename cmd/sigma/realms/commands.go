// Package realms makes realms, limits them and shows what they used; and makes the credentials
// with which programs outside work in one.
package realms

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
		newRealmCommand(a),
	}
}

// Usage is the command that shows what realms used.
func Usage(base *cli.App) *cobra.Command { return newUsageCommand(&app{base}) }
