//go:build system

// Package attack attacks a running sigmaOS from inside procs and counts: what was tried, what
// succeeded, which must be nothing, and how many positive controls showed that the attempt would
// succeed if it were not for the protection it is about. docs/internals/attacks.md says how to add
// one.
//
// Attempts run on a system that was started in the ordinary way, with a SIGMA_WEAKEN in their
// environment that must not matter; controls run on one that was started for that.
package attack

import (
	"context"
	"testing"

	"sigmaos.dev/internal/testenv"
)

// Goal: no attempt succeeds, each that counts is shown to be a real one, and the daemons are as
// well after each group as before.
func TestAttacks(t *testing.T) {
	testenv.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	p := build(t)
	plain, weak := newArena(ctx, t, p, testenv.Options{}),
		newArena(ctx, t, p, testenv.Options{Weaken: true, Machine: "weak"})
	s := newScore()
	group := func(name string, do func(t *testing.T)) { plain.harmless(ctx, t, s, name, do) }
	group("calls", func(t *testing.T) { attackByCalls(ctx, t, s, p, plain, weak) })
	group("depth", func(t *testing.T) { attackInDepth(ctx, t, s, p, weak) })
	group("sweep", func(t *testing.T) { attackBySweep(ctx, t, s, plain, weak) })
	group("descriptors", func(t *testing.T) { attackByDescriptors(ctx, t, s, p, plain, weak) })
	group("exhaustion", func(t *testing.T) { attackByExhaustion(ctx, t, s, p, plain) })
	group("endings", func(t *testing.T) { attackByEndings(ctx, t, s, p, plain) })
	group("everybody", func(t *testing.T) { attackEverybody(ctx, t, s, p, plain) })
	group("messages", func(t *testing.T) { attackByMessages(ctx, t, s, p, plain) })
	group("requests", func(t *testing.T) { attackByRequests(ctx, t, s, plain) })
	group("former", func(t *testing.T) { attackByFormer(ctx, t, s, plain) })
	if counted := s.report(t); counted < 100 && s.groups == 10 {
		t.Errorf("%d attempts are too few to mean anything", counted)
	}
}
