package realms

import (
	"context"
	"time"

	"sigmaos.dev/kernel/limits"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// What realms may have of processors and memory (docs/reference/limits.md): maxima at each machine,
// minima for reservations, and how much can be reserved. named keeps them; the launcher's groups,
// schedd and lcsched see to them.

// canLimit says what of a realm's limits of processors and memory cannot hold, or nil.
func (x *Realms) canLimit(ctx context.Context, id sigma.RealmID, set sigma.RealmLimits) error {
	if err := set.Check(); err != nil {
		return err
	}
	if !set.Computes() {
		return nil
	}
	if id == sigma.SystemRealm {
		return sigma.Errorf("kernel.realms", sigma.KindPermission,
			"the realm system is the provider's and has no limits of processors and memory")
	}
	all, err := x.cfg.Reach.Realms(ctx)
	if err != nil {
		return err
	}
	var ms []sigma.MachineInfo
	for _, m := range x.cfg.Roster() {
		if m.ID == x.cfg.Machine {
			m.CPU, m.Memory = x.cfg.CPU, x.cfg.Memory
		}
		if m.State != sigma.MachineLost {
			ms = append(ms, m)
		}
	}
	return limits.Check(all, ms, id, set)
}

// sharesEvery is how often the realms' shares are looked at while procs run here.
const sharesEvery = time.Second

// realmsMax is how long named may take to list all realms.
const realmsMax = 30 * time.Second

// limitsIdle is how often limits are looked at while nothing runs here.
const limitsIdle = 5 * time.Second

// Run keeps the weights and maxima of realms here what they are to be, until ctx ends, and
// tells schedd and lcsched of limits.
func (x *Realms) Run(ctx context.Context) {
	wait, looked := sharesEvery, time.Time{}
	for {
		poked := false
		select {
		case <-time.After(wait):
		case <-x.cfg.Shares.Changed:
			poked = true
		case <-ctx.Done():
			return
		}
		l := x.cfg.Launcher.Now()
		if !poked && x.cfg.Procs.Running() == 0 && time.Since(looked) < limitsIdle {
			continue
		}
		looked = time.Now()
		asked, cancel := context.WithTimeout(ctx, realmsMax)
		all, err := x.cfg.Reach.Realms(asked)
		cancel()
		if err == nil { // else what holds stands
			x.cfg.Accounts.HeardRealms(time.Now(), all)
			x.setRealms(l, all)
		}
		wait = max(sharesEvery, 50*time.Since(looked)) // with very many realms less often
	}
}

// setRealms takes what holds for realms from now on.
func (x *Realms) setRealms(l *launch.Launcher, all []sigma.RealmInfo) {
	shares := make(map[sigma.RealmID]uint32, len(all))
	for i := range all {
		shares[all[i].ID] = all[i].Shares
	}
	x.cfg.Turns.SetShares(shares)
	reserved := map[sigma.RealmID]sigma.MilliCPU{}
	x.cfg.Procs.With(func(v procs.View) {
		for i := range all {
			reserved[all[i].ID] = v.ReservedBy(all[i].ID)
		}
	})
	if !x.cfg.Shares.Set(l, all, func(r sigma.RealmID) sigma.MilliCPU { return reserved[r] }) {
		return
	}
	of := map[sigma.RealmID]sigma.Bytes{}
	for i := range all {
		if most := all[i].Limits.MaxMemory; most > 0 {
			of[all[i].ID] = most
		}
	}
	x.cfg.Procs.Step(schedd.Maxima{Memory: of})
	x.cfg.Placing.LimitsChanged() // lcsched is told
}

// dropGroups has the launcher remove the cgroups of a realm that is gone.
func (x *Realms) dropGroups(realm sigma.RealmID) {
	x.cfg.Shares.Drop(x.cfg.Launcher.Now(), realm)
}
