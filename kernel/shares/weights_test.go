package shares

import (
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: best-effort procs weigh half a core for each, and on no machine more than half of a group
// of daemons.
func TestBestEffortWeighsLessThanDaemons(t *testing.T) {
	for cpu, want := range map[sigma.MilliCPU]uint32{500: CoreShares / 2, 1000: CoreShares / 2, 2000: CoreShares,
		8000: CoreShares, 256000: CoreShares} {
		if got := WeightBE(cpu); got != want || got > DaemonShares/2 {
			t.Errorf("on %d thousandths of a core they weigh %d of the daemons' %d, want %d", cpu, got, DaemonShares,
				want)
		}
	}
}

// Goal: while a realm has a maximum of processors its latency-critical procs have what they reserve
// and no more, and best-effort ones what is left of it.
func TestMaximumShares(t *testing.T) {
	r := sigma.RealmInfo{ID: "a", Shares: 3, Limits: sigma.RealmLimits{MaxCPU: 2000}}
	if s := shareBE(&r, 500); s.Quota != 1500 || s.CPUShares != 3*RealmShares {
		t.Errorf("best-effort procs have %+v", s)
	}
	if s := shareBE(&r, 3000); s.Quota != quotaLeast {
		t.Errorf("with all reserved they have %+v", s)
	}
	if s := shareLC(500); s.Quota != 500 || s.CPUShares != 512 {
		t.Errorf("latency-critical procs have %+v", s)
	}
	g := New()
	g.Set(nil, []sigma.RealmInfo{r, {ID: "b"}}, func(sigma.RealmID) sigma.MilliCPU { return 0 })
	if x, y := g.Uses(nil, "a", sigma.LatencyCritical, 500), g.Uses(nil, "b", sigma.LatencyCritical,
		500); x != "lc/a" || y != "lc" {
		t.Errorf("they go to %s and %s", x, y)
	}
}
