package mount

import (
	"context"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// passLeast is the size from which a file's descriptor is asked for when it is opened for reading:
// below, the data comes in one request, as the descriptor would.
const passLeast = 128 << 10

// uses counts how a file is open just now. The kernel does not have a file both in its cache and
// behind a descriptor: while some have it one way, others get it so too, or uncached.
type uses struct {
	cached, passed int
}

// opened is what all handles of open files are.
type opened interface{ of() *open }

// open is an open file. Its data goes through the kernel's cache, unless FOPEN_DIRECT_IO is set.
type open struct {
	n      *node
	flags  sigma.OpenFlags
	passes bool            // counted in uses.passed
	asked  <-chan struct{} // names the request that opens the file
	waits  bool            // what is read may take as long as it likes: a pipe, a log
	object bool            // it is written, and published (object.go)
	dirty  atomic.Bool     // of an object: made, cut or written to since it was published last

	mu     sync.RWMutex
	file   sigma.File // mu
	life   *life      // mu
	closed bool       // mu
	frozen bool       // mu; of an object: file was published, so that nobody can change it
}

// errClosed is of a handle that was closed since it was found.
var errClosed = error(sigma.Errorf("mount.open", sigma.KindInvalid, "the file was closed"))

// spliced is an open file that is read here by the descriptor that the server passed: pages go to
// the kernel without being copied.
type spliced struct {
	*open
	fd *os.File
}

var (
	_ fs.FileReader   = (*open)(nil)
	_ fs.FileWriter   = (*open)(nil)
	_ fs.FileFlusher  = (*open)(nil)
	_ fs.FileFsyncer  = (*open)(nil)
	_ fs.FileLseeker  = (*open)(nil)
	_ fs.FileReleaser = (*open)(nil)
	_ fs.FileReader   = (*spliced)(nil)
)

func (o *open) of() *open { return o }

// flagsOf translates flags of open(2).
func flagsOf(linux uint32) sigma.OpenFlags {
	f := sigma.OpenRead
	switch linux & unix.O_ACCMODE {
	case unix.O_WRONLY:
		f |= sigma.OpenWrite
	case unix.O_RDWR:
		f |= sigma.OpenReadWrite
	}
	if linux&unix.O_TRUNC != 0 {
		f |= sigma.OpenTruncate
	}
	if linux&unix.O_APPEND != 0 && f.Writes() {
		f |= sigma.OpenAppend
	}
	if linux&unix.O_EXCL != 0 {
		f |= sigma.OpenExclusive
	}
	return f
}

// Open implements fs.NodeOpener.
func (n *node) Open(ctx context.Context, linux uint32) (fs.FileHandle, uint32, syscall.Errno) {
	asked := ctx.Done()
	ctx, cancel := bounded(ctx)
	defer cancel()
	flags := flagsOf(linux) &^ sigma.OpenExclusive
	if err := n.publish(ctx); err != nil { // who opens the file gets what was written so far
		return nil, 0, errnoOf(err)
	}
	if flags.Writes() && n.isObject() {
		flags |= sigma.OpenReadWrite // thaw copies what was published
	}
	file, l, err := n.openAt(ctx, flags)
	if err != nil {
		return nil, 0, errnoOf(err)
	}
	if flags&sigma.OpenTruncate != 0 {
		n.changed(0)
	}
	fh, how := n.opened(ctx, &open{n: n, flags: flags, file: file, life: l, asked: asked, object: flags.Writes() &&
		n.isObject()})
	return fh, how, 0
}

// openAt opens the file anew.
func (n *node) openAt(ctx context.Context, flags sigma.OpenFlags) (file sigma.File, l *life, err error) {
	if l, err = n.m.realm.get(ctx); err != nil {
		return nil, nil, err
	}
	if own := n.m.handles.take(n, l); own != nil {
		if err = own.Open(ctx, flags); err == nil {
			return own, l, nil
		}
		own.Close()
		if !gone(err) || flags.Writes() && sigma.KindOf(err) == sigma.KindLost {
			return nil, nil, err
		}
	}
	err = n.with(ctx, flags.Writes(), func(f sigma.File) error {
		own, _, err := f.Walk(ctx, nil)
		if err != nil {
			return err
		}
		if err := own.Open(ctx, flags); err != nil {
			own.Close()
			return err
		}
		file = own
		return nil
	})
	if err == nil {
		if l, err = n.m.realm.get(ctx); err != nil {
			file.Close()
		}
	}
	return file, l, err
}

// opened takes note of a file that is open at the server, and gives what stands for it and how the
// kernel shall treat it.
func (n *node) opened(ctx context.Context, o *open) (fs.FileHandle, uint32) {
	o.waits = n.kind != sigma.KindFile
	o.dirty.Store(o.object)
	fd := n.pass(ctx, o.file, o.flags)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opens = append(n.opens, o)
	if !o.waits && n.passesLocked(fd) {
		n.uses.passed++
		o.passes = true
		n.m.backings.Store(o.asked, n.backing)
		if fd == nil {
			// it writes, or its server did not pass: through the server, beside the cache that the
			// others do without
			return o, fuse.FOPEN_DIRECT_IO
		}
		fd.Close() // the kernel has it
		return o, 0
	}
	n.uses.cached++
	switch {
	case fd != nil:
		return &spliced{open: o, fd: fd}, fuse.FOPEN_KEEP_CACHE
	case o.waits || o.flags&sigma.OpenAppend != 0: // its size is not known, or its end is where the server says
		return o, fuse.FOPEN_DIRECT_IO
	}
	return o, fuse.FOPEN_KEEP_CACHE
}

// pass asks for a descriptor of a file that is to be read.
func (n *node) pass(ctx context.Context, file sigma.File, flags sigma.OpenFlags) *os.File {
	n.mu.Lock()
	size := n.st.Size
	n.mu.Unlock()
	if flags.Writes() || n.kind != sigma.KindFile || size < passLeast {
		return nil
	}
	server := n.serverOf(ctx)
	if _, no := n.m.unpassing.Load(server); no {
		return nil
	}
	if u, ok := file.(interface{ Unwrap() sigma.File }); ok {
		file = u.Unwrap()
	}
	p, ok := file.(sigma.FilePasser)
	if !ok {
		return nil
	}
	fd, err := p.PassFile(ctx)
	if sigma.KindOf(err) == sigma.KindUnsupported && err != nil {
		n.m.unpassing.Store(server, struct{}{})
	}
	if err != nil {
		return nil
	}
	return fd
}

// Create implements fs.NodeCreater.
func (n *node) Create(ctx context.Context, name string, linux uint32, mode uint32, out *fuse.EntryOut) (*fs.Inode,
	fs.FileHandle, uint32, syscall.Errno) {
	if no := n.takes(name); no != 0 {
		return nil, nil, 0, no
	}
	asked := ctx.Done()
	ctx, cancel := bounded(ctx)
	defer cancel()
	flags := flagsOf(linux)
	if n.isObject() {
		flags |= sigma.OpenReadWrite // also if it is to be read only: it is made nevertheless
	}
	var created sigma.File
	var st sigma.Stat
	known := false
	err := n.with(ctx, true, func(dir sigma.File) (err error) {
		if created, err = dir.Create(ctx, name, flags, mode&0o777); err != nil {
			return err
		}
		if st, known = asMade(created, flags, mode); known {
			return nil
		}
		if st, err = created.Stat(ctx); err != nil {
			created.Close()
		}
		return err
	})
	if err != nil {
		return nil, nil, 0, errnoOf(err)
	}
	l, err := n.m.realm.get(ctx)
	if err != nil {
		created.Close()
		return nil, nil, 0, errnoOf(err)
	}
	to, err := n.child(ctx, name, created, true, l, st, out)
	if err != nil {
		return nil, nil, 0, errnoOf(err)
	}
	if known { // but for its time, which the kernel asks for when somebody wants to know
		to.changed(0)
		out.SetAttrTimeout(time.Nanosecond) // 0 would be replaced by the default
	}
	fh, how := to.opened(ctx, &open{n: to, flags: flags &^ (sigma.OpenTruncate | sigma.OpenExclusive), file: created,
		life: l, asked: asked, object: n.isObject()})
	return to.EmbeddedInode(), fh, how, 0
}

// asMade gives the attributes of a file that was made just now, if nobody can have made it before
// and its handle knows which it is. It saves a request of each file that is made.
func asMade(created sigma.File, flags sigma.OpenFlags, mode uint32) (sigma.Stat, bool) {
	i, ok := created.(sigma.Identified)
	if !ok || flags&sigma.OpenExclusive == 0 {
		return sigma.Stat{}, false
	}
	st := sigma.Stat{ID: i.FileID(), Perm: mode & 0o777, Modified: time.Now()}
	return st, st.ID.Path != 0 && st.ID.Kind == sigma.KindFile
}

// with runs op on the handle at the server. If the connection was lost the file is opened anew and,
// if op may be repeated, op is run again.
func (o *open) with(ctx context.Context, again bool, op func(f sigma.File) error) error {
	o.mu.RLock()
	file, l, err := o.file, o.life, errClosed
	if !o.closed {
		err = op(file)
	}
	o.mu.RUnlock()
	if err == nil || !gone(err) || o.object || l.lives() && sigma.KindOf(err) != sigma.KindLost {
		return err // what was written of an object is gone with its handle
	}
	if rerr := o.renew(ctx, file); rerr != nil {
		return rerr
	}
	if !again {
		return err
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	return op(o.file)
}

// renew opens the file anew in place of old, unless somebody did.
func (o *open) renew(ctx context.Context, old sigma.File) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != old || o.closed {
		return nil
	}
	file, l, err := o.n.openAt(ctx, o.flags&^sigma.OpenTruncate)
	if err == nil {
		o.file, o.life = file, l
		old.Close()
	}
	return err
}

// Read implements fs.FileReader.
func (o *open) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if !o.waits {
		var cancel context.CancelFunc
		ctx, cancel = bounded(ctx)
		defer cancel()
	}
	got := 0
	err := o.with(ctx, true, func(f sigma.File) (err error) { got, err = f.ReadAt(ctx, dest, uint64(off)); return err })
	if err != nil && got == 0 {
		return nil, errnoOf(err)
	}
	return fuse.ReadResultData(dest[:got]), 0
}

// Read implements fs.FileReader.
func (s *spliced) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return fuse.ReadResultFd(s.fd.Fd(), off, len(dest)), 0
}

// Write implements fs.FileWriter. A write at a place is made again if its reply was lost; one at
// the end may not be.
func (o *open) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if !o.waits {
		var cancel context.CancelFunc
		ctx, cancel = bounded(ctx)
		defer cancel()
	}
	done := 0
	defer func() { o.n.changed(uint64(off) + uint64(done)) }()
	err := o.change(ctx, o.flags&sigma.OpenAppend == 0, func(f sigma.File) (err error) {
		done, err = f.WriteAt(ctx, data, uint64(off))
		return err
	})
	if err != nil && done == 0 {
		return 0, errnoOf(err)
	}
	return uint32(done), 0
}

// Flush implements fs.FileFlusher: what close(2) answers, of each descriptor that was duplicated
// too.
func (o *open) Flush(ctx context.Context) syscall.Errno {
	if !o.dirty.Load() {
		return 0
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	return errnoOf(o.n.publish(ctx, o))
}

// Fsync implements fs.FileFsyncer.
func (o *open) Fsync(ctx context.Context, _ uint32) syscall.Errno {
	if o.object {
		return o.Flush(ctx) // which waits for the disk
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	return errnoOf(o.with(ctx, true, func(f sigma.File) error { return f.Sync(ctx) }))
}

// Lseek implements fs.FileLseeker: there are no holes but the one after the end.
func (o *open) Lseek(ctx context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	var out fuse.AttrOut
	if no := o.n.Getattr(ctx, o, &out); no != 0 {
		return 0, no
	}
	switch {
	case off >= out.Size:
		return 0, syscall.ENXIO
	case whence == unix.SEEK_DATA:
		return off, 0
	case whence == unix.SEEK_HOLE:
		return out.Size, 0
	}
	return 0, syscall.EINVAL
}

// Release implements fs.FileReleaser.
func (o *open) Release(ctx context.Context) syscall.Errno {
	o.Flush(ctx) // what was written to mapped memory after the last close
	o.n.mu.Lock()
	if o.passes {
		if o.n.uses.passed--; o.n.uses.passed == 0 {
			o.n.m.cfg.Host.Unback(o.n.backing)
		}
	} else {
		o.n.uses.cached--
	}
	o.n.opens = slices.DeleteFunc(o.n.opens, func(other *open) bool { return other == o })
	o.n.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.file.Close()
	return 0
}

// Release implements fs.FileReleaser.
func (s *spliced) Release(ctx context.Context) syscall.Errno {
	s.fd.Close()
	return s.open.Release(ctx)
}
