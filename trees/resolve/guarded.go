package resolve

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// guarded is a file whose requests carry a fence, unless their context has one. Its Gate is the
// fencedDir.
type guarded struct{ treeserver.PassingForward }

// Enter implements treeserver.Gate.
func (d *fencedDir) Enter(ctx context.Context, _ treeserver.Op, _ string) (context.Context, func(error) error, error) {
	if sigma.FenceOf(ctx).Name == "" {
		ctx = sigma.WithFence(ctx, d.fence)
	}
	return ctx, treeserver.Admit, nil
}

// Beyond implements treeserver.Gate.
func (d *fencedDir) Beyond(f sigma.File) sigma.File { return &guarded{treeserver.Passing(f, d)} }

// by is the directory under which the requests are fenced.
func (g *guarded) by() *fencedDir { return g.Gate.(*fencedDir) }

// RenameTarget gives what stands behind the guard, for a rename into it (session.remote).
func (g *guarded) RenameTarget(ctx context.Context, name string) (sigma.File, error) {
	if u, ok := g.File.(interface {
		RenameTarget(ctx context.Context, name string) (sigma.File, error)
	}); ok {
		return u.RenameTarget(ctx, name)
	}
	return g.File, nil
}

// bare is a file without the guard that it may have.
func bare(f sigma.File) sigma.File {
	if g, ok := f.(*guarded); ok {
		return g.File
	}
	return f
}
