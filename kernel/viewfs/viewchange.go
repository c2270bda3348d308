package viewfs

import (
	"context"
	"slices"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/view"
)

// fenced looks at the fence that a request may carry. Its name is a path in the proc's view: the
// realm knows it by where that leads. A fence of a file that the proc may not change would let it
// depose others.
func (v *Viewer) fenced(ctx context.Context) (context.Context, error) {
	fence := sigma.FenceOf(ctx)
	if fence.Name == "" {
		return ctx, nil
	}
	names, err := sigma.ParsePath(fence.Name)
	if err != nil {
		return nil, err
	}
	e, rest, ok := v.Table().Lookup(names)
	if !ok || e.Rights&sigma.RightWrite == 0 {
		return nil, &sigma.Error{Op: "kernel.view.Fence", Path: fence.Name, Kind: sigma.KindPermission,
			Msg: "the proc's view does not let it change the fence's file"}
	}
	fence.Name = sigma.JoinPath(slices.Concat(e.Target, rest)...)
	return sigma.WithFence(ctx, fence), nil
}

// mayChange says whether the name here may be changed: the rights allow it and the name is not one
// of the view.
func (f *viewFile) mayChange(op sigma.Op, name string) error {
	if f.covered(name) {
		return &sigma.Error{Op: "kernel.view." + op.String(), Path: name, Kind: sigma.KindPermission,
			Msg:  "the name is one of the proc's view",
			Hint: "what a view shows can be changed, where it shows it cannot"}
	}
	return f.may(op, name, sigma.RightWrite)
}

// makeAt makes what is to have the name of an entry where the entry leads.
func (f *viewFile) makeAt(ctx context.Context, e *view.Entry, r sigma.Request) (a sigma.Reply, err error) {
	op, name := "kernel.view."+r.Op.String(), r.Name
	if r.Op == sigma.OpMkdir {
		return a, sigma.Wrap(op, name, f.v.mkdirAt(ctx, e, e.Target, r.Perm))
	}
	dir, last, err := f.v.parentOf(ctx, e, e.Target)
	if err != nil {
		return a, sigma.Wrap(op, name, err)
	}
	defer dir.Close()
	r.Name = last
	return dir.Handle(ctx, r)
}

// entryAt returns the entry whose name this is, if what it leads to may be made. nil: there is
// none.
func (f *viewFile) entryAt(name string) *view.Entry {
	if f.at == nil {
		return nil
	}
	e, rest, ok := f.v.Table().Lookup(slices.Concat(f.at, []string{name}))
	if !ok || len(rest) > 0 || len(e.Target) == 0 || e.Rights&sigma.RightWrite == 0 {
		return nil
	}
	return e
}

// parentOf returns the directory, of the realm, in which the last of names is, with the rights of
// an entry. The caller closes it.
func (v *Viewer) parentOf(ctx context.Context, e *view.Entry, names []string) (dir *viewFile, last string, err error) {
	n := len(names) - 1
	w := &walker{v: v, f: v.cfg.Root(), names: names[:n], real: n}
	inner, err := w.walk(ctx)
	if err != nil || inner == nil {
		return nil, "", orNotFound(err)
	}
	return handle(inner, viewFile{v: v, entry: e, by: w.by}), names[n], nil
}

// mkdirAt makes a directory of the realm with the rights of an entry that leads there, and the
// directories on the way to it that are missing: whoever gave the entry named all of them.
func (v *Viewer) mkdirAt(ctx context.Context, e *view.Entry, names []string, perm uint32) error {
	dir, last, err := v.parentOf(ctx, e, names)
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound && len(names) > 1 {
		if err := v.mkdirAt(ctx, e, names[:len(names)-1], perm); err != nil && sigma.KindOf(err) != sigma.KindExists {
			return err
		}
		dir, last, err = v.parentOf(ctx, e, names)
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Mkdir(ctx, last, perm)
}

func orNotFound(err error) error {
	if err == nil {
		return sigma.Errorf("kernel.view", sigma.KindNotFound, "the directory of the file is not there")
	}
	return err
}

// whole carries out Get and Put.
func (f *viewFile) whole(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	names := r.Names
	s, err := f.locate(r.Op, names)
	if err != nil {
		return a, err
	}
	if s.walker == nil || s.below && r.Op == sigma.OpPut {
		return a, sigma.PathError("kernel.view."+r.Op.String(), sigma.KindIsDir, sigma.JoinPath(names...))
	}
	if r.Op == sigma.OpPut {
		target := &viewFile{v: f.v, entry: s.entry}
		if err := target.may(r.Op, sigma.JoinPath(names...), sigma.RightWrite); err != nil {
			return a, err
		}
		if err := f.v.mayPublish(r.Put, r.Data); err != nil {
			return a, err
		}
	}
	a, err = s.walker.whole(ctx, r)
	if a.Stop != nil { // of the names that were asked for
		a.Stop.Walked = min(a.Stop.Walked+s.created, len(names))
	}
	return a, err
}

// mayPublish says whether a proc may make such a file: of an endpoint, one that it may dial, or
// else it could read there what it was not told; with a lease, its own.
func (v *Viewer) mayPublish(o sigma.PutOptions, data []byte) error {
	if o.Kind == sigma.KindEndpoint {
		e, err := sigma.ParseEndpoint(string(data))
		if err != nil {
			return err
		}
		if !v.knows(e) {
			return &sigma.Error{Op: "kernel.view.Put", Kind: sigma.KindPermission,
				Msg: "the endpoint is neither the proc's own nor one that it has read in its view"}
		}
	}
	if o.Lease != 0 && !v.holds(o.Lease) {
		return sigma.Errorf("kernel.view.Put", sigma.KindPermission, "the lease is not of this proc")
	}
	return nil
}

// holds reports whether the proc was granted a lease.
func (v *Viewer) holds(id sigma.LeaseID) bool {
	return v.cfg.Holds(id)
}

// lease grants leases at the root of a view that lets anything be made.
func (f *viewFile) lease(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	switch {
	case r.Op != sigma.OpLease && !f.v.holds(r.Lease):
		return a, sigma.Errorf("kernel.view.Lease", sigma.KindNotFound, "no lease %d of this proc", uint64(r.Lease))
	case r.Op == sigma.OpLease && (f.at == nil || len(f.at) > 0):
		return a, treeserver.Unsupported("lease")
	case r.Op == sigma.OpLease && !f.v.Table().Writes():
		return a, f.refuse(r.Op, "/")
	}
	return treeserver.Do(ctx, f.v.cfg.Root(), r)
}
