package viewfs

import (
	"context"
	"slices"
	"time"

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
func (f *viewFile) mayChange(op treeserver.Op, name string) error {
	if f.covered(name) {
		return &sigma.Error{Op: "kernel.view." + string(op), Path: name, Kind: sigma.KindPermission,
			Msg:  "the name is one of the proc's view",
			Hint: "what a view shows can be changed, where it shows it cannot"}
	}
	return f.may(op, name, sigma.RightWrite)
}

// Create implements sigma.File. Where the name is that of an entry, the file is made where the
// entry leads.
func (f *viewFile) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	if e := f.entryAt(name); e != nil {
		dir, last, err := f.v.parentOf(ctx, e, e.Target)
		if err != nil {
			return nil, sigma.Wrap("kernel.view.Create", name, err)
		}
		defer dir.Close()
		return dir.Create(ctx, last, flags, perm)
	}
	return f.Forward.Create(ctx, name, flags, perm)
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

// Mkdir implements sigma.File. Where the name is that of an entry, the directory is made where the
// entry leads.
func (f *viewFile) Mkdir(ctx context.Context, name string, perm uint32) error {
	if e := f.entryAt(name); e != nil {
		return sigma.Wrap("kernel.view.Mkdir", name, f.v.mkdirAt(ctx, e, e.Target, perm))
	}
	if f.covered(name) {
		return sigma.PathError("kernel.view.Mkdir", sigma.KindExists, name)
	}
	return f.Forward.Mkdir(ctx, name, perm)
}

// Rename implements sigma.File. Both directories must be open to changes, and be of one server.
func (f *viewFile) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	to, ok := newDir.(*viewFile)
	if !ok {
		return f.refuse(treeserver.OpRename, newName)
	}
	if err := to.mayChange(treeserver.OpRename, newName); err != nil {
		return err
	}
	return f.Forward.Rename(ctx, name, to, newName)
}

// Get implements sigma.Getter.
func (f *viewFile) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	s, err := f.locate("Get", names)
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	if s.walker == nil {
		return sigma.GetResult{}, nil, sigma.PathError("kernel.view.Get", sigma.KindIsDir, sigma.JoinPath(names...))
	}
	if ctx, err = f.v.fenced(ctx); err != nil {
		return sigma.GetResult{}, nil, err
	}
	g, stop, err := s.walker.get(ctx, offset, count)
	return g, f.outer(s, stop, names), err
}

// outer makes a stop of a walk one of the names that were asked for.
func (f *viewFile) outer(s location, stop *sigma.Stopped, names []string) *sigma.Stopped {
	if stop != nil {
		stop.Walked = min(stop.Walked+s.created, len(names))
	}
	return stop
}

// Put implements sigma.Putter.
func (f *viewFile) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (id sigma.FileID,
	stop *sigma.Stopped, err error) {
	s, err := f.locate("Put", names)
	if err != nil {
		return id, nil, err
	}
	if s.walker == nil || s.below {
		return id, nil, sigma.PathError("kernel.view.Put", sigma.KindIsDir, sigma.JoinPath(names...))
	}
	target := &viewFile{v: f.v, entry: s.entry}
	if err := target.may("Put", sigma.JoinPath(names...), sigma.RightWrite); err != nil {
		return id, nil, err
	}
	if err := f.v.mayPublish(o, data); err != nil {
		return id, nil, err
	}
	if ctx, err = f.v.fenced(ctx); err != nil {
		return id, nil, err
	}
	id, stop, err = s.walker.put(ctx, data, o)
	return id, f.outer(s, stop, names), err
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

// Lease implements sigma.Leaser, at the root of a view that lets anything be made.
func (f *viewFile) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, error) {
	if f.at == nil || len(f.at) > 0 {
		return 0, treeserver.Unsupported("lease")
	}
	if !f.v.Table().Writes() {
		return 0, f.refuse("Lease", "/")
	}
	return f.v.cfg.Root().Lease(ctx, ttl)
}

// Renew implements sigma.Leaser.
func (f *viewFile) Renew(ctx context.Context, id sigma.LeaseID) error {
	if !f.v.holds(id) {
		return noLease(id)
	}
	return f.v.cfg.Root().Renew(ctx, id)
}

// Revoke implements sigma.Leaser.
func (f *viewFile) Revoke(ctx context.Context, id sigma.LeaseID) error {
	if !f.v.holds(id) {
		return noLease(id)
	}
	return f.v.cfg.Root().Revoke(ctx, id)
}

func noLease(id sigma.LeaseID) error {
	return sigma.Errorf("kernel.view.Lease", sigma.KindNotFound, "no lease %d of this proc", uint64(id))
}
