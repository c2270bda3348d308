package client

import (
	"context"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/trees/named/client/cache"
	"sigmaos.dev/trees/treetest"
)

// realmAsTree is a Realm as a tree.
type realmAsTree struct{ r *Realm }

func (t realmAsTree) Attach(ctx context.Context, _ sigma.Principal, _ string) (sigma.File, error) {
	root, err := t.r.Owner(ctx)
	if err != nil {
		return nil, err
	}
	f, _, err := root.Walk(ctx, nil)
	return f, err
}

// TestConformance: names seen through a Realm are as good as named's own, whether something is
// remembered or not.
func TestConformance(t *testing.T) {
	for name, budget := range map[string]*cache.Budget{"plain": nil, "remembered": {}} {
		t.Run(name, func(t *testing.T) {
			treetest.Run(t, treetest.Config{
				New: func(t *testing.T) sigma.Tree {
					w := newWorld(t)
					r := New(Config{Dial: w.dial, Budget: budget})
					t.Cleanup(r.Close)
					return realmAsTree{r}
				},
				Lacks:   []treetest.Capability{treetest.Hidden, treetest.PassFiles, treetest.Pipes},
				SizeMax: named.FileMax, ListEntries: 2000,
			})
		})
	}
}
