package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Goal: --realm means the same before the verb, before its part and after both, also to verbs that ask whether it was given.
func TestRealmGiven(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(file, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	const hint = "make snapshots of a realm with" // of a realm, not of a system
	for _, args := range [][]string{
		{"snapshot", "restore", "-r", "fresh", file},
		{"snapshot", "-r", "fresh", "restore", file},
		{"-r", "fresh", "snapshot", "restore", file},
	} {
		want(t, f.sigma(args...), 1, "", hint)
	}
}
