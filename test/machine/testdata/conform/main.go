// Command conform is a proc that runs the conformance kit of trees on what it sees: "all" on its
// whole tree at file descriptor 3, "path PATH" on the tree at a path, "proc ID" on /proc with a
// proc that prints nothing.
package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
)

// place is the tree at a path, as the proc's client reaches it.
type place struct {
	c    *sdk.Client
	path string
}

func (p place) Attach(ctx context.Context, _ sigma.Principal, _ string) (sigma.File, error) {
	return p.c.Handle(ctx, p.path)
}

func main() {
	c, err := sdk.Open(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	what := os.Args[1:]
	os.Args = os.Args[:1] // package testing has flags of its own
	testing.Main(func(string, string) (bool, error) {
		return true, nil
	}, []testing.InternalTest{{Name: what[0], F: func(t *testing.T) { run(t, c, what) }}}, nil, nil)
}

func run(t *testing.T, c *sdk.Client, what []string) {
	at := func(path string) func(*testing.T) sigma.Tree {
		return func(*testing.T) sigma.Tree { return place{c, path} }
	}
	cfg := treetest.Config{Principal: c.Info().Principal, Dir: "conform", ListEntries: 300, SizeMax: 60 << 10,
		Depth: 20, Lacks: []treetest.Capability{treetest.Hidden, treetest.PassFiles}}
	switch what[0] {
	case "all":
		cfg.New = at("/")
		cfg.Lacks = append(cfg.Lacks, treetest.Pipes)
		treetest.Run(t, cfg)
	case "path":
		cfg.New = at(what[1])
		cfg.ListEntries, cfg.SizeMax, cfg.Depth = 3000, 1<<20, 0
		treetest.Run(t, cfg)
	case "proc":
		treetest.RunReadOnly(t, treetest.ReadOnlyConfig{New: at("/proc"), Principal: cfg.Principal,
			Dir: []string{what[1]}, File: []string{what[1], "status"}})
	}
}
