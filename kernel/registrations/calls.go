package registrations

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/past"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/sigmap"
)

// PeerInit looks for what the machine that is asked knows itself; Unsure stands for what is a guest
// of another, which knows better, Gone for what it does not know.
var PeerInit = sigmap.Method[initd.Look, []initd.Seen]{Name: "init", Request: initd.CodeLook, Reply: initd.CodeSeen}

// Config is what Registrations need of their user.
type Config struct {
	Machine sigma.MachineID
	Procs   *procs.Table
	Cluster *cluster.Cluster
	Reach   *reach.Reach
	Past    *past.Past
	Runner  *runner.Runner
	Remote  *remote.Remote
	// Names is the kernel's own view of the names of the system's realm, where the records are.
	Names func(ctx context.Context) (*resolve.Tree, error)
	// Enter is an error if a realm is being removed, or nobody may enter it now.
	Enter func(realm sigma.RealmID) error
	// HasRealm is an error if there is no such realm, or nobody knows.
	HasRealm func(ctx context.Context, realm sigma.RealmID) error
	// Views makes the tables of what is to be spawned by a realm.
	Views func(ctx context.Context, by sigma.Principal, ds []sigma.Descriptor) ([]*view.Table, error)
}

// Registrations are the procs that initd keeps running, as a machine has to do with them. Safe for
// concurrent use.
type Registrations struct {
	cfg   Config
	epoch Epoch
}

// New makes the registrations of a machine, and answers others.
func New(cfg Config) *Registrations {
	x := &Registrations{cfg: cfg}
	cfg.Reach.Answer(reach.On(PeerInit, x.LookHere))
	return x
}

// Lines are the registrations of a realm; of all realms if it is that of the system.
func (x *Registrations) Lines(ctx context.Context, of sigma.RealmID) ([]byte, error) {
	t, err := x.cfg.Names(ctx)
	if err != nil {
		return nil, err
	}
	realms := []sigma.RealmID{of}
	if of == sigma.SystemRealm {
		realms = nil
		entries, err := t.ReadDir(sigma.WithSync(ctx), initd.RealmsDir)
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return nil, err
		}
		for _, e := range entries {
			realms = append(realms, sigma.RealmID(e.Name))
		}
	}
	out := []report.Registration{}
	for _, realm := range realms {
		records, err := initd.ReadRecords(ctx, t, realm)
		if err != nil {
			return nil, err
		}
		for i := range records {
			out = append(out, Line(&records[i]))
		}
	}
	return report.Lines(out)
}

// Add registers a proc of a realm: in place of what is registered under the name if
// that is wished, or was removed and its proc has not ended yet, or cannot be read.
func (x *Registrations) Add(ctx context.Context, realm sigma.RealmID, a sigmap.InitAdd) error {
	const op = "kernel.initAdd"
	g, replace := a.Registration, a.Replace
	if err := g.Check(); err != nil {
		return err
	}
	if g.Restart == "" {
		g.Restart = sigma.RestartAlways
	}
	if realm == sigma.SystemRealm {
		return sigma.Errorf(op, sigma.KindPermission, "procs are not registered in the realm system")
	}
	record := initd.NewRecord(g, time.Now())
	if err := record.Fits(); err != nil {
		return err
	}
	t, err := x.cfg.Names(ctx)
	if err != nil {
		return err
	}
	dir := initd.RealmsDir + "/" + string(realm)
	if err := t.MkdirAll(ctx, dir, 0o700); err != nil {
		return err
	}
	if err := x.cfg.Enter(realm); err != nil { // the registrations of a realm that is being removed go first
		return err
	}
	key := initd.Key{Realm: realm, Name: g.Name}
	for {
		if err := Add(ctx, t, dir, key, record); err == nil || sigma.KindOf(err) != sigma.KindExists {
			return err
		}
		err := Change(ctx, t, key, func(v *initd.Versioned, damaged error) error {
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
			return err
		}
	}
}

// Remove marks a registration as removed; the leader ends its proc and drops it. A damaged one
// is dropped here.
func (x *Registrations) Remove(ctx context.Context, realm sigma.RealmID, name string) error {
	t, key, err := x.registered(ctx, realm, name)
	if err != nil {
		return err
	}
	var damagedAt sigma.Version
	err = Change(ctx, t, key, func(v *initd.Versioned, damaged error) error {
		v.Record.Removed, damagedAt = true, v.Version
		return damaged
	})
	if err != nil && sigma.KindOf(err) == sigma.KindInvalid {
		if err = initd.ForgetRecord(ctx, t, key, damagedAt); err == nil {
			err = Changed(ctx, t)
		}
	}
	return Unknown(err)
}

// Restart has the instance of a registration end, and another started at once.
func (x *Registrations) Restart(ctx context.Context, realm sigma.RealmID, name string) error {
	t, key, err := x.registered(ctx, realm, name)
	if err != nil {
		return err
	}
	return Unknown(Change(ctx, t, key, func(v *initd.Versioned,
		damaged error) error {
		if damaged == nil && v.Record.Removed {
			return sigma.Errorf("kernel.initRestart", sigma.KindNotFound, "it is being removed")
		}
		v.Record.Again()
		return damaged
	}))
}

// registered finds where the record of a registration is.
func (x *Registrations) registered(ctx context.Context, realm sigma.RealmID, name string) (t *resolve.Tree,
	key initd.Key, err error) {
	if _, err := sigma.ParsePath("/" + name); err != nil || len(name) > 64 {
		return nil, key, Unknown(sigma.PathError("kernel.init", sigma.KindNotFound, ""))
	}
	key = initd.Key{Realm: realm, Name: name}
	t, err = x.cfg.Names(ctx)
	return t, key, err
}

// Forget drops those of a realm that is being removed, before its procs are ended.
func (x *Registrations) Forget(ctx context.Context, realm sigma.RealmID) error {
	t, err := x.cfg.Names(ctx)
	if err != nil {
		return err
	}
	err = t.RemoveAll(ctx, initd.RealmsDir+"/"+string(realm))
	if sigma.KindOf(err) == sigma.KindNotFound || err == nil {
		return nil
	}
	return err
}

// LookHere answers PeerInit.
func (x *Registrations) LookHere(_ context.Context, l initd.Look) ([]initd.Seen, error) {
	ss := make([]initd.Seen, len(l.Questions))
	if err := x.epoch.Admit(l.Epoch, func() {
		for i, q := range l.Questions {
			ss[i], _ = x.seen(q)
		}
	}); err != nil {
		return nil, err
	}
	return ss, nil
}

// Look asks here, and all other machines for what is not at home here. Only when each that is
// alive has answered that it does not know a proc is it gone.
func (x *Registrations) Look(ctx context.Context, l initd.Look) ([]initd.Seen, error) {
	down := sigma.Errorf("kernel.initLook", sigma.KindUnavailable, "the system is being stopped")
	if x.cfg.Cluster.AllLeave() { // what has gone for that is no news, and nothing is to be started
		return nil, down
	}
	ss := make([]initd.Seen, len(l.Questions))
	far := initd.Look{Epoch: l.Epoch}
	var at []int
	if err := x.epoch.Admit(l.Epoch, func() {
		for i, q := range l.Questions {
			var home bool
			if ss[i], home = x.seen(q); !home {
				far.Questions = append(far.Questions, q)
				at = append(at, i)
			}
		}
	}); err != nil {
		return nil, err
	}
	if len(at) > 0 {
		if err := x.lookFar(ctx, &far, at, ss); err != nil {
			return nil, err
		}
	}
	if x.cfg.Cluster.AllLeave() { // meanwhile
		return nil, down
	}
	return ss, nil
}

// seen is what this machine knows of a proc. Until it has entered what an earlier sigmad
// remembered, a proc that it does not know may be one that has ended.
func (x *Registrations) seen(q initd.Question) (s initd.Seen, home bool) {
	x.cfg.Procs.With(func(v procs.View) { s, home = initd.SeenAt(v.Core, q, time.Now()) })
	if s.Sight == initd.Gone && !x.cfg.Past.IsRecalled() {
		s.Sight = initd.Unsure
	}
	return s, home
}

// lookFar asks the other machines for those of ss that at numbers. What one of them knows
// counts more than what others do not.
func (x *Registrations) lookFar(ctx context.Context, l *initd.Look, at []int, ss []initd.Seen) (stale error) {
	others := x.cfg.Cluster.Others()
	// else nothing was heard of other machines yet
	sure := !x.cfg.Cluster.Registered() || len(x.cfg.Cluster.Members()) > 0
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range others {
		all.Go(func() {
			theirs, err := PeerInit.Ask(ctx, x.cfg.Reach.At(m), *l)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && sigma.KindOf(err) == sigma.KindStale && slices.Contains(x.cfg.Cluster.Others(), m):
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

// Spawn spawns a proc of an id that the leader has drawn and saved.
func (x *Registrations) Spawn(ctx context.Context, s initd.Spawning) error {
	const op = "kernel.initSpawn"
	if err := s.Descriptor.Check(); err != nil {
		return err
	}
	if err := s.Realm.Check(); err != nil {
		return err
	}
	if !procs.IsID(s.Proc) || s.Realm == sigma.SystemRealm {
		return sigma.Errorf(op, sigma.KindInvalid, "%.64q is no proc's id", string(s.Proc))
	}
	if err := x.cfg.HasRealm(ctx, s.Realm); err != nil { // is there such a realm?
		return err
	}
	by := sigma.Principal{Realm: s.Realm, Machine: x.cfg.Machine}
	ds := []sigma.Descriptor{s.Descriptor}
	views, err := x.cfg.Views(ctx, by, ds)
	if err != nil {
		return err
	}
	var starts []procs.Start
	stale := x.epoch.Admit(s.Epoch, func() {
		starts, err = x.cfg.Procs.Spawn(s.Realm, schedd.Spawned{By: by, IDs: []sigma.ProcID{s.Proc}, Ds: ds,
			Views: views})
	})
	x.cfg.Runner.Spawned(starts)
	return cmp.Or(stale, err)
}

// Stop asks a proc of a registration that was removed to go.
func (x *Registrations) Stop(ctx context.Context, s initd.Spawning) error {
	if err := x.epoch.Admit(s.Epoch, func() {}); err != nil {
		return err
	}
	return x.cfg.Remote.Tell(ctx, s.Realm, s.Proc, remote.Evict, initd.StopGrace)
}
