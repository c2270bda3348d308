package main

import (
	"os"
	"path/filepath"
	"testing"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sigma"
)

// Goal: --realm means the same before the verb, before its part and after both, also to verbs that
// ask whether it was given.
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

// Goal: what cannot be a path or a realm's name is a mistake in the command line, for whatever
// verb; the same said of something else is a failure.
func TestMistypedWords(t *testing.T) {
	f := newFake(t)
	file := write(t, filepath.Join(t.TempDir(), "file"), []byte("x"))
	for _, args := range [][]string{
		{"ls", "x"}, {"cat", "/.."}, {"rm", "x"}, {"mkdir", "x"}, {"stat", "x"}, {"chmod", "600", "x"},
		{"ln", "/a", "x"}, {"mv", "x", "/a"}, {"mv", "/a", "x"},
		{"put", file, "x"}, {"get", "x", file}, {"watch", "x"}, {"lease", "hold", "x"}, {"realm", "create", "../x"},
		{"realm", "rm", "../x"}, {"realm", "inspect", "../x"}, {"usage", "../x"}, {"realm", "set", "--shares", "2",
			"../x"},
	} {
		if got := f.sigma(args...); got.code != cli.ExitUsage || got.out != "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if _, bad := sigma.ParsePath("x"); cli.CodeOf(bad) != cli.ExitFailure {
		t.Errorf("%v of no word: code %d", bad, cli.CodeOf(bad))
	}
}
