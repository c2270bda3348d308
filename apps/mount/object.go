package mount

import (
	"context"
	"fmt"
	"slices"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"sigmaos.dev/sigma"
)

// Objects through the mount. A server of objects makes a new object visible as a whole, and nobody
// can change it then. Linux tells a file system of each close(2) of a descriptor (flush), before
// close returns, but not whether it is the last: the end of the last (release) comes after close
// has returned. So every close publishes what was made, cut or written since the last one, and
// what is written later goes to a new object, which begins as a copy of what was published, until
// the next close publishes that in its place (docs/adr/0041-every-close-publishes.md).

// isObject says whether the file is an object, or a directory of objects.
func (n *node) isObject() bool {
	names, _ := sigma.ParsePath(n.m.pathOf(n.Path(nil)))
	if dir := n.removedFrom(); dir != nil {
		return dir.isObject()
	}
	return len(names) > 0 && slices.Contains(n.m.cfg.Objects, names[0])
}

// publish makes visible what was written through these, or through all that are open, unless the
// file was removed.
func (n *node) publish(ctx context.Context, only ...*open) error {
	n.naming.Lock()
	defer n.naming.Unlock()
	return n.publishLocked(ctx, only...)
}

func (n *node) publishLocked(ctx context.Context, only ...*open) error {
	n.mu.Lock()
	if len(only) == 0 {
		only = append(only, n.opens...)
	}
	removed := n.gone != nil
	n.mu.Unlock()
	if removed {
		return nil
	}
	for _, o := range only {
		if err := o.publishNow(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (o *open) publishNow(ctx context.Context) error {
	if !o.dirty.Load() {
		return nil
	}
	o.mu.Lock() // nobody writes meanwhile
	defer o.mu.Unlock()
	p, ok := o.file.(sigma.Publisher)
	if o.closed || o.frozen || !ok {
		return nil
	}
	if err := p.Publish(ctx); err != nil {
		return err // and so says the next close
	}
	o.dirty.Store(false)
	o.frozen = true
	o.n.mu.Lock()
	o.n.anew = true
	o.n.mu.Unlock()
	return nil
}

// change runs op, which changes the file, on the handle at the server.
func (o *open) change(ctx context.Context, again bool, op func(f sigma.File) error) error {
	for {
		frozen := false
		err := o.with(ctx, again, func(f sigma.File) error {
			if frozen = o.frozen; frozen { // with holds o.mu
				return nil
			}
			o.dirty.Store(o.object)
			return op(f)
		})
		if !frozen {
			return err
		}
		if err := o.thaw(ctx); err != nil {
			return err
		}
	}
}

// thaw puts an object that can be written to in place of the one that was published.
func (o *open) thaw(ctx context.Context) error {
	name, dir := o.n.hold()
	if dir == nil {
		return sigma.Errorf("mount.thaw", sigma.KindStale, "the file was removed")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.frozen || o.closed {
		return nil
	}
	l, err := o.n.m.realm.get(ctx)
	if err != nil {
		return err
	}
	var own sigma.File
	err = dir.with(ctx, true, func(d sigma.File) (err error) {
		own, err = d.Create(ctx, name, o.flags&sigma.OpenAppend|sigma.OpenReadWrite|sigma.OpenTruncate, 0o666)
		return err
	})
	if err != nil {
		return err
	}
	err = copyFile(ctx, own, o.file)
	if sigma.KindOf(err) == sigma.KindUnsupported &&
		err != nil { // a store elsewhere has the bytes by now, and the handle no more
		var from sigma.File
		if from, _, _, err = dir.step(ctx, name); err == nil {
			if err = from.Open(ctx, sigma.OpenRead); err == nil {
				err = copyFile(ctx, own, from)
			}
			from.Close()
		}
	}
	if err != nil {
		own.Close()
		return err
	}
	o.file.Close()
	o.file, o.life, o.frozen = own, l, false
	return nil
}

// hold is a name and its directory by which the file, or an object that is never published, can be
// made.
func (n *node) hold() (string, *node) {
	if dir := n.removedFrom(); dir != nil {
		return fmt.Sprintf(".removed-%d", n.StableAttr().Ino), dir
	}
	name, parent := n.Parent()
	if parent == nil {
		return "", nil
	}
	return name, parent.Operations().(*node)
}

// copyFile copies all bytes.
func copyFile(ctx context.Context, to, from sigma.File) error {
	piece := make([]byte, ioSize)
	for at := uint64(0); ; {
		got, err := from.ReadAt(ctx, piece, at)
		if err != nil || got == 0 {
			return err
		}
		if _, err := to.WriteAt(ctx, piece[:got], at); err != nil {
			return err
		}
		at += uint64(got)
	}
}

// unpublished looks up an entry that is an object being written: for the mount it is there. nil if
// there is none.
func (n *node) unpublished(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, error) {
	c := n.entry(name)
	if c == nil {
		return nil, nil
	}
	c.mu.Lock()
	var o *open
	for _, one := range c.opens {
		if one.dirty.Load() {
			o = one
		}
	}
	c.mu.Unlock()
	if o == nil {
		return nil, nil
	}
	var st sigma.Stat
	if err := o.with(ctx, true, func(f sigma.File) (err error) { st, err = f.Stat(ctx); return err }); err != nil {
		if err == errClosed {
			err = nil
		}
		return nil, err
	}
	c.describe(st, &out.Attr)
	out.Ino = c.StableAttr().Ino
	out.SetAttrTimeout(CacheTime)
	out.SetEntryTimeout(CacheTime)
	return &c.Inode, nil
}
