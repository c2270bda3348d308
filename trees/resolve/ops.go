package resolve

import (
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// Get implements sigma.Namespace. A file of one message takes one round trip.
func (t *Tree) Get(ctx context.Context, path string) ([]byte, sigma.FileID, error) {
	var r sigma.GetResult
	_, err := t.at(ctx, path, true, func(f sigma.File, names []string) (stop *sigma.Stopped, err error) {
		r, stop, err = treeserver.Get(ctx, f, names, 0, sigmap.DataMax)
		return stop, err
	})
	if err != nil || r.Size <= uint64(len(r.Data)) {
		return r.Data, r.ID, err
	}
	if r.Size > uint64(sigma.GetMax) {
		return nil, r.ID, &sigma.Error{Op: "resolve.Get", Path: path, Kind: sigma.KindTooBig,
			Msg: "file is too big to get at once", Hint: "open it and read it in pieces"}
	}
	return t.getLarge(ctx, path)
}

// getLarge reads a file in pieces, and again if it was changed meanwhile: what it returns is one
// version, unless the file changes all the time.
func (t *Tree) getLarge(ctx context.Context, path string) ([]byte, sigma.FileID, error) {
	f, _, err := t.walk(ctx, path, true)
	if err != nil {
		return nil, sigma.FileID{}, err
	}
	defer f.Close()
	if err := f.Open(ctx, sigma.OpenRead); err != nil {
		return nil, sigma.FileID{}, withPath(err, path)
	}
	before, err := f.Stat(ctx)
	for range 5 {
		if err != nil {
			break
		}
		var data []byte
		if data, err = readAll(ctx, f, before.Size); err != nil {
			break
		}
		var after sigma.Stat
		if after, err = f.Stat(ctx); err == nil && after.ID.Version == before.ID.Version {
			return data, after.ID, nil
		}
		before = after
	}
	if err == nil {
		err = sigma.Errorf("resolve.Get", sigma.KindBusy, "the file changes while it is read")
	}
	return nil, sigma.FileID{}, withPath(err, path)
}

// readAll reads to the end of the file, whose size is only expected: files of /proc do not know
// theirs.
func readAll(ctx context.Context, f sigma.File, expected uint64) ([]byte, error) {
	buf := make([]byte, 0, min(expected, uint64(sigma.GetMax))+1)
	for {
		n, err := f.ReadAt(ctx, buf[len(buf):cap(buf)], uint64(len(buf)))
		if err != nil {
			return nil, err
		}
		buf = buf[:len(buf)+n]
		if len(buf) > int(sigma.GetMax) {
			return nil, sigma.Errorf("resolve.Get", sigma.KindTooBig, "the file is too big to get at once")
		}
		if len(buf) < cap(buf) {
			return buf, nil
		}
		buf = slices.Grow(buf, len(buf))
	}
}

// Put implements sigma.Namespace.
func (t *Tree) Put(ctx context.Context, path string, data []byte, o sigma.PutOptions) (sigma.FileID, error) {
	if o.Perm == 0 {
		o.Perm = 0o644
	}
	if len(data)+len(path) > sigmap.DataMax { // the path has to fit too
		return t.putLarge(ctx, path, data, o)
	}
	var id sigma.FileID
	err := t.changing(ctx, func(c *change) error {
		_, err := t.at(ctx, path, false, func(f sigma.File, names []string) (stop *sigma.Stopped, err error) {
			err = c.do(ctx, t.isRoot(f), func(ctx context.Context) (err error) {
				id, stop, err = treeserver.Put(ctx, f, names, data, o)
				return err
			})
			return stop, err
		})
		return err
	})
	return id, err
}

// putLarge streams the data into a file of another name and moves that over path, so that nobody
// sees a part.
func (t *Tree) putLarge(ctx context.Context, path string, data []byte, o sigma.PutOptions) (sigma.FileID, error) {
	if o.Kind != sigma.KindFile || o.IfVersion != 0 || o.MustMake || o.MustExist || o.Append || o.Wait || o.Lease != 0 {
		return sigma.FileID{}, &sigma.Error{Op: "resolve.Put", Path: path, Kind: sigma.KindTooBig,
			Msg: "a conditional put is limited to 60 KiB"}
	}
	dir, name, _, err := t.parent(ctx, path)
	if err != nil {
		return sigma.FileID{}, err
	}
	defer dir.Close()
	temp := "put-" + rand.Text()[:12] + "~"
	f, err := dir.Create(ctx, temp, sigma.OpenWrite|sigma.OpenExclusive, o.Perm)
	if err != nil {
		return sigma.FileID{}, withPath(err, path)
	}
	_, err = f.WriteAt(ctx, data, 0)
	if err == nil {
		err = f.Sync(ctx)
	}
	if err == nil {
		err = dir.Rename(ctx, temp, dir, name)
	}
	if err != nil {
		f.Close()
		dir.Remove(context.WithoutCancel(ctx), temp)
		return sigma.FileID{}, withPath(err, path)
	}
	st, err := f.Stat(ctx)
	f.Close()
	return st.ID, withPathOrNil(treeserver.AfterEffect(err), path)
}

// Stat implements sigma.Namespace.
func (t *Tree) Stat(ctx context.Context, path string) (sigma.Stat, error) {
	return t.stat(ctx, path, true)
}

// Lstat implements sigma.Namespace.
func (t *Tree) Lstat(ctx context.Context, path string) (sigma.Stat, error) {
	return t.stat(ctx, path, false)
}

func (t *Tree) stat(ctx context.Context, path string, follow bool) (sigma.Stat, error) {
	var st sigma.Stat
	err := t.reading(ctx, path, follow, func(f sigma.File) (err error) {
		st, err = f.Stat(ctx)
		return err
	})
	if err != nil {
		return sigma.Stat{}, err
	}
	if names, _ := sigma.ParsePath(path); len(names) > 0 {
		st.Name = names[len(names)-1]
	}
	return st, nil
}

// SetStat implements sigma.Namespace.
func (t *Tree) SetStat(ctx context.Context, path string, c sigma.StatChange) error {
	return t.changing(ctx, func(n *change) error {
		f, at, err := t.walk(ctx, path, true)
		if err != nil {
			return err
		}
		defer f.Close()
		return withPathOrNil(n.do(ctx, at.mount == "", func(ctx context.Context) error {
			return f.SetStat(ctx, c)
		}), path)
	})
}

// ReadDir implements sigma.Namespace.
func (t *Tree) ReadDir(ctx context.Context, path string) ([]sigma.DirEntry, error) {
	var es []sigma.DirEntry
	err := t.reading(ctx, path, true, func(f sigma.File) (err error) {
		es, err = listWith(ctx, f, listMax)
		return err
	})
	if err != nil {
		return nil, err
	}
	return t.withMounts(ctx, path, es), nil
}

// inParent changes the entry of path in its directory.
func (t *Tree) inParent(ctx context.Context, path string, do func(ctx context.Context, dir sigma.File,
	name string) error) error {
	return t.changing(ctx, func(n *change) error {
		dir, name, at, err := t.parent(ctx, path)
		if err != nil {
			return err
		}
		defer dir.Close()
		return withPathOrNil(n.do(ctx, at.mount == "", func(ctx context.Context) error {
			return do(ctx, dir, name)
		}), path)
	})
}

// Mkdir implements sigma.Namespace.
func (t *Tree) Mkdir(ctx context.Context, path string, perm uint32) error {
	return t.inParent(ctx, path, func(ctx context.Context, dir sigma.File, name string) error {
		return dir.Mkdir(ctx, name, perm)
	})
}

// MkdirAll implements sigma.Namespace.
func (t *Tree) MkdirAll(ctx context.Context, path string, perm uint32) error {
	st, err := t.Stat(ctx, path)
	if err == nil {
		if st.ID.Kind != sigma.KindDir {
			return sigma.PathError("resolve.MkdirAll", sigma.KindNotDir, path)
		}
		return nil
	}
	if sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	names, err := sigma.ParsePath(path)
	if err != nil {
		return err
	}
	if err := t.MkdirAll(ctx, sigma.JoinPath(names[:len(names)-1]...), perm); err != nil {
		return err
	}
	if err = t.Mkdir(ctx, path, perm); sigma.KindOf(err) == sigma.KindExists {
		return nil // somebody else made it
	}
	return err
}

// Symlink implements sigma.Namespace.
func (t *Tree) Symlink(ctx context.Context, target, path string) error {
	return t.inParent(ctx, path, func(ctx context.Context, dir sigma.File, name string) error {
		return dir.Symlink(ctx, name, target)
	})
}

// ReadLink implements sigma.Namespace.
func (t *Tree) ReadLink(ctx context.Context, path string) (string, error) {
	target := ""
	err := t.reading(ctx, path, false, func(f sigma.File) (err error) {
		target, err = f.ReadLink(ctx)
		return err
	})
	return target, err
}

// Remove implements sigma.Namespace.
func (t *Tree) Remove(ctx context.Context, path string) error {
	if err := t.unmounted(path); err != nil {
		return err
	}
	return t.inParent(ctx, path, func(ctx context.Context, dir sigma.File, name string) error {
		return dir.Remove(ctx, name)
	})
}

// RemoveAll implements sigma.Namespace.
func (t *Tree) RemoveAll(ctx context.Context, path string) error {
	if err := t.unmounted(path); err != nil {
		return err
	}
	dir, name, _, err := t.parent(ctx, path)
	if err == nil {
		defer dir.Close()
		r := remover{turns: make(chan struct{}, removersMax)}
		err = r.all(ctx, dir, name, 0)
	}
	if sigma.KindOf(err) == sigma.KindNotFound {
		return nil
	}
	return withPathOrNil(err, path)
}

// remover removes what is in directories, some at once, since each removal is a round trip, and
// servers gather changes.
type remover struct {
	turns chan struct{} // has a place for each goroutine besides the caller's
	seen  atomic.Int64  // entries
}

const (
	// removersMax is enough to hide round trips, and few beside what a session allows.
	removersMax = 11
	// removeDepth, which no path can name more than, and removeMax, of entries, end the removal of
	// a directory that a tenant's tree shows without an end.
	removeDepth = sigma.PathMax / 2
	removeMax   = 1 << 24
)

// all removes name of dir, which lies so many directories below that which is to be removed.
// Entries that appear meanwhile make it try again, a bounded number of times.
func (r *remover) all(ctx context.Context, dir sigma.File, name string, depth int) error {
	if r.seen.Add(1) > removeMax || depth > removeDepth {
		return &sigma.Error{Op: "resolve.RemoveAll", Kind: sigma.KindTooBig,
			Msg: "there is more in it than is removed at once, and perhaps no end: " + strconv.Itoa(removeDepth) +
				" directories one in another, or " + strconv.Itoa(removeMax) + " entries",
			Hint: "part of it was removed; remove directories further down first"}
	}
	for range 10 {
		err := dir.Remove(ctx, name)
		if sigma.KindOf(err) != sigma.KindNotEmpty {
			return err
		}
		d, _, err := dir.Walk(ctx, []string{name})
		if err != nil || d == nil {
			return err
		}
		err = r.entries(ctx, d, depth+1)
		d.Close()
		if err != nil {
			return err
		}
	}
	return sigma.PathError("resolve.RemoveAll", sigma.KindNotEmpty, name)
}

// entries removes what is in d, until something cannot be removed.
func (r *remover) entries(ctx context.Context, d sigma.File, depth int) error {
	es, err := list(ctx, d, listMax)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var others sync.WaitGroup
	defer others.Wait()
	one := func(name string) {
		if err := r.all(ctx, d, name, depth); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			cancel(err)
		}
	}
	for _, e := range es {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r.turns <- struct{}{}:
			others.Go(func() {
				defer func() { <-r.turns }()
				one(e.Name)
			})
		default:
			one(e.Name)
		}
	}
	others.Wait()
	return context.Cause(ctx)
}

// Rename implements sigma.Namespace.
func (t *Tree) Rename(ctx context.Context, oldPath, newPath string) error {
	for _, path := range []string{oldPath, newPath} {
		if err := t.unmounted(path); err != nil {
			return err
		}
	}
	return t.changing(ctx, func(n *change) error { return t.rename(ctx, n, oldPath, newPath) })
}

func (t *Tree) rename(ctx context.Context, n *change, oldPath, newPath string) error {
	from, oldName, c, err := t.parent(ctx, oldPath)
	if err != nil {
		return err
	}
	defer from.Close()
	to, newName, d, err := t.parentBeside(ctx, newPath, oldPath, from, c)
	if err != nil {
		return err
	}
	if d != c {
		defer to.Close()
	}
	if c.mount != d.mount {
		return &sigma.Error{Op: "resolve.Rename", Path: oldPath, Kind: sigma.KindUnsupported,
			Msg: "a rename cannot go to another server", Hint: "copy the file, then remove it"}
	}
	if g, ok := to.(*guarded); ok { // a request carries one fence
		if old, ok := from.(*guarded); ok && old.by.fence != g.by.fence {
			return &sigma.Error{Op: "resolve.Rename", Path: oldPath, Kind: sigma.KindUnsupported,
				Msg: "a rename cannot go from under one fence to under another"}
		}
		from = g.by.guard(bare(from))
	}
	return withPathOrNil(n.do(ctx, c.mount == "", func(ctx context.Context) error {
		return from.Rename(ctx, oldName, to, newName)
	}), oldPath)
}

// Watch implements sigma.Namespace. It goes on at the next server when that of the root dies.
func (t *Tree) Watch(ctx context.Context, path string, since sigma.Version) (sigma.Version, error) {
	for {
		epoch := t.epoch()
		v, err := t.watch(ctx, path, since)
		if err == nil || sigma.KindOf(err) != sigma.KindLost || t.epoch() == epoch {
			return v, err
		}
	}
}

func (t *Tree) watch(ctx context.Context, path string, since sigma.Version) (sigma.Version, error) {
	f, _, err := t.walk(ctx, path, true)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	w, ok := f.(sigma.Watcher)
	if !ok {
		return 0, sigma.PathError("resolve.Watch", sigma.KindUnsupported, path)
	}
	v, err := w.Watch(ctx, since)
	return v, withPathOrNil(err, path)
}

// WaitFor implements sigma.Namespace. It watches the deepest directory that exists.
func (t *Tree) WaitFor(ctx context.Context, path string) error {
	for {
		names, err := sigma.ParsePath(path)
		if err != nil {
			return err
		}
		for i := len(names); i > 0; i-- {
			parent := sigma.JoinPath(names[:i-1]...)
			st, err := t.Stat(ctx, parent) // the version before looking, so that a file made in between is not missed
			if sigma.KindOf(err) == sigma.KindNotFound {
				continue
			}
			if err != nil {
				return err
			}
			if _, err = t.Lstat(ctx, sigma.JoinPath(names[:i]...)); err == nil {
				break
			}
			if sigma.KindOf(err) != sigma.KindNotFound {
				return err
			}
			if _, err = t.Watch(ctx, parent, st.ID.Version); err != nil && sigma.KindOf(err) != sigma.KindNotFound &&
				sigma.KindOf(err) != sigma.KindStale {
				return err
			}
			break
		}
		if _, err := t.Lstat(ctx, path); sigma.KindOf(err) != sigma.KindNotFound || err == nil {
			return err
		}
	}
}

// Call implements sigma.Namespace.
func (t *Tree) Call(ctx context.Context, path, method string, payload []byte) ([]byte, error) {
	f, _, err := t.walk(ctx, path, true)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, ok := f.(sigma.Caller)
	if !ok {
		return nil, sigma.PathError("resolve.Call", sigma.KindUnsupported, path)
	}
	reply, files, err := c.Call(ctx, method, payload, nil)
	for _, f := range files {
		f.Close()
	}
	return reply, withPathOrNil(err, path)
}

// AbsPath implements sigma.Namespace.
func (t *Tree) AbsPath(ctx context.Context, path string) (string, error) {
	f, c, err := t.walk(ctx, path, false)
	if err != nil {
		return "", err
	}
	f.Close()
	names := slices.Clone(c.path)
	for i, n := range names {
		if (n == sigma.LocalName || n == sigma.AnyName) && t.cfg.Machine != "" {
			names[i] =
				string(t.cfg.Machine) // the server resolved it, as /ux does, for which this machine is as good as any
		}
	}
	return sigma.JoinPath(names...), nil
}

// Lease implements sigma.Namespace.
func (t *Tree) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, func(context.Context) error, error) {
	l, ok := t.cfg.Root.(sigma.Leaser)
	if !ok {
		return 0, nil, sigma.Errorf("resolve.Lease", sigma.KindUnsupported, "this tree grants no leases")
	}
	id, err := l.Lease(ctx, ttl)
	if err != nil {
		return 0, nil, err
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(max(ttl/3, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-renewing.Done():
				return
			case <-t.cfg.Done:
				return
			case <-tick.C:
				if err := l.Renew(renewing, id); err != nil && sigma.KindOf(err) == sigma.KindNotFound {
					return // expired; its files are gone and renewing cannot bring them back
				}
			}
		}
	}()
	return id, func(ctx context.Context) error {
		stop()
		<-ended
		return l.Revoke(ctx, id)
	}, nil
}

// Clean makes a path of what a person typed: double and trailing slashes go, a missing first slash
// is added.
func Clean(path string) string {
	return sigma.JoinPath(slices.DeleteFunc(strings.Split(path, "/"), func(n string) bool { return n == "" })...)
}
