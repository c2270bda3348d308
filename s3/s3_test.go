package s3

import (
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treetest"
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
		Lacks: []treetest.Capability{treetest.Rewrite, treetest.Symlinks, treetest.Endpoints, treetest.SetPerm, treetest.SetModified,
			treetest.Leases},
		ListEntries: 10_000,
		Depth:       200,
	})
}
