package ux

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
)

func TestConformance(t *testing.T) {
	treetest.Run(t, treetest.Config{
		New: func(t *testing.T) sigma.Tree {
			tree, err := New(Config{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(tree.Close)
			return tree
		},
		Principal:   sigma.Principal{Realm: "r"},
		Lacks:       []treetest.Capability{treetest.Modes, treetest.Leases, treetest.Pipes},
		ListEntries: 4000,
		Depth:       500,
	})
}

// What is there is there after a restart.
func TestRestarts(t *testing.T) {
	treetest.RunRestarts(t, treetest.RestartConfig{
		Principal: sigma.Principal{Realm: "r"},
		Dir:       "d",
		Lacks:     []treetest.Capability{treetest.Leases},
		New: func(t *testing.T) func() (sigma.Tree, func()) {
			dir := t.TempDir()
			return func() (sigma.Tree, func()) {
				tree, err := New(Config{Dir: dir})
				if err != nil {
					t.Fatal(err)
				}
				return tree, tree.Close
			}
		},
	})
}

// Modes and times are what was set, also after a restart, until the bytes change; and of a file
// that a mode was not set of nothing is kept.
func TestAttributesLast(t *testing.T) {
	dir, when := t.TempDir(), time.Unix(1_234_567_890, 987_654_321)
	attach := func() (sigma.File, func()) {
		tree, err := New(Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		root, err := tree.Attach(t.Context(), sigma.Principal{Realm: "r"}, "")
		if err != nil {
			t.Fatal(err)
		}
		return root, func() { root.Close(); tree.Close() }
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root, done := attach()
	f, err := root.Create(t.Context(), "tool", sigma.OpenWrite, 0o750)
	must(err)
	must(f.SetStat(t.Context(), sigma.StatChange{Modified: &when}))
	f.Close()
	must(root.Mkdir(t.Context(), "d", 0o700))
	must(root.Mkdir(t.Context(), "plain", 0o755))
	must(root.Rename(t.Context(), "tool", root, "tool2"))
	done()
	root, done = attach()
	defer done()
	stat := func(name string) sigma.Stat {
		f, _, err := root.Walk(t.Context(), []string{name})
		must(err)
		defer f.Close()
		st, err := f.Stat(t.Context())
		must(err)
		return st
	}
	if st := stat("tool2"); st.Perm != 0o750 || !st.Modified.Equal(when) {
		t.Errorf("mode %o and time %v, want 750 and %v", st.Perm, st.Modified, when)
	}
	for name, perm := range map[string]uint32{"d": 0o700, "plain": 0o755} {
		if st := stat(name); st.Perm != perm {
			t.Errorf("%s has mode %o, want %o", name, st.Perm, perm)
		}
	}
	f, _, err = root.Walk(t.Context(), []string{"tool2"})
	must(err)
	defer f.Close()
	must(f.Open(t.Context(), sigma.OpenWrite))
	_, err = f.WriteAt(t.Context(), []byte("x"), 0)
	must(err)
	if st := stat("tool2"); st.Perm != 0o750 || st.Modified.Equal(when) {
		t.Errorf("after a write: mode %o and time %v, want 750 and a new time", st.Perm, st.Modified)
	}
}
