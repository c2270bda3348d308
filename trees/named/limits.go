package named

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Limits keep one realm from taking the name service from the others: what it holds is in the
// leader's memory, and a watch is a request that waits there. Config has the defaults; the provider
// sets others per realm, which are stored in the realm's record and hold from the step in which
// they are set. They stop what would go beyond; what is there already stays.

// Defaults of the limits that Config does not have.
const (
	watchesDefault = 3000 // a session takes 4096 requests at a time: some are left for others of the realm
	leasesDefault  = 10_000
)

// limits are the defaults.
func (cfg Config) limits() sigma.RealmLimits {
	return sigma.RealmLimits{Names: uint64(cfg.EntriesMax), Bytes: cfg.BytesMax, Watches: watchesDefault,
		Leases: leasesDefault, Sessions: sigma.LimitSessionsDefault, Handles: sigma.LimitHandlesDefault,
		Scratch: sigma.LimitScratchDefault}
}

// overlay gives the defaults d for what l leaves open.
func overlay(d, l sigma.RealmLimits) sigma.RealmLimits {
	return sigma.RealmLimits{Names: cmp.Or(l.Names, d.Names), Bytes: cmp.Or(l.Bytes, d.Bytes),
		Watches: cmp.Or(l.Watches, d.Watches), Leases: cmp.Or(l.Leases, d.Leases),
		Sessions: cmp.Or(l.Sessions, d.Sessions), Handles: cmp.Or(l.Handles, d.Handles),
		Scratch: cmp.Or(l.Scratch, d.Scratch),
		MaxCPU:  cmp.Or(l.MaxCPU, d.MaxCPU), MaxMemory: cmp.Or(l.MaxMemory, d.MaxMemory),
		MinCPU: cmp.Or(l.MinCPU, d.MinCPU), MinMemory: cmp.Or(l.MinMemory, d.MinMemory),
		ReserveCPU: cmp.Or(l.ReserveCPU, d.ReserveCPU), ReserveMemory: cmp.Or(l.ReserveMemory, d.ReserveMemory)}
}

func (s *step) limits() sigma.RealmLimits { return overlay(s.base.limits, s.rec.limits) }

// limitError says which limit stops something, how much there is, and who can raise it.
func limitError(op, what string, have, most uint64, instead string) error {
	return &sigma.Error{Op: op, Kind: sigma.KindNoSpace,
		Msg:  fmt.Sprintf("the realm's limit of %s is reached: it has %d of %d", what, have, most),
		Hint: fmt.Sprintf("%s; the provider raises it with: sigma realm set --limit-%s N REALM", instead, what)}
}

// leaseCount is how many leases there will be after the step.
func (s *step) leaseCount() uint64 {
	n := len(s.base.leases)
	for id, l := range s.leases {
		switch was := s.base.lease(id) != nil; {
		case l == nil && was:
			n--
		case l != nil && !was:
			n++
		}
	}
	return uint64(n)
}

// watchRoomLocked says whether one more watch may wait.
func (l *leader) watchRoomLocked() error {
	if most := overlay(l.tree.limits, l.tree.rec.limits).Watches; uint64(l.watching.Load()) >= most {
		return limitError("named.Watch", "watches", uint64(l.watching.Load()), most,
			"watch a directory instead of each of its files")
	}
	return nil
}

// SetLimits implements sigma.Realms.
func (s *Server) SetLimits(ctx context.Context, id sigma.RealmID, limits sigma.RealmLimits) error {
	const op = "named.SetLimits"
	if err := limits.Check(); err != nil {
		return err
	}
	at, err := s.slotOf(op, id)
	if err != nil {
		return err
	}
	l, err := at.leader(ctx)
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	return sigma.Wrap(op, "", l.do(ctx, limitsOp{at, limits}).err)
}

// limitsOp changes a realm's limits. That they are listed before they are stored harms nobody: a
// restart brings back what is stored.
type limitsOp struct {
	at     *slot
	limits sigma.RealmLimits
}

func (o limitsOp) apply(s *step, _ time.Time) reply {
	l := s.rec.limits
	set := func(to *uint64, n uint64) {
		switch n {
		case 0:
		case sigma.LimitDefault:
			*to = 0
		default:
			*to = n
		}
	}
	memory := func(to *sigma.Bytes, n sigma.Bytes) { set((*uint64)(to), uint64(n)) }
	cpu := func(to *sigma.MilliCPU, n sigma.MilliCPU) {
		switch n {
		case 0:
		case sigma.LimitCPUDefault:
			*to = 0
		default:
			*to = n
		}
	}
	set(&l.Names, o.limits.Names)
	memory(&l.Bytes, o.limits.Bytes)
	set(&l.Watches, o.limits.Watches)
	set(&l.Leases, o.limits.Leases)
	set(&l.Sessions, o.limits.Sessions)
	set(&l.Handles, o.limits.Handles)
	memory(&l.Scratch, o.limits.Scratch)
	cpu(&l.MaxCPU, o.limits.MaxCPU)
	memory(&l.MaxMemory, o.limits.MaxMemory)
	cpu(&l.MinCPU, o.limits.MinCPU)
	memory(&l.MinMemory, o.limits.MinMemory)
	cpu(&l.ReserveCPU, o.limits.ReserveCPU)
	memory(&l.ReserveMemory, o.limits.ReserveMemory)
	s.rec.limits, s.stored = l, true
	o.at.limits.Store(&l)
	return reply{}
}

func (o limitsOp) size() int { return 80 }

// limitsInForce are those that are stored, and the defaults of the others.
func (s *slot) limitsInForce() sigma.RealmLimits {
	if l := s.limits.Load(); l != nil {
		return overlay(s.srv.cfg.limits(), *l)
	}
	return s.srv.cfg.limits()
}

// callUse answers what a realm may have and has.
func (f *file) callUse(ctx context.Context, _ sigmap.None) (u sigmap.RealmUse, err error) {
	u.Limits = f.slot.limitsInForce()
	err = f.readLed(ctx, func(l *leader, t *tree) error {
		u.Use = sigma.RealmLimits{Names: uint64(len(t.cells)), Bytes: sigma.Bytes(t.bytes),
			Watches: uint64(l.watching.Load()), Leases: uint64(len(t.leases))}
		return nil
	})
	return u, err
}
