package mount

import (
	"container/list"
	"context"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// node is a file that the kernel remembers.
type node struct {
	fs.Inode
	m        *Mount
	identity               // its path: mu; the rest never changes
	handle   *handle       // handles.mu
	listed   *list.Element // inodes.mu; nil while the kernel does not know the node

	mu      sync.Mutex
	st      sigma.Stat // mu; as it was told last
	when    time.Time  // mu; that was
	writes  uint64     // mu; how often the file was changed through the mount
	uses    uses       // mu
	backing int32      // mu; the backing file while uses.passed
	opens   []*open    // mu; in the order of their opening
	anew    bool       // mu; the file was published through the mount since its identity was told
	gone    *node      // mu; the directory that the file was removed from through the mount; nil = it has a name
	ctime   time.Time  // mu; when mode or times were changed through the mount last

	// naming is held while the file is published, removed or renamed, and while the server is asked
	// for that.
	naming sync.Mutex
}

var (
	_ fs.NodeLookuper       = (*node)(nil)
	_ fs.NodeGetattrer      = (*node)(nil)
	_ fs.NodeSetattrer      = (*node)(nil)
	_ fs.NodeCreater        = (*node)(nil)
	_ fs.NodeMkdirer        = (*node)(nil)
	_ fs.NodeSymlinker      = (*node)(nil)
	_ fs.NodeReadlinker     = (*node)(nil)
	_ fs.NodeUnlinker       = (*node)(nil)
	_ fs.NodeRmdirer        = (*node)(nil)
	_ fs.NodeRenamer        = (*node)(nil)
	_ fs.NodeOpener         = (*node)(nil)
	_ fs.NodeOpendirHandler = (*node)(nil)
	_ fs.NodeOnForgetter    = (*node)(nil)
	_ fs.NodeStatfser       = (*node)(nil)
)

// OnForget lets go of the handle.
func (n *node) OnForget() {
	n.m.inodes.forget(n)
	n.m.handles.drop(n)
}

// place is where the node is in the mount, "" for the root. A file that was removed has none.
func (n *node) place() (string, error) {
	p := n.Path(nil)
	if n.IsRoot() || p == "" {
		return "", nil
	}
	if name, parent := n.Parent(); parent == nil || strings.HasPrefix(name, ".go-fuse.") {
		return "", sigma.Errorf("mount.node", sigma.KindStale, "the file was removed")
	}
	return p, nil
}

// with runs op on a handle of the file. If that turns out to be of no use it runs it once more on
// another; but what changes something only if it certainly did not take effect.
func (n *node) with(ctx context.Context, changes bool, op func(f sigma.File) error) error {
	for try := 0; ; try++ {
		h, err := n.find(ctx)
		if err != nil {
			return err
		}
		err = op(h.file)
		n.m.handles.release(h)
		if err == nil || !gone(err) {
			return err
		}
		n.m.handles.drop(n)
		if try > 0 || changes && sigma.KindOf(err) == sigma.KindLost {
			return err
		}
	}
}

// gone says that a handle may be of no use any more, while the file is there.
func gone(err error) bool {
	switch sigma.KindOf(err) {
	case sigma.KindLost, sigma.KindUnavailable, sigma.KindStale:
		return true
	}
	return false
}

// find gives a handle of the file, walking to it if there is none. It must be released.
func (n *node) find(ctx context.Context) (*handle, error) {
	l, err := n.m.realm.get(ctx)
	if err != nil {
		return nil, err
	}
	if h := n.m.handles.use(n, l); h != nil {
		return h, nil
	}
	if n.IsRoot() {
		f, _, err := l.root.Walk(ctx, nil)
		if err != nil {
			return nil, err
		}
		return n.m.handles.adopt(n, f, l), nil
	}
	name, parent := n.Parent()
	if parent == nil || strings.HasPrefix(name, ".go-fuse.") {
		return n.findOpen(ctx)
	}
	dir := parent.Operations().(*node)
	f, id, l, err := dir.step(ctx, name)
	if err != nil {
		return nil, err
	}
	if !n.isOf(dir.identify(l, name, f, id)) {
		f.Close()
		return nil, sigma.Errorf("mount.node", sigma.KindStale, "another file has this name now")
	}
	return n.m.handles.adopt(n, f, l), nil
}

// step walks to an entry of the directory.
func (n *node) step(ctx context.Context, name string) (file sigma.File, id sigma.FileID, l *life, err error) {
	err = n.with(ctx, false, func(dir sigma.File) error {
		f, ids, err := dir.Walk(ctx, []string{name})
		switch {
		case err != nil:
			return err
		case f == nil || len(ids) != 1:
			return sigma.PathError("mount.node", sigma.KindNotFound, name)
		}
		file, id = f, ids[0]
		return nil
	})
	if err != nil {
		return nil, id, nil, err
	}
	if l, err = n.m.realm.get(ctx); err != nil {
		file.Close()
	}
	return file, id, l, err
}

// child gives the node of an entry: the one that stands there, or a new one if that is of another
// file. It takes f, unless that is open.
func (n *node) child(ctx context.Context, name string, f sigma.File, isOpen bool, l *life, st sigma.Stat,
	out *fuse.EntryOut) (*node, error) {
	id := n.identify(l, name, f, st.ID)
	to := n.known(name, id)
	if to == nil {
		to = &node{m: n.m, identity: id}
		n.NewInode(ctx, to, fs.StableAttr{Mode: typeOf(id.kind), Ino: n.number(name, id.path), Gen: n.m.created.Add(1)})
		to.saw(st, 0)
	}
	if err := n.m.inodes.touch(n, to); err != nil {
		f.Close()
		return nil, err
	}
	if !isOpen {
		n.m.handles.release(n.m.handles.adopt(to, f, l))
	}
	to.describe(st, &out.Attr)
	out.SetAttrTimeout(CacheTime)
	out.SetEntryTimeout(CacheTime)
	return to, nil
}

// enter looks an entry up and makes its node.
func (n *node) enter(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if in, err := n.unpublished(ctx, name, out); in != nil || err != nil {
		return in, errnoOf(err)
	}
	var asked uint64
	if to := n.entry(name); to != nil {
		if to.unchanged(ctx, n, name, out) {
			return to.EmbeddedInode(), 0
		}
		asked = to.asking()
	}
	f, _, l, err := n.step(ctx, name)
	if err != nil {
		return nil, errnoOf(err)
	}
	st, err := f.Stat(ctx)
	if err != nil {
		f.Close()
		return nil, errnoOf(err)
	}
	to, err := n.child(ctx, name, f, false, l, st, out)
	if err != nil {
		return nil, errnoOf(err)
	}
	to.saw(st, asked)
	return to.EmbeddedInode(), 0
}

// unchanged looks a file up that the kernel knew until a moment ago. In scratch storage the version
// of a file goes on with its mode and times too. So one request that tells the version, in place of
// three to walk, stat and let go of a handle, shows that all is as it was. False is no answer: the
// file must be looked up.
func (n *node) unchanged(ctx context.Context, dir *node, name string, out *fuse.EntryOut) bool {
	n.mu.Lock()
	st, known := n.st, !n.when.IsZero() && n.kind == sigma.KindFile && n.st.ID.Path == n.path && n.st.ID.Version != 0
	n.mu.Unlock()
	if !known || n.server == "" || strings.HasPrefix(n.server, "/") || n.ofTenant() {
		return false
	}
	same := false
	err := dir.with(ctx, false, func(f sigma.File) error {
		if u, ok := f.(interface{ Unwrap() sigma.File }); ok {
			f = u.Unwrap() // a link or another server is no file that is unchanged
		}
		g, ok := f.(sigma.Getter)
		if !ok {
			return nil
		}
		got, stopped, err := g.Get(ctx, []string{name}, 0, 0)
		same = err == nil && stopped == nil && got.ID == st.ID && got.Size == st.Size
		return err
	})
	if err != nil || !same || n.m.inodes.touch(dir, n) != nil {
		return false
	}
	n.describe(st, &out.Attr)
	out.SetAttrTimeout(CacheTime)
	out.SetEntryTimeout(CacheTime)
	return true
}

// asking is called before the server is asked for attributes; saw takes what it gives.
func (n *node) asking() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.writes
}

// saw remembers what the server said of the file, unless that changed since it was asked.
func (n *node) saw(st sigma.Stat, asked uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.writes == asked {
		n.st, n.when = st, time.Now()
	}
}

// changed says that what the server said of the file is so no more; it reaches at least to size
// now.
func (n *node) changed(size uint64) {
	n.mu.Lock()
	n.writes++
	n.when = time.Time{}
	n.st.Size = max(n.st.Size, size)
	n.mu.Unlock()
}

// after is what the attributes are after a change of mode or time, if they were told so lately that
// the kernel too would believe them.
func (n *node) after(c sigma.StatChange) (st sigma.Stat, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ctime = time.Now()
	if c.Size != nil || time.Since(n.when) > CacheTime {
		return st, false
	}
	st = n.st
	if c.Perm != nil {
		st.Perm = *c.Perm
	}
	if c.Modified != nil {
		st.Modified = *c.Modified
	}
	n.st = st
	return st, true
}

// typeOf is the type of a file, as stat(2) tells it. What is neither directory nor link looks like
// a regular file: one would not reach a server by opening a FIFO.
func typeOf(k sigma.FileKind) uint32 {
	switch k {
	case sigma.KindDir:
		return unix.S_IFDIR
	case sigma.KindSymlink:
		return unix.S_IFLNK
	}
	return unix.S_IFREG
}

// describeServed translates attributes as the server gave them. All times are that of the last
// modification, but that of change where the version tells it, and there are no hard links. A
// program that serves a tree cannot let other users of the host write.
func (n *node) describeServed(st sigma.Stat, out *fuse.Attr) {
	perm := st.Perm & 0o777
	if n.ofTenant() {
		perm &= 0o755
	}
	out.Mode = typeOf(st.ID.Kind) | perm
	out.Size = st.Size
	if st.ID.Kind == sigma.KindDir {
		out.Size = 4096
	}
	out.Blocks, out.Blksize, out.Nlink = st.Blocks(), 4096, 1
	out.Uid, out.Gid = n.m.uid, n.m.gid
	t := st.Modified
	if t.IsZero() {
		t = time.Unix(0, 0)
	}
	changed := t
	if v := int64(st.ID.Version); v > t.UnixNano() &&
		v < time.Now().Add(time.Hour).UnixNano() {
		// versions of files on disk are times, which go on when a mode is changed
		changed = time.Unix(0, v)
	}
	out.SetTimes(&t, &t, &changed)
}

// Lookup implements fs.NodeLookuper.
func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if no := n.takes(name); no != 0 {
		return nil, no
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	return n.enter(ctx, name, out)
}

// Getattr implements fs.NodeGetattrer.
func (n *node) Getattr(ctx context.Context, fh fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var st sigma.Stat
	asked := n.asking()
	ask := func(f sigma.File) (err error) { st, err = f.Stat(ctx); return err }
	err := errClosed
	if o, ok := fh.(opened); ok {
		err = o.of().with(ctx, true, ask)
	}
	if err == errClosed {
		err = n.with(ctx, false, ask)
	}
	if err != nil {
		return errnoOf(err)
	}
	n.saw(st, asked)
	n.describe(st, &out.Attr)
	out.SetTimeout(CacheTime)
	return 0
}

// describe translates attributes with what the mount knows of them besides.
func (n *node) describe(st sigma.Stat, out *fuse.Attr) {
	n.describeServed(st, out)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone != nil {
		out.Nlink = 0
	}
	if time.Unix(int64(out.Ctime), int64(out.Ctimensec)).Before(n.ctime) {
		out.SetTimes(nil, nil, &n.ctime)
	}
}

// Setattr implements fs.NodeSetattrer. Times of access are not kept, nor bits above 0777; the owner
// is who mounted.
func (n *node) Setattr(ctx context.Context, fh fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var c sigma.StatChange
	if mode, ok := in.GetMode(); ok {
		perm := mode & 0o777
		c.Perm = &perm
	}
	if size, ok := in.GetSize(); ok {
		c.Size = &size
	}
	if t, ok := in.GetMTime(); ok {
		c.Modified = &t
	}
	if uid, ok := in.GetUID(); ok && uid != n.m.uid {
		return syscall.EPERM
	}
	if gid, ok := in.GetGID(); ok && gid != n.m.gid {
		return syscall.EPERM
	}
	if n.kind == sigma.KindSymlink { // a link's time is when it was made
		c = sigma.StatChange{}
	}
	if c.Perm != nil && n.isObject() && n.Getattr(ctx, fh, out) == 0 && out.Mode&0o777 == *c.Perm {
		c.Perm = nil // the mode that all objects have
	}
	if o := n.openFor(fh, c); o != nil && o.object &&
		in.Valid&fuse.FATTR_MTIME_NOW != 0 { // as touch(1) does: publishing it again sets its time
		if err := o.change(ctx, true, func(sigma.File) error { return nil }); err != nil {
			return errnoOf(err)
		}
		c.Modified = nil
	}
	if c == (sigma.StatChange{}) {
		return n.Getattr(ctx, fh, out)
	}
	change := func(f sigma.File) error { return f.SetStat(ctx, c) }
	err := errClosed
	if o := n.openFor(fh, c); o != nil {
		fh = o
		err = o.change(ctx, true, change)
	}
	if err == errClosed {
		err = n.with(ctx, false, change)
	}
	if err != nil {
		return errnoOf(err)
	}
	st, ok := n.after(c)
	if !ok {
		return n.Getattr(ctx, fh, out)
	}
	n.describe(st, &out.Attr)
	out.SetTimeout(CacheTime)
	return 0
}

// openFor gives an open handle by which a file can be changed so: that which the kernel names, or
// one that is open anyway. It saves walking to the file. nil if there is none.
func (n *node) openFor(fh fs.FileHandle, c sigma.StatChange) *open {
	o := (*open)(nil)
	if named, ok := fh.(opened); ok {
		o = named.of()
	} else if c.Size == nil {
		o = n.anyOpen()
	}
	if o == nil || c.Size != nil && !o.flags.Writes() {
		return nil
	}
	return o
}
