package kernel

import (
	"context"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// dir is a directory whose entries are computed, as /proc and /sys are.
type dir struct {
	treekit.Base
	path  string // in the realm
	names func(ctx context.Context) ([]string, error)
	open  func(ctx context.Context, name string) (sigma.File, error) // KindNotFound if there is none
	list  []sigma.DirEntry                                           // as it was at Open
	// page, if set, gives the entries after a cookie instead of names, up to n of them, and whether
	// there are more. It is for directories that may be long, because a session can hold many
	// handles.
	page func(ctx context.Context, cookie uint64, n int) (es []sigma.DirEntry, more bool, err error)
}

func (d *dir) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		c := *d
		c.list = nil
		return &c, nil, nil
	}
	child, err := d.open(ctx, names[0])
	if err != nil {
		return nil, nil, err
	}
	return walkOn(ctx, child, names[1:])
}

// walkOn walks names from child, which it closes unless it is what was asked for, and reports
// child's id too.
func walkOn(ctx context.Context, child sigma.File, names []string) (sigma.File, []sigma.FileID, error) {
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

func (d *dir) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: viewfs.PathID(d.path)},
		Name: d.path[strings.LastIndexByte(d.path, '/')+1:], Perm: 0o555, Modified: time.Unix(0, 0)}, nil
}

func (d *dir) Open(ctx context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("kernel.dir.Open", sigma.KindIsDir, d.path)
	}
	if d.page != nil {
		return nil
	}
	names, err := d.names(ctx)
	if err != nil {
		return err
	}
	slices.Sort(names)
	d.list = make([]sigma.DirEntry, 0, len(names))
	for _, n := range names {
		child, err := d.open(ctx, n)
		if err != nil {
			continue // gone meanwhile
		}
		if st, err := child.Stat(ctx); err == nil {
			d.list = append(d.list, sigma.DirEntry{Name: n, ID: st.ID, Next: uint64(len(d.list) + 1)})
		}
		child.Close()
	}
	return nil
}

func (d *dir) ReadDir(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, uint64, bool, error) {
	if d.page != nil {
		es, more, err := d.page(ctx, cookie, max(n, 1))
		if len(es) > 0 {
			cookie = es[len(es)-1].Next
		}
		return es, cookie, more, err
	}
	from := min(cookie, uint64(len(d.list)))
	to := min(from+uint64(max(n, 1)), uint64(len(d.list)))
	return slices.Clone(d.list[from:to]), to, to < uint64(len(d.list)), nil
}

func (d *dir) Create(context.Context, string, sigma.OpenFlags, uint32) (sigma.File, error) {
	return nil, d.readOnly()
}
func (d *dir) Mkdir(context.Context, string, uint32) error              { return d.readOnly() }
func (d *dir) Symlink(context.Context, string, string) error            { return d.readOnly() }
func (d *dir) Remove(context.Context, string) error                     { return d.readOnly() }
func (d *dir) Rename(context.Context, string, sigma.File, string) error { return d.readOnly() }
func (d *dir) SetStat(context.Context, sigma.StatChange) error          { return d.readOnly() }

func (d *dir) readOnly() error {
	return &sigma.Error{Op: "kernel.dir", Path: d.path, Kind: sigma.KindPermission,
		Msg: "entries here are made by the system"}
}
