package named

import (
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

func (s *step) limits() sigma.RealmLimits { return s.rec.limits.Or(s.base.limits) }

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
	if most := l.tree.rec.limits.Or(l.tree.limits).Watches; uint64(l.watching.Load()) >= most {
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
	l := s.rec.limits.With(o.limits)
	s.rec.limits, s.stored = l, true
	o.at.limits.Store(&l)
	return reply{}
}

func (o limitsOp) size() int { return 80 }

// limitsInForce are those that are stored, and the defaults of the others.
func (s *slot) limitsInForce() sigma.RealmLimits {
	if l := s.limits.Load(); l != nil {
		return l.Or(s.srv.cfg.limits())
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
