package kernel

import (
	"context"
	"sync"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// leaveRealm ends all that this machine has of a realm that is being removed, but for what by has.
func (k *Kernel) leaveRealm(ctx context.Context, realm sigma.RealmID, by *tree) error {
	if err := k.remote.EndRealm(ctx, realm); err != nil {
		return err
	}
	if err := k.endSessions(ctx, realm, by); err != nil {
		return err
	}
	return k.quotas.Scratch.Remove(ctx, realm)
}

// forgetRealm drops what is remembered of a realm that is gone.
func (k *Kernel) forgetRealm(realm sigma.RealmID) {
	k.dropNames(realm)
	k.ledger.Drop(realm)
	k.copies.Drop(realm)
	k.traffic.Drop(realm)
	k.dropGroups(realm)
	k.worked.Drop(realm, services.DatabaseService(realm))
	defer k.history.Events.Forget(realm)
	defer k.history.Decisions.Forget(realm)
	defer k.past.ForgetRealm(realm)
	k.procs.ForgetRealm(realm)
}

// leaveRealmElsewhere has all other machines end what they have of a realm. One that is lost
// meanwhile has nothing any more.
func (k *Kernel) leaveRealmElsewhere(ctx context.Context, realm sigma.RealmID) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for _, m := range k.cluster.Others() {
		known, ok := k.cluster.Member(m)
		if !ok {
			continue
		}
		to := sigma.Life{Machine: m, Incarnation: known.Incarnation}
		all.Go(func() {
			err := k.reach.Insist(ctx, to, peerEndRealm, func(c *sigmap.Coder) { c.RealmID(&realm) }, nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !k.reach.Over(to) {
				failed = err
			}
		})
	}
	all.Wait()
	return failed
}

func (k *Kernel) peerEndRealm(ctx context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var realm sigma.RealmID
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&realm) }); err != nil {
		return nil, err
	}
	if realm == sigma.SystemRealm || realm == sigma.DefaultRealm {
		return nil, sigma.Errorf("kernel.realms", sigma.KindPermission, "the realm %s cannot be removed", realm)
	}
	end, err := k.beginRemoval(realm)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := k.leaveRealm(ctx, realm, nil); err != nil {
		return nil, err
	}
	k.forgetRealm(realm)
	return nil, nil
}
