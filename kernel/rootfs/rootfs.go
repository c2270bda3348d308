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
	"sigmaos.dev/wire/session"
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
func (x *FS) Root(s sessions.Scope) sigma.File {
	r := &root{x: x, s: s}
	r.Handler = r
	return r
}

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
	sigma.Stub
	x *FS
	s sessions.Scope
}

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

// Handle implements sigma.Handler: what is not of the kernel's own entries is asked of named.
func (r *root) Handle(ctx context.Context, q sigma.Request) (a sigma.Reply, err error) {
	switch q.Op {
	case sigma.OpClose, sigma.OpSync, sigma.OpIdentify, sigma.OpStreams, sigma.OpSpace, sigma.OpPublish:
		return a, nil
	case sigma.OpRemembers: // what changes in it changes at named
		return sigma.Reply{Yes: true}, nil
	case sigma.OpReadAt, sigma.OpWriteAt:
		return a, r.isDir(q)
	case sigma.OpReadLink:
		return a, sigma.PathError("kernel.root.ReadLink", sigma.KindInvalid, "/")
	case sigma.OpOpen:
		if q.Flags.Writes() {
			err = r.isDir(q)
		}
		return a, err
	case sigma.OpRecall:
		return r.recall(ctx, q)
	case sigma.OpWalk:
		if len(q.Names) == 0 {
			a.File = r.x.Root(r.s)
			return a, nil
		}
		if f := r.provided(q.Names[0]); f != nil {
			if _, ok := f.(*storeLink); !ok { // where that leads ends with the session there
				progtree.Leave(ctx)
			}
			a.File, a.IDs, err = computed.WalkOn(ctx, f, q.Names[1:])
			return a, err
		}
	case sigma.OpGet, sigma.OpPut:
		if len(q.Names) == 0 {
			return a, r.isDir(q)
		}
		if f := r.provided(q.Names[0]); f != nil {
			return r.whole(ctx, f, q)
		}
	case sigma.OpReadDir:
		return r.readDir(ctx, q)
	case sigma.OpCreate, sigma.OpMkdir, sigma.OpSymlink, sigma.OpRemove, sigma.OpRename:
		err = r.taken(q.Name)
	case sigma.OpRevoke:
		r.s.Revoked(q.Lease)
	case sigma.OpStat, sigma.OpSetStat, sigma.OpWatch, sigma.OpLease, sigma.OpRenew:
	default:
		session.CloseFiles(q.Files)
		err = treeserver.Unsupported(q.Op.String())
	}
	if err != nil {
		return a, err
	}
	n, err := r.s.Named(ctx)
	switch {
	case err == nil:
		if a, err = treeserver.Do(ctx, n, q); err == nil && q.Op == sigma.OpLease {
			r.s.Leased(a.Lease, r.s.Realm)
		}
	case q.Op == sigma.OpStat && r.s.Realm == sigma.SystemRealm:
		a.Stat = sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: viewfs.PathID("/")}, Perm: 0o555,
			Modified: time.Unix(0, 0)}
		err = nil
	}
	return a, err
}

func (r *root) isDir(q sigma.Request) error {
	return sigma.PathError("kernel.root."+q.Op.String(), sigma.KindIsDir, "/")
}

// namedCookies marks cookies of named's part of the listing, which comes after the kernel's.
const namedCookies = 1 << 63

func (r *root) readDir(ctx context.Context, q sigma.Request) (a sigma.Reply, err error) {
	if provided := r.providedNames(); q.Offset < uint64(len(provided)) {
		a.Next = min(q.Offset+uint64(max(q.Count, 1)), uint64(len(provided)))
		for i := q.Offset; i < a.Next; i++ {
			st, err := r.provided(provided[i]).Stat(ctx)
			if err != nil {
				return a, err
			}
			a.Entries = append(a.Entries, sigma.DirEntry{Name: provided[i], ID: st.ID, Next: i + 1})
		}
		a.More = a.Next < uint64(len(provided)) || r.s.Realm != sigma.SystemRealm
		return a, nil
	}
	n, err := r.s.Named(ctx)
	if err != nil {
		return a, err
	}
	d, _, err := n.Walk(ctx, nil)
	if err != nil {
		return a, err
	}
	defer d.Close()
	if err := d.Open(ctx, sigma.OpenRead); err != nil {
		return a, err
	}
	if q.Offset&namedCookies == 0 { // the kernel's part is done
		q.Offset = 0
	}
	q.Offset &^= namedCookies
	a, err = treeserver.Do(ctx, d, q)
	for i := range a.Entries {
		a.Entries[i].Next |= namedCookies
	}
	a.Next |= namedCookies
	return a, err
}

// whole carries out Get and Put at the kernel's own entry f, and in one hop for links.
func (r *root) whole(ctx context.Context, f sigma.File, q sigma.Request) (a sigma.Reply, err error) {
	l, ok := f.(*storeLink)
	switch {
	case q.Op == sigma.OpPut && len(q.Names) == 1:
		err = r.taken(q.Names[0])
	case ok:
		a.Stop, err = l.stop(ctx)
	case q.Op == sigma.OpPut && sigma.OnceOf(ctx).Again:
		err = treeserver.NotRemembered()
	default:
		return computed.On(ctx, f, q)
	}
	f.Close()
	return a, err
}

// recall answers for named's files.
func (r *root) recall(ctx context.Context, q sigma.Request) (a sigma.Reply, err error) {
	if len(q.Names) == 0 || r.s.Realm == sigma.SystemRealm || slices.Contains(r.providedNames(), q.Names[0]) {
		return a, nil
	}
	n := r.x.Realms.Known(r.s.Realm)
	if n == nil {
		return a, nil
	}
	g, stop, known, err := n.Recall(!r.s.Principal.System, q.Names, q.Offset, q.Count)
	return sigma.Reply{Data: g.Data, ID: g.ID, Size: g.Size, Stop: stop, Yes: known}, err
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
