package dirtree

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"sigmaos.dev/fence"
	"sigmaos.dev/sigma"
)

// fenced is the handle that users have: a file behind the fences of its realm, which refuse what deposed leaders ask for (package fence).
type fenced struct{ f *file }

var (
	_ sigma.File        = (*fenced)(nil)
	_ sigma.Getter      = (*fenced)(nil)
	_ sigma.Putter      = (*fenced)(nil)
	_ sigma.Watcher     = (*fenced)(nil)
	_ sigma.FilePasser  = (*fenced)(nil)
	_ sigma.Publisher   = (*fenced)(nil)
	_ sigma.Caller      = (*fenced)(nil)
	_ sigma.Conditional = (*fenced)(nil)
	_ sigma.Spacious    = (*fenced)(nil)
	_ sigma.Identified  = (*fenced)(nil)
)

func (h *fenced) enter(ctx context.Context) (context.Context, func(error) error, error) {
	return h.f.sp.fences.Enter(ctx, sigma.FenceOf(ctx))
}

// under runs an operation that has no result but its error.
func (h *fenced) under(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return err
	}
	return leave(do(ctx))
}

func (h *fenced) Close() { h.f.Close() }

func (h *fenced) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	f, ids, err := h.f.Walk(ctx, names)
	if err = leave(err); f == nil || err != nil {
		return nil, ids, err
	}
	return &fenced{f}, ids, nil
}

func (h *fenced) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return nil, err
	}
	f, err := h.f.Create(ctx, name, flags, perm)
	if err = leave(err); err != nil {
		return nil, err
	}
	return &fenced{f}, nil
}

func (h *fenced) Stat(ctx context.Context) (st sigma.Stat, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { st, err = h.f.Stat(ctx); return err })
	return st, err
}

func (h *fenced) SetStat(ctx context.Context, c sigma.StatChange) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.SetStat(ctx, c) })
}

func (h *fenced) Open(ctx context.Context, flags sigma.OpenFlags) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.Open(ctx, flags) })
}

func (h *fenced) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return 0, err
	}
	n, err := h.f.ReadAt(ctx, p, offset)
	return n, leave(err)
}

func (h *fenced) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return 0, err
	}
	n, err := h.f.WriteAt(ctx, p, offset)
	return n, leave(err)
}

// ReadAtIf implements sigma.Conditional.
func (h *fenced) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (n int, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { n, err = h.f.readAtIf(ctx, p, offset, v); return err })
	return n, err
}

// WriteAtIf implements sigma.Conditional.
func (h *fenced) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (n int, now sigma.Version, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { n, now, err = h.f.writeAtIf(ctx, p, offset, v); return err })
	return n, now, err
}

func (h *fenced) ReadDir(ctx context.Context, cookie uint64, most int) (entries []sigma.DirEntry, next uint64, more bool, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) {
		entries, next, more, err = h.f.ReadDir(ctx, cookie, most)
		return err
	})
	return entries, next, more, err
}

func (h *fenced) Mkdir(ctx context.Context, name string, perm uint32) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.Mkdir(ctx, name, perm) })
}

func (h *fenced) Symlink(ctx context.Context, name, target string) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.Symlink(ctx, name, target) })
}

func (h *fenced) ReadLink(ctx context.Context) (target string, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { target, err = h.f.ReadLink(ctx); return err })
	return target, err
}

func (h *fenced) Remove(ctx context.Context, name string) error {
	return h.under(ctx, func(ctx context.Context) error { return h.f.Remove(ctx, name) })
}

func (h *fenced) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	var dir *file
	if to, ok := newDir.(*fenced); ok {
		dir = to.f
	}
	return h.under(ctx, func(ctx context.Context) error { return h.f.Rename(ctx, name, dir, newName) })
}

func (h *fenced) Sync(ctx context.Context) error { return h.under(ctx, h.f.Sync) }

// Publish implements sigma.Publisher.
func (h *fenced) Publish(ctx context.Context) error { return h.under(ctx, h.f.Publish) }

// FileID implements sigma.Identified.
func (h *fenced) FileID() sigma.FileID {
	f := h.f
	f.sp.mu.Lock()
	defer f.sp.mu.Unlock()
	switch {
	case f.b != nil:
		return sigma.FileID{Kind: sigma.KindFile, Path: f.b.id, Version: f.b.version}
	case f.n != nil:
		return f.n.fileIDLocked()
	}
	return sigma.FileID{}
}

// Space implements sigma.Spacious.
func (h *fenced) Space(ctx context.Context) (sigma.Space, error) { return h.f.space(ctx) }

// Get implements sigma.Getter.
func (h *fenced) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	r, stopped, err := h.f.Get(ctx, names, offset, count)
	return r, stopped, leave(err)
}

// Put implements sigma.Putter.
func (h *fenced) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped, error) {
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	id, stopped, err := h.f.Put(ctx, names, data, o)
	return id, stopped, leave(err)
}

// Watch implements sigma.Watcher.
func (h *fenced) Watch(ctx context.Context, since sigma.Version) (v sigma.Version, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { v, err = h.f.Watch(ctx, since); return err })
	return v, err
}

// PassFile implements sigma.FilePasser. What is read through the descriptor is not fenced.
func (h *fenced) PassFile(ctx context.Context) (file *os.File, err error) {
	err = h.under(ctx, func(ctx context.Context) (err error) { file, err = h.f.PassFile(ctx); return err })
	return file, err
}

// Call implements sigma.Caller.
func (h *fenced) Call(ctx context.Context, method string, payload []byte, files []*os.File) (reply []byte, back []*os.File, err error) {
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

// The fences of a realm are in the file fences beside its tree, which is replaced as a whole.
const (
	fencesFile = "fences"
	fencesNew  = "fences.new"
	fencesMax  = 4*fence.NamesMax + 32*fence.FencesMax // every byte of a name may be quoted as \xff
)

// loadFences reads what was saved. A realm whose list of fences cannot be read is not served: a deposed leader might come.
func (sp *space) loadFences() error {
	fd, err := openAt(sp.home, fencesFile, unix.O_RDONLY)
	if err == unix.ENOENT {
		sp.fences = fence.NewTable(fence.Config{Save: sp.saveFences})
		return nil
	}
	if err != nil {
		return err
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	data := make([]byte, min(st.Size, fencesMax))
	for done := 0; done < len(data); {
		n, err := unix.Pread(fd, data[done:], int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			data = data[:done]
		}
		done += n
	}
	known, err := fence.Decode(data)
	if err != nil {
		return err
	}
	sp.fences = fence.NewTable(fence.Config{Known: known, Save: sp.saveFences})
	return nil
}

// saveFences puts the list onto the disk before it returns. It is called for one raise at a time.
func (sp *space) saveFences(ctx context.Context, _ sigma.Fence, all []sigma.Fence) error {
	const op = "dirtree.saveFences"
	sp.names.RLock() // keeps sp.home open
	home := -1
	err := sp.alive(op)
	if err == nil {
		home, err = unix.FcntlInt(uintptr(sp.home), unix.F_DUPFD_CLOEXEC, 0)
	}
	sp.names.RUnlock()
	if err != nil {
		return wrap(op, "", err)
	}
	defer closeFD(home)
	fd, err := openAt(home, fencesNew, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return wrap(op, "", err)
	}
	file := os.NewFile(uintptr(fd), fencesNew)
	_, err = file.Write(fence.Encode(all))
	if err == nil {
		err = file.Sync()
	}
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = retry(func() error { return unix.Renameat(home, fencesNew, home, fencesFile) })
	}
	if err == nil {
		err = retry(func() error { return unix.Fsync(home) })
	}
	return wrap(op, "", err)
}

// readAtIf is sigma.Conditional's ReadAtIf.
func (f *file) readAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, error) {
	const op = "dirtree.ReadAtIf"
	if err := f.wantBytes(ctx, op, false); err != nil {
		return 0, err
	}
	f.b.mu.Lock() // nobody changes the bytes meanwhile
	defer f.b.mu.Unlock()
	if v != 0 && !f.b.isAt(v) {
		return 0, sigma.Errorf(op, sigma.KindVersion, "the file has changed")
	}
	n, err := f.b.readAt(p, offset)
	return n, wrap(op, "", err)
}

// writeAtIf is sigma.Conditional's WriteAtIf. Objects are replaced as a whole, for which Put has a condition.
func (f *file) writeAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, sigma.Version, error) {
	const op = "dirtree.WriteAtIf"
	if err := f.wantBytes(ctx, op, true); err != nil {
		return 0, 0, err
	}
	if f.sp.t.cfg.Policy.Objects {
		return 0, 0, &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "an object is written as a whole", Hint: "use Put with IfVersion"}
	}
	var now sigma.Version
	n, err := f.b.writeAt(op, p, place{offset: offset, atEnd: f.flags&sigma.OpenAppend != 0, ifVersion: v, now: &now})
	if err != nil {
		return 0, 0, wrap(op, "", err)
	}
	return n, now, nil
}

// isAt reports whether these are a file's bytes now and it is at version v.
func (b *body) isAt(v sigma.Version) bool {
	b.sp.mu.Lock()
	defer b.sp.mu.Unlock()
	return b.node != nil && b.version == v
}
