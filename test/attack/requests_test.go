//go:build system

package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/test/attack/forge"
)

// attackByRequests runs forge.All in a proc, and its controls by those who may.
func attackByRequests(ctx context.Context, t *testing.T, s *score, plain *arena) {
	out, st := plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"attack"},
		Env: plain.env(t, everything)})
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

// attackByFormer goes, in a realm that was made anew, for what the realm of that name had which was
// removed, also when there is the same again. Its control does so in that realm, before.
func attackByFormer(ctx context.Context, t *testing.T, s *score, plain *arena) {
	const realm = "again"
	plain.Must(t, "realm", "create", realm)
	c := plain.Connect(ctx, t, realm)
	install := func() { plain.Install(ctx, t, c, plain.programs.forger) }
	install()
	had := plain.hold(ctx, t, c)
	tell, err := json.Marshal(forge.Env{Other: had})
	if err != nil {
		t.Fatal(err)
	}
	try := func() []line {
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: plain.forge, Args: []string{"former"},
			Env: []string{"FORGE=" + string(tell)}})
		if err != nil {
			t.Fatal(err)
		}
		st, err := c.WaitExit(ctx, ids[0])
		out, _, gerr := c.Get(ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
		ls := lines(t, string(out))
		if err != nil || gerr != nil || len(ls) != 9 {
			t.Fatalf("it ended as %+v, %v, %v: %s", st, err, gerr, out)
		}
		return ls
	}
	for _, l := range try() {
		if l.name != forge.ListenAtFormer { // which requests controls
			s.control(t, l.act, l.result != "blocked", l.detail)
		}
	}
	plain.Must(t, "realm", "rm", "--force", realm)
	plain.Must(t, "realm", "create", realm)
	c = plain.Connect(ctx, t, realm)
	install()
	for _, l := range try() {
		if l.name != forge.ListenAtFormer {
			s.tried(t, l.act, l.result != "blocked", l.detail)
		} else if l.result != "blocked" {
			t.Errorf("a proc listens where one of the former realm did: %s", l.detail)
		}
	}
	plain.hold(ctx, t, c)
	for _, l := range try() {
		s.again(t, l.act, l.result != "blocked", l.detail)
	}
}
