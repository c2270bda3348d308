package sysfs

import (
	"context"
	"slices"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

var procsMethods = sigmap.Table(
	sigmap.On(sigmap.CallSpawn, scope.spawn),
	sigmap.On(sigmap.CallListProcs, scope.list),
	sigmap.On(sigmap.CallProcsUsage, scope.usage),
	aboutProc(sigmap.CallCaps, sigma.RightRead, scope.caps),
	aboutProc(sigmap.CallWaitStart, sigma.RightRead, func(r scope, ctx context.Context,
		id sigma.ProcID) (none sigmap.None, err error) {
		p, err := r.Remote.Await(ctx, r.Realm, id, procs.Started)
		if err == nil && p.Times.Started.IsZero() {
			err = &sigma.Error{Op: "kernel.WaitStart", Kind: max(p.Status.Kind, sigma.KindOther),
				Msg: p.Status.Code.String() + ": " + p.Status.Msg}
		}
		return none, err
	}),
	aboutProc(sigmap.CallWaitExit, sigma.RightRead, func(r scope, ctx context.Context,
		id sigma.ProcID) (sigma.Status, error) {
		p, err := r.Remote.Await(ctx, r.Realm, id, procs.Ended)
		if err == nil {
			r.AwaitsEnd()
		}
		return p.Status, err
	}),
	act(sigmap.CallKill, remote.Kill), act(sigmap.CallFreeze, remote.Freeze), act(sigmap.CallThaw, remote.Thaw),
	sigmap.Do(sigmap.CallEvict, func(r scope, ctx context.Context, e sigmap.Eviction) error {
		if err := r.MayProc(ctx, e.ID, sigma.RightWrite); err != nil {
			return err
		}
		return r.Remote.Tell(ctx, r.Realm, e.ID, remote.Evict, e.Grace)
	}),
)

// aboutProc makes a handler of a method whose request is one proc of the caller's realm.
func aboutProc[R any](m sigmap.Method[sigma.ProcID, R], need sigma.Rights,
	f func(scope, context.Context, sigma.ProcID) (R, error)) sigmap.Handler[scope] {
	return sigmap.On(m, func(r scope, ctx context.Context, id sigma.ProcID) (none R, err error) {
		if err := r.MayProc(ctx, id, need); err != nil {
			return none, err
		}
		return f(r, ctx, id)
	})
}

// act makes a handler of a method that does something to a proc.
func act(m sigmap.Method[sigma.ProcID, sigmap.None], a remote.Act) sigmap.Handler[scope] {
	return aboutProc(m, sigma.RightWrite, func(r scope, ctx context.Context, id sigma.ProcID) (sigmap.None, error) {
		return sigmap.None{}, r.Remote.Tell(ctx, r.Realm, id, a, 0)
	})
}

func (r scope) spawn(ctx context.Context, ds []sigma.Descriptor) ([]sigma.ProcID, error) {
	if len(ds) > sigma.BurstMax {
		return nil, sigma.Errorf("kernel.Spawn", sigma.KindTooBig, "%d descriptors in one Spawn; %d are allowed",
			len(ds), sigma.BurstMax)
	}
	if r.Realm == sigma.SystemRealm {
		return nil, sigma.Errorf("kernel.Spawn", sigma.KindPermission, "procs are not spawned in the realm system")
	}
	ids := make([]sigma.ProcID, len(ds))
	for i := range ds {
		if err := ds[i].Check(); err != nil {
			return nil, err
		}
		ids[i] = sigma.NewProcID()
	}
	by := r.Principal
	by.Realm = r.Realm
	if r.Granted != nil { // nothing that is spawned is a guest's own
		by.Proc = ""
	}
	views, err := r.ViewsOf(ctx, ds)
	if err != nil {
		return nil, err
	}
	starts, err := r.Procs.Spawn(r.Realm, schedd.Spawned{By: by, IDs: ids, Ds: ds, Views: views, Kin: r.Kin()})
	if err != nil {
		return nil, err
	}
	r.Runner.Spawned(starts)
	return ids, nil
}

// list answers a page of the realm's procs: those at home at one machine after the other, by name,
// and of each in order of Spawn. Where a page ends is told as the machine and the number of its
// last proc there, so that no proc that is there all the time is left out or told twice, whatever
// begins and ends meanwhile. One whose home is lost between two pages may be; a machine that does
// not answer, though it is not known to be lost, is left out.
func (r scope) list(ctx context.Context, q sigmap.ProcsAfter) (p sigmap.ProcsPage, err error) {
	at, after := q.At, q.After
	machines := append(r.Cluster.Others(), r.Machine)
	slices.Sort(machines)
	var page []sigma.ProcInfo
	more := false
	for i, m := range machines {
		if m < at {
			continue
		}
		if m > at {
			at, after = m, 0
		}
		var err error
		if page, _, more, after, err = r.Remote.ListOf(ctx, m, r.Realm, q.All, after, r.OwnKin()); err != nil {
			r.Log.Warn("a machine does not tell what procs it has", "machine", m, "err", err)
			page, more = nil, false
		}
		if more = more || i < len(machines)-1; len(page) > 0 {
			break
		}
	}
	more = more && len(page) > 0 // else there was no machine left to ask
	return sigmap.ProcsPage{Procs: page, More: more, At: at, After: after}, nil
}

// usage answers what procs use: those that run, now; others, what is known of them. It is for the
// provider, because a question costs the launcher time that starts need, and for sessions with a
// credential, which read the same in /proc and have few requests at a time.
func (r scope) usage(ctx context.Context, ids []sigma.ProcID) ([]sigma.Usage, error) {
	if !r.Principal.System && r.Granted == nil {
		return nil, sigma.Errorf("kernel.usage", sigma.KindPermission,
			"no proc may ask this; read its files in /proc")
	}
	if len(ids) > remote.UsageMax {
		return nil, sigma.Errorf("kernel.usage", sigma.KindTooBig, "%d procs in one call; %d are allowed",
			len(ids), remote.UsageMax)
	}
	return r.Remote.Usages(ctx, r.Realm, ids)
}

// caps is the call caps: of the provider about any proc of the realm, of a proc about itself.
// Endpoints are told in full, so nobody else may ask.
func (r scope) caps(ctx context.Context, id sigma.ProcID) (sigmap.Caps, error) {
	if p := r.Principal; !p.System && p.Proc != id {
		return sigmap.Caps{}, sigma.Errorf("kernel.caps", sigma.KindPermission, "a proc may ask this about itself only")
	}
	return r.Remote.Caps(ctx, r.Realm, id)
}

var selfMethods = sigmap.Table(append(sigmap.Guarded(scope.proc,
	sigmap.Do(sigmap.CallStarted, func(r scope, _ context.Context, _ sigmap.None) error {
		who := r.Principal
		if s := r.Services.Of(who); s != nil {
			s.Started(who.Proc)
			return nil
		}
		r.Procs.Step(schedd.CalledStarted{ID: who.Proc})
		return nil
	}),
	sigmap.Do(sigmap.CallExited, scope.exited),
	// KindNotFound: a service, or a request that was still on its way when its proc ended.
	sigmap.Do(sigmap.CallWaitEvict, func(r scope, ctx context.Context, _ sigmap.None) error {
		return r.Procs.WaitEvict(ctx, r.Realm, r.Principal.Proc)
	})),
	sigmap.On(sigmap.CallInfo, func(r scope, _ context.Context, _ sigmap.None) (sigmap.Info, error) {
		p := r.Principal
		p.Realm = r.Realm
		if r.Granted != nil {
			p.Proc = ""
		}
		return sigmap.Info{Principal: p, Version: r.Version}, nil
	}),
	sigmap.On(sigmap.CallWorked, func(r scope, ctx context.Context, w sigmap.Worked) ([]sigmap.RealmShares, error) {
		return r.Accounts.Worked(ctx, r.Services.Of(r.Principal), w)
	}),
)...)

// proc is an error for programs that are no procs.
func (r scope) proc() error {
	if r.Principal.Proc == "" {
		return &sigma.Error{Op: "kernel.self", Kind: sigma.KindPermission, Msg: "this program is not a proc"}
	}
	return nil
}

func (r scope) exited(_ context.Context, s sigma.Status) error {
	if s.Code == sigma.StatusNone || s.Code > sigma.StatusLost {
		return sigma.Errorf("kernel.Exited", sigma.KindInvalid, "status code %d", s.Code)
	}
	if len(s.Data) > sigma.StatusDataMax || len(s.Msg) > 4096 {
		return &sigma.Error{Op: "kernel.Exited", Kind: sigma.KindTooBig, Msg: "status is too big",
			Hint: "write results to a file of the realm and give its path"}
	}
	s.Data = slices.Clone(s.Data)
	s.Kind = sigma.KindOther // a kind says why a proc could not be started, and this one was
	r.Procs.Step(schedd.CalledExited{ID: r.Principal.Proc, Status: s})
	if !s.OK() || s.Msg != "" || len(s.Data) > 0 { // what its exit code will not say
		r.Runner.Keep(r.Realm, r.Principal.Proc)
	}
	return nil
}
