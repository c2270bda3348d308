package mount

import (
	"context"
	"strconv"

	"sigmaos.dev/sigma"
)

// Files that are removed, or replaced, through the mount while they are open. The servers of /ux
// and /s3 keep them for the handles that are open. Names are gone at once for everybody, so the
// mount takes a copy into its own memory, which those who have the file open use from then on.

// removedFrom is the directory that the file was removed from through the mount; nil = it was not.
func (n *node) removedFrom() *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gone
}

// anyOpen is an open handle of the file; nil = there is none.
func (n *node) anyOpen() *open {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.opens) == 0 {
		return nil
	}
	return n.opens[len(n.opens)-1]
}

// findOpen gives a handle of a file that was removed, from who has it open. It must be released.
func (n *node) findOpen(ctx context.Context) (h *handle, err error) {
	o := n.anyOpen()
	if o == nil {
		return nil, sigma.Errorf("mount.node", sigma.KindStale, "the file was removed")
	}
	err = o.with(ctx, false, func(f sigma.File) error {
		own, _, err := f.Walk(ctx, nil)
		if err == nil {
			h = n.m.handles.adopt(n, own, o.life)
		}
		return err
	})
	return h, err
}

// removed runs remove, which takes the file's name in dir away, and sees to it that those who have
// the file open keep it.
func (n *node) removed(ctx context.Context, dir *node, remove func() error) error {
	n.naming.Lock()
	defer n.naming.Unlock()
	n.mu.Lock()
	opens := append([]*open(nil), n.opens...)
	n.mu.Unlock()
	if len(opens) == 0 || n.kind != sigma.KindFile {
		return remove()
	}
	kept, err := n.keep(ctx)
	if err != nil {
		return err
	}
	unpublished := false
	for _, o := range opens {
		unpublished = unpublished || o.dirty.Load()
	}
	if err = remove(); err != nil && !(unpublished && sigma.KindOf(err) == sigma.KindNotFound) {
		if kept != nil {
			kept.Close()
		}
		return err
	}
	n.mu.Lock()
	n.gone = dir
	n.mu.Unlock()
	if kept == nil {
		return nil
	}
	defer kept.Close()
	n.m.handles.drop(n)
	for _, o := range opens {
		if err := o.replace(ctx, kept); err != nil {
			return err
		}
	}
	return nil
}

// keep copies a file of names, whose server forgets what is removed. nil if the file's server does
// not, or the file is not there.
func (n *node) keep(ctx context.Context) (sigma.File, error) {
	if n.isObject() || n.serverOf(ctx) != "" {
		return nil, nil
	}
	from, _, err := n.openAt(ctx, sigma.OpenRead)
	if err != nil {
		return nil, nil // remove says what is wrong
	}
	defer from.Close()
	st, err := from.Stat(ctx)
	if err != nil {
		return nil, nil
	}
	root, err := n.m.kept.Attach(ctx, sigma.Principal{System: true}, "")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	name := strconv.FormatUint(n.StableAttr().Ino, 16)
	own, err := root.Create(ctx, name, sigma.OpenReadWrite|sigma.OpenExclusive, st.Perm)
	if err != nil {
		return nil, err
	}
	err = copyFile(ctx, own, from)
	if err == nil {
		err = own.SetStat(ctx, sigma.StatChange{Modified: &st.Modified})
	}
	if rerr := root.Remove(ctx, name); err == nil {
		err = rerr // it lives on for its handles
	}
	if err != nil {
		own.Close()
		return nil, err
	}
	return own, nil
}

// replace puts a handle of kept in place of the one at the server.
func (o *open) replace(ctx context.Context, kept sigma.File) error {
	own, _, err := kept.Walk(ctx, nil)
	if err != nil {
		return err
	}
	if err = own.Open(ctx, o.flags&^(sigma.OpenTruncate|sigma.OpenExclusive)); err != nil {
		own.Close()
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		own.Close()
		return nil
	}
	o.file.Close()
	o.file = own
	return nil
}
