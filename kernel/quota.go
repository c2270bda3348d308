package kernel

import (
	"fmt"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/sigma"
)

// quota is what a realm's procs hold of this sigmad, so that no tenant can take its memory from the
// others: sessions, and handles in all of them together. The limits are named's to keep. They are
// asked for when a session begins, if that was not done for a while, and before anything is
// refused; until they are known the defaults count. The provider's sessions, the services', and
// those of other machines are not counted.
type quota struct {
	k                 *Kernel
	realm             sigma.RealmID
	open              int // Kernel.mu; sessions that hold this; with the last it is forgotten
	sessions, handles atomic.Int64
	limits            atomic.Pointer[sigma.RealmLimits] // nil = not known
	asked             atomic.Int64                      // when, nanoseconds after the kernel's start; 0 = never
}

// quotaStale is for how long limits are taken as known when a session begins.
const quotaStale = 5 * time.Second

// quotaOf gives what a session of p counts in; nil if it is not counted.
func (k *Kernel) quotaOf(p sigma.Principal) *quota {
	if p.System || p.Proc == "" || p.Realm == sigma.SystemRealm {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	q := k.quotas[p.Realm]
	if q == nil {
		q = &quota{k: k, realm: p.Realm}
		k.quotas[p.Realm] = q
	}
	q.open++
	return q
}

// close is called when a session that quotaOf was called for is over.
func (q *quota) close() {
	q.k.mu.Lock()
	defer q.k.mu.Unlock()
	if q.open--; q.open == 0 {
		delete(q.k.quotas, q.realm)
	}
}

// enter counts a session.
func (q *quota) enter() error {
	if now := int64(time.Since(q.k.start)); now-q.asked.Load() > int64(quotaStale) || q.asked.Load() == 0 {
		q.asked.Store(now)
		q.k.sessions.Go(func() { q.ask() })
	}
	return q.count(&q.sessions, "sessions", func(l *sigma.RealmLimits) uint64 { return l.Sessions })
}

// leave is called when a session that was counted is over.
func (q *quota) leave() { q.sessions.Add(-1) }

// Take implements treekit.Handles.
func (q *quota) Take() error {
	return q.count(&q.handles, "handles", func(l *sigma.RealmLimits) uint64 { return l.Handles })
}

// Give implements treekit.Handles.
func (q *quota) Give(n int) { q.handles.Add(-int64(n)) }

func (q *quota) count(have *atomic.Int64, what string, of func(*sigma.RealmLimits) uint64) error {
	n, l := uint64(have.Add(1)), q.limits.Load()
	if l == nil {
		l = &sigma.RealmLimits{Sessions: sigma.LimitSessionsDefault, Handles: sigma.LimitHandlesDefault}
	}
	if n <= of(l) {
		return nil
	}
	if now := q.ask(); now != nil {
		l = now
	}
	if n <= of(l) {
		return nil
	}
	have.Add(-1)
	return &sigma.Error{Op: "kernel.quota", Kind: sigma.KindNoSpace,
		Msg: fmt.Sprintf("the realm's limit of %s at machine %s is reached: it has %d of %d", what, q.k.cfg.Machine,
			n-1, of(l)),
		Hint: fmt.Sprintf("close what is not needed; the provider raises it with: sigma realm set --limit-%s N REALM",
			what)}
}

// ask asks named for the limits; nil if it does not answer.
func (q *quota) ask() *sigma.RealmLimits {
	u, err := q.k.namesUse(q.realm)
	if err != nil {
		return nil
	}
	q.limits.Store(&u.limits)
	return &u.limits
}

// namesUse is what named tells of a realm's limits, and of what it has.
type namesUse struct{ limits, use sigma.RealmLimits }

// namesUse asks named, once a second at most.
func (k *Kernel) namesUse(realm sigma.RealmID) (namesUse, error) {
	return memo.Recall(k.memo, "names "+string(realm), func() (u namesUse, err error) {
		ctx, cancel := k.asked()
		defer cancel()
		n, err := k.named(ctx, realm)
		if err == nil {
			u.limits, u.use, err = n.Use(ctx)
		}
		return u, err
	})
}

// held says what a realm's procs hold here.
func (k *Kernel) held(realm sigma.RealmID) (sessions, handles uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if q := k.quotas[realm]; q != nil {
		sessions, handles = uint64(max(0, q.sessions.Load())), uint64(max(0, q.handles.Load()))
	}
	return sessions, handles
}

// enter counts the session at its first attach.
func (t *tree) enter() error {
	t.mu.Lock()
	first := t.quota != nil && !t.counted
	t.counted = t.quota != nil
	t.mu.Unlock()
	if !first {
		return nil
	}
	err := t.quota.enter()
	if err != nil {
		t.mu.Lock()
		t.counted = false
		t.mu.Unlock()
	}
	return err
}
