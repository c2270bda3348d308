package s3

import (
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
)

func newTree(t *testing.T, dir string) *Tree {
	t.Helper()
	tree, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	return tree
}

func TestConformance(t *testing.T) {
	treetest.Run(t, treetest.Config{
		New:       func(t *testing.T) sigma.Tree { return newTree(t, t.TempDir()) },
		Principal: sigma.Principal{Realm: "r"},
		Lacks: []treetest.Capability{treetest.Rewrite, treetest.Symlinks, treetest.Endpoints, treetest.SetPerm,
			treetest.SetModified,
			treetest.Leases, treetest.Pipes},
		ListEntries: 4000,
		Depth:       200,
	})
}

// What is there is there after a restart.
func TestRestarts(t *testing.T) {
	treetest.RunRestarts(t, treetest.RestartConfig{
		Principal: sigma.Principal{Realm: "r"},
		Dir:       "d",
		Lacks:     []treetest.Capability{treetest.Leases, treetest.Symlinks},
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
