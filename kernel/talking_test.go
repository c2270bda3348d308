package kernel

import (
	"testing"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// Goal: the round-trip time of each pair of machines is told wherever it is read, also to a tenant;
// a machine that is away has a line that says so, and the others are told.
func TestDistances(t *testing.T) {
	x := newThree(t)
	read := func(at sigma.MachineID, realm sigma.RealmID) (pairs int, missing string) {
		for _, l := range objects[struct {
			report.Distance
			Missing string `json:"missing"`
		}](t, x.m[at].connect(realm), "/sys/distances") {
			if l.Missing != "" {
				missing = l.Machine
			} else if l.RoundTrip != nil && *l.RoundTrip > 0 && *l.RoundTrip < 1 {
				pairs++
			}
		}
		return pairs, missing
	}
	for at := range x.m {
		eventually(t, "all know one another", func() bool {
			pairs, missing := read(at, sigma.DefaultRealm)
			return pairs == 6 && missing == ""
		})
	}
	x.lose("m3")
	eventually(t, "the loss is told", func() bool {
		pairs, missing := read("m1", sigma.SystemRealm)
		return pairs == 2 && missing == "m3"
	})
}
