package memfs

import (
	"context"
	"math"
	"slices"
	"sync/atomic"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// file is a handle. node and owner never change; the rest is guarded by Tree.mu.
type file struct {
	t      *Tree
	n      *node
	owner  bool // modes count
	open   bool
	flags  sigma.OpenFlags
	list   []string // the names being listed, taken when the listing began
	end    end      // of an open pipe
	closed atomic.Bool
}

var (
	_ sigma.File    = (*file)(nil)
	_ sigma.Getter  = (*file)(nil)
	_ sigma.Putter  = (*file)(nil)
	_ sigma.Watcher = (*file)(nil)
	_ sigma.Leaser  = (*file)(nil)

	_ sigma.Conditional = (*file)(nil)
)

func (t *Tree) handleLocked(n *node, owner bool) *file {
	n.handles++
	return &file{t: t, n: n, owner: owner}
}

// mayLocked refuses what the mode of n withholds from who has the handle.
func (f *file) mayLocked(op string, n *node, r treeserver.Right) error {
	if !f.owner || isLink(n.kind) {
		return nil
	}
	return r.Check(op, n.name, n.perm)
}

// Close implements sigma.File.
func (f *file) Close() {
	if f.closed.Swap(true) {
		return
	}
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	f.closePipeLocked()
	f.n.handles--
	f.list = nil
	f.t.freeLocked(f.n)
}

// begin checks what every operation needs and takes the tree's mutex, which the caller releases if
// there is no error.
func (f *file) begin(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return sigma.Wrap(op, "", err)
	}
	if f.closed.Load() {
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is closed")
	}
	f.t.mu.Lock()
	if err := f.t.fenceLocked(sigma.FenceOf(ctx)); err != nil {
		f.t.mu.Unlock()
		return err
	}
	return nil
}

// fenceLocked refuses requests of deposed leaders. All others, too, take the mutex, so that none of
// an older epoch comes after this.
func (t *Tree) fenceLocked(f sigma.Fence) error {
	newer, err := t.fences.Check(f)
	if newer {
		t.fences.Raise(f)
		close(t.raised)
		t.raised = make(chan struct{})
	}
	return err
}

// stepLocked finds one entry of n.
func (f *file) stepLocked(op string, n *node, name string) (*node, error) {
	if n.kind != sigma.KindDir {
		return nil, sigma.PathError(op, sigma.KindNotDir, n.name)
	}
	if err := f.mayLocked(op, n, treeserver.MayPass); err != nil {
		return nil, err
	}
	c := n.children[name]
	if c == nil {
		return nil, sigma.PathError(op, sigma.KindNotFound, name)
	}
	return c, nil
}

// Walk implements sigma.File.
func (f *file) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	const op = "memfs.Walk"
	if err := sigma.CheckNames(op, names); err != nil {
		return nil, nil, err
	}
	if err := f.begin(ctx, op); err != nil {
		return nil, nil, err
	}
	defer f.t.mu.Unlock()
	n, ids := f.n, make([]sigma.FileID, 0, len(names))
	for _, name := range names {
		next, err := f.stepLocked(op, n, name)
		if err != nil && (len(ids) == 0 || sigma.KindOf(err) == sigma.KindPermission) {
			return nil, nil, err
		} else if err != nil {
			return nil, ids, nil
		}
		n, ids = next, append(ids, next.fileID())
	}
	return f.t.handleLocked(n, f.owner), ids, nil
}

// Stat implements sigma.File.
func (f *file) Stat(ctx context.Context) (sigma.Stat, error) {
	if err := f.begin(ctx, "memfs.Stat"); err != nil {
		return sigma.Stat{}, err
	}
	defer f.t.mu.Unlock()
	n := f.n
	return sigma.Stat{ID: n.fileID(), Name: n.name, Perm: n.perm, Size: n.size(), Modified: n.modified,
		Ephemeral: n.lease != 0}, nil
}

// SetStat implements sigma.File.
func (f *file) SetStat(ctx context.Context, c sigma.StatChange) error {
	const op = "memfs.SetStat"
	if err := f.begin(ctx, op); err != nil {
		return err
	}
	defer f.t.mu.Unlock()
	n := f.n
	if c.Size != nil {
		if err := n.wantFileLocked(op); err != nil {
			return err
		}
		if !f.open || !f.flags.Writes() {
			if err := f.mayLocked(op, n, treeserver.MayWrite); err != nil {
				return err
			}
		}
		if err := f.t.resizeLocked(op, n, *c.Size); err != nil {
			return err
		}
	}
	if c.Perm != nil {
		n.perm = *c.Perm & 0o777
	}
	f.t.changedLocked(n)
	if c.Modified != nil {
		n.modified = *c.Modified
	}
	return nil
}

func (n *node) wantFileLocked(op string) error {
	switch n.kind {
	case sigma.KindFile:
		return nil
	case sigma.KindDir:
		return sigma.PathError(op, sigma.KindIsDir, n.name)
	default:
		return sigma.Errorf(op, sigma.KindInvalid, "the file is a %v", n.kind)
	}
}

// Open implements sigma.File.
func (f *file) Open(ctx context.Context, flags sigma.OpenFlags) error {
	const op = "memfs.Open"
	if err := f.begin(ctx, op); err != nil {
		return err
	}
	defer f.t.mu.Unlock()
	if f.open {
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is open already")
	}
	if f.n.kind != sigma.KindPipe && (f.n.kind != sigma.KindDir || flags.Writes()) {
		if err := f.n.wantFileLocked(op); err != nil {
			return err
		}
	}
	if err := f.mayLocked(op, f.n, treeserver.Opening(flags)); err != nil {
		return err
	}
	if f.n.kind == sigma.KindPipe {
		return f.openPipeLocked(op, flags)
	}
	f.openLocked(flags)
	return nil
}

func (f *file) openLocked(flags sigma.OpenFlags) {
	if flags&sigma.OpenTruncate != 0 && len(f.n.data) > 0 {
		f.t.used -= uint64(len(f.n.data))
		f.n.data = nil
		f.t.changedLocked(f.n)
	}
	f.open, f.flags = true, flags
}

// wantOpenLocked checks that the handle is open for reading or writing bytes.
func (f *file) wantOpenLocked(op string, write bool) error {
	if err := f.n.wantFileLocked(op); err != nil && f.n.kind != sigma.KindPipe {
		return err
	}
	switch {
	case !f.open:
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is not open")
	case write && !f.flags.Writes():
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for reading only")
	case !write && f.flags&(sigma.OpenWrite|sigma.OpenReadWrite) == sigma.OpenWrite:
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for writing only")
	}
	return nil
}

// ReadAt implements sigma.File.
func (f *file) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "memfs.ReadAt"
	if err := f.begin(ctx, op); err != nil {
		return 0, err
	}
	defer f.t.mu.Unlock()
	if err := f.wantOpenLocked(op, false); err != nil {
		return 0, err
	}
	if f.n.kind == sigma.KindPipe {
		return f.readPipeLocked(ctx, op, p)
	}
	return copy(p, f.n.data[min(offset, uint64(len(f.n.data))):]), nil
}

// WriteAt implements sigma.File.
func (f *file) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "memfs.WriteAt"
	if err := f.begin(ctx, op); err != nil {
		return 0, err
	}
	defer f.t.mu.Unlock()
	if err := f.wantOpenLocked(op, true); err != nil {
		return 0, err
	}
	if f.n.kind == sigma.KindPipe {
		return f.writePipeLocked(ctx, op, p)
	}
	if f.flags&sigma.OpenAppend != 0 {
		offset = uint64(len(f.n.data))
	}
	if err := f.t.writeLocked(op, f.n, p, offset); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (t *Tree) writeLocked(op string, n *node, p []byte, offset uint64) error {
	if len(p) == 0 {
		return nil
	}
	if offset > math.MaxInt64-uint64(len(p)) {
		return sigma.Errorf(op, sigma.KindTooBig, "no file reaches to offset %d", offset)
	}
	if end := offset + uint64(len(p)); end > uint64(len(n.data)) {
		if err := t.resizeLocked(op, n, end); err != nil {
			return err
		}
	}
	copy(n.data[offset:], p)
	t.changedLocked(n)
	return nil
}

// ReadDir implements sigma.File. The cookie is a position in the sorted list of names that is taken
// at cookie 0.
func (f *file) ReadDir(ctx context.Context, cookie uint64, limit int) ([]sigma.DirEntry, uint64, bool, error) {
	const op = "memfs.ReadDir"
	if err := f.begin(ctx, op); err != nil {
		return nil, 0, false, err
	}
	defer f.t.mu.Unlock()
	switch {
	case f.n.kind != sigma.KindDir:
		return nil, 0, false, sigma.PathError(op, sigma.KindNotDir, f.n.name)
	case !f.open:
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "the handle is not open")
	case limit <= 0:
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "a listing of %d entries was asked for", limit)
	}
	if cookie == 0 {
		f.list = make([]string, 0, len(f.n.children))
		for name := range f.n.children {
			f.list = append(f.list, name)
		}
		slices.Sort(f.list)
	}
	var entries []sigma.DirEntry
	total := uint64(len(f.list))
	for ; cookie < total && len(entries) < limit; cookie++ {
		if c := f.n.children[f.list[cookie]]; c != nil {
			entries = append(entries, sigma.DirEntry{Name: c.name, ID: c.fileID(), Size: c.size(), Next: cookie + 1})
		}
	}
	return entries, cookie, cookie < total, nil
}

// ReadLink implements sigma.File.
func (f *file) ReadLink(ctx context.Context) (string, error) {
	const op = "memfs.ReadLink"
	if err := f.begin(ctx, op); err != nil {
		return "", err
	}
	defer f.t.mu.Unlock()
	if !isLink(f.n.kind) {
		return "", sigma.Errorf(op, sigma.KindInvalid, "a %v is no link", f.n.kind)
	}
	return f.n.target, nil
}

func isLink(k sigma.FileKind) bool { return k == sigma.KindSymlink || k == sigma.KindEndpoint }

// Sync implements sigma.File. Memory has nothing more durable to offer.
func (f *file) Sync(ctx context.Context) error {
	if err := f.begin(ctx, "memfs.Sync"); err != nil {
		return err
	}
	f.t.mu.Unlock()
	return nil
}

// Watch implements sigma.Watcher.
func (f *file) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	const op = "memfs.Watch"
	for first := true; ; first = false {
		if err := f.begin(ctx, op); err != nil {
			return 0, err
		}
		n := f.n
		if err := f.mayLocked(op, n, treeserver.MayRead); err != nil && first && !n.removed {
			f.t.mu.Unlock()
			return 0, err
		}
		if n.removed || n.version > since {
			defer f.t.mu.Unlock()
			if n.removed {
				return 0, sigma.PathError(op, sigma.KindNotFound, n.name)
			}
			return n.version, nil
		}
		if n.wake == nil {
			n.wake = make(chan struct{})
		}
		wake, raised := n.wake, f.t.raised
		f.t.mu.Unlock()
		select {
		case <-wake:
		case <-raised:
		case <-ctx.Done():
			return 0, sigma.Wrap(op, "", ctx.Err())
		}
	}
}
