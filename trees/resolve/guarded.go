package resolve

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// guarded is a file whose requests carry the fence of a directory, unless their context has one.
type guarded struct {
	sigma.Stub
	by   *fencedDir
	next sigma.File
}

// guard gives file the directory's fence.
func (d *fencedDir) guard(file sigma.File) sigma.File {
	g := &guarded{by: d, next: file}
	g.Handler = g
	return g
}

// Handle implements sigma.Handler.
func (g *guarded) Handle(ctx context.Context, r sigma.Request) (sigma.Reply, error) {
	if !r.Op.OfHandle() && sigma.FenceOf(ctx).Name == "" {
		ctx = sigma.WithFence(ctx, g.by.fence)
	}
	if r.Dir != nil {
		r.Dir = bare(r.Dir)
	}
	a, err := treeserver.Do(ctx, g.next, r)
	if a.File != nil {
		a.File = g.by.guard(a.File)
	}
	return a, err
}

// bare is a file without the guard that it may have.
func bare(f sigma.File) sigma.File {
	if g, ok := f.(*guarded); ok {
		return g.next
	}
	return f
}
