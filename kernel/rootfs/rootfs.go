// Package rootfs is the root of a realm: the union of what named keeps of it and of the places that
// sigmad provides (/proc, /sys, /ux, /s3 and /db). It has no lock. Users: kernel.
package rootfs

import (
	"context"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/procfs"
	"sigmaos.dev/kernel/progtree"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/realms"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/kernel/sysfs"
	"sigmaos.dev/kernel/uxfs"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// FS is what a root is made of.
type FS struct {
	Reach  *reach.Reach
	Realms *realms.Realms
	UX     *uxfs.FS
	Proc   *procfs.FS
	Sys    *sysfs.FS
}

// Root is the root of a realm as a session has it.
func (x *FS) Root(s sessions.Scope) viewfs.Realm { return &root{x, s} }

// Shared is what a session of another machine is shown of a realm: what this machine has of it, to
// be read, and its scratch storage.
func (x *FS) Shared(s sessions.Scope) sigma.File {
	shown := map[string]func(sessions.Scope) sigma.File{sigma.NameUX: x.UX.Dir, sigma.NameProc: x.Proc.Dir}
	return &computed.Dir{Path: "/",
		Names: func(context.Context) ([]string, error) { return slices.Collect(maps.Keys(shown)), nil },
		Child: func(_ context.Context, name string) (sigma.File, error) {
			if f := shown[name]; f != nil {
				return f(s), nil
			}
			return nil, &sigma.Error{Op: "kernel.attachFar", Path: "/" + name, Kind: sigma.KindNotFound,
				Msg: "a machine shows others only ux and proc"}
		}}
}

// root is the root of a realm: what named keeps, and the places the kernel provides.
type root struct {
	x *FS
	s sessions.Scope
}

var (
	_ sigma.File     = (*root)(nil)
	_ sigma.Getter   = (*root)(nil)
	_ sigma.Recaller = (*root)(nil)
	_ sigma.Putter   = (*root)(nil)
	_ sigma.Watcher  = (*root)(nil)
	_ sigma.Leaser   = (*root)(nil)

	_ sigma.Rememberer = (*root)(nil)
)

// Remembers implements sigma.Rememberer, since what changes in it changes at named.
func (r *root) Remembers() bool { return true }

// RenameTarget gives the handle at named in which a rename from any of named's directories may put
// name.
func (r *root) RenameTarget(ctx context.Context, name string) (sigma.File, error) {
	if err := r.taken(name); err != nil {
		return nil, err
	}
	return r.s.Named(ctx)
}

// provided returns the kernel's own file of that name, or nil.
func (r *root) provided(name string) sigma.File {
	switch name {
	case sigma.NameUX:
		return r.x.UX.Dir(r.s)
	case sigma.NameProc:
		return r.x.Proc.Dir(r.s)
	case sigma.NameSys:
		return r.x.Sys.Dir(r.s)
	case sigma.NameS3:
		if r.s.Realm != sigma.SystemRealm {
			return &storeLink{reach: r.x.Reach, name: sigma.NameS3, service: services.S3}
		}
	case sigma.NameDB:
		if r.s.Realm != sigma.SystemRealm {
			return &storeLink{reach: r.x.Reach, name: sigma.NameDB, service: services.DatabaseService(r.s.Realm)}
		}
	}
	return nil
}

func (r *root) providedNames() []string {
	if r.s.Realm == sigma.SystemRealm {
		return []string{sigma.NameProc, sigma.NameSys, sigma.NameUX}
	}
	return []string{sigma.NameDB, sigma.NameProc, sigma.NameS3, sigma.NameSys, sigma.NameUX}
}

func (r *root) taken(name string) error {
	if slices.Contains(r.providedNames(), name) {
		return &sigma.Error{Op: "kernel.root", Path: "/" + name, Kind: sigma.KindExists,
			Msg: "the name is the system's"}
	}
	return nil
}

func (r *root) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		return &root{r.x, r.s}, nil, nil
	}
	if f := r.provided(names[0]); f != nil {
		if _, ok := f.(*storeLink); !ok { // where that leads ends with the session there
			progtree.Leave(ctx)
		}
		return computed.WalkOn(ctx, f, names[1:])
	}
	n, err := r.s.Named(ctx)
	if err != nil {
		return nil, nil, err
	}
	return n.Walk(ctx, names)
}

func (r *root) Stat(ctx context.Context) (sigma.Stat, error) {
	n, err := r.s.Named(ctx)
	if err != nil {
		if r.s.Realm == sigma.SystemRealm {
			return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: viewfs.PathID("/")}, Perm: 0o555,
				Modified: time.Unix(0, 0)}, nil
		}
		return sigma.Stat{}, err
	}
	return n.Stat(ctx)
}

func (r *root) SetStat(ctx context.Context, c sigma.StatChange) error {
	return r.change(ctx, "", func(n sigma.File) error { return n.SetStat(ctx, c) })
}

func (r *root) Open(_ context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("kernel.root.Open", sigma.KindIsDir, "/")
	}
	return nil
}

func (r *root) Create(ctx context.Context, name string, f sigma.OpenFlags, perm uint32) (file sigma.File, err error) {
	err = r.change(ctx, name, func(n sigma.File) (err error) { file, err = n.Create(ctx, name, f, perm); return err })
	return file, err
}

func (r *root) ReadAt(context.Context, []byte, uint64) (int, error) {
	return 0, sigma.PathError("kernel.root.ReadAt", sigma.KindIsDir, "/")
}

func (r *root) WriteAt(context.Context, []byte, uint64) (int, error) {
	return 0, sigma.PathError("kernel.root.WriteAt", sigma.KindIsDir, "/")
}

// namedCookies marks cookies of named's part of the listing, which comes after the kernel's.
const namedCookies = 1 << 63

func (r *root) ReadDir(ctx context.Context, cookie uint64, count int) ([]sigma.DirEntry, uint64, bool, error) {
	if provided := r.providedNames(); cookie < uint64(len(provided)) {
		var out []sigma.DirEntry
		last := min(cookie+uint64(max(count, 1)), uint64(len(provided)))
		for i := cookie; i < last; i++ {
			st, err := r.provided(provided[i]).Stat(ctx)
			if err != nil {
				return nil, cookie, false, err
			}
			out = append(out, sigma.DirEntry{Name: provided[i], ID: st.ID, Next: i + 1})
		}
		return out, last, last < uint64(len(provided)) || r.s.Realm != sigma.SystemRealm, nil
	}
	n, err := r.s.Named(ctx)
	if err != nil {
		return nil, cookie, false, err
	}
	d, _, err := n.Walk(ctx, nil)
	if err != nil {
		return nil, cookie, false, err
	}
	defer d.Close()
	if err := d.Open(ctx, sigma.OpenRead); err != nil {
		return nil, cookie, false, err
	}
	if cookie&namedCookies == 0 {
		cookie = namedCookies // the kernel's part is done
	}
	es, next, more, err := d.ReadDir(ctx, cookie&^namedCookies, count)
	for i := range es {
		es[i].Next |= namedCookies
	}
	return es, next | namedCookies, more, err
}

func (r *root) Mkdir(ctx context.Context, name string, perm uint32) error {
	return r.change(ctx, name, func(n sigma.File) error { return n.Mkdir(ctx, name, perm) })
}

func (r *root) Symlink(ctx context.Context, name, target string) error {
	return r.change(ctx, name, func(n sigma.File) error { return n.Symlink(ctx, name, target) })
}

func (r *root) Remove(ctx context.Context, name string) error {
	return r.change(ctx, name, func(n sigma.File) error { return n.Remove(ctx, name) })
}

func (r *root) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	return r.change(ctx, name, func(n sigma.File) error { return n.Rename(ctx, name, newDir, newName) })
}

// change runs a change of the entry name at named, "" = of the directory itself.
func (r *root) change(ctx context.Context, name string, f func(sigma.File) error) error {
	if err := r.taken(name); err != nil {
		return err
	}
	n, err := r.s.Named(ctx)
	if err != nil {
		return err
	}
	return f(n)
}

func (r *root) ReadLink(context.Context) (string, error) {
	return "", sigma.PathError("kernel.root.ReadLink", sigma.KindInvalid, "/")
}
func (r *root) Sync(context.Context) error { return nil }
func (r *root) Close()                     {}

// Get implements sigma.Getter in one hop for named's files and for links.
func (r *root) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	if len(names) == 0 {
		return sigma.GetResult{}, nil, sigma.PathError("kernel.root.Get", sigma.KindIsDir, "/")
	}
	f := r.provided(names[0])
	if l, ok := f.(*storeLink); ok {
		s, err := l.stop(ctx)
		return sigma.GetResult{}, s, err
	}
	if f != nil {
		return computed.GetOn(ctx, f, names[1:], offset, count)
	}
	n, err := r.s.Named(ctx)
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	return treeserver.Get(ctx, n, names, offset, count)
}

// Recall implements sigma.Recaller for named's files.
func (r *root) Recall(names []string, offset uint64, count int) (g sigma.GetResult, stop *sigma.Stopped, known bool,
	err error) {
	if len(names) == 0 || r.s.Realm == sigma.SystemRealm || slices.Contains(r.providedNames(), names[0]) {
		return g, nil, false, nil
	}
	n := r.x.Realms.Known(r.s.Realm)
	if n == nil {
		return g, nil, false, nil
	}
	return n.Recall(!r.s.Principal.System, names, offset, count)
}

// Put implements sigma.Putter.
func (r *root) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped,
	error) {
	if len(names) == 0 {
		return sigma.FileID{}, nil, sigma.PathError("kernel.root.Put", sigma.KindIsDir, "/")
	}
	if len(names) == 1 {
		if err := r.taken(names[0]); err != nil {
			return sigma.FileID{}, nil, err
		}
	}
	f := r.provided(names[0])
	if l, ok := f.(*storeLink); ok {
		s, err := l.stop(ctx)
		return sigma.FileID{}, s, err
	}
	if f != nil {
		if sigma.OnceOf(ctx).Again {
			f.Close()
			return sigma.FileID{}, nil, treeserver.NotRemembered()
		}
		return computed.PutOn(ctx, f, names[1:], data, o)
	}
	n, err := r.s.Named(ctx)
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	return treeserver.Put(ctx, n, names, data, o)
}

// Watch implements sigma.Watcher; the kernel's own entries do not change.
func (r *root) Watch(ctx context.Context, since sigma.Version) (v sigma.Version, err error) {
	err = r.change(ctx, "", func(n sigma.File) (err error) { v, err = n.(sigma.Watcher).Watch(ctx, since); return err })
	return v, err
}

// Lease implements sigma.Leaser.
func (r *root) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, error) {
	n, err := r.s.Named(ctx)
	if err != nil {
		return 0, err
	}
	id, err := n.(sigma.Leaser).Lease(ctx, ttl)
	if err == nil {
		r.s.Leased(id, r.s.Realm)
	}
	return id, err
}

// Renew implements sigma.Leaser.
func (r *root) Renew(ctx context.Context, id sigma.LeaseID) error {
	return r.change(ctx, "", func(n sigma.File) error { return n.(sigma.Leaser).Renew(ctx, id) })
}

// Revoke implements sigma.Leaser.
func (r *root) Revoke(ctx context.Context, id sigma.LeaseID) error {
	return r.change(ctx, "", func(n sigma.File) error {
		r.s.Revoked(id)
		return n.(sigma.Leaser).Revoke(ctx, id)
	})
}

// storeLink is /s3 or /db: an endpoint whose content is where the object store listens now, or the
// server of databases.
type storeLink struct {
	treeserver.Base
	reach         *reach.Reach
	name, service string
}

func (l *storeLink) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("kernel.storeLink.Walk", sigma.KindNotDir, l.name)
	}
	return l, nil, nil
}

func (l *storeLink) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindEndpoint, Path: viewfs.PathID("/" + l.name)}, Name: l.name,
		Perm: 0o555, Modified: time.Unix(0, 0)}, nil
}

func (l *storeLink) ReadLink(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, services.ReconnectMax)
	defer cancel()
	e, err := l.reach.StoreEndpoint(ctx, l.service, false)
	if err != nil {
		what := map[string]string{sigma.NameS3: "the object store is not available",
			sigma.NameDB: "the databases are not available"}[l.name]
		return "", &sigma.Error{Op: "kernel.storeLink", Kind: sigma.KindUnavailable, Msg: what, Hint: sigma.HintOf(err),
			Err: err}
	}
	return e.String(), nil
}

func (l *storeLink) stop(ctx context.Context) (*sigma.Stopped, error) {
	text, err := l.ReadLink(ctx)
	if err != nil {
		return nil, err
	}
	return &sigma.Stopped{Walked: 1, Kind: sigma.KindEndpoint, Target: text}, nil
}
