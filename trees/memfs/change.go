package memfs

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// beginIn is begin for operations on an entry of this directory.
func (f *file) beginIn(ctx context.Context, op, name string) error {
	if err := sigma.CheckName(name); err != nil {
		return sigma.Wrap(op, "", err)
	}
	if err := f.begin(ctx, op); err != nil {
		return err
	}
	err := f.n.wantDirLocked(op)
	if err == nil {
		err = f.mayLocked(op, f.n, treeserver.MayPass)
	}
	if err != nil {
		f.t.mu.Unlock()
	}
	return err
}

func (n *node) wantDirLocked(op string) error {
	switch {
	case n.kind != sigma.KindDir:
		return sigma.PathError(op, sigma.KindNotDir, n.name)
	case n.removed:
		return sigma.PathError(op, sigma.KindNotFound, n.name)
	}
	return nil
}

// makeLocked makes an entry that does not exist and charges for it.
func (t *Tree) makeLocked(op string, dir *node, name string, kind sigma.FileKind, perm uint32) (*node, error) {
	n := t.newNodeLocked(kind, perm)
	if err := t.chargeLocked(op, n.charge()); err != nil {
		return nil, err
	}
	t.linkLocked(dir, name, n)
	return n, nil
}

// Create implements sigma.File.
func (f *file) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	const op = "memfs.Create"
	if flags&sigma.OpenHidden != 0 {
		return nil, treeserver.Unsupported("a hidden file")
	}
	if err := f.beginIn(ctx, op, name); err != nil {
		return nil, err
	}
	defer f.t.mu.Unlock()
	n := f.n.children[name]
	if n == nil {
		err := f.mayLocked(op, f.n, treeserver.MayWrite)
		if err != nil {
			return nil, err
		}
		if n, err = f.t.makeLocked(op, f.n, name, sigma.KindFile, perm); err != nil {
			return nil, err
		}
	} else if flags&sigma.OpenExclusive != 0 || isLink(n.kind) {
		return nil, sigma.PathError(op, sigma.KindExists, name)
	} else if err := n.wantFileLocked(op); err != nil {
		return nil, err
	} else if err := f.mayLocked(op, n, treeserver.Opening(flags)); err != nil {
		return nil, err
	}
	h := f.t.handleLocked(n, f.owner)
	h.openLocked(flags)
	return h, nil
}

// Mkdir implements sigma.File.
func (f *file) Mkdir(ctx context.Context, name string, perm uint32) error {
	const op = "memfs.Mkdir"
	if err := f.beginIn(ctx, op, name); err != nil {
		return err
	}
	defer f.t.mu.Unlock()
	if f.n.children[name] != nil {
		return sigma.PathError(op, sigma.KindExists, name)
	}
	if err := f.mayLocked(op, f.n, treeserver.MayWrite); err != nil {
		return err
	}
	_, err := f.t.makeLocked(op, f.n, name, sigma.KindDir, perm)
	return err
}

// Symlink implements sigma.File.
func (f *file) Symlink(ctx context.Context, name, target string) error {
	const op = "memfs.Symlink"
	if err := checkTarget(op, target); err != nil {
		return err
	}
	if err := f.beginIn(ctx, op, name); err != nil {
		return err
	}
	defer f.t.mu.Unlock()
	if f.n.children[name] != nil {
		return sigma.PathError(op, sigma.KindExists, name)
	}
	if err := f.mayLocked(op, f.n, treeserver.MayWrite); err != nil {
		return err
	}
	n, err := f.t.makeLocked(op, f.n, name, sigma.KindSymlink, 0o777)
	if err != nil {
		return err
	}
	n.target = target
	f.t.used += uint64(len(target)) // bounded by PathMax, so a full tree is exceeded by one link at most
	return nil
}

func checkTarget(op, target string) error {
	if target == "" || len(target) > sigma.PathMax {
		return sigma.Errorf(op, sigma.KindInvalid, "a link's target has 1 to %d bytes, not %d", sigma.PathMax,
			len(target))
	}
	return nil
}

// Remove implements sigma.File.
func (f *file) Remove(ctx context.Context, name string) error {
	const op = "memfs.Remove"
	if err := f.beginIn(ctx, op, name); err != nil {
		return err
	}
	defer f.t.mu.Unlock()
	n, err := f.stepLocked(op, f.n, name)
	if err == nil {
		err = f.mayLocked(op, f.n, treeserver.MayWrite)
	}
	if err != nil {
		return err
	}
	if len(n.children) > 0 {
		return sigma.PathError(op, sigma.KindNotEmpty, name)
	}
	f.t.unlinkLocked(n)
	return nil
}

// Rename implements sigma.File.
func (f *file) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	const op = "memfs.Rename"
	to, ok := newDir.(*file)
	if !ok || to.t != f.t || to.closed.Load() {
		return sigma.Errorf(op, sigma.KindInvalid, "the new directory is not of this tree")
	}
	if err := sigma.CheckName(newName); err != nil {
		return sigma.Wrap(op, "", err)
	}
	if err := f.beginIn(ctx, op, name); err != nil {
		return err
	}
	defer f.t.mu.Unlock()
	if err := to.n.wantDirLocked(op); err != nil {
		return err
	}
	n, err := f.stepLocked(op, f.n, name)
	if err == nil {
		err = f.mayLocked(op, to.n, treeserver.MayPass)
	}
	if err != nil {
		return err
	}
	if to.n.children[newName] == n {
		return nil
	}
	for _, dir := range []*node{f.n, to.n} {
		if err := f.mayLocked(op, dir, treeserver.MayWrite); err != nil {
			return err
		}
	}
	for up := to.n; up != nil; up = up.parent {
		if up == n {
			return sigma.Errorf(op, sigma.KindInvalid, "a directory cannot be moved into itself")
		}
	}
	if old := to.n.children[newName]; old != nil {
		if err := replaceable(op, n, old); err != nil {
			return err
		}
		f.t.unlinkLocked(old)
	}
	delete(f.n.children, name)
	f.t.changedLocked(f.n)
	f.t.linkLocked(to.n, newName, n)
	f.t.freedLocked(place{f.n, name})
	return nil
}

// replaceable says whether old may give way to n in a rename.
func replaceable(op string, n, old *node) error {
	isDir, wasDir := n.kind == sigma.KindDir, old.kind == sigma.KindDir
	switch {
	case wasDir && !isDir:
		return sigma.PathError(op, sigma.KindIsDir, old.name)
	case isDir && !wasDir:
		return sigma.PathError(op, sigma.KindNotDir, old.name)
	case len(old.children) > 0:
		return sigma.PathError(op, sigma.KindNotEmpty, old.name)
	}
	return nil
}
