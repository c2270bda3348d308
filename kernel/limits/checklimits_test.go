package limits

import (
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: limits that cannot hold together, or beside those of other realms, or on the machines that
// there are, are refused, and what is wrong is said.
func TestCheckLimits(t *testing.T) {
	ms := []sigma.MachineInfo{{ID: "m1", CPU: 4000, Memory: 8 * sigma.GiB},
		{ID: "m2", CPU: 2000, Memory: 4 * sigma.GiB}}
	all := []sigma.RealmInfo{{ID: "a"}, {ID: "b", Limits: sigma.RealmLimits{MinCPU: 3000, MinMemory: 4 * sigma.GiB}}}
	for _, c := range []struct {
		set sigma.RealmLimits
		why string // "" = it holds
	}{
		{sigma.RealmLimits{MinCPU: 3000, MinMemory: 8 * sigma.GiB, MaxCPU: 2000, MaxMemory: 6 * sigma.GiB,
			ReserveCPU: 3000}, ""},
		{sigma.RealmLimits{MinCPU: 3001},
			"3.001 cores cannot be kept for the realm: the machines have 6, of which 3 are kept for others"},
		{sigma.RealmLimits{MinMemory: 9 * sigma.GiB}, "9GiB of memory cannot be kept"},
		{sigma.RealmLimits{MinCPU: 2000, ReserveCPU: 1000}, "may reserve 1"},
		{sigma.RealmLimits{MinMemory: sigma.GiB, ReserveMemory: sigma.MiB}, "may reserve 1MiB"},
		{sigma.RealmLimits{MinCPU: 3000, MaxCPU: 1000}, "at most 1 cores at each machine"},
		{sigma.RealmLimits{MinMemory: 3 * sigma.GiB, MaxMemory: sigma.GiB}, "at most 1GiB at each machine"},
	} {
		err := Check(all, ms, "a", c.set)
		if c.why == "" && err != nil || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why) ||
			sigma.HintOf(err) == "" || sigma.KindOf(err) != sigma.KindInvalid) {
			t.Errorf("%+v: %v", c.set, err)
		}
	}
	if err := Check(all, append(ms, sigma.MachineInfo{ID: "new"}), "a",
		sigma.RealmLimits{MinCPU: 9000}); err != nil {
		t.Errorf("beside a machine of which nothing is known: %v", err)
	}
	var many []sigma.RealmInfo // whose sum is 1<<32
	for _, min := range []sigma.MilliCPU{sigma.LimitCPUMax, sigma.LimitCPUMax, sigma.LimitCPUMax, sigma.LimitCPUMax,
		294_967_296} {
		many = append(many, sigma.RealmInfo{ID: sigma.RealmID('c' + rune(len(many))),
			Limits: sigma.RealmLimits{MinCPU: min}})
	}
	if err := Check(many, ms, "a", sigma.RealmLimits{MinCPU: 1000}); sigma.KindOf(err) != sigma.KindInvalid ||
		err == nil {
		t.Errorf("beside realms for which more is kept than a number of cores can say: %v", err)
	}
	for _, l := range []sigma.RealmLimits{{MaxCPU: 1}, {MaxMemory: 1}, {MinCPU: sigma.LimitCPUMax + 1},
		{MinMemory: sigma.LimitMemoryMax + 1}} {
		if sigma.KindOf(l.Check()) != sigma.KindInvalid {
			t.Errorf("%+v passes", l)
		}
	}
}
