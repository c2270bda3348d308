package realms

import (
	"context"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// File is /sys/realms as the session by has it, in the realm of: calls of the provider, and lines.
func (x *Realms) File(by any, of sigma.RealmID, provider bool) sigma.File {
	calls := treeserver.RealmsFile(sigmap.FileRealms, viewfs.PathID("/sys/"+sigmap.FileRealms), x.For(by), provider)
	return computed.Sys(sigmap.FileRealms, func(ctx context.Context) ([]byte, error) {
		infos, err := x.infos(ctx, by, of, provider)
		if err != nil {
			return nil, err
		}
		out := make([]report.Realm, len(infos))
		for i := range infos {
			out[i] = report.OfRealm(infos[i])
		}
		return report.Lines(out)
	}).Answering(calls)
}

// infos are the realms that the session is told of: all, or its own.
func (x *Realms) infos(ctx context.Context, by any, of sigma.RealmID, provider bool) ([]sigma.RealmInfo, error) {
	if provider {
		return x.For(by).List(ctx)
	}
	return memo.Recall(x.cfg.Memo, "realm "+string(of), func(ctx context.Context) (out []sigma.RealmInfo, err error) {
		all, err := x.List()
		for _, i := range all {
			if i.ID == of {
				out = append(out, i)
			}
		}
		x.cfg.Remote.Count(ctx, out)
		return out, err
	})
}

// Use counts a realm's procs here.
func (x *Realms) Use(realm sigma.RealmID) schedd.Use {
	u, _ := memo.Recall(x.cfg.Memo, "use "+string(realm), func(context.Context) (u schedd.Use, _ error) {
		x.cfg.Procs.With(func(v procs.View) { u = v.Use(realm) })
		return u, nil
	})
	return u
}

// LimitsFile is /sys/limits: what a realm, and each of its procs, may have.
func (x *Realms) LimitsFile(of sigma.RealmID, provider bool) sigma.File {
	return computed.Sys(roles.Limits, func(context.Context) ([]byte, error) {
		infos, err := x.List()
		if err != nil {
			return nil, err
		}
		var out []report.Limit
		for i := range infos {
			if id := infos[i].ID; id == of || provider && id != sigma.SystemRealm {
				var use *sigma.RealmLimits
				if id == of { // of others it would have to be loaded for that
					u, err := x.cfg.Quotas.Use(id)
					if err == nil {
						use = &u.Use
					} else if sigma.KindOf(err) != sigma.KindUnsupported {
						return nil, err
					}
				}
				out = append(out, x.limitsOf(&infos[i], use)...)
			}
		}
		return report.Lines(out)
	})
}

// limitsOf lists a realm's limits: of its names, of which it has what names says, if that is known,
// and of its procs at this machine.
func (x *Realms) limitsOf(i *sigma.RealmInfo, names *sigma.RealmLimits) (out []report.Limit) {
	of := func(n func(*sigma.RealmLimits) uint64) *uint64 {
		if names == nil {
			return nil
		}
		u := n(names)
		return &u
	}
	sessions, handles := x.cfg.Quotas.Held(i.ID)
	var scratch *uint64 // not known before the realm's files are used
	if n, known := x.cfg.Quotas.Scratch.Used(i.ID); known {
		scratch = (*uint64)(&n)
	}
	u, live := x.Use(i.ID), uint64(x.cfg.Procs.Live(i.ID))
	ended, rings := uint64(u.Ended), uint64(x.cfg.Proxy.Rings(i.ID))
	for _, l := range []struct {
		limit string
		most  uint64
		used  *uint64
	}{
		{"names", i.Limits.Names, of(func(l *sigma.RealmLimits) uint64 { return l.Names })},
		{"names_bytes", uint64(i.Limits.Bytes), of(func(l *sigma.RealmLimits) uint64 { return uint64(l.Bytes) })},
		{"watches", i.Limits.Watches, of(func(l *sigma.RealmLimits) uint64 { return l.Watches })},
		{"leases", i.Limits.Leases, of(func(l *sigma.RealmLimits) uint64 { return l.Leases })},
		{"sessions", i.Limits.Sessions, &sessions},
		{"handles", i.Limits.Handles, &handles},
		{"scratch_bytes", uint64(x.cfg.Quotas.Scratch.InForce(i.Limits.Scratch)), scratch},
		{"procs", schedd.QueuedMax, &live},
		{"ended_procs", schedd.EndedMax, &ended},
		{"spawn_procs", sigma.BurstMax, nil},
		{"waiting_connections", dialproxy.WaitingMax, nil},
		{"rings", dialproxy.RingsOfRealm, &rings},
		{"proc_memory_bytes", uint64(x.cfg.Memory), nil},
		{"proc_args_bytes", sigma.ArgsMax, nil},
		{"proc_tasks", runner.PidsMax, nil},
		{"proc_open_files", runner.NoFileMax, nil},
		{"proc_endpoints", dialproxy.ListenersMax, nil},
		{"proc_rings", dialproxy.RingsOfProc, nil},
	} {
		out = append(out, report.Limit{Realm: string(i.ID), Limit: l.limit, Max: l.most, Used: l.used})
	}
	return append(out, x.computeLimits(i)...)
}

// computeLimits lists those limits of processors and memory that a realm has, with what is used of
// them at this machine.
func (x *Realms) computeLimits(i *sigma.RealmInfo) (out []report.Limit) {
	var held sigma.Bytes
	x.cfg.Procs.With(func(v procs.View) { _, held = v.Most(i.ID) })
	l, memory := i.Limits, uint64(held)
	for _, x := range []struct {
		limit string
		most  uint64
		used  *uint64
	}{
		{"max_cpu_millis", uint64(l.MaxCPU), nil},
		{"max_memory_bytes", uint64(l.MaxMemory), &memory},
		{"min_cpu_millis", uint64(l.MinCPU), nil},
		{"min_memory_bytes", uint64(l.MinMemory), nil},
		{"reserve_cpu_millis", uint64(l.ReserveCPU), nil},
		{"reserve_memory_bytes", uint64(l.ReserveMemory), nil},
	} {
		if x.most > 0 {
			out = append(out, report.Limit{Realm: string(i.ID), Limit: x.limit, Max: x.most, Used: x.used})
		}
	}
	return out
}
