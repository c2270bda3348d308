package fleets

import (
	"io"
	"os"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/lib/fleet/sim"
	"sigmaos.dev/sigma"
)

// Simulate runs a script of a fleet in virtual time and prints what the coordinator decides.
func Simulate(out io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return sigma.Wrap("sigma.sim", file, err)
	}
	defer f.Close()
	return cli.WithCode(cli.ExitUsage, sigma.Wrap("sigma.sim", file, sim.RunScript(f, out)))
}
