package fence

import (
	"context"
	"os"

	"sigmaos.dev/sigma"
)

// File is what a tree's handles can do that Guard stands before.
type File interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Watcher
	sigma.FilePasser
	sigma.Publisher
	sigma.Caller
	sigma.Conditional
}

// guarded is the handle that users have: a file behind the fences of its realm, which refuse what
// deposed leaders ask for.
type guarded struct {
	table *Table
	f     File
}

var (
	_ File             = (*guarded)(nil)
	_ sigma.Identified = (*guarded)(nil)
	_ sigma.Recaller   = (*guarded)(nil)
	_ sigma.Spacious   = (*guarded)(nil)
)

// Guard puts f, and all handles that are had by it, behind the fences of t. What Walk and Create of
// f return must be File too.
func Guard(t *Table, f File) sigma.File { return &guarded{t, f} }

func (h *guarded) also(f sigma.File) sigma.File { return &guarded{h.table, f.(File)} }

func (h *guarded) enter(ctx context.Context) (context.Context, func(error) error, error) {
	return h.table.Enter(ctx, sigma.FenceOf(ctx))
}

// under runs an operation that has no result but its error.
func (h *guarded) under(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return err
	}
	return leave(do(ctx))
}

func (h *guarded) Close() { h.f.Close() }

func (h *guarded) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	f, ids, err := h.f.Walk(ctx, names)
	if err = leave(err); f == nil || err != nil {
		return nil, ids, err
	}
	return h.also(f), ids, nil
}

func (h *guarded) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return nil, err
	}
	f, err := h.f.Create(ctx, name, flags, perm)
	if err = leave(err); err != nil {
		return nil, err
	}
	return h.also(f), nil
}

func (h *guarded) Stat(ctx context.Context) (st sigma.Stat, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { st, err = h.f.Stat(ctx); return err })
	return st, err
}

func (h *guarded) SetStat(ctx context.Context, c sigma.StatChange) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.SetStat(ctx, c) })
}

func (h *guarded) Open(ctx context.Context, flags sigma.OpenFlags) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.Open(ctx, flags) })
}

func (h *guarded) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return 0, err
	}
	n, err := h.f.ReadAt(ctx, p, offset)
	return n, leave(err)
}

func (h *guarded) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return 0, err
	}
	n, err := h.f.WriteAt(ctx, p, offset)
	return n, leave(err)
}

// ReadAtIf implements sigma.Conditional.
func (h *guarded) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (n int, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { n, err = h.f.ReadAtIf(ctx, p, offset, v); return err })
	return n, err
}

// WriteAtIf implements sigma.Conditional.
func (h *guarded) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (n int, now sigma.Version,
	err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) {
		n, now, err = h.f.WriteAtIf(ctx, p, offset, v)
		return err
	})
	return n, now, err
}

func (h *guarded) ReadDir(ctx context.Context, cookie uint64, most int) (entries []sigma.DirEntry, next uint64,
	more bool, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) {
		entries, next, more, err = h.f.ReadDir(ctx, cookie, most)
		return err
	})
	return entries, next, more, err
}

func (h *guarded) Mkdir(ctx context.Context, name string, perm uint32) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.Mkdir(ctx, name, perm) })
}

func (h *guarded) Symlink(ctx context.Context, name, target string) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.Symlink(ctx, name, target) })
}

func (h *guarded) ReadLink(ctx context.Context) (target string, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { target, err = h.f.ReadLink(ctx); return err })
	return target, err
}

func (h *guarded) Remove(ctx context.Context, name string) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.Remove(ctx, name) })
}

func (h *guarded) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	if to, ok := newDir.(*guarded); ok {
		newDir = to.f
	}
	return h.under(ctx, func(ctx context.Context) error { return h.f.Rename(ctx, name, newDir, newName) })
}

func (h *guarded) Sync(ctx context.Context) error { return h.under(ctx, h.f.Sync) }

// Publish implements sigma.Publisher.
func (h *guarded) Publish(ctx context.Context) error { return h.under(ctx, h.f.Publish) }

// FileID implements sigma.Identified, where the file does.
func (h *guarded) FileID() sigma.FileID {
	if i, ok := h.f.(sigma.Identified); ok {
		return i.FileID()
	}
	return sigma.FileID{}
}

// Space implements sigma.Spacious, where the file does.
func (h *guarded) Space(ctx context.Context) (sigma.Space, error) {
	if s, ok := h.f.(sigma.Spacious); ok {
		return s.Space(ctx)
	}
	return sigma.Space{}, nil
}

// Get implements sigma.Getter.
func (h *guarded) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	r, stopped, err := h.f.Get(ctx, names, offset, count)
	return r, stopped, leave(err)
}

// Recall implements sigma.Recaller, where the file does. It is asked for without a fence.
func (h *guarded) Recall(names []string, offset uint64, count int) (r sigma.GetResult, stop *sigma.Stopped, known bool,
	err error) {
	if by, ok := h.f.(sigma.Recaller); ok {
		return by.Recall(names, offset, count)
	}
	return r, nil, false, nil
}

// Put implements sigma.Putter.
func (h *guarded) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	id, stopped, err := h.f.Put(ctx, names, data, o)
	return id, stopped, leave(err)
}

// Watch implements sigma.Watcher.
func (h *guarded) Watch(ctx context.Context, since sigma.Version) (v sigma.Version, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { v, err = h.f.Watch(ctx, since); return err })
	return v, err
}

// PassFile implements sigma.FilePasser. What is read through the descriptor is not fenced.
func (h *guarded) PassFile(ctx context.Context) (file *os.File, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { file, err = h.f.PassFile(ctx); return err })
	return file, err
}

// Call implements sigma.Caller.
func (h *guarded) Call(ctx context.Context, method string, payload []byte, files []*os.File) (reply []byte,
	back []*os.File, err error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, err
	}
	reply, back, err = h.f.Call(ctx, method, payload, files)
	return reply, back, leave(err)
}
