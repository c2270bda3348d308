// Package realms is what a machine has to do with realms: the sessions with named by which it sees
// their names, the trees in which it finds their programs, and making, changing and removing them
// at all who keep something of them. It tells the machine's own parts what limits and shares hold.
// Users: kernel.
//
// Locks: Realms.mu, under which Config.IsAttached is called.
package realms

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/accounts"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/history"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/outside"
	"sigmaos.dev/kernel/past"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/progtree"
	"sigmaos.dev/kernel/quotas"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/registrations"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/client"
	"sigmaos.dev/trees/named/client/cache"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Config is what Realms need of their user.
type Config struct {
	Machine       sigma.MachineID
	CPU           sigma.MilliCPU // what the machine offers
	Memory        sigma.Bytes    // for procs
	Log           *slog.Logger
	Memo          *memo.Memo
	Procs         *procs.Table
	Cluster       *cluster.Cluster
	Reach         *reach.Reach
	Launcher      *launchers.Launchers
	Proxy         *dialproxy.Proxy
	Placing       *placement.Placement
	Shares        *shares.Groups
	Turns         *treeserver.Turns
	History       *history.History
	Past          *past.Past
	Remote        *remote.Remote
	Accounts      *accounts.Accounts
	Quotas        *quotas.Quotas
	Outside       *outside.Outside
	Registrations *registrations.Registrations
	// Roster is which machines there are.
	Roster func() []sigma.MachineInfo
	// Root is the root of a principal's realm without a session.
	Root func(p sigma.Principal) sigma.File
	// EndSessions ends the sessions that are attached to a realm, but for one, and waits until
	// their last requests are over.
	EndSessions func(ctx context.Context, realm sigma.RealmID, but any) error
	// IsAttached says whether a session is attached to a realm. Realms.mu is held.
	IsAttached func(realm sigma.RealmID) bool
}

// Realms are those that a machine has to do with. Safe for concurrent use.
type Realms struct {
	cfg      Config        // complete before Begin
	Recalled *cache.Budget // of what is remembered of all realms' names

	mu     sync.Mutex
	names  map[sigma.RealmID]*client.Realm   // mu
	trees  map[sigma.RealmID]*progtree.Tree  // mu; the kernel's own view of realms
	stores map[sigma.RealmID]*session.Client // mu; to the object store, for trees
}

// New makes realms of which nothing is known. Nothing is called before Take.
func New() *Realms {
	return &Realms{Recalled: &cache.Budget{Bytes: recalledMax}, names: map[sigma.RealmID]*client.Realm{},
		trees: map[sigma.RealmID]*progtree.Tree{}, stores: map[sigma.RealmID]*session.Client{}}
}

// Take sets what is needed of others, and answers other machines.
func (x *Realms) Take(cfg Config) {
	x.cfg = cfg
	cfg.Reach.Answer(reach.On(peerEndRealm, x.endHere))
}

// Holds says whether anything is kept of a realm here.
func (x *Realms) Holds(realm sigma.RealmID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.names[realm] != nil || x.trees[realm] != nil || x.stores[realm] != nil
}

// Replace puts other names in the place of a realm's, and gives those. Tests only.
func (x *Realms) Replace(realm sigma.RealmID, n *client.Realm) (old *client.Realm) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, x.names[realm] = x.names[realm], n
	return old
}

// recalledMax bounds what is remembered of the names of all realms together, so that tenants cannot
// fill sigmad by reading.
const recalledMax = 64 << 20

// Named returns the root of a realm's names. Its files live through restarts of named.
func (x *Realms) Named(ctx context.Context, realm sigma.RealmID) (*client.File, error) {
	for {
		x.mu.Lock()
		n := x.names[realm]
		if n == nil {
			n = client.New(client.Config{Dial: func(ctx context.Context) (client.Session, error) {
				return x.dialNames(ctx, realm)
			}, Budget: x.Recalled})
			x.names[realm] = n
		}
		x.mu.Unlock()
		root, err := n.Root(ctx)
		if err == nil {
			return root, nil
		}
		x.mu.Lock()
		dropped := x.names[realm] != n
		x.mu.Unlock()
		switch kind := sigma.KindOf(err); {
		case dropped && kind == sigma.KindStale:
			continue
		case !dropped && kind == sigma.KindNotFound: // names nobody has cost nothing
			x.Drop(realm)
		}
		return nil, err
	}
}

// HasRealm is an error if there is no such realm, or nobody knows.
func (x *Realms) HasRealm(ctx context.Context, realm sigma.RealmID) error {
	_, err := x.Named(ctx, realm)
	return err
}

// Doubt is called when programs of a realm are about to learn of something that was done on
// another machine.
func (x *Realms) Doubt(realm sigma.RealmID) {
	if n := x.Known(realm); n != nil {
		n.Doubt()
	}
}

// dialNames opens the machine's session to named for one realm. A realm of its own session cannot
// use up what others need.
func (x *Realms) dialNames(ctx context.Context, realm sigma.RealmID) (client.Session, error) {
	_, n, err := reach.Open(ctx, x.cfg.Reach, services.Named, func(ctx context.Context,
		s *session.Client) (client.Session, error) {
		return AttachNames(ctx, s, realm)
	})
	return n, err
}

// flushNames is how long what was given up waits for a named that does not answer: half as long as
// a program waits for sigmad, so that it hears why.
const flushNames = 500 * time.Millisecond

// AttachNames attaches to a realm's names twice: for the provider, and for the realm's programs.
func AttachNames(ctx context.Context, s *session.Client, realm sigma.RealmID) (client.Session, error) {
	s.FlushWithin(flushNames)
	root, err := progtree.Attach(ctx, s, realm)
	if err != nil {
		return client.Session{}, err
	}
	owner, err := s.Attach(ctx, string(realm)+sigmap.AsOwner)
	if err != nil {
		return client.Session{}, err
	}
	all, ok := owner.(client.Root)
	if !ok {
		return client.Session{}, sigma.Errorf("kernel.AttachNames", sigma.KindUnsupported,
			"the session's root is no remote file")
	}
	return client.Session{Root: root, Owner: all, Done: s.Done(), Close: s.Close}, nil
}

// Drop forgets a realm that is gone, and ends the sessions for it.
func (x *Realms) Drop(realm sigma.RealmID) {
	x.mu.Lock()
	end := x.takeNamesLocked(realm)
	x.mu.Unlock()
	end()
	x.cfg.Reach.DropFar(realm)
}

// takeNamesLocked forgets what this machine knows of a realm, and gives what ends its sessions for
// it.
func (x *Realms) takeNamesLocked(realm sigma.RealmID) (end func()) {
	n, store := x.names[realm], x.stores[realm]
	delete(x.names, realm)
	delete(x.trees, realm)
	delete(x.stores, realm)
	return func() {
		if n != nil {
			n.Close()
		}
		if store != nil {
			store.Close()
		}
	}
}

// Tree is the kernel's own view of a realm, with which it fetches programs.
func (x *Realms) Tree(realm sigma.RealmID) (*progtree.Tree, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.trees[realm]
	if t == nil {
		p := sigma.Principal{Realm: realm, Machine: x.cfg.Machine, System: true}
		t = progtree.New(resolve.New(resolve.Config{Machine: x.cfg.Machine,
			Root: x.cfg.Root(p),
			Dial: func(ctx context.Context, e sigma.Endpoint) (sigma.File, <-chan struct{}, error) {
				return x.Mount(ctx, realm, e)
			}}))
		x.trees[realm] = t
	}
	return t, nil
}

// Mount attaches to the object store for the kernel. It does not go through tenants' endpoints:
// their servers could make it wait.
func (x *Realms) Mount(ctx context.Context, realm sigma.RealmID, e sigma.Endpoint) (sigma.File, <-chan struct{},
	error) {
	is, err := x.cfg.Reach.IsStore(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	if !is { // another of the system's cannot be: each would cost a session that lasts
		return nil, nil, &sigma.Error{Op: "kernel.mount", Kind: sigma.KindNoExec,
			Msg: "programs are started from /bin and /s3 only", Hint: "copy the program to /bin"}
	}
	s, root, err := x.cfg.Reach.FindRoot(ctx, services.S3, realm)
	if err != nil {
		return nil, nil, err
	}
	x.mu.Lock()
	old := x.stores[realm]
	x.stores[realm] = s
	x.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return root, s.Done(), nil
}

// For makes and removes realms at all who keep something of them. by is the session that asks,
// nil for the kernel itself.
func (x *Realms) For(by any) sigma.Realms { return forSession{x, by} }

type forSession struct {
	x  *Realms
	by any
}

// beginRemoval keeps others out of a realm: no proc is spawned there and nobody attaches until end
// is called.
func (x *Realms) beginRemoval(id sigma.RealmID) (end func(), err error) {
	if err := x.MayEnter(id); err != nil {
		return nil, err
	}
	end, ok := x.cfg.Procs.Close(id)
	if !ok {
		return nil, x.cfg.Procs.Closed(id)
	}
	return end, nil
}

// MayAttach is the error for whoever comes to a realm that is being removed, or that nobody can
// enter now.
func (x *Realms) MayAttach(id sigma.RealmID) error {
	if err := x.MayEnter(id); err != nil {
		return err
	}
	return x.cfg.Procs.Closed(id)
}

// MayEnter is the error for whoever comes to a tenant's realm between two lives of this machine.
func (x *Realms) MayEnter(id sigma.RealmID) error {
	if id == sigma.SystemRealm || !x.cfg.Cluster.Between() {
		return nil
	}
	if err := x.cfg.Cluster.ShutOut(); err != nil {
		return err
	}
	return &sigma.Error{Op: "kernel.realms", Kind: sigma.KindUnavailable,
		Msg: "this machine's life was ended, and it is not registered anew yet", Hint: "sigma doctor says why"}
}

// Create implements sigma.Realms.
func (r forSession) Create(ctx context.Context, id sigma.RealmID) error {
	if err := id.Check(); err != nil {
		return err
	}
	if id == sigma.SystemRealm {
		return sigma.Errorf("kernel.realms", sigma.KindExists, "the realm system is the provider's")
	}
	if err := r.x.MayAttach(id); err != nil {
		return err
	}
	err := sigmap.CallCreateRealm.Tell(ctx, r.x.cfg.Reach.Root(services.Named), id)
	if err != nil && sigma.KindOf(err) != sigma.KindExists {
		return err
	}
	// What follows is done again for a realm that exists, because a crash may have come in between.
	t, terr := r.x.Tree(id)
	if terr != nil {
		return terr
	}
	if serr := t.Symlink(ctx, "/s3/bin", "/bin"); serr != nil && sigma.KindOf(serr) != sigma.KindExists {
		return serr
	}
	if merr := r.makeBin(ctx, t, err != nil); merr != nil {
		return merr
	}
	if err == nil {
		r.x.leaveFresh(id)
		r.x.cfg.History.Events.OfSystem(report.Event{Event: report.EventRealmCreated, Realm: string(id)})
	}
	return err
}

// binWait is how long a realm that was there before waits for its object store, which may be away:
// the machine comes up all the same.
const binWait = 5 * time.Second

// makeBin makes the directory of a realm's programs.
func (r forSession) makeBin(ctx context.Context, t *progtree.Tree, before bool) error {
	if !before {
		return t.MkdirAll(ctx, "/s3/bin", 0o755)
	}
	ctx, cancel := context.WithTimeout(ctx, binWait)
	defer cancel()
	err := t.MkdirAll(ctx, "/s3/bin", 0o755)
	switch sigma.KindOf(err) {
	case sigma.KindUnavailable, sigma.KindTimeout, sigma.KindBusy, sigma.KindPermission, sigma.KindNoSpace:
		if err != nil {
			r.x.cfg.Log.Warn("a realm's object store is of no use at the moment", "err", err)
			return nil
		}
	}
	return err
}

// leaveFresh ends the machine's own sessions for a realm that was just made, unless somebody is
// there already: thousands of realms that nobody uses shall not hold connections.
func (x *Realms) leaveFresh(realm sigma.RealmID) {
	x.mu.Lock()
	if x.cfg.IsAttached(realm) {
		x.mu.Unlock()
		return
	}
	end := x.takeNamesLocked(realm)
	x.mu.Unlock()
	end()
}

// Remove implements sigma.Realms. It ends the procs and sessions first, so that nobody writes any
// more.
func (r forSession) Remove(ctx context.Context, id sigma.RealmID) error {
	if err := id.Check(); err != nil {
		return err
	}
	if id == sigma.SystemRealm || id == sigma.DefaultRealm {
		return sigma.Errorf("kernel.realms", sigma.KindPermission, "the realm %s cannot be removed", id)
	}
	if err := r.x.HasRealm(ctx, id); err != nil {
		return err
	}
	end, err := r.x.beginRemoval(id)
	if err != nil {
		return err
	}
	defer end()
	if err := r.x.cfg.Registrations.Forget(ctx, id); err != nil {
		return err
	}
	if err := r.x.leaveRealm(ctx, id, r.by); err != nil {
		return err
	}
	if err := r.x.leaveRealmElsewhere(ctx, id); err != nil {
		return err
	}
	if err := sigmap.CallRemoveRealm.Tell(ctx, r.x.cfg.Reach.Root(services.S3), id); err != nil &&
		sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	if err := r.x.cfg.Outside.ForgetRealm(services.S3, id); err != nil {
		return err
	}
	if err := r.x.cfg.Outside.RemoveRealm(ctx, id); err != nil {
		return err
	}
	// Programs on other machines may have registered procs since the first Forget.
	if err := r.x.cfg.Registrations.Forget(ctx, id); err != nil {
		return err
	}
	// last, so that a removal that was interrupted can be repeated
	err = sigmap.CallRemoveRealm.Tell(ctx, r.x.cfg.Reach.Root(services.Named), id)
	r.x.Drop(id)
	if err != nil {
		return err
	}
	r.x.forgetRealm(id)
	r.x.cfg.History.Events.OfSystem(report.Event{Event: report.EventRealmRemoved, Realm: string(id)})
	return r.x.leaveRealmElsewhere(ctx, id) // what somebody began there meanwhile
}

// SetShares implements sigma.Realms. The bescheds hear of it at once, if procs of this machine wait
// there, else within a second of those that have some.
func (r forSession) SetShares(ctx context.Context, id sigma.RealmID, shares uint32) error {
	if id == sigma.SystemRealm {
		return sigma.Errorf("kernel.realms", sigma.KindPermission,
			"the realm system is the provider's and has no shares")
	}
	err := sigmap.CallSetShares.Tell(ctx, r.x.cfg.Reach.Root(services.Named), sigmap.RealmShares{Realm: id,
		Shares: shares})
	r.x.cfg.Shares.Touch()
	r.x.cfg.Memo.Forget(memoRealms)
	r.x.cfg.Placing.SharesChanged()
	return err
}

// SetLimits implements sigma.Realms. They are named's to keep.
func (r forSession) SetLimits(ctx context.Context, id sigma.RealmID, limits sigma.RealmLimits) error {
	if err := r.x.canLimit(ctx, id, limits); err != nil {
		return err
	}
	defer r.x.cfg.Shares.Touch()
	return sigmap.CallSetLimits.Tell(ctx, r.x.cfg.Reach.Root(services.Named), sigmap.LimitsOfRealm{Realm: id,
		Limits: limits})
}

// List implements sigma.Realms.
func (r forSession) List(ctx context.Context) (out []sigma.RealmInfo, err error) {
	if out, err = r.x.cfg.Reach.Realms(ctx); err != nil {
		return nil, err
	}
	out = slices.DeleteFunc(out, func(i sigma.RealmInfo) bool { return i.ID == sigma.SystemRealm }) // no tenant's
	r.x.cfg.Remote.Count(ctx, out)
	return out, nil
}

// System is the root of the names of the system's realm, which no tenant sees. The first
// machine's first start makes it.
func (x *Realms) System(ctx context.Context) (*client.File, error) {
	n, err := x.Named(ctx, sigma.SystemRealm)
	if err == nil || sigma.KindOf(err) != sigma.KindNotFound {
		return n, err
	}
	if err := sigmap.CallCreateRealm.Tell(ctx, x.cfg.Reach.Root(services.Named), sigma.SystemRealm); err != nil &&
		sigma.KindOf(err) != sigma.KindExists {
		return nil, err
	}
	return x.Named(ctx, sigma.SystemRealm)
}

// memoRealms is the key of the list of realms.
const memoRealms = "realms"

// List is what named tells of all realms.
func (x *Realms) List() ([]sigma.RealmInfo, error) {
	all, _, err := x.ListAt()
	return all, err
}

// ListAt tells too when named was asked: what it says is no older.
func (x *Realms) ListAt() ([]sigma.RealmInfo, time.Time, error) {
	type list struct {
		all   []sigma.RealmInfo
		asked time.Time
	}
	l, err := memo.Recall(x.cfg.Memo, memoRealms, func(ctx context.Context) (l list, err error) {
		l.asked = time.Now()
		l.all, err = x.cfg.Reach.Realms(ctx)
		return l, err
	})
	return l.all, l.asked, err
}

// Known is what this machine has of a realm's names; nil if it has nothing.
func (x *Realms) Known(realm sigma.RealmID) *client.Realm {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.names[realm]
}
