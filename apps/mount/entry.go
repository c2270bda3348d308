package mount

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Mkdir implements fs.NodeMkdirer.
func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if no := n.takes(name); no != 0 {
		return nil, no
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := n.with(ctx, true, func(dir sigma.File) error { return dir.Mkdir(ctx, name, mode&0o777) }); err != nil {
		return nil, errnoOf(err)
	}
	return n.enter(ctx, name, out)
}

// Symlink implements fs.NodeSymlinker.
func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if no := n.takes(name); no != 0 {
		return nil, no
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	target = n.m.inward(target)
	if err := n.with(ctx, true, func(dir sigma.File) error { return dir.Symlink(ctx, name, target) }); err != nil {
		return nil, errnoOf(err)
	}
	return n.enter(ctx, name, out)
}

// Readlink implements fs.NodeReadlinker.
func (n *node) Readlink(ctx context.Context) ([]byte, syscall.Errno) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	target := ""
	err := n.with(ctx, false, func(f sigma.File) (err error) { target, err = f.ReadLink(ctx); return err })
	if err != nil {
		return nil, errnoOf(err)
	}
	at, err := n.place()
	if err == nil {
		target, err = n.m.outward(at, target)
	}
	if len(target) >= sigma.PathMax {
		return nil, syscall.ENAMETOOLONG
	}
	return []byte(target), errnoOf(err)
}

// Unlink implements fs.NodeUnlinker.
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	ctx, cancel := bounded(ctx)
	defer cancel()
	remove := func() error { return n.with(ctx, true, func(dir sigma.File) error { return dir.Remove(ctx, name) }) }
	if c := n.entry(name); c != nil {
		return errnoOf(c.removed(ctx, n, remove))
	}
	return errnoOf(remove())
}

// entry is the node of an entry that the kernel remembers; nil if there is none.
func (n *node) entry(name string) *node {
	if in := n.GetChild(name); in != nil {
		return in.Operations().(*node)
	}
	return nil
}

// Link implements fs.NodeLinker: there are no hard links.
func (n *node) Link(context.Context, fs.InodeEmbedder, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

// Mknod implements fs.NodeMknoder. Only regular files can be made.
func (n *node) Mknod(ctx context.Context, name string, mode uint32, _ uint32, out *fuse.EntryOut) (*fs.Inode,
	syscall.Errno) {
	if mode&unix.S_IFMT != unix.S_IFREG {
		return nil, syscall.EPERM
	}
	in, fh, _, no := n.Create(ctx, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode, out)
	if no != 0 {
		return nil, no
	}
	f := fh.(fs.FileReleaser)
	no = fh.(opened).of().Flush(ctx)
	f.Release(ctx)
	return in, no
}

// Rmdir implements fs.NodeRmdirer.
func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno { return n.Unlink(ctx, name) }

// Rename implements fs.NodeRenamer. With RENAME_NOREPLACE it looks first: what is made elsewhere
// between the look and the rename is replaced.
func (n *node) Rename(ctx context.Context, name string, newParent fs.InodeEmbedder, newName string,
	flags uint32) syscall.Errno {
	to, ok := newParent.(*node)
	switch {
	case !ok:
		return syscall.EXDEV
	case flags&^unix.RENAME_NOREPLACE != 0:
		return syscall.EINVAL
	}
	if no := to.takes(newName); no != 0 {
		return no
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if c := n.entry(name); c != nil {
		if err := c.publish(ctx); err != nil { // it has the name at the server then
			return errnoOf(err)
		}
	}
	rename := func() error {
		return n.with(ctx, true, func(from sigma.File) error {
			dst, err := to.find(ctx)
			if err != nil {
				return err
			}
			defer n.m.handles.release(dst)
			if flags&unix.RENAME_NOREPLACE != 0 {
				switch f, _, err := dst.file.Walk(ctx, []string{newName}); {
				case err == nil && f != nil:
					f.Close()
					return sigma.PathError("mount.Rename", sigma.KindExists, newName)
				case err != nil && sigma.KindOf(err) != sigma.KindNotFound:
					return err
				}
			}
			return from.Rename(ctx, name, dst.file, newName)
		})
	}
	var err error
	if over := to.entry(newName); over != nil && flags&unix.RENAME_NOREPLACE == 0 && over != n.entry(name) {
		err = over.removed(ctx, to, rename)
	} else {
		err = rename()
	}
	if k := sigma.KindOf(err); err != nil && to != n && (k == sigma.KindUnsupported || k == sigma.KindInvalid) &&
		n.serverOf(ctx) != to.serverOf(ctx) {
		return syscall.EXDEV // so that mv(1) copies
	}
	return errnoOf(err)
}

// serverOf says who serves the directory: no rename leads from one server to another.
func (n *node) serverOf(ctx context.Context) string {
	h, err := n.find(ctx)
	if err != nil {
		return ""
	}
	defer n.m.handles.release(h)
	if s, ok := h.file.(interface{ Server() string }); ok && s.Server() != "" {
		return s.Server()
	}
	names, _ := sigma.ParsePath(n.m.pathOf(n.Path(nil)))
	if len(names) > 0 && (names[0] == sigma.NameProc || names[0] == sigma.NameSys) {
		return names[0]
	}
	return h.life.serverOf(names)
}

// Statfs implements fs.NodeStatfser, of the server of this directory or file.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if dir := n.removedFrom(); dir != nil {
		n = dir
	}
	var room sigma.Space
	err := n.with(ctx, false, func(f sigma.File) (err error) {
		if s, ok := f.(sigma.Spacious); ok {
			room, err = s.Space(ctx)
		}
		return err
	})
	out.Bsize, out.Frsize, out.NameLen = sigmap.FSBlock, sigmap.FSBlock, sigma.NameMax
	out.Blocks, out.Bfree, out.Bavail = uint64(room.Total)/sigmap.FSBlock, uint64(room.Free)/sigmap.FSBlock,
		uint64(room.Free)/sigmap.FSBlock
	out.Files, out.Ffree = room.Files, room.Room
	return errnoOf(err)
}

// directory is an open directory.
type directory struct {
	n       *node
	file    sigma.File
	entries []sigma.DirEntry
	next    uint64
	more    bool
}

// listPiece is how many entries are asked for at once: about what one message holds.
const listPiece = 1024

var (
	_ fs.FileReaddirenter = (*directory)(nil)
	_ fs.FileSeekdirer    = (*directory)(nil)
	_ fs.FileReleasedirer = (*directory)(nil)
	_ fs.FileFsyncdirer   = (*directory)(nil)
)

// OpendirHandle implements fs.NodeOpendirHandler.
func (n *node) OpendirHandle(ctx context.Context, _ uint32) (fs.FileHandle, uint32, syscall.Errno) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	d := &directory{n: n, more: true}
	err := n.with(ctx, false, func(f sigma.File) error {
		own, _, err := f.Walk(ctx, nil)
		if err != nil {
			return err
		}
		if err = own.Open(ctx, sigma.OpenRead); err != nil {
			own.Close()
			return err
		}
		d.file = own
		return nil
	})
	if err != nil {
		return nil, 0, errnoOf(err)
	}
	return d, 0, 0
}

// Readdirent implements fs.FileReaddirenter. Calls come one at a time.
func (d *directory) Readdirent(ctx context.Context) (*fuse.DirEntry, syscall.Errno) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for len(d.entries) == 0 {
		if !d.more {
			return nil, 0
		}
		es, next, more, err := d.file.ReadDir(ctx, d.next, listPiece)
		if err != nil {
			return nil, errnoOf(err)
		}
		d.entries, d.next, d.more = es, next, more
	}
	e := d.entries[0]
	d.entries = d.entries[1:]
	out := &fuse.DirEntry{Name: e.Name, Mode: typeOf(e.ID.Kind), Ino: d.n.number(e.Name, e.ID.Path), Off: e.Next}
	if in := d.n.GetChild(e.Name); in != nil {
		out.Ino = in.StableAttr().Ino
	}
	if out.Off == 0 && len(d.entries) == 0 {
		out.Off = d.next
	}
	return out, 0
}

// Seekdir implements fs.FileSeekdirer: an offset is the server's cookie of the entry before.
func (d *directory) Seekdir(_ context.Context, off uint64) syscall.Errno {
	d.entries, d.next, d.more = nil, off, true
	return 0
}

// Fsyncdir implements fs.FileFsyncdirer.
func (d *directory) Fsyncdir(ctx context.Context, _ uint32) syscall.Errno {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return errnoOf(d.file.Sync(ctx))
}

// Releasedir implements fs.FileReleasedirer.
func (d *directory) Releasedir(context.Context, uint32) { d.file.Close() }
