//go:build system

package attack

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// attackByDescriptors misuses descriptors passed for reading, and sockets that were passed. The
// controls of what the descriptor itself forbids are made outside, with one for writing; those of
// what the filter forbids, with it off.
func attackByDescriptors(ctx context.Context, t *testing.T, s *score, p programs, plain, weak *arena) {
	out, _ := plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"descriptor"},
		Env: plain.env(t, everything)})
	results := lines(t, out)
	if !strings.HasSuffix(out, "all of them\n") {
		t.Error("SUCCEEDED: it became another program by a passed descriptor: it did not reach its end")
	}
	for _, l := range results {
		// The same with another file is the same act.
		path, name, _ := strings.Cut(l.name, ": ")
		l.name = name
		s.tried(t, l.act, l.result != "blocked", path+": "+l.detail)
	}
	if len(results) < 80 {
		t.Errorf("got %d results, the last is %v", len(results), results[max(0, len(results)-1):])
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("#!/bin/true\nof the test"), 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := exec.Command(p.forger, "descriptor", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines(t, string(b)) {
		s.control(t, l.act, l.result == "SUCCEEDED", l.detail)
	}
	out, _ = plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"socket"},
		Env: plain.env(t, everything)})
	sockets := lines(t, out)
	for _, l := range sockets {
		s.tried(t, l.act, l.result != "blocked", l.detail)
	}
	out, _ = weak.run(ctx, t, sigma.Descriptor{Program: weak.forge, Args: []string{"socket"},
		Env: weak.env(t, withoutFilter)})
	controls := lines(t, out)
	for _, l := range controls {
		s.control(t, l.act, l.result == "SUCCEEDED", l.detail)
	}
	if len(sockets) < 15 || len(controls) != len(sockets) {
		t.Errorf("got %d results about sockets and %d controls", len(sockets), len(controls))
	}
}
