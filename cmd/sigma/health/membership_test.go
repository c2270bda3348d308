package health

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
)

// Goal: what status says of control machines names those that are silent, and that there is no
// majority.
func TestQuorumWords(t *testing.T) {
	m := machines.Membership{Machines: 4, Alive: 2, Controls: 3, Voting: 1, Silent: 2}
	if got, want := quorumWords(m), "1 of 3 control machines, 2 silent: no quorum"; got != want {
		t.Errorf("status says %q, want %q", got, want)
	}
}

// What doctor finds weak in a membership.
func TestMemberWords(t *testing.T) {
	good := machines.Membership{System: "abcdefghijklmnop", Machines: 3, Alive: 3, Controls: 3, Voting: 3,
		Expiries: []identity.Expiry{{What: "certificate", At: time.Now().Add(time.Hour)},
			{What: "authority", At: time.Now().Add(time.Hour)}}}
	for name, c := range map[string]struct {
		change func(*machines.Membership)
		weak   string
	}{
		"good":               {func(*machines.Membership) {}, ""},
		"not registered":     {func(m *machines.Membership) { m.System = "" }, "membership"},
		"one lost":           {func(m *machines.Membership) { m.Alive-- }, "membership"},
		"a control lost":     {func(m *machines.Membership) { m.Alive--; m.Voting-- }, "membership quorum"},
		"no quorum":          {func(m *machines.Membership) { m.Voting = 1 }, "quorum"},
		"an even number":     {func(m *machines.Membership) { m.Controls, m.Voting = 2, 2 }, "quorum"},
		"an old certificate": {func(m *machines.Membership) { m.Expiries[0].Warn = true }, "certificate"},
		"an old authority":   {func(m *machines.Membership) { m.Expiries[1].Warn = true }, "authority"},
	} {
		m := good
		m.Expiries = slices.Clone(good.Expiries)
		c.change(&m)
		var weak []string
		for _, f := range memberWords(m, "m1") {
			if (f.State == findingOK) != (f.Advice == "") {
				t.Errorf("%s: a finding lacks advice, or has too much: %+v", name, f)
			}
			if f.State != findingOK {
				weak = append(weak, f.Check)
			}
		}
		if got := strings.Join(weak, " "); got != c.weak {
			t.Errorf("%s: weak is %q, want %q", name, got, c.weak)
		}
	}
}
