package host

import (
	"strings"
	"testing"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
)

// Goal: a machine that is no control machine is not told to restore a snapshot.
func TestNotReadyOrdinary(t *testing.T) {
	err := notReady(&booting{}, &datadir.Record{Machine: "m9", Role: datadir.RoleOrdinary}, "not ready after 1m0s",
		waiting{"m2, m2 does not answer", true})
	if hint := sigma.HintOf(err); strings.Contains(hint, "restore") || !strings.Contains(hint, "reaches them") {
		t.Errorf("hint of a machine that is no control machine: %q", hint)
	}
}

func TestMachineName(t *testing.T) {
	if name := machineName(); name == "" {
		t.Errorf("%q", name)
	}
}
