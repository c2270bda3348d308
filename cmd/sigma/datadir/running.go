package datadir

import (
	"os"

	"sigmaos.dev/sigma"
)

func NotRunning(dir string) error {
	verb := "up --detach"
	if os.Geteuid() != 0 {
		verb = "up --rootless --detach"
	}
	return &sigma.Error{Op: "sigma.running", Kind: sigma.KindUnavailable, Msg: "no sigmaOS is running on " + dir,
		Hint: "start it with: " + CommandOn(verb, dir)}
}
