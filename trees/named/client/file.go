package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/client/cache"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// File is a handle of a file of a realm. It knows the file by its id, and is bound to a session
// when something is sent.
type File struct {
	realm *Realm
	id    uint64
	root  bool
	// it is the realm's programs', not the provider's: modes count. So do its bindings, unless they
	// were taken up when they were open already
	owner bool

	closed atomic.Bool
	bound  atomic.Pointer[binding] // the newest; it may have ended

	// A File that was opened from what is remembered: the content as it was read last, which is
	// still read when the file is removed, or that it is a directory.
	kept   atomic.Pointer[cache.Node]
	listed atomic.Bool

	mu     sync.Mutex      // orders binding, Open and Close
	opened bool            // mu
	flags  sigma.OpenFlags // mu; by which it is opened again
}

// binding is a file's handle in one session.
type binding struct {
	at   *attachment
	file Root
}

var (
	_ sigma.File       = (*File)(nil)
	_ sigma.Getter     = (*File)(nil)
	_ sigma.Recaller   = (*File)(nil)
	_ sigma.Putter     = (*File)(nil)
	_ sigma.Watcher    = (*File)(nil)
	_ sigma.Leaser     = (*File)(nil)
	_ sigma.Rememberer = (*File)(nil)
	_ sigma.Identified = (*File)(nil)

	_ sigma.Conditional = (*File)(nil)
)

// Remembers implements sigma.Rememberer: named does.
func (f *File) Remembers() bool { return true }

// FileID implements sigma.Identified.
func (f *File) FileID() sigma.FileID { return sigma.FileID{Path: f.id} }

// bind returns the file's handle in a session that has not ended, as far as is known.
func (f *File) bind(ctx context.Context) (*binding, error) {
	if b := f.bound.Load(); b != nil && b.at.live() {
		return b, nil
	}
	if _, err := f.realm.attached(ctx); err != nil { // which may take long
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bindLocked(ctx, false)
}

// bindLocked is bind; own says that it must not be the handle that all Files of the root share.
func (f *File) bindLocked(ctx context.Context, own bool) (*binding, error) {
	for {
		if f.closed.Load() {
			return nil, sigma.Errorf("client.File", sigma.KindInvalid, "the handle is closed")
		}
		if b := f.bound.Load(); b != nil && b.at.live() && (!own || !b.shared()) {
			return b, nil
		}
		at, err := f.realm.attached(ctx)
		if err != nil {
			return nil, err
		}
		b, err := f.takeUpLocked(ctx, at, own)
		if err == nil {
			f.bound.Store(b)
			return b, nil
		}
		if ctx.Err() != nil || sigma.KindOf(err) != sigma.KindLost || !at.over(ctx) {
			return nil, err
		}
	}
}

// takeUpLocked makes a handle in a session.
func (f *File) takeUpLocked(ctx context.Context, at *attachment, own bool) (*binding, error) {
	root := at.rootOf(f.owner)
	if f.root && !f.opened && !own {
		return &binding{at, root}, nil
	}
	file, err := root.Find(ctx, f.id)
	if sigma.KindOf(err) == sigma.KindUnsupported && err != nil {
		err = &sigma.Error{Op: "client.File", Kind: sigma.KindLost,
			Msg: "the session was lost, and the server does not take up files again", Err: err}
	}
	if err != nil {
		return nil, err
	}
	b, err := asRoot(at, file)
	if err == nil && f.opened {
		if err = file.Open(ctx, f.flags); f.owner && sigma.KindOf(err) == sigma.KindPermission && err != nil {
			file.Close()
			return f.reopenLocked(ctx, at)
		}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return b, nil
}

// reopenLocked opens a file anew of which the mode has become, or was from its creation, less than
// what the handle was opened for.
func (f *File) reopenLocked(ctx context.Context, at *attachment) (*binding, error) {
	file, err := at.Root.Find(ctx, f.id)
	if err != nil {
		return nil, err
	}
	var b *binding
	st, err := file.Stat(ctx)
	if err == nil && st.ID.Kind == sigma.KindDir { // whose handle would let pass the way to others
		err = treeserver.MayRead.Check("client.Open", st.Name, st.Perm)
	}
	if err == nil {
		err = file.Open(ctx, f.flags)
	}
	if err == nil {
		b, err = asRoot(at, file)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return b, nil
}

// shared reports whether the handle is the one that all Files of the root share.
func (b *binding) shared() bool { return b.file == b.at.Root || b.file == b.at.Owner }

// asRoot makes a binding of a handle that the session gave.
func asRoot(at *attachment, file sigma.File) (*binding, error) {
	all, ok := file.(Root)
	if !ok {
		return nil, sigma.Errorf("client.File", sigma.KindUnsupported, "the session's files lack what named's have")
	}
	return &binding{at, all}, nil
}

// given makes a File of a handle that the session of b gave.
func (f *File) given(b *binding, file sigma.File, id uint64) (*File, error) {
	own, err := asRoot(b.at, file)
	if err != nil {
		file.Close()
		return nil, err
	}
	out := &File{realm: f.realm, id: id, root: f.root && id == f.id, owner: f.owner}
	out.bound.Store(own)
	return out, nil
}

// Close implements sigma.File.
func (f *File) Close() {
	if f.closed.Swap(true) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.bound.Swap(nil); b != nil && !b.shared() && b.at.live() {
		b.file.Close()
	}
}

// Walk implements sigma.File.
func (f *File) Walk(ctx context.Context, names []string) (out sigma.File, ids []sigma.FileID, err error) {
	const op = "client.Walk"
	var room [roomNodes]*cache.Node
	x, ok,
		err := f.look(ctx, names, 0,
		room[:0]) // the versions of directories on the way may be those of before a change made here just now
	if err != nil {
		return nil, nil, err
	}
	if ok {
		for _, n := range x.nodes[1:] {
			ids = append(ids, n.Stat.ID)
		}
		switch {
		case len(ids) == 0 && len(names) > 0, x.why == sigma.KindPermission:
			return nil, nil, x.failure(op, names)
		case len(ids) < len(names):
			return nil, ids, nil
		}
		return &File{realm: f.realm, id: x.last().Stat.ID.Path, root: f.root && len(names) == 0, owner: f.owner}, ids,
			nil
	}
	err = f.read(ctx, func(ctx context.Context, b *binding) error {
		file, found, err := b.file.Walk(ctx, names)
		if ids = found; err != nil || file == nil {
			return err
		}
		id := f.id
		if len(ids) > 0 {
			id = ids[len(ids)-1].Path
		}
		created, err := f.given(b, file, id)
		if err == nil {
			out = created
		}
		return err
	})
	return out, ids, err
}

// Stat implements sigma.File.
func (f *File) Stat(ctx context.Context) (st sigma.Stat, err error) {
	var room [roomNodes]*cache.Node
	x, ok, err := f.look(ctx, nil, 0, room[:0])
	if err != nil || ok {
		if ok {
			st = x.last().Stat
		}
		return st, err
	}
	defer func() { f.realm.front.saw(st.ID.Version, err) }()
	err = f.read(ctx, func(ctx context.Context, b *binding) error { st, err = b.file.Stat(ctx); return err })
	return st, err
}

// Open implements sigma.File.
func (f *File) Open(ctx context.Context, flags sigma.OpenFlags) error {
	f.mu.Lock()
	if f.opened {
		f.mu.Unlock()
		return sigma.Errorf("client.Open", sigma.KindInvalid, "the handle is open already")
	}
	f.mu.Unlock()
	if flags == sigma.OpenRead {
		if ok, err := f.openKnown(ctx); ok || err != nil {
			return err
		}
	}
	open := func(ctx context.Context, _ *binding) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		b, err := f.bindLocked(ctx, true)
		if err == nil {
			err = b.file.Open(ctx, flags)
		}
		if err != nil {
			return err
		}
		f.opened, f.flags = true, flags&^(sigma.OpenTruncate|sigma.OpenExclusive)
		return nil
	}
	if flags&sigma.OpenTruncate == 0 {
		return f.read(ctx, open)
	}
	return f.mutate(ctx, &change{op: "truncate", id: f.id}, open)
}

// openKnown opens the file for reading from what is remembered. ok is false if that is not enough.
func (f *File) openKnown(ctx context.Context) (ok bool, err error) {
	var room [roomNodes]*cache.Node
	x, ok, err := f.look(ctx, nil, cache.WantData, room[:0])
	if err != nil || !ok {
		return false, err
	}
	n := x.last()
	switch {
	case n.IsLink():
		return false, &sigma.Error{Op: "client.Open", Path: n.Stat.Name, Kind: sigma.KindInvalid,
			Msg: "the file is a " + n.Stat.ID.Kind.String(), Hint: "use ReadLink"}
	case n.Stat.ID.Kind != sigma.KindDir && !n.HasData:
		return false, nil
	}
	if f.owner {
		if err := treeserver.MayRead.Check("client.Open", n.Stat.Name, n.Stat.Perm); err != nil {
			return false, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.bound.Swap(nil); b != nil && !b.shared() && b.at.live() { // which is not open
		b.file.Close()
	}
	f.opened, f.flags = true, sigma.OpenRead
	if n.Stat.ID.Kind == sigma.KindDir {
		f.listed.Store(true)
	} else {
		f.kept.Store(n)
	}
	return true, nil
}

// Create implements sigma.File.
func (f *File) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (out sigma.File,
	err error) {
	err = f.mutate(ctx, &change{op: "create", dir: f.id, names: []string{name}},
		func(ctx context.Context, b *binding) error {
			file, err := b.file.Create(ctx, name, flags, perm)
			if err != nil {
				return err
			}
			var id uint64
			if i, ok := file.(sigma.Identified); ok {
				id = i.FileID().Path
			}
			created, err := f.given(b, file, id)
			if err == nil {
				created.opened, created.flags = true, flags&^(sigma.OpenTruncate|sigma.OpenExclusive)
				out = created
			}
			return err
		})
	return out, err
}

// ReadAt implements sigma.File.
func (f *File) ReadAt(ctx context.Context, p []byte, offset uint64) (n int, err error) {
	if kept := f.kept.Load(); kept != nil {
		var room [roomNodes]*cache.Node
		x, ok, err := f.look(ctx, nil, cache.WantData, room[:0])
		if ok && x.last().HasData {
			kept = x.last()
			f.kept.Store(kept)
		} else if err == nil {
			kept = nil // it is longer now, or must be read at named
		} else if sigma.KindOf(err) != sigma.KindStale {
			return 0, err
		}
		if kept != nil {
			if offset >= uint64(len(kept.Data)) {
				return 0, nil
			}
			return copy(p, kept.Data[offset:]), nil
		}
	}
	err = f.read(ctx, func(ctx context.Context, b *binding) error {
		n, err = b.file.ReadAt(ctx, p, offset)
		return err
	})
	return n, err
}

// WriteAt implements sigma.File. Each message has a number of its own.
func (f *File) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	most := sigmap.WriteMax(ctx)
	if sigma.OnceOf(ctx).Client != 0 { // of who asks, who is to see to it
		most = max(most, len(p))
	}
	for done := 0; ; {
		piece, n := p[done:min(len(p), done+most)], 0
		err := f.mutate(ctx, &change{op: "write", id: f.id}, func(ctx context.Context, b *binding) (err error) {
			n, err = b.file.WriteAt(ctx, piece, offset+uint64(done))
			return err
		})
		if done += n; err != nil || done >= len(p) {
			return done, err
		}
	}
}

// ReadDir implements sigma.File. Its cookies are named's, which are as good after a restart.
func (f *File) ReadDir(ctx context.Context, cookie uint64, most int) (entries []sigma.DirEntry, next uint64, more bool,
	err error) {
	if f.listed.Load() && most > 0 {
		if l, rest, ok, err := f.listing(ctx, cookie, most); err != nil {
			return nil, cookie, false, err
		} else if ok {
			entries, next, more = l.After(cookie, most)
			return entries, next, more || rest, nil
		}
	}
	err = f.read(ctx, func(ctx context.Context, b *binding) error {
		entries, next, more, err = b.file.ReadDir(ctx, cookie, most)
		return err
	})
	return entries, next, more, err
}

// ReadLink implements sigma.File.
func (f *File) ReadLink(ctx context.Context) (target string, err error) {
	var room [roomNodes]*cache.Node
	x, ok, err := f.look(ctx, nil, cache.WantData, room[:0])
	switch {
	case err != nil:
		return "", err
	case ok && !x.last().IsLink():
		return "", &sigma.Error{Op: "client.ReadLink", Path: x.last().Stat.Name, Kind: sigma.KindInvalid,
			Msg: "the file is no link"}
	case ok && x.last().HasData:
		return string(x.last().Data), nil
	}
	err = f.read(ctx, func(ctx context.Context, b *binding) error { target, err = b.file.ReadLink(ctx); return err })
	return target, err
}

// SetStat implements sigma.File.
func (f *File) SetStat(ctx context.Context, c sigma.StatChange) error {
	return f.mutate(ctx, &change{op: "setstat", id: f.id}, func(ctx context.Context, b *binding) error {
		return b.file.SetStat(ctx, c)
	})
}

// Mkdir implements sigma.File.
func (f *File) Mkdir(ctx context.Context, name string, perm uint32) error {
	return f.mutate(ctx, &change{op: "mkdir", dir: f.id, names: []string{name}},
		func(ctx context.Context, b *binding) error {
			return b.file.Mkdir(ctx, name, perm)
		})
}

// Symlink implements sigma.File.
func (f *File) Symlink(ctx context.Context, name, target string) error {
	return f.mutate(ctx, &change{op: "symlink", dir: f.id, names: []string{name}},
		func(ctx context.Context, b *binding) error {
			return b.file.Symlink(ctx, name, target)
		})
}

// Remove implements sigma.File.
func (f *File) Remove(ctx context.Context, name string) error {
	return f.mutate(ctx, &change{op: "remove", dir: f.id, names: []string{name}},
		func(ctx context.Context, b *binding) error {
			return b.file.Remove(ctx, name)
		})
}

// Rename implements sigma.File. Both directories are taken up in one session.
func (f *File) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	const op = "client.Rename"
	if u, ok := newDir.(interface {
		RenameTarget(ctx context.Context, name string) (sigma.File, error)
	}); ok { // a handle of a server that stands before this one, and has names of its own
		var err error
		if newDir, err = u.RenameTarget(ctx, newName); err != nil {
			return err
		}
	}
	to, ok := newDir.(*File)
	if !ok || to.realm != f.realm {
		return sigma.Errorf(op, sigma.KindUnsupported, "a file cannot be renamed to another server; copy it")
	}
	c := &change{op: "rename", dir: f.id, names: []string{name}, newDir: to.id, newName: newName}
	return f.mutate(ctx, c, func(ctx context.Context, b *binding) error {
		into, err := to.bind(ctx)
		switch {
		case err != nil:
			return err
		case into.at != b.at: // the session has ended in between
			return sigma.Errorf(op, sigma.KindUnavailable, "the session to the name service was lost")
		}
		return b.file.Rename(ctx, name, into.file, newName)
	})
}

// Sync implements sigma.File: what named has acknowledged is durable. Whether who asks was deposed
// only named knows.
func (f *File) Sync(ctx context.Context) error {
	if sigma.FenceOf(ctx).Name == "" {
		return nil
	}
	return f.read(ctx, func(ctx context.Context, b *binding) error { return b.file.Sync(ctx) })
}

// ReadAtIf implements sigma.Conditional.
func (f *File) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (n int, err error) {
	err = f.read(ctx, func(ctx context.Context, b *binding) error {
		n, err = b.file.ReadAtIf(ctx, p, offset, v)
		return err
	})
	f.realm.front.saw(v, err)
	return n, err
}

// WriteAtIf implements sigma.Conditional.
func (f *File) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (n int, now sigma.Version,
	err error) {
	err = f.mutate(ctx, &change{op: "write", id: f.id}, func(ctx context.Context, b *binding) error {
		n, now, err = b.file.WriteAtIf(ctx, p, offset, v)
		return err
	})
	return n, now, err
}

// Get implements sigma.Getter.
func (f *File) Get(ctx context.Context, names []string, offset uint64, count int) (g sigma.GetResult,
	stop *sigma.Stopped, err error) {
	var room [roomNodes]*cache.Node
	x, ok, err := f.look(ctx, names, cache.WantData, room[:0])
	if err != nil {
		return g, nil, err
	}
	if ok && count >= 0 {
		if g, stop, known, err := x.get(f.owner, names, offset, count); known {
			return g, stop, err
		}
	}
	defer func() { f.realm.front.saw(g.ID.Version, err) }()
	err = f.read(ctx, func(ctx context.Context, b *binding) error {
		g, stop, err = b.file.Get(ctx, names, offset, count)
		return err
	})
	return g, stop, err
}

// Recall implements sigma.Recaller.
func (f *File) Recall(names []string, offset uint64, count int) (g sigma.GetResult, stop *sigma.Stopped, known bool,
	err error) {
	r := f.realm.front
	if r.cache == nil || f.id == 0 || count < 0 || len(names) > sigmap.WalkMax || f.closed.Load() {
		return g, nil, false, nil
	}
	now := time.Now()
	r.touch(now)
	var room [roomNodes]*cache.Node
	var x found
	if x.nodes, x.why, known = r.cache.Look(now, f.id, names, cache.WantData|cache.WantUncounted, room[:0]); !known {
		return g, nil, false, nil
	}
	if f.owner {
		x.passed(names)
	}
	return x.get(f.owner, names, offset, count)
}

// Put implements sigma.Putter.
func (f *File) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (id sigma.FileID,
	stop *sigma.Stopped, err error) {
	c := &change{op: "put", dir: f.id, names: names, waits: o.Wait}
	err = f.mutate(ctx, c, func(ctx context.Context, b *binding) error {
		id, stop, err = b.file.Put(ctx, names, data, o)
		c.id, c.version = id.Path, id.Version
		return err
	})
	return id, stop, err
}

// Lease implements sigma.Leaser.
func (f *File) Lease(ctx context.Context, ttl time.Duration) (id sigma.LeaseID, err error) {
	err = f.mutate(ctx, &change{op: "lease"}, func(ctx context.Context, b *binding) error {
		id, err = b.file.Lease(ctx, ttl)
		return err
	})
	return id, err
}

// Renew implements sigma.Leaser.
func (f *File) Renew(ctx context.Context, id sigma.LeaseID) error {
	return f.read(ctx, func(ctx context.Context, b *binding) error { return b.file.Renew(ctx, id) })
}

// Revoke implements sigma.Leaser.
func (f *File) Revoke(ctx context.Context, id sigma.LeaseID) error {
	return f.mutate(ctx, &change{op: "revoke"}, func(ctx context.Context, b *binding) error {
		return b.file.Revoke(ctx, id)
	})
}
