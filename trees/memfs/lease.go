package memfs

import (
	"context"
	"math/rand/v2"
	"time"

	"sigmaos.dev/sigma"
)

// lease is guarded by Tree.mu.
type lease struct {
	ttl   time.Duration
	timer *time.Timer
	ends  time.Time // after the last renewal; decides when the timer and Renew race
	files map[*node]struct{}
}

// Lease implements sigma.Leaser.
func (f *file) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, error) {
	const op = "memfs.Lease"
	if ttl <= 0 || ttl > LeaseMax {
		return 0, sigma.Errorf(op, sigma.KindInvalid, "a lease lives for up to %v, not %v", LeaseMax, ttl)
	}
	if err := f.begin(ctx, op); err != nil {
		return 0, err
	}
	defer f.t.mu.Unlock()
	if len(f.t.leases) >= LeasesMax {
		return 0, sigma.Errorf(op, sigma.KindBusy, "there are %d leases", LeasesMax)
	}
	// Random, so that nobody renews or revokes a stranger's lease by counting.
	id := sigma.LeaseID(rand.Uint64() | 1)
	for f.t.leases[id] != nil {
		id += 2
	}
	t := f.t
	l := &lease{ttl: ttl, ends: time.Now().Add(ttl), files: map[*node]struct{}{}}
	l.timer = time.AfterFunc(ttl, func() { t.expire(id) })
	t.leases[id] = l
	return id, nil
}

// Renew implements sigma.Leaser.
func (f *file) Renew(ctx context.Context, id sigma.LeaseID) error {
	const op = "memfs.Renew"
	if err := f.begin(ctx, op); err != nil {
		return err
	}
	defer f.t.mu.Unlock()
	l := f.t.leases[id]
	if l == nil {
		return sigma.Errorf(op, sigma.KindNotFound, "there is no such lease")
	}
	l.ends = time.Now().Add(l.ttl)
	l.timer.Reset(l.ttl)
	return nil
}

// Revoke implements sigma.Leaser.
func (f *file) Revoke(ctx context.Context, id sigma.LeaseID) error {
	const op = "memfs.Revoke"
	if err := f.begin(ctx, op); err != nil {
		return err
	}
	defer f.t.mu.Unlock()
	if f.t.leases[id] == nil {
		return sigma.Errorf(op, sigma.KindNotFound, "there is no such lease")
	}
	f.t.endLocked(id)
	return nil
}

// expire ends a lease whose time has come, unless it was renewed while the timer fired.
func (t *Tree) expire(id sigma.LeaseID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.leases[id]; l != nil && !time.Now().Before(l.ends) {
		t.endLocked(id)
	}
}

// endLocked removes the lease and its files; only files and links are ever put under one.
func (t *Tree) endLocked(id sigma.LeaseID) {
	l := t.leases[id]
	l.timer.Stop()
	for n := range l.files {
		t.unlinkLocked(n)
	}
	delete(t.leases, id)
}
