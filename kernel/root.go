package kernel

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/progtree"
	"sigmaos.dev/kernel/quotas"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// tree is the tree of one session. It remembers the session's leases, which end with it.
type tree struct {
	k         *Kernel
	principal sigma.Principal
	view      *viewfs.Viewer  // of a proc that does not see all of its realm; nil = it does
	granted   *guests.Granted // of a guest; nil = the session was not begun with a credential
	far       bool            // another machine's sigmad asks: it is shown only what is of this machine (attachFar)

	quota  *quotas.Quota          // nil = the session is not counted
	end    context.CancelFunc     // ends the session
	over   chan struct{}          // closed when its last request is over
	realms map[sigma.RealmID]bool // sessions.mu; those it is attached to

	mu      sync.Mutex
	leases  map[sigma.LeaseID]sigma.RealmID // mu
	clients []uint64                        // mu; that number mutations
	counted bool                            // mu; in quota
	// a program of no proc was told of a proc's end while the machine was going to be stopped
	waited atomic.Bool
}

// Attach implements sigma.Tree. A program of the admin socket chooses its realm by name; a proc has
// its own.
func (t *tree) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	if t.far {
		return t.attachFar(name)
	}
	realm := p.Realm
	if p.System {
		if realm = sigma.RealmID(name); name == "" {
			realm = sigma.DefaultRealm
		}
		if err := realm.Check(); err != nil {
			return nil, err
		}
	} else if name != "" && sigma.RealmID(name) != realm {
		return nil, sigma.Errorf("kernel.Attach", sigma.KindPermission, "this program belongs to the realm %s", realm)
	}
	r := &root{tree: t, realm: realm}
	if realm != sigma.SystemRealm {
		if err := t.k.cluster.ShutOut(); err != nil { // nobody would answer for long
			return nil, err
		}
		if _, err := r.named(ctx); err != nil {
			if sigma.KindOf(err) == sigma.KindNotFound {
				return nil, &sigma.Error{Op: "kernel.Attach", Kind: sigma.KindNotFound,
					Msg: "no realm " + string(realm), Hint: "sigma realm ls lists them; sigma realm create makes one"}
			}
			return nil, err
		}
	}
	if err := t.enter(); err != nil {
		return nil, err
	}
	t.k.sessions.mu.Lock()
	defer t.k.sessions.mu.Unlock()
	if err := t.k.realms.MayAttach(realm); err != nil {
		return nil, err
	}
	t.realms[realm] = true
	if t.view != nil {
		return t.view.Root(), nil
	}
	return r, nil
}

// release ends the session's leases, so that ephemeral files vanish with the proc that made them
// (000 §3.4).
func (t *tree) release() {
	t.forget()
	t.mu.Lock()
	leases := t.leases
	t.leases = nil
	t.mu.Unlock()
	if t.view != nil {
		t.view.Release()
	}
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.k.life.ctx), services.ReconnectMax)
	defer cancel()
	for id, realm := range leases {
		n, err := (&root{tree: t, realm: realm}).kept(ctx)
		if err == nil {
			err = n.(sigma.Leaser).Revoke(ctx, id)
		}
		if err != nil {
			t.k.cfg.Log.Debug("lease left to expire", "realm", realm, "err", err)
		}
	}
}

// clientsMax bounds the numbering clients that are noted of one session; others are forgotten by
// named when they were idle for long.
const clientsMax = 64

// numbered notes a client that numbers its mutations in this session.
func (t *tree) numbered(client uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.clients) < clientsMax && !slices.Contains(t.clients, client) {
		t.clients = append(t.clients, client)
	}
}

// forget tells the realms' names that the session's clients are gone. Its last request is over.
func (t *tree) forget() {
	t.mu.Lock()
	clients := t.clients
	t.clients = nil
	t.mu.Unlock()
	if len(clients) == 0 {
		return
	}
	t.k.sessions.mu.Lock()
	realms := slices.Collect(maps.Keys(t.realms))
	t.k.sessions.mu.Unlock()
	for _, realm := range realms {
		if n := t.k.realms.Known(realm); n != nil {
			n.Forget(clients)
		}
	}
}

// root is the root of a realm: what named keeps, and the places the kernel provides.
type root struct {
	tree  *tree
	realm sigma.RealmID
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

// named is the root of what named keeps of the realm, for who asks: for the realm's programs modes
// count.
func (r *root) named(ctx context.Context) (sigma.File, error) {
	if r.realm == sigma.SystemRealm && !r.tree.isService(services.Machined) &&
		!r.tree.isService(services.Lcsched) { // the latter for its election
		return nil, sigma.Errorf("kernel.root", sigma.KindNotFound, "the realm system keeps no names")
	}
	return r.kept(ctx)
}

// kept is named for ourselves: when the session of a service ends, the launcher may have told
// before that the service is no more.
func (r *root) kept(ctx context.Context) (sigma.File, error) {
	if r.realm == sigma.SystemRealm {
		n, err := r.tree.k.realms.System(ctx)
		if err != nil {
			return nil, err
		}
		return n.AsOwner(), nil
	}
	n, err := r.tree.k.realms.Named(ctx, r.realm)
	if err != nil {
		return nil, err
	}
	if !r.tree.principal.System {
		return n.AsOwner(), nil
	}
	return n, nil
}

// RenameTarget gives the handle at named in which a rename from any of named's directories may put
// name.
func (r *root) RenameTarget(ctx context.Context, name string) (sigma.File, error) {
	if err := r.taken(name); err != nil {
		return nil, err
	}
	return r.named(ctx)
}

// provided returns the kernel's own file of that name, or nil.
func (r *root) provided(name string) sigma.File {
	switch name {
	case sigma.NameUX:
		return r.uxDir()
	case sigma.NameProc:
		return procRoot{r}.dir()
	case sigma.NameSys:
		return sys{r}.dir()
	case sigma.NameS3:
		if r.realm != sigma.SystemRealm {
			return &storeLink{k: r.tree.k, name: sigma.NameS3, service: services.S3}
		}
	case sigma.NameDB:
		if r.realm != sigma.SystemRealm {
			return &storeLink{k: r.tree.k, name: sigma.NameDB, service: services.DatabaseService(r.realm)}
		}
	}
	return nil
}

func (r *root) providedNames() []string {
	if r.realm == sigma.SystemRealm {
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
		return &root{tree: r.tree, realm: r.realm}, nil, nil
	}
	if f := r.provided(names[0]); f != nil {
		if _, ok := f.(*storeLink); !ok { // where that leads ends with the session there
			progtree.Leave(ctx)
		}
		return computed.WalkOn(ctx, f, names[1:])
	}
	n, err := r.named(ctx)
	if err != nil {
		return nil, nil, err
	}
	return n.Walk(ctx, names)
}

func (r *root) Stat(ctx context.Context) (sigma.Stat, error) {
	n, err := r.named(ctx)
	if err != nil {
		if r.realm == sigma.SystemRealm {
			return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: viewfs.PathID("/")}, Perm: 0o555,
				Modified: time.Unix(0, 0)}, nil
		}
		return sigma.Stat{}, err
	}
	return n.Stat(ctx)
}

func (r *root) SetStat(ctx context.Context, c sigma.StatChange) error {
	n, err := r.named(ctx)
	if err != nil {
		return err
	}
	return n.SetStat(ctx, c)
}

func (r *root) Open(_ context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("kernel.root.Open", sigma.KindIsDir, "/")
	}
	return nil
}

func (r *root) Create(ctx context.Context, name string, f sigma.OpenFlags, perm uint32) (sigma.File, error) {
	if err := r.taken(name); err != nil {
		return nil, err
	}
	n, err := r.named(ctx)
	if err != nil {
		return nil, err
	}
	return n.Create(ctx, name, f, perm)
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
		return out, last, last < uint64(len(provided)) || r.realm != sigma.SystemRealm, nil
	}
	n, err := r.named(ctx)
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

// change runs a change of the entry name at named.
func (r *root) change(ctx context.Context, name string, f func(sigma.File) error) error {
	if err := r.taken(name); err != nil {
		return err
	}
	n, err := r.named(ctx)
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
		defer f.Close()
		g, stop, err := treekit.Get(ctx, f, names[1:], offset, count)
		if stop != nil {
			stop.Walked++
		}
		return g, stop, err
	}
	n, err := r.named(ctx)
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	return treekit.Get(ctx, n, names, offset, count)
}

// Recall implements sigma.Recaller for named's files.
func (r *root) Recall(names []string, offset uint64, count int) (g sigma.GetResult, stop *sigma.Stopped, known bool,
	err error) {
	if len(names) == 0 || r.realm == sigma.SystemRealm || slices.Contains(r.providedNames(), names[0]) {
		return g, nil, false, nil
	}
	n := r.tree.k.realms.Known(r.realm)
	if n == nil {
		return g, nil, false, nil
	}
	return n.Recall(!r.tree.principal.System, names, offset, count)
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
		defer f.Close()
		if sigma.OnceOf(ctx).Again {
			return sigma.FileID{}, nil, treekit.NotRemembered()
		}
		id, stop, err := treekit.Put(ctx, f, names[1:], data, o)
		if stop != nil {
			stop.Walked++
		}
		return id, stop, err
	}
	n, err := r.named(ctx)
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	return treekit.Put(ctx, n, names, data, o)
}

// Watch implements sigma.Watcher; the kernel's own entries do not change.
func (r *root) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	n, err := r.named(ctx)
	if err != nil {
		return 0, err
	}
	return n.(sigma.Watcher).Watch(ctx, since)
}

func (r *root) leaser(ctx context.Context) (sigma.Leaser, error) {
	n, err := r.named(ctx)
	if err != nil {
		return nil, err
	}
	return n.(sigma.Leaser), nil
}

// Lease implements sigma.Leaser.
func (r *root) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, error) {
	l, err := r.leaser(ctx)
	if err != nil {
		return 0, err
	}
	id, err := l.Lease(ctx, ttl)
	if err == nil {
		r.tree.mu.Lock()
		if r.tree.leases == nil {
			r.tree.leases = map[sigma.LeaseID]sigma.RealmID{}
		}
		r.tree.leases[id] = r.realm
		r.tree.mu.Unlock()
	}
	return id, err
}

// Renew implements sigma.Leaser.
func (r *root) Renew(ctx context.Context, id sigma.LeaseID) error {
	l, err := r.leaser(ctx)
	if err != nil {
		return err
	}
	return l.Renew(ctx, id)
}

// Revoke implements sigma.Leaser.
func (r *root) Revoke(ctx context.Context, id sigma.LeaseID) error {
	l, err := r.leaser(ctx)
	if err != nil {
		return err
	}
	r.tree.mu.Lock()
	delete(r.tree.leases, id)
	r.tree.mu.Unlock()
	return l.Revoke(ctx, id)
}

// storeLink is /s3 or /db: an endpoint whose content is where the object store listens now, or the
// server of databases.
type storeLink struct {
	treekit.Base
	k             *Kernel
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
	e, err := l.k.reach.StoreEndpoint(ctx, l.service, false)
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

// enter counts the session at its first attach.
func (t *tree) enter() error {
	t.mu.Lock()
	first := t.quota != nil && !t.counted
	t.counted = t.quota != nil
	t.mu.Unlock()
	if !first {
		return nil
	}
	err := t.quota.Enter()
	if err != nil {
		t.mu.Lock()
		t.counted = false
		t.mu.Unlock()
	}
	return err
}
