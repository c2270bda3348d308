// Package shares says which cgroup a proc runs in and what each group has of the processors: by
// class, by realm, and within a realm's limits. It tells the launcher what it does not know yet.
// Users: kernel.
package shares

import (
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// Groups of cgroups, below the instance's. What is in them competes as
// docs/adr/0021-how-best-effort-procs-yield.md says.
const (
	GroupLC = "lc" // latency-critical procs of all realms, each weighed by its reservation
	// all others, whose work is mostly for best-effort procs: one group, so that what they owe one
	// another is nothing to the first
	GroupRest     = "rest"
	GroupBE       = "rest/be"       // best-effort procs, a group for each realm, weighed by its shares
	GroupServices = "rest/system"   // the boot set
	GroupSigmad   = "rest/launcher" // sigmad itself
)

const (
	// CoreShares is the weight of a whole core, which is what a cgroup has by default.
	CoreShares = 1024
	// LCShares is the weight of all LC procs together, daemonShares that of sigmad, and of all
	// services, and restShares that of these and best-effort procs together: when all want all of
	// the machine, LC procs have 80 % of it, and nothing that they do keeps the machine from
	// answering. If there are best-effort procs the rest is in the idle class instead, for as long
	// as it is seen to get at least an eighth of the machine there (launcher/src/placer/room.rs).
	LCShares, DaemonShares = 16 * CoreShares, 2 * CoreShares
	RestShares             = 2 * DaemonShares
	// beShares is the weight of best-effort procs for each core, up to beSharesMost: as long as no
	// LC proc is there, for then they are in the idle class. With much less the kernel, which
	// spreads what waits over the processors by weight, takes one on which a daemon runs now and
	// then for full, crowds them on the others, and realms have what chance gives them
	// (docs/internals/shares.md). Never more than half of what a group of daemons has, however many
	// cores there are: daemons answer, best-effort procs can wait.
	beShares, beSharesMost = CoreShares / 2, DaemonShares / 2
	// RealmShares is the weight of one share of a realm. For a while the launcher gives those that
	// are behind up to four times as much, or a fourth to those ahead (docs/internals/shares.md).
	// The kernel's range ends at 1024 shares, of version 2 at 400; who has more has no more.
	RealmShares = 256
)

// GroupOf is the cgroup of a proc of this realm and class.
func GroupOf(realm sigma.RealmID, class sigma.Class) string {
	if class == sigma.LatencyCritical {
		return GroupLC
	}
	return GroupBE + "/" + string(realm)
}

// WeightOf is what a proc has beside others of its group.
func WeightOf(class sigma.Class, reserved sigma.MilliCPU) uint32 {
	if class == sigma.LatencyCritical {
		return max(2, uint32(uint64(reserved)*CoreShares/1000))
	}
	return CoreShares
}

// WeightBE is what all best-effort procs have on a machine with so many cores.
func WeightBE(cpu sigma.MilliCPU) uint32 {
	return min(beSharesMost, max(1, uint32(cpu/1000))*beShares)
}

// Groups is what the launcher was told of the groups. It forgets all when the launcher dies.
type Groups struct {
	mu      sync.Mutex
	groups  map[string]launch.Share           // mu; of realms that have had procs here, what holds
	limits  map[sigma.RealmID]sigma.RealmInfo // mu; of all realms, as known last; nil = nothing is known yet
	told    uint64                            // mu; how often limits were others than before
	Changed chan struct{}                     // shares were changed, or a realm has its first procs here
	came    launch.Yielded                    // mu; what best-effort procs yielded, of all launchers before
	now     launch.Yielded                    // mu; of the present one
}

// New knows nothing yet.
func New() *Groups { return &Groups{Changed: make(chan struct{}, 1)} }

// Touch has the realms' shares looked at soon.
func (g *Groups) Touch() {
	select {
	case g.Changed <- struct{}{}:
	default:
	}
}

// groupOfLC is the cgroup of a realm's latency-critical procs while it has a maximum.
func groupOfLC(realm sigma.RealmID) string { return GroupLC + "/" + string(realm) }

// quotaLeast is what a group may use at least, or its procs would not even come to their end.
const quotaLeast sigma.MilliCPU = 10

// shareBE is what a realm's best-effort procs have: its shares, and of its maximum what its
// latency-critical procs have not reserved.
func shareBE(r *sigma.RealmInfo, reserved sigma.MilliCPU) launch.Share {
	s := launch.Share{CPUShares: max(1, r.Shares) * RealmShares}
	if most := r.Limits.MaxCPU; most > 0 {
		s.Quota = max(quotaLeast, most-min(most, reserved))
	}
	return s
}

// shareLC is what a realm's latency-critical procs have while it has a maximum: what they have
// reserved.
func shareLC(reserved sigma.MilliCPU) launch.Share {
	return launch.Share{CPUShares: WeightOf(sigma.LatencyCritical, reserved), Quota: max(quotaLeast, reserved)}
}

// Classes tells a new launcher what the classes have.
func (g *Groups) Classes(l *launch.Launcher, cpu sigma.MilliCPU) {
	l.SetShare(GroupLC, launch.Share{CPUShares: LCShares})
	l.SetShare(GroupRest, launch.Share{CPUShares: RestShares})
	l.SetShare(GroupServices, launch.Share{CPUShares: DaemonShares})
	l.SetShare(GroupSigmad, launch.Share{CPUShares: DaemonShares})
	l.SetShare(GroupBE, launch.Share{CPUShares: WeightBE(cpu)})
	g.mu.Lock()
	g.groups = map[string]launch.Share{}
	g.came, g.now = g.sumLocked(), launch.Yielded{}
	g.mu.Unlock()
	l.Yield(GroupLC, GroupBE)
}

// Yielded notes what came of Yield.
func (g *Groups) Yielded(e launch.Yielded) {
	g.mu.Lock()
	g.now = e
	g.mu.Unlock()
}

// Sum is what best-effort procs have yielded since sigmad began.
func (g *Groups) Sum() launch.Yielded {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sumLocked()
}

func (g *Groups) sumLocked() launch.Yielded {
	return launch.Yielded{Looks: g.came.Looks + g.now.Looks, Pushes: g.came.Pushes + g.now.Pushes,
		Waited: g.came.Waited + g.now.Waited, CPU: g.came.CPU + g.now.CPU}
}

// Uses notes that a realm has procs of a class here, and gives the group that they go to. reserved
// is of the realm, with what is about to start.
func (g *Groups) Uses(l *launch.Launcher, realm sigma.RealmID, class sigma.Class, reserved sigma.MilliCPU) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.limits[realm]
	group := GroupOf(realm, class)
	if class == sigma.LatencyCritical {
		if r.Limits.MaxCPU == 0 {
			return group
		}
		group = groupOfLC(realm)
		g.tellLocked(l, group, shareLC(reserved))
	}
	if _, known := g.groups[GroupOf(realm, sigma.BestEffort)]; !known && class == sigma.BestEffort {
		g.Touch() // what is known of it may be old
	}
	if class == sigma.BestEffort || r.Limits.MaxCPU > 0 {
		g.tellLocked(l, GroupOf(realm, sigma.BestEffort), shareBE(&r, reserved))
	}
	return group
}

// Drop forgets the groups of a realm that is gone. l is nil while there is no launcher, which then
// sweeps them.
func (g *Groups) Drop(l *launch.Launcher, realm sigma.RealmID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, group := range []string{GroupOf(realm, sigma.BestEffort), groupOfLC(realm)} {
		delete(g.groups, group)
		if l != nil {
			l.DropGroup(group)
		}
	}
}

// tellLocked tells the launcher of a group, if that is news.
func (g *Groups) tellLocked(l *launch.Launcher, group string, s launch.Share) {
	if now, known := g.groups[group]; g.groups != nil && l != nil && (!known || now != s) {
		g.groups[group] = s
		l.SetShare(group, s)
	}
}

// Set makes the shares and limits of realms those of all. It reports whether limits are others than
// before.
func (g *Groups) Set(l *launch.Launcher, all []sigma.RealmInfo, reserved func(sigma.RealmID) sigma.MilliCPU) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	before, changed := g.limits, g.limits == nil
	g.limits = make(map[sigma.RealmID]sigma.RealmInfo, len(all))
	for i := range all {
		r := &all[i]
		r.Procs = 0
		g.limits[r.ID] = *r
		changed = changed || before[r.ID].Limits != r.Limits
		if _, here := g.groups[GroupOf(r.ID, sigma.BestEffort)]; here {
			g.tellLocked(l, GroupOf(r.ID, sigma.BestEffort), shareBE(r, reserved(r.ID)))
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

// Known is what was heard last of all realms' limits, and how often they have changed; 0 = nothing
// was heard.
func (g *Groups) Known() (map[sigma.RealmID]sigma.RealmInfo, uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits, g.told
}
