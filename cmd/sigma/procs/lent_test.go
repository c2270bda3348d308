package procs

import (
	"math"
	"testing"
	"time"

	"sigmaos.dev/kernel/report"
)

// Goal: who lends and who borrows is as the reference defines it, and what is lent is what is
// borrowed.
func TestLend(t *testing.T) {
	type part struct{ lent, borrowed float64 }
	for name, c := range map[string]struct {
		m    machineUse
		lent float64 // of reservations
		want []part
	}{
		"nothing runs": {machineUse{Cores: 4}, 0, nil},
		"a reservation that is not used": {machineUse{Cores: 4, Reserved: 2, realms: []realmPart{{reserved: 2}}}, 0,
			[]part{{}}},
		"best effort within its part": {machineUse{Cores: 4, Reserved: 2, realms: []realmPart{{reserved: 2, lc: 1},
			{be: 2, active: true}}}, 0, []part{{}, {}}},
		"best effort takes what is left": {machineUse{Cores: 4, Reserved: 2, realms: []realmPart{{reserved: 2, lc: 0.5},
			{be: 3.5, active: true}}}, 1.5, []part{{1.5, 0}, {0, 1.5}}},
		"two reservations": {machineUse{Cores: 4, Reserved: 3, realms: []realmPart{{reserved: 2, lc: 1.5},
			{reserved: 1, lc: 0, be: 2, active: true}}}, 1, []part{{1.0 / 3, 0}, {2.0 / 3, 1}}},
		"services have what they use": {machineUse{Cores: 4, Reserved: 2, System: 0.5, Sigmad: 0.5,
			realms: []realmPart{{reserved: 2}, {be: 2, active: true}}}, 1, []part{{1, 0}, {0, 1}}},
		"of two realms one leaves some": {machineUse{Cores: 4, realms: []realmPart{{shares: 1, be: 3, active: true},
			{shares: 1, be: 1, active: true}}}, 0, []part{{0, 1}, {1, 0}}},
		"by shares": {machineUse{Cores: 4, realms: []realmPart{{shares: 3, be: 3, active: true},
			{shares: 1, be: 1, active: true}}}, 0, []part{{}, {}}},
		"one sleeps, not all is taken": {machineUse{Cores: 4, realms: []realmPart{{be: 3, active: true},
			{active: true}}}, 0, []part{{0, 1}, {1, 0}}},
		"two leave some": {machineUse{Cores: 6, realms: []realmPart{{be: 3, active: true},
			{active: true}, {be: 1, active: true}}}, 0, []part{{0, 1}, {2.0 / 3, 0}, {1.0 / 3, 0}}},
		"who has no procs has no part": {machineUse{Cores: 4, realms: []realmPart{{be: 4, active: true},
			{shares: 9}}}, 0, []part{{}, {}}},
		"of both": {machineUse{Cores: 4, Reserved: 2, realms: []realmPart{{reserved: 2},
			{be: 3, active: true}, {be: 0.5, active: true}}}, 1.5, []part{{1.5, 0}, {0, 2}, {0.5, 0}}},
		"counted at different times": {machineUse{Cores: 2, Reserved: 2, realms: []realmPart{{reserved: 2, lc: 2},
			{be: 0.1, active: true}}}, 0, []part{{}, {0, 0.1}}},
	} {
		m := c.m
		lend(&m)
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: %s is %v, not %v", name, what, got, want)
			}
		}
		near("lent of reservations", m.Lent, c.lent)
		var lent, borrowed float64
		for i, r := range m.realms {
			near("lent", r.lent, c.want[i].lent)
			near("borrowed", r.borrowed, c.want[i].borrowed)
			lent, borrowed = lent+r.lent, borrowed+r.borrowed
		}
		near("the sum of what is borrowed", borrowed, m.Borrowed)
		if name != "counted at different times" {
			near("what is lent in all", lent, borrowed)
		}
	}
}

// Goal: two reads make rates by each machine's own clock; of another sigmad, a new machine and one
// that is missing nothing is made up.
func TestUsesOf(t *testing.T) {
	began := time.Unix(1e9, 0)
	line := func(machine, realm string, at, lc, be float64) report.Load {
		l := report.Load{Realm: realm, Shares: 1, Running: 1}
		l.Machine, l.Since, l.At, l.Cores, l.LC, l.BE = machine, began, at, 4, lc, be
		return l
	}
	before := []report.Load{line("m1", "", 10, 5, 7), line("m1", "a", 10, 5, 7), line("m2", "", 1, 0, 0),
		line("m3", "", 1, 0, 0)}
	replaced := line("m2", "", 3, 1, 1)
	replaced.Since = began.Add(time.Second)
	now := []report.Load{line("m1", "", 12, 6, 11), line("m1", "a", 12, 6, 8), line("m1", "new", 12, 0, 3), replaced,
		{MachineLoad: report.MachineLoad{Machine: "m3"}, Missing: "away"}, line("m4", "", 1, 9, 9),
		line("m9", "x", 1, 1, 1)}
	got := usesOf(before, now)
	if len(got) != 4 || got[0].LC != 0.5 || got[0].BE != 2 || len(got[0].realms) != 2 || got[0].realms[0].be != 0.5 ||
		got[0].realms[1].be != 1.5 {
		t.Errorf("got %+v", got)
	}
	if got[1].BE != 0 || got[2].Missing != "away" || got[3].LC != 0 {
		t.Errorf("got %+v", got[1:])
	}
}

// Goal: reads that are nearer to each other than a machine looks at its procs are compared with the
// one before, so that nothing shows 0 that works; each machine by its own clock.
func TestOtherTime(t *testing.T) {
	line := func(machine, realm string, at, be float64) report.Load {
		l := report.Load{Realm: realm, Shares: 1, Running: 1}
		l.Machine, l.At, l.Cores, l.BE = machine, at, 4, be
		return l
	}
	var v topView
	for i, c := range []struct {
		now      []report.Load
		m1, m2   float64 // cores; m2 -1 = no such machine
		compared bool
	}{
		{[]report.Load{line("m1", "", 10, 1), line("m1", "a", 10, 1), line("m2", "", 5, 0)}, 0, 0, false},
		{[]report.Load{line("m1", "", 10, 1), line("m1", "a", 10, 1), line("m2", "", 6, 2)}, 0, 2, false},
		{[]report.Load{line("m1", "", 11, 3), line("m1", "a", 11, 3), line("m2", "", 6, 2)}, 2, 2, true},
		{[]report.Load{line("m1", "", 11, 3), line("m1", "a", 11, 3), line("m2", "", 6, 2)}, 2, 2, true},
		{[]report.Load{line("m1", "", 12, 4), line("m1", "a", 12, 4), {MachineLoad: report.MachineLoad{Machine: "m2"},
			Missing: "away"}}, 1, 0, true},
		{[]report.Load{line("m1", "", 12, 4), line("m1", "a", 12, 4)}, 1, -1, true},
	} {
		v.loadWas = otherTime(v.loadWas, v.load, c.now)
		v.load = c.now
		got := usesOf(v.loadWas, c.now)
		if got[0].BE != c.m1 || c.m2 >= 0 && got[1].BE != c.m2 || len(got) > 1 != (c.m2 >= 0) ||
			v.compared() != c.compared {
			t.Errorf("after read %d: %+v, compared %v", i, got, v.compared())
		}
		if r := got[0].realms; len(r) != 1 || r[0].be != c.m1 {
			t.Errorf("after read %d: realms %+v", i, r)
		}
	}
}
