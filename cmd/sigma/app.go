package main

import "sigmaos.dev/cmd/sigma/cli"

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }
