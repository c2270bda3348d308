package namespace

import (
	"context"
	"os"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// guarded is a file whose requests carry a fence, unless their context has one.
type guarded struct {
	sigma.File
	fence sigma.Fence
}

var (
	_ sigma.Getter      = (*guarded)(nil)
	_ sigma.Putter      = (*guarded)(nil)
	_ sigma.Watcher     = (*guarded)(nil)
	_ sigma.Caller      = (*guarded)(nil)
	_ sigma.FilePasser  = (*guarded)(nil)
	_ sigma.Conditional = (*guarded)(nil)
	_ sigma.Identified  = (*guarded)(nil)
)

func (g *guarded) with(ctx context.Context) context.Context {
	if sigma.FenceOf(ctx).Name != "" {
		return ctx
	}
	return sigma.WithFence(ctx, g.fence)
}

func (g *guarded) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	f, ids, err := g.File.Walk(g.with(ctx), names)
	if f == nil || err != nil {
		return nil, ids, err
	}
	return &guarded{f, g.fence}, ids, nil
}

func (g *guarded) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	f, err := g.File.Create(g.with(ctx), name, flags, perm)
	if err != nil {
		return nil, err
	}
	return &guarded{f, g.fence}, nil
}

// RenameTarget gives what stands behind the guard, for a rename into it (session.remote).
func (g *guarded) RenameTarget(ctx context.Context, name string) (sigma.File, error) {
	if u, ok := g.File.(interface {
		RenameTarget(ctx context.Context, name string) (sigma.File, error)
	}); ok {
		return u.RenameTarget(ctx, name)
	}
	return g.File, nil
}

func (g *guarded) Stat(ctx context.Context) (sigma.Stat, error) { return g.File.Stat(g.with(ctx)) }
func (g *guarded) SetStat(ctx context.Context, c sigma.StatChange) error {
	return g.File.SetStat(g.with(ctx), c)
}
func (g *guarded) Open(ctx context.Context, f sigma.OpenFlags) error {
	return g.File.Open(g.with(ctx), f)
}
func (g *guarded) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	return g.File.ReadAt(g.with(ctx), p, offset)
}
func (g *guarded) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	return g.File.WriteAt(g.with(ctx), p, offset)
}
func (g *guarded) ReadDir(ctx context.Context, cookie uint64, most int) ([]sigma.DirEntry, uint64, bool, error) {
	return g.File.ReadDir(g.with(ctx), cookie, most)
}
func (g *guarded) Mkdir(ctx context.Context, name string, perm uint32) error {
	return g.File.Mkdir(g.with(ctx), name, perm)
}
func (g *guarded) Symlink(ctx context.Context, name, target string) error {
	return g.File.Symlink(g.with(ctx), name, target)
}
func (g *guarded) ReadLink(ctx context.Context) (string, error) { return g.File.ReadLink(g.with(ctx)) }
func (g *guarded) Remove(ctx context.Context, name string) error {
	return g.File.Remove(g.with(ctx), name)
}
func (g *guarded) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	if to, ok := newDir.(*guarded); ok {
		newDir = to.File
	}
	return g.File.Rename(g.with(ctx), name, newDir, newName)
}
func (g *guarded) Sync(ctx context.Context) error { return g.File.Sync(g.with(ctx)) }

// Get implements sigma.Getter as the file does, or by plain calls.
func (g *guarded) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	return treekit.Get(g.with(ctx), g.File, names, offset, count)
}

// Put implements sigma.Putter as the file does, or by plain calls.
func (g *guarded) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	return treekit.Put(g.with(ctx), g.File, names, data, o)
}

// Watch implements sigma.Watcher where the file does.
func (g *guarded) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	w, ok := g.File.(sigma.Watcher)
	if !ok {
		return 0, treekit.Unsupported("watch")
	}
	return w.Watch(g.with(ctx), since)
}

// Call implements sigma.Caller where the file does.
func (g *guarded) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	c, ok := g.File.(sigma.Caller)
	if !ok {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, treekit.Unsupported("call")
	}
	return c.Call(g.with(ctx), method, payload, files)
}

// PassBulk implements sigma.BulkPasser where the file does.
func (g *guarded) PassBulk(ctx context.Context) (*os.File, error) {
	p, ok := g.File.(sigma.BulkPasser)
	if !ok {
		return nil, treekit.Unsupported("a stream")
	}
	return p.PassBulk(g.with(ctx))
}

// PassFile implements sigma.FilePasser where the file does.
func (g *guarded) PassFile(ctx context.Context) (*os.File, error) {
	p, ok := g.File.(sigma.FilePasser)
	if !ok {
		return nil, treekit.Unsupported("passing a file descriptor")
	}
	return p.PassFile(g.with(ctx))
}

// ReadAtIf implements sigma.Conditional where the file does.
func (g *guarded) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, error) {
	c, ok := g.File.(sigma.Conditional)
	if !ok {
		return 0, treekit.Unsupported("reading a version")
	}
	return c.ReadAtIf(g.with(ctx), p, offset, v)
}

// WriteAtIf implements sigma.Conditional where the file does.
func (g *guarded) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, sigma.Version, error) {
	c, ok := g.File.(sigma.Conditional)
	if !ok {
		return 0, 0, treekit.Unsupported("writing on a condition")
	}
	return c.WriteAtIf(g.with(ctx), p, offset, v)
}

// FileID implements sigma.Identified where the file does.
func (g *guarded) FileID() (id sigma.FileID) {
	if i, ok := g.File.(sigma.Identified); ok {
		id = i.FileID()
	}
	return id
}

// FileKind is the kind of the file as far as its handle knows it.
func (g *guarded) FileKind() sigma.FileKind {
	if k, ok := g.File.(interface{ FileKind() sigma.FileKind }); ok {
		return k.FileKind()
	}
	return sigma.KindFile
}
