package diskfs

import (
	"cmp"
	"context"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// file is a handle behind treeserver.Fenced. What Open and Close set is not guarded, since they are
// called alone.
type file struct {
	sp     *space
	n      *node // nil while an object made by Create is not published; guarded by space.mu then
	closed atomic.Bool

	open  bool
	flags sigma.OpenFlags
	b     *body // while open on a file; its bytes even after another replaced them

	// Where a new object will be published.
	dir  *node
	name string
	excl bool

	list     []string // guarded by space.mu: names being listed
	listSize int      // guarded by space.mu: what is charged for list
}

var _ interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Watcher
	sigma.FilePasser
	sigma.Publisher
	sigma.Caller
	sigma.Conditional
	sigma.Identified
	sigma.Recaller
	sigma.Spacious
} = (*file)(nil)

// Close implements sigma.File. An object that was not published is discarded.
func (f *file) Close() {
	if f.closed.Swap(true) {
		return
	}
	sp := f.sp
	if f.b != nil {
		f.b.close()
	}
	sp.mu.Lock()
	sp.listing -= f.listSize
	f.list, f.listSize = nil, 0
	n := f.n
	sp.mu.Unlock()
	for _, n := range []*node{n, f.dir} {
		if n != nil {
			sp.release(n)
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

// FileID implements sigma.Identified.
func (f *file) FileID() sigma.FileID {
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

// Walk implements sigma.File.
func (f *file) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	const op = "diskfs.Walk"
	if err := sigma.CheckNames(op, names); err != nil {
		return nil, nil, err
	}
	start, err := f.checkNode(ctx, op)
	if err != nil {
		return nil, nil, err
	}
	sp := f.sp
	sp.names.RLock()
	defer sp.names.RUnlock()
	n, ids, err := sp.walk(op, start, names)
	if err != nil {
		if len(ids) > 0 && n == nil {
			err = nil
		}
		return nil, ids, wrap(op, "", err)
	}
	return &file{sp: sp, n: n}, ids, nil
}

// walk returns the node at names with a reference. With an error that ended it at a name it tells
// the ids up to there; an error that is the server's (too many open files) has no ids. With
// sp.names held.
func (sp *space) walk(op string, start *node, names []string) (*node, []sigma.FileID, error) {
	if err := sp.alive(op); err != nil {
		return nil, nil, err
	}
	sp.mu.Lock()
	n := start
	n.refs++
	sp.mu.Unlock()
	ids := make([]sigma.FileID, 0, len(names))
	for _, name := range names {
		next, err := sp.stepFrom(op, n, name)
		sp.release(n)
		if err != nil {
			if kind := sigma.KindOf(err); kind != sigma.KindNotFound && kind != sigma.KindNotDir {
				ids = nil
			}
			return nil, ids, err
		}
		n = next
		sp.mu.Lock()
		ids = append(ids, n.fileIDLocked())
		sp.mu.Unlock()
	}
	return n, ids, nil
}

func (sp *space) stepFrom(op string, dir *node, name string) (*node, error) {
	sp.mu.Lock()
	err := dir.wantDirLocked(op)
	sp.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n, err := sp.step(op, dir, name)
	return n, wrap(op, name, err)
}

// Stat implements sigma.File. The time of modification is the version, unless another was set.
func (f *file) Stat(ctx context.Context) (sigma.Stat, error) {
	const op = "diskfs.Stat"
	n, err := f.check(ctx, op)
	if err != nil {
		return sigma.Stat{}, err
	}
	sp := f.sp
	sp.names.RLock() // so that name and size are of one moment
	defer sp.names.RUnlock()
	sp.mu.Lock()
	st := sigma.Stat{Name: f.name}
	b, attr := f.b, attributes{}
	if n != nil {
		st.ID, st.Name, attr = n.fileIDLocked(), n.name, n.attr
		if b == nil {
			b = cmp.Or(n.body, n.left)
		}
	}
	if b != nil {
		st.ID = sigma.FileID{Kind: sigma.KindFile, Path: b.id, Version: b.version}
		st.Size = b.sizeNow(b.size)
		st.Hole = b.hole(st.Size)
	}
	sizeOnDisk := b == nil && n.kind == sigma.KindFile
	switch {
	case isLink(st.ID.Kind):
		st.Size = uint64(len(n.target))
	case sizeOnDisk && n.removed:
		err = sigma.PathError(op, sigma.KindNotFound, n.name)
	}
	sp.mu.Unlock()
	if sizeOnDisk && err == nil {
		var in info
		in, err = look(n.parent.fd, n.name)
		st.Size, st.Hole = in.size, in.hole
	}
	st.Perm, st.Modified = attr.permOf(st.ID.Kind), attr.modifiedAt(st.ID.Version)
	return st, wrap(op, st.Name, err)
}

// SetStat implements sigma.File.
func (f *file) SetStat(ctx context.Context, c sigma.StatChange) error {
	const op = "diskfs.SetStat"
	n, err := f.check(ctx, op)
	attributes := c.Perm != nil || c.Modified != nil
	if err == nil && attributes {
		err = f.checkAttributes(op, n, c)
	}
	if err == nil && c.Size != nil {
		err = f.resize(op, n, *c.Size)
	}
	if err != nil || !attributes {
		return err
	}
	return wrap(op, "", f.setAttributes(op, n, c))
}

// resize changes the size of a file, which need not be open.
func (f *file) resize(op string, n *node, size uint64) error {
	b := f.b
	if b == nil {
		var err error
		f.sp.names.RLock()
		b, err = f.sp.openBody(op, n)
		f.sp.names.RUnlock()
		if err != nil {
			return wrap(op, "", err)
		}
		defer b.close()
	} else if !f.flags.Writes() {
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for reading only")
	}
	return b.resize(op, size)
}

// Open implements sigma.File.
func (f *file) Open(ctx context.Context, flags sigma.OpenFlags) error {
	const op = "diskfs.Open"
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return err
	}
	if f.open {
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is open already")
	}
	sp := f.sp
	sp.mu.Lock()
	isDir := n.kind == sigma.KindDir
	if !isDir || flags.Writes() {
		err = n.wantFileLocked(op)
	}
	sp.mu.Unlock()
	if err != nil {
		return err
	}
	if !isDir {
		if f.b, err = sp.openFor(op, n, flags); err != nil {
			return wrap(op, "", err)
		}
	}
	f.open, f.flags = true, flags
	return nil
}

// openFor gives the bytes that a handle opened with flags works on.
func (sp *space) openFor(op string, n *node, flags sigma.OpenFlags) (*body, error) {
	if sp.t.cfg.Policy.Objects && flags.Writes() {
		if flags&sigma.OpenTruncate == 0 {
			return nil, &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "an object cannot be changed in place",
				Hint: "write it as a whole (truncate)"}
		}
		return sp.newBody(op)
	}
	sp.names.RLock()
	b, err := sp.openBody(op, n)
	sp.names.RUnlock()
	if err == nil && flags&sigma.OpenTruncate != 0 {
		if err = b.resize(op, 0); err != nil {
			b.close()
			return nil, err
		}
	}
	return b, err
}

// wantBytes checks that the handle is open for reading or writing bytes.
func (f *file) wantBytes(ctx context.Context, op string, write bool) error {
	n, err := f.check(ctx, op)
	if err != nil {
		return err
	}
	if f.b == nil {
		f.sp.mu.Lock()
		err = n.wantFileLocked(op)
		f.sp.mu.Unlock()
		if err == nil {
			err = sigma.Errorf(op, sigma.KindInvalid, "the handle is not open")
		}
		return err
	}
	switch {
	case write && !f.flags.Writes():
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for reading only")
	case !write && f.flags&(sigma.OpenWrite|sigma.OpenReadWrite) == sigma.OpenWrite:
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for writing only")
	}
	return nil
}

// ReadAt implements sigma.File.
func (f *file) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "diskfs.ReadAt"
	if err := f.wantBytes(ctx, op, false); err != nil {
		return 0, err
	}
	n, err := f.b.readAt(p, offset)
	return n, wrap(op, "", err)
}

// WriteAt implements sigma.File.
func (f *file) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "diskfs.WriteAt"
	if err := f.wantBytes(ctx, op, true); err != nil {
		return 0, err
	}
	n, err := f.b.writeAt(op, p, place{offset: offset, atEnd: f.flags&sigma.OpenAppend != 0})
	return n, wrap(op, "", err)
}

// Sync implements sigma.File. It publishes an object too.
func (f *file) Sync(ctx context.Context) error {
	const op = "diskfs.Sync"
	if _, err := f.check(ctx, op); err != nil || f.b == nil {
		return err
	}
	if err := retry(func() error { return unix.Fdatasync(f.b.fd) }); err != nil {
		return wrap(op, "", err)
	}
	dir, err := f.publish(op)
	if err != nil || dir == nil {
		return wrap(op, "", err)
	}
	defer f.sp.release(dir)
	return wrap(op, "", retry(func() error { return unix.Fsync(dir.fd) }))
}

// Publish implements sigma.Publisher.
func (f *file) Publish(ctx context.Context) error {
	const op = "diskfs.Publish"
	if _, err := f.check(ctx, op); err != nil || f.b == nil {
		return err
	}
	dir, err := f.publish(op)
	if dir != nil {
		f.sp.release(dir)
	}
	return wrap(op, "", err)
}

// Watch implements sigma.Watcher.
func (f *file) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	const op = "diskfs.Watch"
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return 0, err
	}
	for {
		f.sp.mu.Lock()
		if err := f.sp.aliveLocked(op); err != nil || n.removed || n.version > since {
			defer f.sp.mu.Unlock()
			if err == nil && n.removed {
				err = sigma.PathError(op, sigma.KindNotFound, n.name)
			}
			if err != nil {
				return 0, err
			}
			return n.version, nil
		}
		if n.wake == nil {
			n.wake = make(chan struct{})
		}
		wake := n.wake
		f.sp.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return 0, sigma.Wrap(op, "", ctx.Err())
		}
	}
}

// ReadAtIf implements sigma.Conditional.
func (f *file) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, error) {
	const op = "diskfs.ReadAtIf"
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

// WriteAtIf implements sigma.Conditional. Objects are replaced as a whole, for which Put has a
// condition.
func (f *file) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, sigma.Version, error) {
	const op = "diskfs.WriteAtIf"
	if err := f.wantBytes(ctx, op, true); err != nil {
		return 0, 0, err
	}
	if f.sp.t.cfg.Policy.Objects {
		return 0, 0, &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "an object is written as a whole",
			Hint: "use Put with IfVersion"}
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

// alive is checked by every operation under sp.names.
func (sp *space) alive(op string) error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.aliveLocked(op)
}

func (sp *space) aliveLocked(op string) error {
	if sp.dead {
		return sigma.Errorf(op, sigma.KindStale, "the realm's files are gone or no longer served")
	}
	return nil
}
