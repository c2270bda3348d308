package kernel

import (
	"cmp"
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/initd"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/registrations"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/namespace"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// peerInit: initd.Look -> []initd.Seen, of what the machine that is asked knows itself; Unsure
// stands for what is a guest of another, which knows better, Gone for what it does not know.
const peerInit = "init"

// initFile is /sys/init: what is registered in the realm, a line each; calls of who registers; and
// of the leader of initd.
func (r *root) initFile() sigma.File {
	methods := map[string]handler{sigmap.CallInitAdd: r.initAdd, sigmap.CallInitRemove: r.initRemove,
		sigmap.CallInitRestart: r.initRestart}
	if r.realm == sigma.SystemRealm && r.tree.isService(services.Lcsched) {
		methods = map[string]handler{initd.CallLook: r.initLook, initd.CallSpawn: r.initSpawn,
			initd.CallStop: r.initStop}
	}
	return r.sysState(sigmap.FileInit, r.initLines).Answering(r.callable(sigmap.FileInit, methods))
}

// systemNames is the kernel's own view of the names of the system's realm, where records of initd
// are.
func (k *Kernel) systemNames(ctx context.Context) (*namespace.Tree, error) {
	n, err := k.systemNamed(ctx)
	if err != nil {
		return nil, err
	}
	return namespace.New(namespace.Config{Machine: k.cfg.Machine, Root: n}), nil
}

// initLines are the registrations of the session's realm; of all realms if the provider asks in
// that of the system.
func (r *root) initLines(ctx context.Context) ([]byte, error) {
	t, err := r.tree.k.systemNames(ctx)
	if err != nil {
		return nil, err
	}
	realms := []sigma.RealmID{r.realm}
	if r.realm == sigma.SystemRealm {
		realms = nil
		entries, err := t.ReadDir(sigma.WithSync(ctx), initd.RealmsDir)
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return nil, err
		}
		for _, e := range entries {
			realms = append(realms, sigma.RealmID(e.Name))
		}
	}
	out := []state.Registration{}
	for _, realm := range realms {
		records, err := initd.ReadRecords(ctx, t, realm)
		if err != nil {
			return nil, err
		}
		for i := range records {
			out = append(out, registrations.Line(&records[i]))
		}
	}
	return state.Lines(out)
}

// initAdd registers a proc of the session's realm: in place of what is registered under the name if
// that is wished, or was removed and its proc has not ended yet, or cannot be read.
func (r *root) initAdd(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.initAdd"
	var g sigma.Registration
	var replace bool
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Registration(&g); c.Bool(&replace) }); err != nil {
		return nil, nil, err
	}
	if err := g.Check(); err != nil {
		return nil, nil, err
	}
	if g.Restart == "" {
		g.Restart = sigma.RestartAlways
	}
	if r.realm == sigma.SystemRealm {
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "procs are not registered in the realm system")
	}
	record := initd.NewRecord(g, time.Now())
	if err := record.Fits(); err != nil {
		return nil, nil, err
	}
	k := r.tree.k
	t, err := k.systemNames(ctx)
	if err != nil {
		return nil, nil, err
	}
	dir := initd.RealmsDir + "/" + string(r.realm)
	if err := t.MkdirAll(ctx, dir, 0o700); err != nil {
		return nil, nil, err
	}
	if err := k.removed(r.realm); err != nil { // the registrations of a realm that is being removed go first
		return nil, nil, err
	}
	key := initd.Key{Realm: r.realm, Name: g.Name}
	for {
		if err := registrations.Add(ctx, t, dir, key, record); err == nil || sigma.KindOf(err) != sigma.KindExists {
			return nil, nil, err
		}
		err := registrations.Change(ctx, t, key, func(v *initd.Versioned, damaged error) error {
			switch {
			case damaged != nil && replace:
				v.Record = record
			case replace || damaged == nil && v.Record.Removed:
				v.Record.Replace(g, time.Now())
			default:
				return &sigma.Error{Op: op, Kind: sigma.KindExists, Msg: "there is a registered proc " + g.Name,
					Hint: "register this in its place with: sigma init add --replace; or remove that with: sigma " +
						"init rm " + g.Name}
			}
			return nil
		})
		if err == nil || sigma.KindOf(err) != sigma.KindNotFound || ctx.Err() != nil { // else it is gone by now
			return nil, nil, err
		}
	}
}

// initRemove marks a registration as removed; the leader ends its proc and drops it. A damaged one
// is dropped here.
func (r *root) initRemove(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	t, key, err := r.registered(ctx, payload)
	if err != nil {
		return nil, nil, err
	}
	var damagedAt sigma.Version
	err = registrations.Change(ctx, t, key, func(v *initd.Versioned, damaged error) error {
		v.Record.Removed, damagedAt = true, v.Version
		return damaged
	})
	if err != nil && sigma.KindOf(err) == sigma.KindInvalid {
		if err = initd.ForgetRecord(ctx, t, key, damagedAt); err == nil {
			err = registrations.Changed(ctx, t)
		}
	}
	return nil, nil, registrations.Unknown(err)
}

// initRestart has the instance of a registration end, and another started at once.
func (r *root) initRestart(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	t, key, err := r.registered(ctx, payload)
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, registrations.Unknown(registrations.Change(ctx, t, key, func(v *initd.Versioned,
		damaged error) error {
		if damaged == nil && v.Record.Removed {
			return sigma.Errorf("kernel.initRestart", sigma.KindNotFound, "it is being removed")
		}
		v.Record.Again()
		return damaged
	}))
}

// registered finds where the record of the name in a payload is.
func (r *root) registered(ctx context.Context, payload []byte) (t *namespace.Tree, key initd.Key, err error) {
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&key.Name) }); err != nil {
		return nil, key, err
	}
	if _, err := sigma.ParsePath("/" + key.Name); err != nil || len(key.Name) > 64 {
		return nil, key, registrations.Unknown(sigma.PathError("kernel.init", sigma.KindNotFound, ""))
	}
	key.Realm = r.realm
	t, err = r.tree.k.systemNames(ctx)
	return t, key, err
}

// forgetRegistrations drops those of a realm that is being removed, before its procs are ended.
func (k *Kernel) forgetRegistrations(ctx context.Context, realm sigma.RealmID) error {
	t, err := k.systemNames(ctx)
	if err != nil {
		return err
	}
	err = t.RemoveAll(ctx, initd.RealmsDir+"/"+string(realm))
	if sigma.KindOf(err) == sigma.KindNotFound || err == nil {
		return nil
	}
	return err
}

// peerInit answers another machine's sigmad.
func (k *Kernel) peerInit(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var l initd.Look
	if err := sigmap.Parse(payload, l.Code); err != nil {
		return nil, err
	}
	ss := make([]initd.Seen, len(l.Questions))
	if err := k.initEpoch.Admit(l.Epoch, func() {
		for i, q := range l.Questions {
			ss[i], _ = k.seen(q)
		}
	}); err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { initd.CodeSeen(c, &ss) })
}

// initLook asks here, and all other machines for what is not at home here. Only when each that is
// alive has answered that it does not know a proc is it gone.
func (r *root) initLook(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	k := r.tree.k
	var l initd.Look
	if err := sigmap.Parse(payload, l.Code); err != nil {
		return nil, nil, err
	}
	down := sigma.Errorf("kernel.initLook", sigma.KindUnavailable, "the system is being stopped")
	if k.cluster.AllLeave() { // what has gone for that is no news, and nothing is to be started
		return nil, nil, down
	}
	ss := make([]initd.Seen, len(l.Questions))
	far := initd.Look{Epoch: l.Epoch}
	var at []int
	if err := k.initEpoch.Admit(l.Epoch, func() {
		for i, q := range l.Questions {
			var home bool
			if ss[i], home = k.seen(q); !home {
				far.Questions = append(far.Questions, q)
				at = append(at, i)
			}
		}
	}); err != nil {
		return nil, nil, err
	}
	if len(at) > 0 {
		if err := k.initLookFar(ctx, &far, at, ss); err != nil {
			return nil, nil, err
		}
	}
	if k.cluster.AllLeave() { // meanwhile
		return nil, nil, down
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { initd.CodeSeen(c, &ss) })
	return reply, nil, err
}

// seen is what this machine knows of a proc. Until it has entered what an earlier sigmad
// remembered, a proc that it does not know may be one that has ended.
func (k *Kernel) seen(q initd.Question) (s initd.Seen, home bool) {
	k.procs.With(func(v procs.View) { s, home = initd.SeenAt(v.Core, q, time.Now()) })
	if s.Sight == initd.Gone && !k.past.IsRecalled() {
		s.Sight = initd.Unsure
	}
	return s, home
}

// initLookFar asks the other machines for those of ss that at numbers. What one of them knows
// counts more than what others do not.
func (k *Kernel) initLookFar(ctx context.Context, l *initd.Look, at []int, ss []initd.Seen) (stale error) {
	others := k.cluster.Others()
	sure := !k.cluster.Registered() || len(k.cluster.Members()) > 0 // else nothing was heard of other machines yet
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range others {
		all.Go(func() {
			var theirs []initd.Seen
			err := k.reach.Ask(ctx, m, peerInit, l.Code, func(c *sigmap.Coder) { initd.CodeSeen(c, &theirs) })
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && sigma.KindOf(err) == sigma.KindStale && slices.Contains(k.cluster.Others(), m):
				stale = err
				sure = false
			case err != nil || len(theirs) != len(at):
				sure = false
			default:
				for n, i := range at {
					ss[i] = initd.Better(ss[i], theirs[n])
				}
			}
		})
	}
	all.Wait()
	for _, i := range at {
		if ss[i].Sight == initd.Gone && !sure {
			ss[i].Sight = initd.Unsure
		}
	}
	return stale
}

// initSpawn spawns a proc of an id that the leader has drawn and saved.
func (r *root) initSpawn(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.initSpawn"
	k := r.tree.k
	var s initd.Spawning
	if err := sigmap.Parse(payload, s.Code); err != nil {
		return nil, nil, err
	}
	if err := s.Descriptor.Check(); err != nil {
		return nil, nil, err
	}
	if err := s.Realm.Check(); err != nil {
		return nil, nil, err
	}
	if !procs.IsID(s.Proc) || s.Realm == sigma.SystemRealm {
		return nil, nil, sigma.Errorf(op, sigma.KindInvalid, "%.64q is no proc's id", string(s.Proc))
	}
	if err := k.hasRealm(ctx, s.Realm); err != nil { // is there such a realm?
		return nil, nil, err
	}
	by := sigma.Principal{Realm: s.Realm, Machine: k.cfg.Machine}
	ds := []sigma.Descriptor{s.Descriptor}
	views, err := (&root{tree: &tree{k: k, principal: by}, realm: s.Realm}).viewsOf(ctx, ds)
	if err != nil {
		return nil, nil, err
	}
	var starts []procs.Start
	stale := k.initEpoch.Admit(s.Epoch, func() {
		starts, err = k.procs.Spawn(s.Realm, schedd.Spawned{By: by, IDs: []sigma.ProcID{s.Proc}, Ds: ds, Views: views})
	})
	k.runner.Spawned(starts)
	return nil, nil, cmp.Or(stale, err)
}

// initStop asks a proc of a registration that was removed to go.
func (r *root) initStop(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	k := r.tree.k
	var s initd.Spawning
	if err := sigmap.Parse(payload, s.Code); err != nil {
		return nil, nil, err
	}
	if err := k.initEpoch.Admit(s.Epoch, func() {}); err != nil {
		return nil, nil, err
	}
	return nil, nil, k.remote.Tell(ctx, s.Realm, s.Proc, remote.Evict, initd.StopGrace)
}
