package kernel

import (
	"context"
	"slices"
	"time"

	"sigmaos.dev/kernel/progtree"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/names"
	"sigmaos.dev/namespace"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// recalledMax bounds what is remembered of the names of all realms together, so that tenants cannot
// fill sigmad by reading.
const recalledMax = 64 << 20

// named returns the root of a realm's names. Its files live through restarts of named.
func (k *Kernel) named(ctx context.Context, realm sigma.RealmID) (*names.File, error) {
	for {
		k.mu.Lock()
		n := k.names[realm]
		if n == nil {
			n = names.New(names.Config{Dial: func(ctx context.Context) (names.Session, error) {
				return k.dialNames(ctx, realm)
			}, Budget: k.recalled})
			k.names[realm] = n
		}
		k.mu.Unlock()
		root, err := n.Root(ctx)
		if err == nil {
			return root, nil
		}
		k.mu.Lock()
		dropped := k.names[realm] != n
		k.mu.Unlock()
		switch kind := sigma.KindOf(err); {
		case dropped && kind == sigma.KindStale:
			continue
		case !dropped && kind == sigma.KindNotFound: // names nobody has cost nothing
			k.dropNames(realm)
		}
		return nil, err
	}
}

// hasRealm is an error if there is no such realm, or nobody knows.
func (k *Kernel) hasRealm(ctx context.Context, realm sigma.RealmID) error {
	_, err := k.named(ctx, realm)
	return err
}

// doubtNames is called when programs of a realm are about to learn of something that was done on
// another machine.
func (k *Kernel) doubtNames(realm sigma.RealmID) {
	k.mu.Lock()
	n := k.names[realm]
	k.mu.Unlock()
	if n != nil {
		n.Doubt()
	}
}

// dialNames opens the machine's session to named for one realm. A realm of its own session cannot
// use up what others need.
func (k *Kernel) dialNames(ctx context.Context, realm sigma.RealmID) (names.Session, error) {
	_, n, err := reach.Open(ctx, k.reach, services.Named, func(ctx context.Context,
		s *session.Client) (names.Session, error) {
		return attachNames(ctx, s, realm)
	})
	return n, err
}

// flushNames is how long what was given up waits for a named that does not answer: half as long as
// a program waits for sigmad, so that it hears why.
const flushNames = 500 * time.Millisecond

// attachNames attaches to a realm's names twice: for the provider, and for the realm's programs.
func attachNames(ctx context.Context, s *session.Client, realm sigma.RealmID) (names.Session, error) {
	s.FlushWithin(flushNames)
	root, err := progtree.Attach(ctx, s, realm)
	if err != nil {
		return names.Session{}, err
	}
	owner, err := s.Attach(ctx, string(realm)+sigmap.AsOwner)
	if err != nil {
		return names.Session{}, err
	}
	all, ok := owner.(names.Root)
	if !ok {
		return names.Session{}, sigma.Errorf("kernel.attachNames", sigma.KindUnsupported,
			"the session's root is no remote file")
	}
	return names.Session{Root: root, Owner: all, Done: s.Done(), Close: s.Close}, nil
}

// dropNames forgets a realm that is gone, and ends the sessions for it.
func (k *Kernel) dropNames(realm sigma.RealmID) {
	k.mu.Lock()
	end := k.takeNamesLocked(realm)
	k.mu.Unlock()
	end()
	k.reach.DropFar(realm)
}

// takeNamesLocked forgets what this machine knows of a realm, and gives what ends its sessions for
// it.
func (k *Kernel) takeNamesLocked(realm sigma.RealmID) (end func()) {
	n, store := k.names[realm], k.stores[realm]
	delete(k.names, realm)
	delete(k.trees, realm)
	delete(k.stores, realm)
	return func() {
		if n != nil {
			n.Close()
		}
		if store != nil {
			store.Close()
		}
	}
}

// tree is the kernel's own view of a realm, with which it fetches programs.
func (k *Kernel) tree(realm sigma.RealmID) (*progtree.Tree, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.trees[realm]
	if t == nil {
		p := sigma.Principal{Realm: realm, Machine: k.cfg.Machine, System: true}
		t = progtree.New(namespace.New(namespace.Config{Machine: k.cfg.Machine,
			Root: &root{tree: &tree{k: k, principal: p}, realm: realm},
			Dial: func(ctx context.Context, e sigma.Endpoint) (sigma.File, <-chan struct{}, error) {
				return k.mount(ctx, realm, e)
			}}))
		k.trees[realm] = t
	}
	return t, nil
}

// mount attaches to the object store for the kernel. It does not go through tenants' endpoints:
// their servers could make it wait.
func (k *Kernel) mount(ctx context.Context, realm sigma.RealmID, e sigma.Endpoint) (sigma.File, <-chan struct{},
	error) {
	is, err := k.reach.IsStore(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	if !is { // another of the system's cannot be: each would cost a session that lasts
		return nil, nil, &sigma.Error{Op: "kernel.mount", Kind: sigma.KindNoExec,
			Msg: "programs are started from /bin and /s3 only", Hint: "copy the program to /bin"}
	}
	s, root, err := k.reach.FindRoot(ctx, services.S3, realm)
	if err != nil {
		return nil, nil, err
	}
	k.mu.Lock()
	old := k.stores[realm]
	k.stores[realm] = s
	k.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return root, s.Done(), nil
}

// realms makes and removes realms at all who keep something of them. by is the session that asks,
// nil for the kernel itself.
func (k *Kernel) realms(by *tree) sigma.Realms { return realms{k, by} }

type realms struct {
	k  *Kernel
	by *tree
}

// beginRemoval keeps others out of a realm: no proc is spawned there and nobody attaches until end
// is called.
func (k *Kernel) beginRemoval(id sigma.RealmID) (end func(), err error) {
	if err := k.mayEnter(id); err != nil {
		return nil, err
	}
	end, ok := k.procs.Close(id)
	if !ok {
		return nil, k.procs.Closed(id)
	}
	return end, nil
}

// removed is the error for whoever comes to a realm that is being removed, or that nobody can enter
// now.
func (k *Kernel) removed(id sigma.RealmID) error {
	if err := k.mayEnter(id); err != nil {
		return err
	}
	return k.procs.Closed(id)
}

// mayEnter is the error for whoever comes to a tenant's realm between two lives of this machine.
func (k *Kernel) mayEnter(id sigma.RealmID) error {
	if id == sigma.SystemRealm || !k.cluster.Between() {
		return nil
	}
	if err := k.cluster.ShutOut(); err != nil {
		return err
	}
	return &sigma.Error{Op: "kernel.realms", Kind: sigma.KindUnavailable,
		Msg: "this machine's life was ended, and it is not registered anew yet", Hint: "sigma doctor says why"}
}

// endSessions ends the sessions that are attached to a realm, but for one, and waits until their
// last requests are over.
func (k *Kernel) endSessions(ctx context.Context, realm sigma.RealmID, but *tree) error {
	k.mu.Lock()
	var ts []*tree
	for t := range k.open {
		if t != but && t.realms[realm] {
			ts = append(ts, t)
		}
	}
	k.mu.Unlock()
	for _, t := range ts {
		t.end()
	}
	for _, t := range ts {
		select {
		case <-t.over:
		case <-ctx.Done():
			return sigma.Wrap("kernel.realms", "", ctx.Err())
		}
	}
	return nil
}

// Create implements sigma.Realms.
func (r realms) Create(ctx context.Context, id sigma.RealmID) error {
	if err := id.Check(); err != nil {
		return err
	}
	if id == sigma.SystemRealm {
		return sigma.Errorf("kernel.realms", sigma.KindExists, "the realm system is the provider's")
	}
	if err := r.k.removed(id); err != nil {
		return err
	}
	_, err := r.k.reach.Admin(ctx, services.Named, sigmap.CallCreate, id)
	if err != nil && sigma.KindOf(err) != sigma.KindExists {
		return err
	}
	// What follows is done again for a realm that exists, because a crash may have come in between.
	t, terr := r.k.tree(id)
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
		r.k.leaveFresh(id)
		r.k.history.Events.OfSystem(state.Event{Event: state.EventRealmCreated, Realm: string(id)})
	}
	return err
}

// binWait is how long a realm that was there before waits for its object store, which may be away:
// the machine comes up all the same.
const binWait = 5 * time.Second

// makeBin makes the directory of a realm's programs.
func (r realms) makeBin(ctx context.Context, t *progtree.Tree, before bool) error {
	if !before {
		return t.MkdirAll(ctx, "/s3/bin", 0o755)
	}
	ctx, cancel := context.WithTimeout(ctx, binWait)
	defer cancel()
	err := t.MkdirAll(ctx, "/s3/bin", 0o755)
	switch sigma.KindOf(err) {
	case sigma.KindUnavailable, sigma.KindTimeout, sigma.KindBusy, sigma.KindPermission, sigma.KindNoSpace:
		if err != nil {
			r.k.cfg.Log.Warn("a realm's object store is of no use at the moment", "err", err)
			return nil
		}
	}
	return err
}

// leaveFresh ends the machine's own sessions for a realm that was just made, unless somebody is
// there already: thousands of realms that nobody uses shall not hold connections.
func (k *Kernel) leaveFresh(realm sigma.RealmID) {
	k.mu.Lock()
	for t := range k.open {
		if t.realms[realm] {
			k.mu.Unlock()
			return
		}
	}
	end := k.takeNamesLocked(realm)
	k.mu.Unlock()
	end()
}

// Remove implements sigma.Realms. It ends the procs and sessions first, so that nobody writes any
// more.
func (r realms) Remove(ctx context.Context, id sigma.RealmID) error {
	if err := id.Check(); err != nil {
		return err
	}
	if id == sigma.SystemRealm || id == sigma.DefaultRealm {
		return sigma.Errorf("kernel.realms", sigma.KindPermission, "the realm %s cannot be removed", id)
	}
	if err := r.k.hasRealm(ctx, id); err != nil {
		return err
	}
	end, err := r.k.beginRemoval(id)
	if err != nil {
		return err
	}
	defer end()
	if err := r.k.registrations.Forget(ctx, id); err != nil {
		return err
	}
	if err := r.k.leaveRealm(ctx, id, r.by); err != nil {
		return err
	}
	if err := r.k.leaveRealmElsewhere(ctx, id); err != nil {
		return err
	}
	if _, err := r.k.reach.Admin(ctx, services.S3, sigmap.CallRemove, id); err != nil &&
		sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	if err := r.k.outside.ForgetRealm(services.S3, id); err != nil {
		return err
	}
	if err := r.k.outside.RemoveRealm(ctx, id); err != nil {
		return err
	}
	if err := r.k.registrations.Forget(ctx, id); err != nil { // what another machine's programs registered meanwhile
		return err
	}
	_, err = r.k.reach.Admin(ctx, services.Named, sigmap.CallRemove,
		id) // last, so that a removal that was interrupted can be repeated
	r.k.dropNames(id)
	if err != nil {
		return err
	}
	r.k.forgetRealm(id)
	r.k.history.Events.OfSystem(state.Event{Event: state.EventRealmRemoved, Realm: string(id)})
	return r.k.leaveRealmElsewhere(ctx, id) // what somebody began there meanwhile
}

// SetShares implements sigma.Realms. The bescheds hear of it at once, if procs of this machine wait
// there, else within a second of those that have some.
func (r realms) SetShares(ctx context.Context, id sigma.RealmID, shares uint32) error {
	if id == sigma.SystemRealm {
		return sigma.Errorf("kernel.realms", sigma.KindPermission,
			"the realm system is the provider's and has no shares")
	}
	_, err := r.k.reach.AskRoot(ctx, services.Named, sigmap.CallSetShares, func(e *sigmap.Coder) {
		e.RealmID(&id)
		e.U32(&shares)
	})
	r.k.shares.Touch()
	r.k.memo.Forget(memoRealms)
	r.k.placing.SharesChanged()
	return err
}

// SetLimits implements sigma.Realms. They are named's to keep.
func (r realms) SetLimits(ctx context.Context, id sigma.RealmID, limits sigma.RealmLimits) error {
	if err := r.k.canLimit(ctx, id, limits); err != nil {
		return err
	}
	defer r.k.shares.Touch()
	_, err := r.k.reach.AskRoot(ctx, services.Named, sigmap.CallSetLimits, func(e *sigmap.Coder) {
		e.RealmID(&id)
		e.RealmLimits(&limits)
	})
	return err
}

// List implements sigma.Realms.
func (r realms) List(ctx context.Context) (out []sigma.RealmInfo, err error) {
	if out, err = r.k.reach.Realms(ctx); err != nil {
		return nil, err
	}
	out = slices.DeleteFunc(out, func(i sigma.RealmInfo) bool { return i.ID == sigma.SystemRealm }) // no tenant's
	r.k.remote.Count(ctx, out)
	return out, nil
}
