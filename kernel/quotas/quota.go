// Package quotas bounds what realms hold of a machine: sessions, handles, and bytes of scratch
// files, which it keeps (ux) and shows to no other realm of the same name. The limits are named's
// to keep. Users: kernel.
//
// Locks: Quotas.mu and Scratch.mu, leaves.
package quotas

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/client"
)

// Config is what Quotas need of their user.
type Config struct {
	Machine sigma.MachineID
	Data    string    // ux and what is written down of it are below
	Start   time.Time // of sigmad
	Log     *slog.Logger
	Memo    *memo.Memo
	Go      func(func()) // begins what is waited for before the program ends
	// Names is the root of a realm's names.
	Names func(ctx context.Context, realm sigma.RealmID) (*client.File, error)
	// Self is this machine in its present life.
	Self func() identity.Subject
	// Realms asks which realms there are.
	Realms func(ctx context.Context) ([]sigma.RealmInfo, error)
}

// Quotas is what realms hold of a machine. Safe for concurrent use.
type Quotas struct {
	cfg     Config
	Scratch *Scratch

	mu sync.Mutex
	of map[sigma.RealmID]*Quota // mu; of realms that have sessions here
}

// New makes the quotas of a machine where nobody has a session.
func New(cfg Config) (*Quotas, error) {
	x := &Quotas{cfg: cfg, of: map[sigma.RealmID]*Quota{}}
	var err error
	x.Scratch, err = newScratch(x)
	return x, err
}

// Quota is what a realm's procs hold of this sigmad, so that no tenant can take its memory from the
// others: sessions, and handles in all of them together. The limits are named's to keep. They are
// asked for when a session begins, if that was not done for a while, and before anything is
// refused; until they are known the defaults count. The provider's sessions, the services', and
// those of other machines are not counted.
type Quota struct {
	x                 *Quotas
	realm             sigma.RealmID
	open              int // Quotas.mu; sessions that hold this; with the last it is forgotten
	sessions, handles atomic.Int64
	limits            atomic.Pointer[sigma.RealmLimits] // nil = not known
	asked             atomic.Int64                      // when, nanoseconds after the kernel's start; 0 = never
}

// quotaStale is for how long limits are taken as known when a session begins.
const quotaStale = 5 * time.Second

// Of gives what a session of p counts in; nil if it is not counted.
func (x *Quotas) Of(p sigma.Principal) *Quota {
	if p.System || p.Proc == "" || p.Realm == sigma.SystemRealm {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	q := x.of[p.Realm]
	if q == nil {
		q = &Quota{x: x, realm: p.Realm}
		x.of[p.Realm] = q
	}
	q.open++
	return q
}

// Close is called when a session that Of was called for is over.
func (q *Quota) Close() {
	q.x.mu.Lock()
	defer q.x.mu.Unlock()
	if q.open--; q.open == 0 {
		delete(q.x.of, q.realm)
	}
}

// Enter counts a session.
func (q *Quota) Enter() error {
	if now := int64(time.Since(q.x.cfg.Start)); now-q.asked.Load() > int64(quotaStale) || q.asked.Load() == 0 {
		q.asked.Store(now)
		q.x.cfg.Go(func() { q.ask() })
	}
	return q.count(&q.sessions, "sessions", func(l *sigma.RealmLimits) uint64 { return l.Sessions })
}

// Leave is called when a session that was counted is over.
func (q *Quota) Leave() { q.sessions.Add(-1) }

// Take implements treeserver.Handles.
func (q *Quota) Take() error {
	return q.count(&q.handles, "handles", func(l *sigma.RealmLimits) uint64 { return l.Handles })
}

// Give implements treeserver.Handles.
func (q *Quota) Give(n int) { q.handles.Add(-int64(n)) }

func (q *Quota) count(have *atomic.Int64, what string, of func(*sigma.RealmLimits) uint64) error {
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
		Msg: fmt.Sprintf("the realm's limit of %s at machine %s is reached: it has %d of %d", what, q.x.cfg.Machine,
			n-1, of(l)),
		Hint: fmt.Sprintf("close what is not needed; the provider raises it with: sigma realm set --limit-%s N REALM",
			what)}
}

// ask asks named for the limits; nil if it does not answer.
func (q *Quota) ask() *sigma.RealmLimits {
	u, err := q.x.Use(q.realm)
	if err != nil {
		return nil
	}
	q.limits.Store(&u.Limits)
	return &u.Limits
}

// Use is what named tells of a realm's limits, and of what it has.
type Use struct{ Limits, Use sigma.RealmLimits }

// Use asks named, once a second at most.
func (x *Quotas) Use(realm sigma.RealmID) (Use, error) {
	return memo.Recall(x.cfg.Memo, "names "+string(realm), func(ctx context.Context) (u Use, err error) {
		n, err := x.cfg.Names(ctx, realm)
		if err == nil {
			u.Limits, u.Use, err = n.Use(ctx)
		}
		return u, err
	})
}

// Held says what a realm's procs hold here.
func (x *Quotas) Held(realm sigma.RealmID) (sessions, handles uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if q := x.of[realm]; q != nil {
		sessions, handles = uint64(max(0, q.sessions.Load())), uint64(max(0, q.handles.Load()))
	}
	return sessions, handles
}

// Learn takes limits of a realm that has sessions or scratch files here as known.
func (x *Quotas) Learn(realm sigma.RealmID, l sigma.RealmLimits) {
	x.mu.Lock()
	if q := x.of[realm]; q != nil {
		q.limits.Store(&l)
	}
	x.mu.Unlock()
	x.Scratch.limitOf(realm).most.Store(uint64(l.Scratch))
}
