package ux

import (
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treetest"
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
		Lacks:       []treetest.Capability{treetest.SetPerm, treetest.SetModified, treetest.Leases},
		ListEntries: 10_000,
	})
}
