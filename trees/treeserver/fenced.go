package treeserver

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
	"sigmaos.dev/wire/session"
)

// Fenced puts f, and all handles that are had by it, behind the fences of t, which refuse what
// deposed leaders ask for. What is done through a descriptor that f passed meets no fence.
func Fenced(t *fence.Table, f sigma.File) sigma.File {
	by := &fenced{table: t, next: f}
	by.Handler = by
	return by
}

// fenced is a file behind fences.
type fenced struct {
	sigma.Stub
	table *fence.Table
	next  sigma.File
}

// Handle implements sigma.Handler.
func (f *fenced) Handle(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	if r.Op.OfHandle() {
		return Do(ctx, f.next, r)
	}
	ctx, leave, err := f.table.Enter(ctx, sigma.FenceOf(ctx))
	if err != nil {
		session.CloseFiles(r.Files)
		return a, err
	}
	if dir, ok := r.Dir.(*fenced); ok {
		r.Dir = dir.next
	}
	a, err = Do(ctx, f.next, r)
	if a.File != nil {
		a.File = Fenced(f.table, a.File)
	}
	return a, leave(err)
}
