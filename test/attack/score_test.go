//go:build system

package attack

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
)

// act is one thing that was done. Acts that go for the same asset by the same way are one attempt,
// whatever the numbers and names they do it with.
type act struct{ name, attempt, asset string }

// tried is what is known of an attempt.
type tried struct {
	asset      string
	acts       map[string]bool
	controlled map[string]bool // acts whose control succeeded
	succeeded  bool
}

// score is what the suite is for: the attempts, and the daemons that were harmed.
type score struct {
	attempts map[string]*tried
	harmed   map[string]bool
	groups   int // that were run: -run may choose
}

func newScore() *score { return &score{attempts: map[string]*tried{}, harmed: map[string]bool{}} }

func (s *score) of(t *testing.T, a act) *tried {
	t.Helper()
	if a.attempt == "" || a.asset == "" {
		t.Fatalf("%s belongs to no attempt", a.name)
	}
	x := s.attempts[a.attempt]
	if x == nil {
		x = &tried{asset: a.asset, acts: map[string]bool{}, controlled: map[string]bool{}}
		s.attempts[a.attempt] = x
	}
	return x
}

// tried enters an act and fails the test if it succeeded.
func (s *score) tried(t *testing.T, a act, succeeded bool, detail string) {
	t.Helper()
	x := s.of(t, a)
	x.acts[a.name] = true
	if succeeded {
		x.succeeded = true
		t.Errorf("%s: %s: SUCCEEDED: %s", a.attempt, a.name, detail)
	}
}

// again is tried for an act that was entered before, under other circumstances: it is not one more,
// but must not succeed either.
func (s *score) again(t *testing.T, a act, succeeded bool, detail string) {
	t.Helper()
	if succeeded {
		s.of(t, a).succeeded = true
		t.Errorf("%s: %s: SUCCEEDED: %s", a.attempt, a.name, detail)
	}
}

// control enters the control of an act, and fails the test if the act failed even so: then its
// failure elsewhere shows nothing.
func (s *score) control(t *testing.T, a act, succeeded bool, detail string) {
	t.Helper()
	x := s.of(t, a)
	if !succeeded {
		t.Errorf("%s: %s: the control fails too: %s", a.attempt, a.name, detail)
		return
	}
	x.controlled[a.name] = true
}

// counts reports whether every act of the attempt has shown by its control that it would succeed.
func (x *tried) counts() bool {
	for name := range x.acts {
		if !x.controlled[name] {
			return false
		}
	}
	return len(x.acts) > 0
}

// report prints the line that the suite promises, and before it what was left out of the count.
func (s *score) report(t *testing.T) (counted int) {
	succeeded, acts := 0, 0
	var without []string
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(root, "docs/internals/attacks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(s.attempts)) {
		if !strings.Contains(string(list), name) {
			t.Errorf("docs/internals/attacks.md does not list %q, which goes for %s", name, s.attempts[name].asset)
		}
		switch x := s.attempts[name]; {
		case x.succeeded:
			succeeded++
			fallthrough
		case x.counts():
			counted++
			acts += len(x.acts)
		default:
			without = append(without, name)
		}
	}
	t.Logf("%d acts in the attempts that count; tried but not counted, because an act has no control: %s", acts,
		strings.Join(without, "; "))
	fmt.Printf("attacks: %d tried, %d succeeded, %d daemons harmed\n", counted, succeeded, len(s.harmed))
	return counted
}

// The count is of attempts that are controlled, whatever the acts.
func TestScore(t *testing.T) {
	s := newScore()
	a := func(name, attempt string) act { return act{name, attempt, "asset"} }
	for _, x := range []act{a("1", "whole"), a("2", "whole"), a("3", "half"), a("4", "half"), a("5", "none")} {
		s.tried(t, x, false, "")
	}
	for _, x := range []act{a("1", "whole"), a("2", "whole"), a("3", "half"), a("6", "untried")} {
		s.control(t, x, true, "")
	}
	if !s.attempts["whole"].counts() || s.attempts["half"].counts() || s.attempts["none"].counts() ||
		s.attempts["untried"].counts() {
		t.Error("other attempts than the whole one count, or it does not")
	}
}
