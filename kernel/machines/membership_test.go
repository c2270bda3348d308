package machines

import (
	"testing"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// Goal: control machines that do not answer are told at once, also when no majority is left that
// declares them lost.
func TestMembershipTellsSilence(t *testing.T) {
	members := []identity.Member{{Machine: "m1", Control: true}, {Machine: "m2", Control: true},
		{Machine: "m3", Control: true}, {Machine: "m4"}}
	dead := map[sigma.MachineID]bool{"m2": true, "m3": true}
	count := func() (m Membership) {
		m.tally(members, func(id sigma.MachineID) bool { return dead[id] })
		return m
	}
	if m := count(); m.Machines != 4 || m.Alive != 2 || m.Controls != 3 || m.Voting != 1 || m.Silent != 2 ||
		m.Quorum() {
		t.Errorf("two of three do not answer: %+v", m)
	}
	members[1].Lost = true // what is declared lost counts as that alone
	if m := count(); m.Alive != 2 || m.Voting != 1 || m.Silent != 1 || m.Quorum() {
		t.Errorf("one of them is lost: %+v", m)
	}
	members[1].Lost, dead = false, nil
	if m := count(); m.Alive != 4 || m.Voting != 3 || m.Silent != 0 || !m.Quorum() {
		t.Errorf("all answer: %+v", m)
	}
}
