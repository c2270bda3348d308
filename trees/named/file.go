package named

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// file is a handle. It knows its file by id, so it follows renames and outlives the leader that
// answered it first.
type file struct {
	slot *slot
	id   uint64
	root bool // of a realm

	by      asker
	machine sigma.MachineID // of who attached; roots only
	system  bool            // a machine attached; roots only

	closed atomic.Bool
	opened bool
	dir    bool // opened as a directory
	flags  sigma.OpenFlags
	last   atomic.Pointer[cell] // of an opened file as last seen: what it was is still read when it is removed
}

var (
	_ sigma.File    = (*file)(nil)
	_ sigma.Getter  = (*file)(nil)
	_ sigma.Putter  = (*file)(nil)
	_ sigma.Watcher = (*file)(nil)
	_ sigma.Leaser  = (*file)(nil)
	_ sigma.Caller  = (*file)(nil)

	_ sigma.Finder      = (*file)(nil)
	_ sigma.Identified  = (*file)(nil)
	_ sigma.Conditional = (*file)(nil)
	_ sigma.Rememberer  = (*file)(nil)
)

// walkMax bounds the names of one walk: no path has more.
const walkMax = sigma.PathMax / 2

// leaderTries bounds how often a request goes on with the next leader. Each try means that the
// store failed the one before.
const leaderTries = 4

// mutate has m applied by the realm's leader.
func (f *file) mutate(ctx context.Context, m mutation) reply {
	rep := reply{err: f.checkClosed()}
	if rep.err != nil {
		return rep
	}
	put, ok := m.(putOp)
	waits := ok && put.o.Wait // for as long as ctx lasts
	m = fenced(ctx, m)
	for try := 0; try < leaderTries || waits; try++ {
		l, err := f.slot.leader(ctx)
		if err != nil {
			return reply{err: err}
		}
		if rep = l.do(ctx, m); !errors.Is(rep.err, errEnded) {
			break
		}
	}
	return rep
}

func (f *file) checkClosed() error {
	if f.closed.Load() {
		return sigma.Errorf("named.file", sigma.KindInvalid, "the handle is closed")
	}
	return nil
}

// read calls do with the realm's committed tree.
func (f *file) read(ctx context.Context, do func(t *tree) error) error {
	if err := f.checkClosed(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return sigma.Wrap("named.read", "", err)
	}
	for range leaderTries {
		l, err := f.slot.leader(ctx)
		if err != nil {
			return err
		}
		newer := false
		err = l.read(func(t *tree) (err error) {
			if newer, err = t.admit(sigma.FenceOf(ctx)); newer || err != nil {
				return err
			}
			return do(t)
		})
		if !newer {
			return err
		}
		if rep := f.mutate(ctx, noOp{}); rep.err != nil { // its fence is stored before anything is read under it
			return rep.err
		}
	}
	return endedReply().err
}

// node returns the file as it is committed.
func (f *file) node(ctx context.Context, op string) (n *node, err error) {
	err = f.read(ctx, func(t *tree) error {
		if n = t.node(f.id); n == nil {
			return staleError(op)
		}
		return nil
	})
	return n, err
}

func (f *file) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	const op = "named.Walk"
	if len(names) > walkMax {
		return nil, nil, sigma.Errorf(op, sigma.KindInvalid, "a walk of %d names is longer than any path", len(names))
	}
	var reached []*node
	var why error
	err := f.read(ctx, func(t *tree) error {
		reached, why = f.by.walk(t, f.id, names)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	ids := make([]sigma.FileID, len(reached))
	for i, n := range reached {
		ids[i] = n.fileID()
	}
	switch {
	case len(reached) == 0 && why != nil:
		return nil, nil, why
	case len(reached) < len(names):
		return nil, ids, nil
	case len(names) == 0:
		return &file{slot: f.slot, id: f.id, root: f.root, by: f.by, machine: f.machine, system: f.system}, ids, nil
	}
	return &file{slot: f.slot, id: reached[len(reached)-1].id, by: f.by}, ids, nil
}

// Remembers implements sigma.Rememberer.
func (f *file) Remembers() bool { return true }

// FileID implements sigma.Identified.
func (f *file) FileID() sigma.FileID { return sigma.FileID{Path: f.id} }

// Find implements sigma.Finder.
func (f *file) Find(ctx context.Context, path uint64) (sigma.File, error) {
	const op = "named.Find"
	if !f.root || !f.system {
		return nil, sigma.Errorf(op, sigma.KindPermission,
			"files are taken up by their ids by sigmad only, at the root of a realm")
	}
	err := f.read(ctx, func(t *tree) error {
		if t.node(path) == nil && !sigma.OnceOf(ctx).Again {
			return staleError(op)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if path == f.id {
		return &file{slot: f.slot, id: f.id, root: true, by: f.by, system: true, machine: f.machine}, nil
	}
	return &file{slot: f.slot, id: path, by: f.by}, nil
}

func (f *file) Stat(ctx context.Context) (sigma.Stat, error) {
	n, err := f.node(ctx, "named.Stat")
	if err != nil {
		return sigma.Stat{}, err
	}
	return n.stat(), nil
}

func (f *file) SetStat(ctx context.Context, c sigma.StatChange) error {
	// The change is copied, since the caller may use its memory again when ctx ends before the
	// change is applied.
	own := sigma.StatChange{Perm: clone(c.Perm), Size: clone(c.Size), Modified: clone(c.Modified)}
	by := f.by
	if f.opened && !f.dir && writes(f.flags) {
		by = asProvider // what was checked when it was opened
	}
	return f.mutate(ctx, statOp{f.id, own, by}).err
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

const flagsKnown = sigma.OpenWrite | sigma.OpenReadWrite | sigma.OpenTruncate | sigma.OpenAppend | sigma.OpenExclusive

func (f *file) Open(ctx context.Context, flags sigma.OpenFlags) error {
	const op = "named.Open"
	if f.opened {
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is open already")
	}
	if flags&^flagsKnown != 0 {
		return sigma.Errorf(op, sigma.KindInvalid, "unknown open flags %#x", uint32(flags))
	}
	n, err := f.node(ctx, op)
	if err != nil {
		return err
	}
	if n.kind == sigma.KindDir {
		if flags.Writes() {
			return sigma.PathError(op, sigma.KindIsDir, n.name)
		}
		if err := f.by.may(op, n, treeserver.MayRead); err != nil {
			return err
		}
	} else if err := f.openFile(ctx, flags, n); err != nil {
		return err
	}
	f.opened, f.flags, f.dir = true, flags, n.kind == sigma.KindDir
	f.remember(ctx)
	return nil
}

func (f *file) openFile(ctx context.Context, flags sigma.OpenFlags, n *node) error {
	const op = "named.Open"
	if n.isLink() {
		return &sigma.Error{Op: op, Path: n.name, Kind: sigma.KindInvalid, Msg: "the file is a " + n.kind.String(),
			Hint: "use ReadLink"}
	}
	if err := f.by.may(op, n, treeserver.Opening(flags)); err != nil {
		return err
	}
	if flags&sigma.OpenTruncate != 0 {
		return f.mutate(ctx, resizeOp{f.id, 0, f.by}).err
	}
	return nil
}

// remember keeps the cell of a file that was just opened; if it is gone already there is nothing to
// keep.
func (f *file) remember(ctx context.Context) {
	f.read(ctx, func(t *tree) error {
		f.last.Store(t.cells[f.id])
		return nil
	})
}

func (f *file) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	const op = "named.Create"
	if flags&sigma.OpenHidden != 0 {
		return nil, treeserver.Unsupported("a hidden file")
	}
	if flags&^flagsKnown != 0 {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "unknown open flags %#x", uint32(flags))
	}
	rep := f.mutate(ctx, createOp{dir: f.id, name: name, kind: sigma.KindFile, perm: perm,
		open:     flags&sigma.OpenExclusive == 0,
		truncate: flags&sigma.OpenTruncate != 0, needs: treeserver.Opening(flags), by: f.by})
	if rep.err != nil {
		return nil, rep.err
	}
	created := &file{slot: f.slot, id: rep.id.Path, by: f.by, opened: true, flags: flags}
	created.remember(ctx)
	return created, nil
}

// Reading is what OpenRead, the zero value, allows, and OpenReadWrite; writing what the others
// allow.
func reads(f sigma.OpenFlags) bool { return f&sigma.OpenWrite == 0 || f&sigma.OpenReadWrite != 0 }
func writes(f sigma.OpenFlags) bool {
	return f&(sigma.OpenWrite|sigma.OpenReadWrite|sigma.OpenAppend) != 0
}

func (f *file) checkOpen(op string, allowed func(sigma.OpenFlags) bool) error {
	switch {
	case !f.opened:
		return sigma.Errorf(op, sigma.KindInvalid, "the file is not open")
	case f.dir:
		return &sigma.Error{Op: op, Kind: sigma.KindIsDir}
	case !allowed(f.flags):
		return sigma.Errorf(op, sigma.KindPermission, "the file is not open for this")
	}
	return nil
}

func (f *file) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "named.ReadAt"
	if err := f.checkOpen(op, reads); err != nil {
		return 0, err
	}
	var n *node
	err := f.read(ctx, func(t *tree) error {
		c := t.cells[f.id]
		if c == nil {
			c = f.last.Load()
		} else if c != f.last.Load() {
			f.last.Store(c)
		}
		if c == nil {
			return staleError(op)
		}
		n = c.n
		return nil
	})
	switch {
	case err != nil:
		return 0, err
	case offset >= uint64(len(n.data)):
		return 0, nil
	}
	return copy(p, n.data[offset:]), nil
}

func (f *file) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "named.WriteAt"
	if err := f.checkOpen(op, writes); err != nil {
		return 0, err
	}
	if len(p) > FileMax {
		return 0, tooBig(op, "", saturate(offset, len(p)))
	}
	rep := f.mutate(ctx, writeOp{id: f.id, offset: offset, atEnd: f.flags&sigma.OpenAppend != 0, data: bytes.Clone(p)})
	if rep.err != nil {
		return 0, rep.err
	}
	return len(p), nil
}

// ReadAtIf implements sigma.Conditional.
func (f *file) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, error) {
	const op = "named.ReadAtIf"
	if err := f.checkOpen(op, reads); err != nil {
		return 0, err
	}
	n, err := f.node(ctx, op)
	switch {
	case err != nil:
		return 0, err
	case v != 0 && v != n.version:
		return 0, sigma.PathError(op, sigma.KindVersion, n.name)
	case offset >= uint64(len(n.data)):
		return 0, nil
	}
	return copy(p, n.data[offset:]), nil
}

// WriteAtIf implements sigma.Conditional.
func (f *file) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, sigma.Version, error) {
	const op = "named.WriteAtIf"
	if err := f.checkOpen(op, writes); err != nil {
		return 0, 0, err
	}
	if len(p) > FileMax {
		return 0, 0, tooBig(op, "", saturate(offset, len(p)))
	}
	rep := f.mutate(ctx, writeOp{id: f.id, offset: offset, atEnd: f.flags&sigma.OpenAppend != 0, ifVersion: v,
		data: bytes.Clone(p)})
	if rep.err != nil {
		return 0, 0, rep.err
	}
	return len(p), rep.id.Version, nil
}

// listMax bounds one answer of ReadDir. The server kit has limits of its own.
const listMax = 4096

func (f *file) ReadDir(ctx context.Context, cookie uint64, most int) (entries []sigma.DirEntry, next uint64, more bool,
	err error) {
	const op = "named.ReadDir"
	if !f.opened {
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "the directory is not open")
	}
	if most <= 0 {
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "a listing of %d entries", most)
	}
	most = min(most, listMax)
	err = f.read(ctx, func(t *tree) error {
		c := t.cells[f.id]
		switch {
		case c == nil:
			return staleError(op)
		case c.dir == nil:
			return sigma.PathError(op, sigma.KindNotDir, c.n.name)
		}
		entries, next, more = t.list(c.dir, cookie, most)
		return nil
	})
	return entries, next, more, err
}

func (f *file) Mkdir(ctx context.Context, name string, perm uint32) error {
	return f.mutate(ctx, createOp{dir: f.id, name: name, kind: sigma.KindDir, perm: perm, by: f.by}).err
}

func (f *file) Symlink(ctx context.Context, name, target string) error {
	if err := checkTarget("named.Symlink", target); err != nil {
		return err
	}
	return f.mutate(ctx, createOp{dir: f.id, name: name, kind: sigma.KindSymlink, perm: 0o777, data: []byte(target),
		by: f.by}).err
}

func (f *file) ReadLink(ctx context.Context) (string, error) {
	const op = "named.ReadLink"
	n, err := f.node(ctx, op)
	if err != nil {
		return "", err
	}
	if !n.isLink() {
		return "", &sigma.Error{Op: op, Path: n.name, Kind: sigma.KindInvalid, Msg: "the file is no link"}
	}
	return string(n.data), nil
}

func (f *file) Remove(ctx context.Context, name string) error {
	return f.mutate(ctx, removeOp{dir: f.id, name: name, by: f.by}).err
}

func (f *file) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	to, ok := newDir.(*file)
	if !ok || to.slot != f.slot {
		return sigma.Errorf("named.Rename", sigma.KindInvalid, "the new directory is of another server or realm")
	}
	return f.mutate(ctx, renameOp{f.id, name, to.id, newName, f.by}).err
}

// Sync has nothing to do but to refuse who was deposed: what was acknowledged is durable.
func (f *file) Sync(ctx context.Context) error {
	return f.read(ctx, func(*tree) error { return nil })
}

func (f *file) Close() {
	f.closed.Store(true)
	f.last.Store(nil)
}

func (f *file) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	const op = "named.Get"
	if count < 0 || len(names) > walkMax {
		return sigma.GetResult{}, nil, sigma.Errorf(op, sigma.KindInvalid,
			"a negative count, or more names than any path has")
	}
	var n *node
	var stopped *sigma.Stopped
	err := f.read(ctx, func(t *tree) error {
		n = t.node(f.id)
		reached, err := f.by.walk(t, f.id, names)
		if n == nil {
			return err
		}
		if stopped = stoppedAt(n, reached, len(names), true); stopped != nil || err != nil {
			return err
		}
		if len(reached) > 0 {
			n = reached[len(reached)-1]
		}
		if n.kind == sigma.KindDir {
			return nil
		}
		return f.by.may(op, n, treeserver.MayRead)
	})
	switch {
	case stopped != nil:
		return sigma.GetResult{}, stopped, nil
	case err != nil:
		return sigma.GetResult{}, nil, err
	case n.kind == sigma.KindDir:
		return sigma.GetResult{}, nil, sigma.PathError(op, sigma.KindIsDir, n.name)
	}
	r := sigma.GetResult{ID: n.fileID(), Size: uint64(len(n.data))}
	if offset < uint64(len(n.data)) {
		r.Data = bytes.Clone(n.data[offset:min(uint64(len(n.data)), offset+uint64(count))])
	}
	return r, nil, nil
}

func (f *file) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped,
	error) {
	const op = "named.Put"
	switch {
	case len(names) > walkMax:
		return sigma.FileID{}, nil, sigma.Errorf(op, sigma.KindInvalid, "more names than any path has")
	case len(data) > FileMax:
		return sigma.FileID{}, nil, tooBig(op, "", uint64(len(data)))
	}
	rep := f.mutate(ctx, putOp{from: f.id, names: append([]string(nil), names...), data: bytes.Clone(data), o: o,
		by: f.by})
	return rep.id, rep.stopped, rep.err
}

func (f *file) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	if err := f.checkClosed(); err != nil {
		return 0, err
	}
	for noted := sigma.FenceOf(ctx).Name == ""; ; noted = true {
		if !noted {
			if err := f.Sync(ctx); err != nil {
				return 0, err
			}
		}
		l, err := f.slot.leader(ctx)
		if sigma.KindOf(err) == sigma.KindStale {
			return 0, &sigma.Error{Op: "named.Watch", Kind: sigma.KindNotFound, Msg: "the realm was removed"}
		}
		if err != nil {
			return 0, err
		}
		if v, err := l.watch(ctx, f.id, f.by, since); !errors.Is(err, errEnded) {
			return v, err
		}
	}
}

func (f *file) notRoot(op string) error {
	return &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "leases are made at the root of a realm"}
}

func (f *file) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, error) {
	if !f.root {
		return 0, f.notRoot("named.Lease")
	}
	rep := f.mutate(ctx, grantOp{ttl, f.machine})
	return rep.lease, rep.err
}

func (f *file) Renew(ctx context.Context, id sigma.LeaseID) error {
	if !f.root {
		return f.notRoot("named.Renew")
	}
	return f.mutate(ctx, renewOp{id}).err
}

func (f *file) Revoke(ctx context.Context, id sigma.LeaseID) error {
	if !f.root {
		return f.notRoot("named.Revoke")
	}
	return f.mutate(ctx, endOp{id: id}).err
}
