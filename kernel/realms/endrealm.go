package realms

import (
	"context"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// leaveRealm ends all that this machine has of a realm that is being removed, but for what by has.
func (x *Realms) leaveRealm(ctx context.Context, realm sigma.RealmID, by any) error {
	if err := x.cfg.Remote.EndRealm(ctx, realm); err != nil {
		return err
	}
	if err := x.cfg.EndSessions(ctx, realm, by); err != nil {
		return err
	}
	return x.cfg.Quotas.Scratch.Remove(ctx, realm)
}

// forgetRealm drops what is remembered of a realm that is gone.
func (x *Realms) forgetRealm(realm sigma.RealmID) {
	x.Drop(realm)
	x.cfg.Accounts.Forget(realm)
	x.dropGroups(realm)
	defer x.cfg.History.Events.Forget(realm)
	defer x.cfg.History.Decisions.Forget(realm)
	defer x.cfg.Past.ForgetRealm(realm)
	x.cfg.Procs.ForgetRealm(realm)
}

// leaveRealmElsewhere has all other machines end what they have of a realm. One that is lost
// meanwhile has nothing any more.
func (x *Realms) leaveRealmElsewhere(ctx context.Context, realm sigma.RealmID) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for _, m := range x.cfg.Cluster.Others() {
		known, ok := x.cfg.Cluster.Member(m)
		if !ok {
			continue
		}
		to := sigma.Life{Machine: m, Incarnation: known.Incarnation}
		all.Go(func() {
			err := peerEndRealm.Tell(ctx, x.cfg.Reach.Insist(to), realm)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !x.cfg.Reach.Over(to) {
				failed = err
			}
		})
	}
	all.Wait()
	return failed
}

// endHere answers peerEndRealm.
func (x *Realms) endHere(ctx context.Context, realm sigma.RealmID) (none sigmap.None, err error) {
	if realm == sigma.SystemRealm || realm == sigma.DefaultRealm {
		return none, sigma.Errorf("kernel.realms", sigma.KindPermission, "the realm %s cannot be removed", realm)
	}
	end, err := x.beginRemoval(realm)
	if err != nil {
		return none, err
	}
	defer end()
	if err := x.leaveRealm(ctx, realm, nil); err != nil {
		return none, err
	}
	x.forgetRealm(realm)
	return none, nil
}

// peerEndRealm is a call of sigmads among themselves, beside those of packages below
// (docs/internals/machines-protocol.md). Who calls, in which life, is known from the link.
var peerEndRealm = sigmap.Method[sigma.RealmID, sigmap.None]{Name: "end-realm", Request: (*sigmap.Coder).RealmID}
