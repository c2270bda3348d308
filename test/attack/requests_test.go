//go:build system

package attack

import (
	"context"
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/test/attack/forge"
)

// attackByRequests runs forge.All in a proc, and its controls by those who may.
func attackByRequests(ctx context.Context, t *testing.T, s *score, plain *arena) {
	out, st := plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"attack"}, Env: plain.env(t, everything)})
	all := forge.All()
	tried := map[string]bool{}
	what := func(a forge.Attempt) act { return act{a.Name, a.Attempt, a.Asset} }
	for _, l := range lines(t, out) {
		switch l.result {
		case "control":
			s.control(t, l.act, true, "")
		case "control failed":
			s.control(t, l.act, false, l.detail)
		default:
			tried[l.name] = true
			s.tried(t, l.act, l.result != "blocked", l.detail)
		}
	}
	if len(tried) != len(all) {
		t.Errorf("got %d results of %d attempts; it ended with %v %s", len(tried), len(all), st.Code, st.Msg)
	}
	provider := &forge.Env{C: plain.other, Other: plain.stranger, Sibling: plain.sibling}
	for _, last := range []bool{false, true} {
		for _, a := range all {
			if a.Own == nil && a.Last == last && !a.Uncontrolled {
				err := a.Try(ctx, provider)
				s.control(t, what(a), err == nil, fmt.Sprint("by the provider: ", err))
			}
		}
	}
}
