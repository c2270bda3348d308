package sysfs

import (
	"context"
	"os"
	"slices"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/remote"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func (r scope) procsCalls() map[string]computed.Handler {
	act := func(a remote.Act) computed.Handler {
		return r.aboutProc(sigma.RightWrite, func(ctx context.Context, id sigma.ProcID) ([]byte, error) {
			return nil, r.Remote.Tell(ctx, r.Realm, id, a, 0)
		})
	}
	return map[string]computed.Handler{
		sigmap.CallSpawn: r.spawn,
		sigmap.CallList:  r.list,
		sigmap.CallUsage: r.usage,
		sigmap.CallCaps:  r.aboutProc(sigma.RightRead, r.capsCall),
		sigmap.CallWaitStart: r.aboutProc(sigma.RightRead, func(ctx context.Context, id sigma.ProcID) ([]byte, error) {
			p, err := r.Remote.Await(ctx, r.Realm, id, procs.Started)
			if err == nil && p.Times.Started.IsZero() {
				err = &sigma.Error{Op: "kernel.WaitStart", Kind: max(p.Status.Kind, sigma.KindOther),
					Msg: p.Status.Code.String() + ": " + p.Status.Msg}
			}
			return nil, err
		}),
		sigmap.CallWaitExit: r.aboutProc(sigma.RightRead, func(ctx context.Context, id sigma.ProcID) ([]byte, error) {
			p, err := r.Remote.Await(ctx, r.Realm, id, procs.Ended)
			if err != nil {
				return nil, err
			}
			r.AwaitsEnd()
			return sigmap.Payload(func(c *sigmap.Coder) { c.Status(&p.Status) })
		}),
		sigmap.CallKill:   act(remote.Kill),
		sigmap.CallFreeze: act(remote.Freeze),
		sigmap.CallThaw:   act(remote.Thaw),
		sigmap.CallEvict: func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			var id sigma.ProcID
			var grace time.Duration
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id); c.Duration(&grace) }); err != nil {
				return nil, nil, err
			}
			if err := r.MayProc(ctx, id, sigma.RightWrite); err != nil {
				return nil, nil, err
			}
			return nil, nil, r.Remote.Tell(ctx, r.Realm, id, remote.Evict, grace)
		},
	}
}

// aboutProc makes a handler of a method whose request is one proc of the caller's realm.
func (r scope) aboutProc(need sigma.Rights, f func(ctx context.Context,
	id sigma.ProcID) ([]byte, error)) computed.Handler {
	return computed.Answer(func(ctx context.Context, payload []byte) ([]byte, error) {
		var id sigma.ProcID
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id) }); err != nil {
			return nil, err
		}
		if err := r.MayProc(ctx, id, need); err != nil {
			return nil, err
		}
		return f(ctx, id)
	})
}

func (r scope) spawn(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var ds []sigma.Descriptor
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Descriptors(&ds) }); err != nil {
		return nil, nil, err
	}
	if len(ds) > sigma.BurstMax {
		return nil, nil, sigma.Errorf("kernel.Spawn", sigma.KindTooBig, "%d descriptors in one Spawn; %d are allowed",
			len(ds), sigma.BurstMax)
	}
	if r.Realm == sigma.SystemRealm {
		return nil, nil, sigma.Errorf("kernel.Spawn", sigma.KindPermission, "procs are not spawned in the realm system")
	}
	ids := make([]sigma.ProcID, len(ds))
	for i := range ds {
		if err := ds[i].Check(); err != nil {
			return nil, nil, err
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
		return nil, nil, err
	}
	starts, err := r.Procs.Spawn(r.Realm, schedd.Spawned{By: by, IDs: ids, Ds: ds, Views: views, Kin: r.Kin()})
	if err != nil {
		return nil, nil, err
	}
	r.Runner.Spawned(starts)
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.ProcIDs(&ids) })
	return reply, nil, err
}

// list answers a page of the realm's procs: those at home at one machine after the other, by name,
// and of each in order of Spawn. Where a page ends is told as the machine and the number of its
// last proc there, so that no proc that is there all the time is left out or told twice, whatever
// begins and ends meanwhile. One whose home is lost between two pages may be; a machine that does
// not answer, though it is not known to be lost, is left out.
func (r scope) list(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var all bool
	var at sigma.MachineID
	var after uint64
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.Bool(&all)
		c.Str((*string)(&at))
		c.U64(&after)
	}); err != nil {
		return nil, nil, err
	}
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
		if page, _, more, after, err = r.Remote.ListOf(ctx, m, r.Realm, all, after, r.OwnKin()); err != nil {
			r.Log.Warn("a machine does not tell what procs it has", "machine", m, "err", err)
			page, more = nil, false
		}
		if more = more || i < len(machines)-1; len(page) > 0 {
			break
		}
	}
	more = more && len(page) > 0 // else there was no machine left to ask
	reply, err := sigmap.Payload(func(c *sigmap.Coder) {
		c.ProcInfos(&page)
		c.Bool(&more)
		c.Str((*string)(&at))
		c.U64(&after)
	})
	return reply, nil, err
}

// usage answers what procs use: those that run, now; others, what is known of them. It is for the
// provider, because a question costs the launcher time that starts need, and for sessions with a
// credential, which read the same in /proc and have few requests at a time.
func (r scope) usage(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var ids []sigma.ProcID
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcIDs(&ids) }); err != nil {
		return nil, nil, err
	}
	if !r.Principal.System && r.Granted == nil {
		return nil, nil, sigma.Errorf("kernel.usage", sigma.KindPermission,
			"no proc may ask this; read its files in /proc")
	}
	if len(ids) > remote.UsageMax {
		return nil, nil, sigma.Errorf("kernel.usage", sigma.KindTooBig, "%d procs in one call; %d are allowed",
			len(ids), remote.UsageMax)
	}
	out, err := r.Remote.Usages(ctx, r.Realm, ids)
	if err != nil {
		return nil, nil, err
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Usages(&out) })
	return reply, nil, err
}

// capsCall is the call caps: of the provider about any proc of the realm, of a proc about itself.
// Endpoints are told in full, so nobody else may ask.
func (r scope) capsCall(ctx context.Context, id sigma.ProcID) ([]byte, error) {
	if p := r.Principal; !p.System && p.Proc != id {
		return nil, sigma.Errorf("kernel.caps", sigma.KindPermission, "a proc may ask this about itself only")
	}
	caps, err := r.Remote.Caps(ctx, r.Realm, id)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Caps(&caps) })
}

func (r scope) selfCalls() map[string]computed.Handler {
	who := r.Principal
	proc := func(h computed.Handler) computed.Handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			if who.Proc == "" {
				return nil, nil, &sigma.Error{Op: "kernel.self", Kind: sigma.KindPermission,
					Msg: "this program is not a proc"}
			}
			return h(ctx, payload)
		}
	}
	return map[string]computed.Handler{
		sigmap.CallInfo: func(context.Context, []byte) ([]byte, []*os.File, error) {
			p := who
			p.Realm = r.Realm
			if r.Granted != nil {
				p.Proc = ""
			}
			info := sigmap.Info{Principal: p, Version: r.Version}
			reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Info(&info) })
			return reply, nil, err
		},
		sigmap.CallStarted: proc(func(context.Context, []byte) ([]byte, []*os.File, error) {
			if s := r.Services.Of(who); s != nil {
				s.Started(who.Proc)
				return nil, nil, nil
			}
			r.Procs.Step(schedd.CalledStarted{ID: who.Proc})
			return nil, nil, nil
		}),
		sigmap.CallWorked: func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			return r.Accounts.WorkedCall(ctx, r.Services.Of(who), payload)
		},
		sigmap.CallExited: proc(func(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
			var s sigma.Status
			if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Status(&s) }); err != nil {
				return nil, nil, err
			}
			if s.Code == sigma.StatusNone || s.Code > sigma.StatusLost {
				return nil, nil, sigma.Errorf("kernel.Exited", sigma.KindInvalid, "status code %d", s.Code)
			}
			if len(s.Data) > sigma.StatusDataMax || len(s.Msg) > 4096 {
				return nil, nil, &sigma.Error{Op: "kernel.Exited", Kind: sigma.KindTooBig, Msg: "status is too big",
					Hint: "write results to a file of the realm and give its path"}
			}
			s.Data = slices.Clone(s.Data)
			s.Kind = sigma.KindOther // a kind says why a proc could not be started, and this one was
			r.Procs.Step(schedd.CalledExited{ID: who.Proc, Status: s})
			if !s.OK() || s.Msg != "" || len(s.Data) > 0 { // what its exit code will not say
				r.Runner.Keep(r.Realm, who.Proc)
			}
			return nil, nil, nil
		}),
		// KindNotFound: a service, or a request that was still on its way when its proc ended.
		sigmap.CallWaitEvict: proc(func(ctx context.Context, _ []byte) ([]byte, []*os.File, error) {
			return nil, nil, r.Procs.WaitEvict(ctx, r.Realm, who.Proc)
		}),
	}
}
