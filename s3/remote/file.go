package remote

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"sigmaos.dev/fence"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/treekit"
)

// file is a handle. What Open and Close set is not guarded, since they are called alone.
type file struct {
	sp     *space
	n      *node // space.mu; nil while an object made by Create is not published
	closed atomic.Bool

	open  bool
	flags sigma.OpenFlags
	b     *body   // while open for reading an object
	up    *upload // while open for writing one

	// Where a new object will be published.
	dir  *node
	name string
	excl bool

	list listing
}

var _ fence.File = (*file)(nil)

// Close implements sigma.File. An object that was not published is discarded.
func (f *file) Close() {
	if f.closed.Swap(true) {
		return
	}
	if f.b != nil {
		f.b.close()
	}
	if f.up != nil {
		f.up.close()
	}
	f.sp.mu.Lock()
	n := f.n
	f.sp.mu.Unlock()
	for _, n := range []*node{n, f.dir} {
		if n != nil {
			f.sp.release(n)
		}
	}
}

// check is what every operation starts with. It returns the handle's node, nil for an unpublished
// object.
func (f *file) check(ctx context.Context, op string) (*node, error) {
	if err := ctx.Err(); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	if f.closed.Load() {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "the handle is closed")
	}
	f.sp.mu.Lock()
	defer f.sp.mu.Unlock()
	return f.n, f.sp.aliveLocked(op)
}

// checkNode is check for operations that need a published file.
func (f *file) checkNode(ctx context.Context, op string) (*node, error) {
	n, err := f.check(ctx, op)
	if err == nil && n == nil {
		err = sigma.Errorf(op, sigma.KindNotFound, "the object is not published yet")
	}
	return n, err
}

// checkDir is checkNode for operations in a directory. It returns its key.
func (f *file) checkDir(ctx context.Context, op string) (*node, string, error) {
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return nil, "", err
	}
	f.sp.mu.Lock()
	defer f.sp.mu.Unlock()
	return n, n.key, n.wantDirLocked(op)
}

func (n *node) wantDirLocked(op string) error {
	switch {
	case n.a.kind != sigma.KindDir:
		return sigma.PathError(op, sigma.KindNotDir, n.name)
	case n.removed:
		return sigma.PathError(op, sigma.KindNotFound, n.name)
	}
	return nil
}

func (n *node) wantFileLocked(op string) error {
	switch {
	case n.removed:
		return sigma.PathError(op, sigma.KindNotFound, n.name)
	case n.a.kind == sigma.KindDir:
		return sigma.PathError(op, sigma.KindIsDir, n.name)
	}
	return nil
}

func (a attr) fileID() sigma.FileID {
	return sigma.FileID{Kind: a.kind, Path: a.id, Version: a.version}
}

// walk returns the node at names, with a reference, and the ids on the way. With an error that
// ended it at a name it tells the ids up to there; an error that is the store's has no ids.
func (sp *space) walk(ctx context.Context, op string, start *node, names []string) (*node, []sigma.FileID, error) {
	n, ids := sp.take(start), make([]sigma.FileID, 0, len(names))
	for _, name := range names {
		sp.mu.Lock()
		key := n.key
		err := n.wantDirLocked(op)
		sp.mu.Unlock()
		var a attr
		if err == nil {
			key, a, err = sp.look(ctx, key, name)
		}
		sp.release(n)
		switch kind := sigma.KindOf(err); {
		case err == nil:
		case kind == sigma.KindNotFound || kind == sigma.KindNotDir:
			return nil, ids, err
		default:
			return nil, nil, err
		}
		n = sp.nodeOf(key, name, a)
		ids = append(ids, a.fileID())
	}
	return n, ids, nil
}

// Walk implements sigma.File.
func (f *file) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	const op = "remote.Walk"
	if err := sigma.CheckNames(op, names); err != nil {
		return nil, nil, err
	}
	start, err := f.checkNode(ctx, op)
	if err != nil {
		return nil, nil, err
	}
	n, ids, err := f.sp.walk(ctx, op, start, names)
	if err != nil {
		if len(ids) > 0 {
			err = nil
		}
		return nil, ids, sigma.Wrap(op, "", err)
	}
	return &file{sp: f.sp, n: n}, ids, nil
}

// Stat implements sigma.File.
func (f *file) Stat(ctx context.Context) (sigma.Stat, error) {
	const op = "remote.Stat"
	n, err := f.check(ctx, op)
	if err != nil {
		return sigma.Stat{}, err
	}
	st := sigma.Stat{Perm: 0o600, Name: f.name}
	if n != nil {
		if f.b == nil && f.up == nil {
			if err := f.sp.refresh(ctx, n); err != nil {
				return sigma.Stat{}, sigma.Wrap(op, "", err)
			}
		}
		f.sp.mu.Lock()
		st.ID, st.Name, st.Size, st.Modified = n.a.fileID(), n.name, n.a.size, n.a.modified
		if f.b == nil && f.up == nil && n.removed {
			err = sigma.PathError(op, sigma.KindNotFound, n.name)
		}
		f.sp.mu.Unlock()
	}
	switch {
	case f.b != nil:
		st.ID, st.Size, st.Modified = f.b.a.fileID(), f.b.a.size, f.b.a.modified
	case f.up != nil:
		f.up.mu.Lock()
		st.Size = f.up.size
		if st.ID.Path == 0 {
			st.ID = f.up.a.fileID()
		}
		f.up.mu.Unlock()
	}
	if st.ID.Kind == sigma.KindDir {
		st.Perm, st.Size, st.Modified = 0o700, 0, time.Unix(0, int64(st.ID.Version))
	}
	return st, err
}

// SetStat implements sigma.File. Only the size of what is being written can change.
func (f *file) SetStat(ctx context.Context, c sigma.StatChange) error {
	const op = "remote.SetStat"
	if _, err := f.check(ctx, op); err != nil {
		return err
	}
	switch {
	case c.Perm != nil || c.Modified != nil:
		return sigma.Errorf(op, sigma.KindUnsupported, "permissions and times of objects cannot be set")
	case c.Size == nil:
		return nil
	case f.up == nil:
		return sigma.Errorf(op, sigma.KindUnsupported, "a published object cannot be changed")
	}
	return f.up.resize(*c.Size)
}

// Open implements sigma.File.
func (f *file) Open(ctx context.Context, flags sigma.OpenFlags) error {
	const op = "remote.Open"
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return err
	}
	if f.open {
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is open already")
	}
	f.sp.mu.Lock()
	isDir := n.a.kind == sigma.KindDir
	if !isDir || flags.Writes() {
		err = n.wantFileLocked(op)
	}
	f.sp.mu.Unlock()
	switch {
	case err != nil:
		return err
	case isDir:
	case !flags.Writes():
		f.b, err = f.sp.openBody(ctx, op, n)
	case flags&sigma.OpenTruncate == 0:
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "an object cannot be changed in place",
			Hint: "write it as a whole (truncate)"}
	default:
		if f.up, err = f.sp.newUpload(); err == nil {
			f.up.key = f.sp.keyOf(n)
		}
	}
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	f.open, f.flags = true, flags
	return nil
}

func (sp *space) keyOf(n *node) string {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return n.key
}

// wantBytes checks that the handle is open for reading or writing bytes.
func (f *file) wantBytes(ctx context.Context, op string, write bool) error {
	n, err := f.check(ctx, op)
	switch {
	case err != nil:
		return err
	case f.b == nil && f.up == nil:
		f.sp.mu.Lock()
		err = n.wantFileLocked(op)
		f.sp.mu.Unlock()
		if err == nil {
			err = sigma.Errorf(op, sigma.KindInvalid, "the handle is not open")
		}
		return err
	case write && f.up == nil:
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for reading only")
	case !write && f.flags&(sigma.OpenWrite|sigma.OpenReadWrite) == sigma.OpenWrite:
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for writing only")
	}
	return nil
}

// ReadAt implements sigma.File.
func (f *file) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "remote.ReadAt"
	if err := f.wantBytes(ctx, op, false); err != nil {
		return 0, err
	}
	if f.up != nil {
		return f.up.readAt(p, offset)
	}
	n, err := f.b.readAt(ctx, p, offset)
	return n, sigma.Wrap(op, "", err)
}

// WriteAt implements sigma.File.
func (f *file) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "remote.WriteAt"
	if err := f.wantBytes(ctx, op, true); err != nil {
		return 0, err
	}
	if f.flags&sigma.OpenAppend != 0 {
		f.up.mu.Lock()
		offset = f.up.size
		f.up.mu.Unlock()
	}
	n, err := f.up.writeAt(ctx, p, offset)
	return n, sigma.Wrap(op, f.name, err)
}

// ReadAtIf implements sigma.Conditional.
func (f *file) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, error) {
	const op = "remote.ReadAtIf"
	if err := f.wantBytes(ctx, op, false); err != nil {
		return 0, err
	}
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return 0, err
	}
	if err := f.sp.refresh(ctx, n); err != nil {
		return 0, sigma.Wrap(op, "", err)
	}
	f.sp.mu.Lock()
	same := !n.removed && n.a.version == v && f.b != nil && f.b.a.etag == n.a.etag
	f.sp.mu.Unlock()
	if v != 0 && !same {
		return 0, sigma.Errorf(op, sigma.KindVersion, "the object has changed")
	}
	return f.ReadAt(ctx, p, offset)
}

// WriteAtIf implements sigma.Conditional. Objects are replaced as a whole, for which Put has a
// condition.
func (f *file) WriteAtIf(ctx context.Context, _ []byte, _ uint64, _ sigma.Version) (int, sigma.Version, error) {
	const op = "remote.WriteAtIf"
	if err := f.wantBytes(ctx, op, true); err != nil {
		return 0, 0, err
	}
	return 0, 0, &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "an object is written as a whole",
		Hint: "use Put with IfVersion"}
}

// PassFile implements sigma.FilePasser. A large object that is not in the cache yet is
// KindUnsupported, and must be read through ReadAt.
func (f *file) PassFile(ctx context.Context) (*os.File, error) {
	const op = "remote.PassFile"
	if err := f.wantBytes(ctx, op, false); err != nil {
		return nil, err
	}
	if f.b == nil {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "the object is not published yet")
	}
	file, err := f.b.pass(ctx)
	return file, sigma.Wrap(op, "", err)
}

// Get implements sigma.Getter.
func (f *file) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	const op = "remote.Get"
	none := sigma.GetResult{}
	if err := sigma.CheckNames(op, names); err != nil {
		return none, nil, err
	}
	if count < 0 {
		return none, nil, sigma.Errorf(op, sigma.KindInvalid, "%d bytes were asked for", count)
	}
	start, err := f.checkNode(ctx, op)
	if err != nil {
		return none, nil, err
	}
	n, _, err := f.sp.walk(ctx, op, start, names)
	if err != nil {
		return none, nil, sigma.Wrap(op, "", err)
	}
	defer f.sp.release(n)
	b, err := f.sp.openBody(ctx, op, n)
	if err != nil {
		return none, nil, sigma.Wrap(op, "", err)
	}
	defer b.close()
	r := sigma.GetResult{ID: b.a.fileID(), Size: b.a.size}
	r.Data = make([]byte, min(uint64(count), uint64(sigma.GetMax), b.a.size-min(b.a.size, offset)))
	got, err := b.readAt(ctx, r.Data, offset)
	r.Data = r.Data[:got]
	return r, nil, sigma.Wrap(op, "", err)
}

// Call implements sigma.Caller: the hash of a range, as objects of the local store have it.
func (f *file) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	const op = "remote.Call"
	session.CloseFiles(files)
	if method != sigmap.CallHash {
		return nil, nil, sigma.Errorf(op, sigma.KindUnsupported, "the file has no method %.50q", method)
	}
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return nil, nil, err
	}
	b := f.b
	if b == nil {
		if b, err = f.sp.openBody(ctx, op, n); err != nil {
			return nil, nil, sigma.Wrap(op, "", err)
		}
		defer b.close()
	}
	reply, err := treekit.HashRange(payload, b.a.fileID(), b.a.size, func(p []byte, at uint64) (int, error) {
		return b.readAt(ctx, p, at)
	})
	return reply, nil, sigma.Wrap(op, "", err)
}

// watchEvery is how often a watched object is looked at, for changes behind our back.
const watchEvery = 5 * time.Second

// Watch implements sigma.Watcher. Changes of a directory by others are not noticed.
func (f *file) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	const op = "remote.Watch"
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return 0, err
	}
	for {
		f.sp.mu.Lock()
		err := f.sp.aliveLocked(op)
		if err == nil && n.removed {
			err = sigma.PathError(op, sigma.KindNotFound, n.name)
		}
		if err != nil || n.a.version > since {
			defer f.sp.mu.Unlock()
			if err != nil {
				return 0, err
			}
			return n.a.version, nil
		}
		if n.wake == nil {
			n.wake = make(chan struct{})
		}
		wake := n.wake
		f.sp.mu.Unlock()
		again := time.NewTimer(watchEvery)
		select {
		case <-wake:
		case <-again.C:
			_ = f.sp.refresh(ctx, n) // a store that is away says nothing about the object
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return 0, sigma.Wrap(op, "", ctx.Err())
		}
	}
}
