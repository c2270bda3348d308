package diskfs

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// inDir runs a change of the entries of this directory, alone.
func (f *file) inDir(ctx context.Context, op, name string, change func(dir *node) error) error {
	if err := sigma.CheckName(name); err != nil {
		return sigma.Wrap(op, "", err)
	}
	dir, err := f.checkNode(ctx, op)
	if err != nil {
		return err
	}
	f.sp.names.Lock()
	defer f.sp.names.Unlock()
	if err := f.sp.aliveDir(op, dir); err != nil {
		return err
	}
	return wrap(op, name, change(dir))
}

func (sp *space) aliveDir(op string, dir *node) error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if err := sp.aliveLocked(op); err != nil {
		return err
	}
	return dir.wantDirLocked(op)
}

// admit asks the policy about a new entry.
func (sp *space) admit(dir *node, name string, kind sigma.FileKind) error {
	p := sp.t.cfg.Policy
	if isLink(kind) && !p.Links {
		return sigma.Errorf("diskfs.admit", sigma.KindUnsupported, "there are no links in this tree")
	}
	if p.CheckEntry == nil {
		return nil
	}
	return p.CheckEntry(dir.parent == nil, name, kind)
}

// absent is nil if the entry may be made.
func (sp *space) absent(op string, dir *node, name string, kind sigma.FileKind) error {
	if err := sp.admit(dir, name, kind); err != nil {
		return err
	}
	_, err := look(dir.fd, name)
	if err == unix.ENOENT {
		return nil
	} else if err == nil {
		err = sigma.PathError(op, sigma.KindExists, name)
	}
	return err
}

// Create implements sigma.File.
func (f *file) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	const op = "diskfs.Create"
	sp := f.sp
	created, n := (*file)(nil), (*node)(nil)
	hidden := flags&sigma.OpenHidden != 0
	err := f.inDir(ctx, op, name, func(dir *node) error {
		in, err := look(dir.fd, name)
		switch {
		case err == unix.ENOENT && (hidden || sp.t.cfg.Policy.Objects):
			err = sp.admit(dir, name, sigma.KindFile)
		case err == unix.ENOENT:
			created, err = sp.createNow(op, dir, name, flags, perm)
		case err == nil && (flags&sigma.OpenExclusive != 0 || isLink(in.kind)):
			err = sigma.PathError(op, sigma.KindExists, name)
		case err == nil && hidden && in.kind == sigma.KindDir:
			err = sigma.PathError(op, sigma.KindIsDir, name)
		case err == nil && !hidden:
			n, err = sp.step(op, dir, name)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case created != nil:
		return created, nil
	case n != nil:
		created = &file{sp: sp, n: n}
		if err := created.Open(ctx, flags); err != nil {
			created.Close()
			return nil, err
		}
		return created, nil
	}
	b, err := sp.newBody(op)
	if err != nil {
		return nil, wrap(op, name, err)
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	f.n.refs++
	if !flags.Writes() {
		flags |= sigma.OpenReadWrite // it is new: who makes it may fill it
	}
	return &file{sp: sp, open: true, flags: flags, b: b, dir: f.n, name: name, excl: flags&sigma.OpenExclusive != 0},
		nil
}

// createNow makes an empty file in place and opens it. With sp.names held for writing.
func (sp *space) createNow(op string, dir *node, name string, flags sigma.OpenFlags, perm uint32) (*file, error) {
	err := sp.makeEntry(op, dir, name, sigma.KindFile, func() error {
		fd, err := openAt(dir.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		if err == nil {
			sp.birth(fd, sigma.KindFile, perm)
			closeFD(fd)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	n, err := sp.step(op, dir, name)
	if err != nil {
		return nil, err
	}
	b, err := sp.openBody(op, n)
	if err != nil {
		sp.release(n)
		return nil, err
	}
	return &file{sp: sp, n: n, open: true, flags: flags, b: b}, nil
}

// Mkdir implements sigma.File.
func (f *file) Mkdir(ctx context.Context, name string, perm uint32) error {
	const op = "diskfs.Mkdir"
	return f.inDir(ctx, op, name, func(dir *node) error {
		return f.sp.makeEntry(op, dir, name, sigma.KindDir, func() error {
			if err := unix.Mkdirat(dir.fd, name, 0o700); err != nil || !f.sp.t.cfg.Policy.Attributes ||
				perm&0o777 == permDir {
				return err
			}
			fd, err := openDirAt(dir.fd, name)
			if err == nil {
				f.sp.birth(fd, sigma.KindDir, perm)
				closeFD(fd)
			}
			return err
		})
	})
}

// Symlink implements sigma.File.
func (f *file) Symlink(ctx context.Context, name, target string) error {
	const op = "diskfs.Symlink"
	return f.inDir(ctx, op, name, func(dir *node) error {
		if err := f.sp.admit(dir, name, sigma.KindSymlink); err != nil {
			return err
		}
		if err := checkTarget(op, target); err != nil {
			return err
		}
		return f.sp.makeEntry(op, dir, name, sigma.KindSymlink, func() error {
			return unix.Symlinkat(linkText(sigma.KindSymlink, target), dir.fd, name)
		})
	})
}

func checkTarget(op, target string) error {
	switch {
	case target == "":
		return sigma.Errorf(op, sigma.KindInvalid, "a link needs a target")
	case len(target) > targetMax:
		return sigma.Errorf(op, sigma.KindTooBig, "a link's target has at most %d bytes, not %d", targetMax,
			len(target))
	}
	for i := range len(target) {
		if target[i] == 0 {
			return sigma.Errorf(op, sigma.KindInvalid, "a link's target contains a NUL byte")
		}
	}
	return nil
}

// makeEntry makes an entry that must not exist, with its charge and versions. With sp.names held
// for writing.
func (sp *space) makeEntry(op string, dir *node, name string, kind sigma.FileKind, mk func() error) error {
	if err := sp.absent(op, dir, name, kind); err != nil {
		return err
	}
	if err := sp.charge(op, sp.t.entryCost); err != nil {
		return err
	}
	if err := mk(); err != nil {
		sp.uncharge(sp.t.entryCost)
		return err
	}
	if err := sp.touch(dir); err != nil {
		return err
	}
	return stamp(dir.fd, name, sp.t.clock.after(0))
}

// ReadLink implements sigma.File.
func (f *file) ReadLink(ctx context.Context) (string, error) {
	const op = "diskfs.ReadLink"
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return "", err
	}
	f.sp.mu.Lock()
	defer f.sp.mu.Unlock()
	if !isLink(n.kind) {
		return "", sigma.Errorf(op, sigma.KindInvalid, "a %v is no link", n.kind)
	}
	return n.target, nil
}

// Remove implements sigma.File.
func (f *file) Remove(ctx context.Context, name string) error {
	const op = "diskfs.Remove"
	sp := f.sp
	return f.inDir(ctx, op, name, func(dir *node) error {
		in, err := sp.find(dir, name)
		if err != nil {
			return err
		}
		flags := 0
		if in.kind == sigma.KindDir {
			flags = unix.AT_REMOVEDIR
		}
		if err := unix.Unlinkat(dir.fd, name, flags); err != nil {
			return err
		}
		sp.removedOnDisk(in)
		return sp.touch(dir)
	})
}

// Rename implements sigma.File.
func (f *file) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	const op = "diskfs.Rename"
	to, ok := newDir.(*file)
	if !ok || to.sp != f.sp {
		return sigma.Errorf(op, sigma.KindInvalid, "the new directory is not of this tree")
	}
	if err := sigma.CheckName(newName); err != nil {
		return sigma.Wrap(op, "", err)
	}
	dst, err := to.checkNode(ctx, op)
	if err != nil {
		return err
	}
	return f.inDir(ctx, op, name, func(dir *node) error {
		if err := f.sp.aliveDir(op, dst); err != nil {
			return err
		}
		return f.sp.rename(op, dir, name, dst, newName)
	})
}

// rename moves an entry. With sp.names held for writing.
func (sp *space) rename(op string, dir *node, name string, dst *node, newName string) error {
	in, err := look(dir.fd, name)
	if err != nil {
		return err
	}
	old, err := sp.find(dst, newName)
	exists := err == nil
	switch {
	case err != nil && err != unix.ENOENT:
		return err
	case exists && old.ino == in.ino:
		return nil
	case exists && old.kind == sigma.KindDir && in.kind != sigma.KindDir:
		return sigma.PathError(op, sigma.KindIsDir, newName)
	case exists && old.kind != sigma.KindDir && in.kind == sigma.KindDir:
		return sigma.PathError(op, sigma.KindNotDir, newName)
	}
	if err := sp.admit(dst, newName, in.kind); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Renameat(dir.fd, name, dst.fd, newName) }); err != nil {
		if errors.Is(err, unix.EEXIST) {
			err = unix.ENOTEMPTY // the kernel may say either
		}
		return err
	}
	if exists {
		sp.removedOnDisk(old)
	}
	sp.mu.Lock()
	n, left := sp.known(in), (*node)(nil)
	if n != nil {
		left = n.parent
		n.parent, n.name = dst, newName
		dst.refs++
	}
	if in.kind == sigma.KindDir {
		sp.forgetLocked()
	}
	sp.mu.Unlock()
	if left != nil {
		sp.release(left)
	}
	if err := sp.touch(dst); err != nil || dst == dir {
		return err
	}
	return sp.touch(dir)
}
