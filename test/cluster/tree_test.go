//go:build system

package cluster

import (
	"context"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
)

// placeTree is the tree at a path.
type placeTree struct {
	c    *sdk.Client
	path string
}

func (p placeTree) Attach(ctx context.Context, _ sigma.Principal, _ string) (sigma.File, error) {
	return p.c.Handle(ctx, p.path)
}

// treeConforms checks that a tree that a proc serves keeps the contract of trees for who is on
// another machine.
func treeConforms(t *testing.T, c *testenv.Cluster) {
	ctx := testContext(t)
	client, err := c.Machine(0).Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer client.Close()
	program := c.Machine(0).Install(ctx, t, client, testenv.BuildGo(t, t.TempDir(), "../../examples/tree"))
	ids, err := client.Spawn(ctx, sigma.Descriptor{Program: program, Args: []string{"/conform-tree"},
		Start: sigma.StartedByCall})
	must(t, err)
	must(t, client.WaitStart(ctx, ids[0]))
	procs, err := client.List(ctx, false)
	must(t, err)
	from := client
	for _, p := range procs {
		if p.ID == ids[0] && p.Machine == "m1" {
			if from, err = c.Machine(1).Client(ctx, sigma.DefaultRealm); err != nil {
				t.Fatal(err)
			}
			defer from.Close()
		}
	}
	treetest.Run(t, treetest.Config{New: func(*testing.T) sigma.Tree {
		return placeTree{from, "/conform-tree"}
	}, Principal: sigma.Principal{System: true}, Dir: "conform", ListEntries: 300, SizeMax: 100 << 10, Depth: 100,
		Lacks: []treetest.Capability{treetest.Hidden, treetest.PassFiles}})
	must(t, client.Kill(ctx, ids[0]))
}
