// Package stores says which object store a realm's /s3 is on.
package stores

import (
	"sigmaos.dev/cmd/sigma/cli"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }
