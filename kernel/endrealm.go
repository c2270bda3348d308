package kernel

import (
	"context"
	"math"
	"sync"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// endRealm kills a realm's procs and waits for their end. No more may be spawned meanwhile.
func (k *Kernel) endRealm(ctx context.Context, realm sigma.RealmID) error {
	var all []sigma.ProcInfo
	k.procs.With(func(v procs.View) { all = v.List(realm, false, 0, math.MaxInt) })
	for _, p := range all {
		k.procs.Step(schedd.Killed{ID: p.ID})
	}
	for _, p := range all {
		if p.Machine != k.cfg.Machine {
			if err := k.tell(ctx, realm, p.ID, actKill, 0); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
				return err
			}
		}
		_, err := k.procs.Wait(ctx, realm, p.ID, procs.Ended)
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return nil
}

// leaveRealm ends all that this machine has of a realm that is being removed, but for what by has.
func (k *Kernel) leaveRealm(ctx context.Context, realm sigma.RealmID, by *tree) error {
	if err := k.endRealm(ctx, realm); err != nil {
		return err
	}
	if err := k.endSessions(ctx, realm, by); err != nil {
		return err
	}
	return k.scratch.remove(ctx, realm)
}

// forgetRealm drops what is remembered of a realm that is gone.
func (k *Kernel) forgetRealm(realm sigma.RealmID) {
	k.dropNames(realm)
	k.ledger.Drop(realm)
	k.copies.Drop(realm)
	k.traffic.Drop(realm)
	k.dropGroups(realm)
	k.worked.Drop(realm, services.DatabaseService(realm))
	defer k.events.Forget(realm)
	defer k.decisions.Forget(realm)
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

// countProcs says how many procs each realm has on all machines. Those of a machine that does not
// answer are not counted.
func (k *Kernel) countProcs(ctx context.Context, realms []sigma.RealmInfo) {
	ids := make([]string, len(realms))
	for i := range realms {
		ids[i] = string(realms[i].ID)
		realms[i].Procs = k.procs.Live(realms[i].ID)
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, m := range k.cluster.Others() {
		all.Go(func() {
			var counts []uint64
			if k.reach.Ask(ctx, m, peerCount, func(c *sigmap.Coder) {
				c.Strs(&ids)
			}, func(c *sigmap.Coder) { codeCounts(c, &counts) }) != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range counts[:min(len(counts), len(realms))] {
				realms[i].Procs += int(min(counts[i], schedd.QueuedMax))
			}
		})
	}
	all.Wait()
}

func codeCounts(c *sigmap.Coder, counts *[]uint64) {
	n := len(*counts)
	c.Count(&n, 8)
	if c.Decoding() {
		*counts = make([]uint64, n)
	}
	for i := range *counts {
		c.U64(&(*counts)[i])
	}
}

func (k *Kernel) peerCount(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var ids []string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Strs(&ids) }); err != nil {
		return nil, err
	}
	counts := make([]uint64, len(ids))
	for i, id := range ids {
		counts[i] = uint64(k.procs.Live(sigma.RealmID(id)))
	}
	return sigmap.Payload(func(c *sigmap.Coder) { codeCounts(c, &counts) })
}
