// Package computed has directories and files whose content is computed while it is read, as that of
// /proc and /sys is. Nothing is kept for them but where a reader is. Users: kernel.
package computed

import (
	"context"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// Dir is a directory whose entries are computed, as /proc and /sys are.
type Dir struct {
	treeserver.Base
	Path   string // in the realm
	Names  func(ctx context.Context) ([]string, error)
	Child  func(ctx context.Context, name string) (sigma.File, error) // KindNotFound if there is none
	Listed []sigma.DirEntry                                           // as it was at Open
	// page, if set, gives the entries after a cookie instead of names, up to n of them, and whether
	// there are more. It is for directories that may be long, because a session can hold many
	// handles.
	Page func(ctx context.Context, cookie uint64, n int) (es []sigma.DirEntry, more bool, err error)
}

// Walk implements sigma.File: the rest of a path is walked by the entry.
func (d *Dir) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		c := *d
		c.Listed = nil
		return &c, nil, nil
	}
	child, err := d.Child(ctx, names[0])
	if err != nil {
		return nil, nil, err
	}
	return WalkOn(ctx, child, names[1:])
}

// WalkOn walks names from child, which it closes unless it is what was asked for, and reports
// child's id too.
func WalkOn(ctx context.Context, child sigma.File, names []string) (sigma.File, []sigma.FileID, error) {
	st, err := child.Stat(ctx)
	if err != nil {
		child.Close()
		return nil, nil, err
	}
	if len(names) == 0 {
		return child, []sigma.FileID{st.ID}, nil
	}
	defer child.Close()
	if st.ID.Kind != sigma.KindDir {
		return nil, []sigma.FileID{st.ID}, nil
	}
	f, ids, err := child.Walk(ctx, names)
	if kind := sigma.KindOf(err); f == nil && (kind == sigma.KindNotFound || kind == sigma.KindNotDir) {
		err = nil // child was reached
	}
	return f, append([]sigma.FileID{st.ID}, ids...), err
}

// On carries out Get or Put at child, which it closes and to which the first of the names has led.
func On(ctx context.Context, child sigma.File, r sigma.Request) (sigma.Reply, error) {
	defer child.Close()
	r.Names = r.Names[1:]
	a, err := treeserver.Do(ctx, child, r)
	if a.Stop != nil {
		a.Stop.Walked++
	}
	return a, err
}

// Stat implements sigma.File.
func (d *Dir) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: viewfs.PathID(d.Path)},
		Name: d.Path[strings.LastIndexByte(d.Path, '/')+1:], Perm: 0o555, Modified: time.Unix(0, 0)}, nil
}

// Open implements sigma.File: the entries are what they are then.
func (d *Dir) Open(ctx context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("kernel.dir.Open", sigma.KindIsDir, d.Path)
	}
	if d.Page != nil {
		return nil
	}
	names, err := d.Names(ctx)
	if err != nil {
		return err
	}
	slices.Sort(names)
	d.Listed = make([]sigma.DirEntry, 0, len(names))
	for _, n := range names {
		child, err := d.Child(ctx, n)
		if err != nil {
			continue // gone meanwhile
		}
		if st, err := child.Stat(ctx); err == nil {
			d.Listed = append(d.Listed, sigma.DirEntry{Name: n, ID: st.ID, Next: uint64(len(d.Listed) + 1)})
		}
		child.Close()
	}
	return nil
}

// ReadDir implements sigma.File.
func (d *Dir) ReadDir(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, uint64, bool, error) {
	if d.Page != nil {
		es, more, err := d.Page(ctx, cookie, max(n, 1))
		if len(es) > 0 {
			cookie = es[len(es)-1].Next
		}
		return es, cookie, more, err
	}
	from := min(cookie, uint64(len(d.Listed)))
	to := min(from+uint64(max(n, 1)), uint64(len(d.Listed)))
	return slices.Clone(d.Listed[from:to]), to, to < uint64(len(d.Listed)), nil
}

// Create implements sigma.File; as all changes it is refused.
func (d *Dir) Create(context.Context, string, sigma.OpenFlags, uint32) (sigma.File, error) {
	return nil, d.ReadOnly()
}

// Mkdir implements sigma.File.
func (d *Dir) Mkdir(context.Context, string, uint32) error { return d.ReadOnly() }

// Symlink implements sigma.File.
func (d *Dir) Symlink(context.Context, string, string) error { return d.ReadOnly() }

// Remove implements sigma.File.
func (d *Dir) Remove(context.Context, string) error { return d.ReadOnly() }

// Rename implements sigma.File.
func (d *Dir) Rename(context.Context, string, sigma.File, string) error { return d.ReadOnly() }

// SetStat implements sigma.File.
func (d *Dir) SetStat(context.Context, sigma.StatChange) error { return d.ReadOnly() }

// ReadOnly is the error of a change.
func (d *Dir) ReadOnly() error {
	return &sigma.Error{Op: "kernel.dir", Path: d.Path, Kind: sigma.KindPermission,
		Msg: "entries here are made by the system"}
}
