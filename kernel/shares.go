package kernel

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/launch"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// Groups of cgroups, below the instance's. What is in them competes as
// docs/adr/0021-how-best-effort-procs-yield.md says.
const (
	groupLC = "lc" // latency-critical procs of all realms, each weighed by its reservation
	// all others, whose work is mostly for best-effort procs: one group, so that what they owe one
	// another is nothing to the first
	groupRest     = "rest"
	groupBE       = "rest/be"       // best-effort procs, a group for each realm, weighed by its shares
	groupServices = "rest/system"   // the boot set
	groupSigmad   = "rest/launcher" // sigmad itself
)

const (
	// coreShares is the weight of a whole core, which is what a cgroup has by default.
	coreShares = 1024
	// lcShares is the weight of all LC procs together, daemonShares that of sigmad, and of all
	// services, and restShares that of these and best-effort procs together: when all want all of
	// the machine, LC procs have 80 % of it, and nothing that they do keeps the machine from
	// answering. If there are best-effort procs the rest is in the idle class instead, for as long
	// as it is seen to get at least an eighth of the machine there (launcher/src/room.rs).
	lcShares, daemonShares = 16 * coreShares, 2 * coreShares
	restShares             = 2 * daemonShares
	// beShares is the weight of best-effort procs for each core, up to beSharesMost: as long as no
	// LC proc is there, for then they are in the idle class. With much less the kernel, which
	// spreads what waits over the processors by weight, takes one on which a daemon runs now and
	// then for full, crowds them on the others, and realms have what chance gives them
	// (docs/internals/shares.md). Never more than half of what a group of daemons has, however many
	// cores there are: daemons answer, best-effort procs can wait.
	beShares, beSharesMost = coreShares / 2, daemonShares / 2
	// realmShares is the weight of one share of a realm. For a while the launcher gives those that
	// are behind up to four times as much, or a fourth to those ahead (docs/internals/shares.md).
	// The kernel's range ends at 1024 shares, of version 2 at 400; who has more has no more.
	realmShares = 256
	// sharesEvery is how often the realms' shares are looked at while procs run here.
	sharesEvery = time.Second
)

// groupOf is the cgroup of a proc of this realm and class.
func groupOf(realm sigma.RealmID, class sigma.Class) string {
	if class == sigma.LatencyCritical {
		return groupLC
	}
	return groupBE + "/" + string(realm)
}

// weightOf is what a proc has beside others of its group.
func weightOf(class sigma.Class, reserved sigma.MilliCPU) uint32 {
	if class == sigma.LatencyCritical {
		return max(2, uint32(uint64(reserved)*coreShares/1000))
	}
	return coreShares
}

// weightBE is what all best-effort procs have on a machine with so many cores.
func weightBE(cpu sigma.MilliCPU) uint32 {
	return min(beSharesMost, max(1, uint32(cpu/1000))*beShares)
}

// groupShares is what the launcher was told of the groups. It forgets all when the launcher dies.
type groupShares struct {
	mu     sync.Mutex
	groups map[string]launch.Share           // mu; of realms that have had procs here, what holds
	limits map[sigma.RealmID]sigma.RealmInfo // mu; of all realms, as known last; nil = nothing is known yet
	told   uint64                            // mu; how often limits were others than before
	poke   chan struct{}                     // shares were changed, or a realm has its first procs here
	came   launch.Yielded                    // mu; what best-effort procs yielded, of all launchers before
	now    launch.Yielded                    // mu; of the present one
}

func newGroupShares() *groupShares { return &groupShares{poke: make(chan struct{}, 1)} }

// groupOfLC is the cgroup of a realm's latency-critical procs while it has a maximum.
func groupOfLC(realm sigma.RealmID) string { return groupLC + "/" + string(realm) }

// quotaLeast is what a group may use at least, or its procs would not even come to their end.
const quotaLeast sigma.MilliCPU = 10

// shareBE is what a realm's best-effort procs have: its shares, and of its maximum what its
// latency-critical procs have not reserved.
func shareBE(r *sigma.RealmInfo, reserved sigma.MilliCPU) launch.Share {
	s := launch.Share{CPUShares: max(1, r.Shares) * realmShares}
	if most := r.Limits.MaxCPU; most > 0 {
		s.Quota = max(quotaLeast, most-min(most, reserved))
	}
	return s
}

// shareLC is what a realm's latency-critical procs have while it has a maximum: what they have
// reserved.
func shareLC(reserved sigma.MilliCPU) launch.Share {
	return launch.Share{CPUShares: weightOf(sigma.LatencyCritical, reserved), Quota: max(quotaLeast, reserved)}
}

// classes tells a new launcher what the classes have.
func (g *groupShares) classes(l *launch.Launcher, cpu sigma.MilliCPU) {
	l.SetShare(groupLC, launch.Share{CPUShares: lcShares})
	l.SetShare(groupRest, launch.Share{CPUShares: restShares})
	l.SetShare(groupServices, launch.Share{CPUShares: daemonShares})
	l.SetShare(groupSigmad, launch.Share{CPUShares: daemonShares})
	l.SetShare(groupBE, launch.Share{CPUShares: weightBE(cpu)})
	g.mu.Lock()
	g.groups = map[string]launch.Share{}
	g.came, g.now = g.sumLocked(), launch.Yielded{}
	g.mu.Unlock()
	l.Yield(groupLC, groupBE)
}

// yielded notes what came of Yield.
func (g *groupShares) yielded(e launch.Yielded) {
	g.mu.Lock()
	g.now = e
	g.mu.Unlock()
}

// sum is what best-effort procs have yielded since sigmad began.
func (g *groupShares) sum() launch.Yielded {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sumLocked()
}

func (g *groupShares) sumLocked() launch.Yielded {
	return launch.Yielded{Looks: g.came.Looks + g.now.Looks, Pushes: g.came.Pushes + g.now.Pushes,
		Waited: g.came.Waited + g.now.Waited, CPU: g.came.CPU + g.now.CPU}
}

// uses notes that a realm has procs of a class here, and gives the group that they go to. reserved
// is of the realm, with what is about to start.
func (g *groupShares) uses(l *launch.Launcher, realm sigma.RealmID, class sigma.Class, reserved sigma.MilliCPU) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.limits[realm]
	group := groupOf(realm, class)
	if class == sigma.LatencyCritical {
		if r.Limits.MaxCPU == 0 {
			return group
		}
		group = groupOfLC(realm)
		g.tellLocked(l, group, shareLC(reserved))
	}
	if _, known := g.groups[groupOf(realm, sigma.BestEffort)]; !known && class == sigma.BestEffort {
		poke(g.poke) // what is known of it may be old
	}
	if class == sigma.BestEffort || r.Limits.MaxCPU > 0 {
		g.tellLocked(l, groupOf(realm, sigma.BestEffort), shareBE(&r, reserved))
	}
	return group
}

// dropGroups has the launcher remove the cgroups of a realm that is gone.
func (k *Kernel) dropGroups(realm sigma.RealmID) {
	k.shares.drop(k.launcher.Now(), realm)
}

// drop forgets the groups of a realm that is gone. l is nil while there is no launcher, which then
// sweeps them.
func (g *groupShares) drop(l *launch.Launcher, realm sigma.RealmID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, group := range []string{groupOf(realm, sigma.BestEffort), groupOfLC(realm)} {
		delete(g.groups, group)
		if l != nil {
			l.DropGroup(group)
		}
	}
}

// tellLocked tells the launcher of a group, if that is news.
func (g *groupShares) tellLocked(l *launch.Launcher, group string, s launch.Share) {
	if now, known := g.groups[group]; g.groups != nil && l != nil && (!known || now != s) {
		g.groups[group] = s
		l.SetShare(group, s)
	}
}

// set makes the shares and limits of realms those of all. It reports whether limits are others than
// before.
func (g *groupShares) set(l *launch.Launcher, all []sigma.RealmInfo, reserved func(sigma.RealmID) sigma.MilliCPU) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	before, changed := g.limits, g.limits == nil
	g.limits = make(map[sigma.RealmID]sigma.RealmInfo, len(all))
	for i := range all {
		r := &all[i]
		r.Procs = 0
		g.limits[r.ID] = *r
		changed = changed || before[r.ID].Limits != r.Limits
		if _, here := g.groups[groupOf(r.ID, sigma.BestEffort)]; here {
			g.tellLocked(l, groupOf(r.ID, sigma.BestEffort), shareBE(r, reserved(r.ID)))
		}
		if _, here := g.groups[groupOfLC(r.ID)]; here {
			if r.Limits.MaxCPU > 0 {
				g.tellLocked(l, groupOfLC(r.ID), shareLC(reserved(r.ID)))
			} else { // those that were put there are still there
				g.tellLocked(l, groupOfLC(r.ID), launch.Share{CPUShares: shareLC(reserved(r.ID)).CPUShares})
			}
		}
	}
	if changed = changed || len(before) != len(all); changed {
		g.told++
	}
	return changed
}

// known is what was heard last of all realms' limits, and how often they have changed; 0 = nothing
// was heard.
func (g *groupShares) known() (map[sigma.RealmID]sigma.RealmInfo, uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits, g.told
}

// limitsIdle is how often limits are looked at while nothing runs here.
const limitsIdle = 5 * time.Second

// watchShares keeps the weights and maxima of realms here what they are to be, until ctx ends, and
// tells schedd and lcsched of limits.
func (k *Kernel) watchShares(ctx context.Context) {
	wait, looked := sharesEvery, time.Time{}
	for {
		poked := false
		select {
		case <-time.After(wait):
		case <-k.shares.poke:
			poked = true
		case <-ctx.Done():
			return
		}
		l := k.launcher.Now()
		if !poked && k.procs.Running() == 0 && time.Since(looked) < limitsIdle {
			continue
		}
		looked = time.Now()
		asked, cancel := context.WithTimeout(ctx, callMax)
		all, err := realms{k, nil}.list(asked)
		cancel()
		if err == nil { // else what holds stands
			k.heardRealms(time.Now(), all)
			k.setRealms(l, all)
		}
		wait = max(sharesEvery, 50*time.Since(looked)) // with very many realms less often
	}
}

// setRealms takes what holds for realms from now on.
func (k *Kernel) setRealms(l *launch.Launcher, all []sigma.RealmInfo) {
	shares := make(map[sigma.RealmID]uint32, len(all))
	for i := range all {
		shares[all[i].ID] = all[i].Shares
	}
	k.turns.SetShares(shares)
	reserved := map[sigma.RealmID]sigma.MilliCPU{}
	k.procs.With(func(v procs.View) {
		for i := range all {
			reserved[all[i].ID] = v.ReservedBy(all[i].ID)
		}
	})
	if !k.shares.set(l, all, func(r sigma.RealmID) sigma.MilliCPU { return reserved[r] }) {
		return
	}
	of := map[sigma.RealmID]sigma.Bytes{}
	for i := range all {
		if most := all[i].Limits.MaxMemory; most > 0 {
			of[all[i].ID] = most
		}
	}
	k.procs.Step(schedd.Maxima{Memory: of})
	poke(k.reserved.work) // lcsched is told
}
