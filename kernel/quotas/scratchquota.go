package quotas

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// scratchLimit is how much one realm may have in ux at this machine (sigma.RealmLimits.Scratch). As
// with Quota the limits are named's to keep, are asked for if that was not done for a while and
// before anything is refused, and the default counts until they are known.
type scratchLimit struct {
	most   atomic.Uint64 // 0 = not known
	asked  atomic.Int64  // when, nanoseconds after the kernel's start; 0 = never
	asking atomic.Bool
}

// defaultScratch is the limit at a machine that keeps ux in dir: no realm can fill the disk by
// itself.
func defaultScratch(dir string) (sigma.Bytes, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, sigma.Wrap("kernel.quotas", dir, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, sigma.Wrap("kernel.quotas", dir, err)
	}
	return min(sigma.LimitScratchDefault, sigma.Bytes(st.Blocks*uint64(st.Frsize)/2)), nil
}

// limitOf is what is known of a realm's limit.
func (s *Scratch) limitOf(realm sigma.RealmID) *scratchLimit {
	v, ok := s.limits.Load(realm)
	if !ok {
		v, _ = s.limits.LoadOrStore(realm, &scratchLimit{})
	}
	return v.(*scratchLimit)
}

// Limit is how much a realm may have here. See dirtree.Quota.
func (s *Scratch) Limit(realm sigma.RealmID, ask bool) sigma.Bytes {
	q := s.limitOf(realm)
	now := int64(time.Since(s.x.cfg.Start))
	if at := q.asked.Load(); ask {
		s.ask(realm, q)
	} else if (at == 0 || now-at > int64(quotaStale)) && q.asking.CompareAndSwap(false, true) {
		q.asked.Store(max(1, now))
		s.x.cfg.Go(func() {
			defer q.asking.Store(false)
			s.ask(realm, q)
		})
	}
	return s.InForce(sigma.Bytes(q.most.Load()))
}

// InForce is the limit of a realm for which one was set, 0 = none.
func (s *Scratch) InForce(set sigma.Bytes) sigma.Bytes {
	if set == 0 || set == sigma.LimitScratchDefault {
		return s.byDefault
	}
	return set
}

func (s *Scratch) ask(realm sigma.RealmID, q *scratchLimit) {
	if u, err := s.x.Use(realm); err == nil {
		q.most.Store(uint64(u.Limits.Scratch))
	}
}

func (s *Scratch) refused(_ sigma.RealmID, held, more, quota sigma.Bytes) *sigma.Error {
	return &sigma.Error{Kind: sigma.KindNoSpace,
		Msg: fmt.Sprintf(
			"the realm's limit of scratch files at machine %s is reached: it has %v of %v, and this takes %v more",
			s.x.cfg.Machine, held, quota, more),
		Hint: "remove files there; the provider raises it with: sigma realm set --limit-scratch N REALM"}
}
