package kernel

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/dirtree"
	"sigmaos.dev/sigma"
)

// scratchQuotas is how much each realm may have in ux at this machine (sigma.RealmLimits.Scratch).
// As with quota the limits are named's to keep, are asked for if that was not done for a while and
// before anything is refused, and the default counts until they are known.
type scratchQuotas struct {
	k         *Kernel
	byDefault sigma.Bytes // for realms of which nothing else is known, or was set
	of        sync.Map    // sigma.RealmID -> *scratchQuota
}

// scratchQuota is one realm's.
type scratchQuota struct {
	most   atomic.Uint64 // 0 = not known
	asked  atomic.Int64  // when, nanoseconds after the kernel's start; 0 = never
	asking atomic.Bool
}

// newScratchQuotas finds the default of a machine that keeps ux in dir: no realm can fill the disk
// by itself.
func newScratchQuotas(dir string) (*scratchQuotas, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, sigma.Wrap("kernel.scratchQuotas", dir, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, sigma.Wrap("kernel.scratchQuotas", dir, err)
	}
	return &scratchQuotas{byDefault: min(sigma.LimitScratchDefault, sigma.Bytes(st.Blocks*uint64(st.Frsize)/2))}, nil
}

// quota is what ux asks.
func (s *scratchQuotas) quota() *dirtree.Quota {
	return &dirtree.Quota{Of: s.limit, Refused: s.refused}
}

// limit is how much a realm may have here. See dirtree.Quota.
func (s *scratchQuotas) limit(realm sigma.RealmID, ask bool) sigma.Bytes {
	v, ok := s.of.Load(realm)
	if !ok {
		v, _ = s.of.LoadOrStore(realm, &scratchQuota{})
	}
	q := v.(*scratchQuota)
	now := int64(time.Since(s.k.start))
	if at := q.asked.Load(); ask {
		s.ask(realm, q)
	} else if (at == 0 || now-at > int64(quotaStale)) && q.asking.CompareAndSwap(false, true) {
		q.asked.Store(max(1, now))
		s.k.sessions.Go(func() {
			defer q.asking.Store(false)
			s.ask(realm, q)
		})
	}
	return s.inForce(sigma.Bytes(q.most.Load()))
}

func (s *scratchQuotas) inForce(set sigma.Bytes) sigma.Bytes {
	if set == 0 || set == sigma.LimitScratchDefault {
		return s.byDefault
	}
	return set
}

func (s *scratchQuotas) ask(realm sigma.RealmID, q *scratchQuota) {
	if u, err := s.k.namesUse(realm); err == nil {
		q.most.Store(uint64(u.limits.Scratch))
	}
}

func (s *scratchQuotas) refused(_ sigma.RealmID, held, more, quota sigma.Bytes) *sigma.Error {
	return &sigma.Error{Kind: sigma.KindNoSpace,
		Msg: fmt.Sprintf(
			"the realm's limit of scratch files at machine %s is reached: it has %v of %v, and this takes %v more",
			s.k.cfg.Machine, held, quota, more),
		Hint: "remove files there; the provider raises it with: sigma realm set --limit-scratch N REALM"}
}

// forget is called when a realm was removed.
func (s *scratchQuotas) forget(realm sigma.RealmID) { s.of.Delete(realm) }
