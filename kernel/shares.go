package kernel

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/launch"
	"sigmaos.dev/sigma"
)

// Groups of cgroups, below the instance's. What is in them competes as docs/adr/0021-how-best-effort-procs-yield.md says.
const (
	groupLC       = "lc"       // latency-critical procs of all realms, each weighed by its reservation
	groupBE       = "be"       // best-effort procs, a group for each realm, weighed by its shares
	groupServices = "system"   // the boot set
	groupSigmad   = "launcher" // sigmad itself
)

const (
	// coreShares is the weight of a whole core, which is what a cgroup has by default.
	coreShares = 1024
	// lcShares is the weight of all LC procs together, and daemonShares that of sigmad, and of all services: when all three want all of the machine, LC procs have 80 % of it, and nothing that they do
	// keeps the machine from answering.
	lcShares, daemonShares = 16 * coreShares, 2 * coreShares
	// beShares is the least that there is: best-effort procs have what the others leave.
	beShares = 2
	// realmShares is the weight of one share of a realm. The kernel's range ends at 1024 shares, of version 2 at 400; who has more has no more.
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

// groupShares is what the launcher was told of the groups. It forgets all when the launcher dies.
type groupShares struct {
	mu     sync.Mutex
	realms map[sigma.RealmID]uint32 // mu; shares that hold here, of realms that have had best-effort procs here
	poke   chan struct{}            // shares were changed
	came   launch.Yielded           // mu; what best-effort procs yielded, of all launchers before
	now    launch.Yielded           // mu; of the present one
}

func newGroupShares() *groupShares { return &groupShares{poke: make(chan struct{}, 1)} }

// classes tells a new launcher what the classes have.
func (g *groupShares) classes(l *launch.Launcher) {
	l.SetShare(groupLC, launch.Share{CPUShares: lcShares})
	l.SetShare(groupServices, launch.Share{CPUShares: daemonShares})
	l.SetShare(groupSigmad, launch.Share{CPUShares: daemonShares})
	l.SetShare(groupBE, launch.Share{CPUShares: beShares})
	g.mu.Lock()
	g.realms = map[sigma.RealmID]uint32{}
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
	return launch.Yielded{Looks: g.came.Looks + g.now.Looks, Pushes: g.came.Pushes + g.now.Pushes, Waited: g.came.Waited + g.now.Waited, CPU: g.came.CPU + g.now.CPU}
}

// uses notes that a realm has best-effort procs here. Until its shares are known it has one.
func (g *groupShares) uses(l *launch.Launcher, realm sigma.RealmID) {
	g.mu.Lock()
	_, known := g.realms[realm]
	if !known && g.realms != nil {
		g.realms[realm] = 1
	}
	g.mu.Unlock()
	if !known && l != nil {
		l.SetShare(groupBE+"/"+string(realm), launch.Share{CPUShares: realmShares})
	}
}

// set makes the shares of realms those of all.
func (g *groupShares) set(l *launch.Launcher, all []sigma.RealmInfo) {
	g.mu.Lock()
	changed := map[sigma.RealmID]uint32{}
	for _, r := range all {
		if now, here := g.realms[r.ID]; here && now != max(1, r.Shares) {
			g.realms[r.ID] = max(1, r.Shares)
			changed[r.ID] = max(1, r.Shares)
		}
	}
	g.mu.Unlock()
	for id, shares := range changed {
		l.SetShare(groupBE+"/"+string(id), launch.Share{CPUShares: shares * realmShares})
	}
}

// here counts the realms that set can change.
func (g *groupShares) here() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.realms)
}

// watchShares keeps the weights of realms here what their shares are, until ctx ends. Alone a realm has all that there is, so nothing is asked for.
func (k *Kernel) watchShares(ctx context.Context) {
	wait := sharesEvery
	for {
		select {
		case <-time.After(wait):
		case <-k.shares.poke:
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		l, running := k.launcher, k.core.Running()
		k.mu.Unlock()
		if l == nil || running == 0 || k.shares.here() < 2 {
			continue
		}
		began := time.Now()
		asked, cancel := context.WithTimeout(ctx, callMax)
		all, err := realms{k, nil}.list(asked)
		cancel()
		if err == nil { // else what holds stands
			k.shares.set(l, all)
		}
		wait = max(sharesEvery, 50*time.Since(began)) // with very many realms less often
	}
}
