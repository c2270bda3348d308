package kernel

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// Limits of each proc that its descriptor does not choose.
const (
	pidsMax   = 512
	noFileMax = 4096
)

// carry carries out an effect of schedd as far as it concerns more than the proc itself. Nothing in
// it blocks.
func (k *Kernel) carry(core *schedd.Core, f schedd.Effect) {
	switch f := f.(type) {
	case schedd.Kill:
		go func(id sigma.ProcID, launch uint64) {
			k.proxy.CloseListeners(id)
			k.launcher.Kill(launch)
		}(f.Proc.ID, f.Proc.Launch)
	case schedd.Notice:
		if f.Signal != 0 {
			go k.launcher.Signal(f.Proc.Launch, f.Signal)
		}
	case schedd.Wake:
		if p := core.Find(f.ID); p != nil {
			k.tellProc(p)
			if p.Ended() {
				k.past.Note(p.Realm, p.ID)
			}
		}
	case schedd.Forget:
		k.past.Drop(f.ID)
	case schedd.Timed:
		k.metrics.timed(&f.Timing)
	case schedd.Decided:
		k.decisions.Note(f.Record)
	case schedd.Owed:
		k.owe(f.ID, f.Home)
	case schedd.Take:
		k.sessions.Go(func() { k.take(f.ID, f.Home) })
	case schedd.Decline:
		k.sessions.Go(func() { k.decline(f.ID, f.Home) })
	default:
		k.placing.Carry(f)
	}
}

// logsDir is where logs are that are not in memory.
func (k *Kernel) logsDir() string { return filepath.Join(k.cfg.Data, "logs") }

// realmGroups are the groups (gids) of realms: of the upper half of the instance's range, below
// which are the uids that the launcher chooses. Safe for concurrent use.
type realmGroups struct {
	first uint32 // of the upper half
	mu    sync.Mutex
	gids  map[sigma.RealmID]uint32 // mu
}

// of is the group of a realm.
func (x *realmGroups) of(realm sigma.RealmID) uint32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	g, ok := x.gids[realm]
	if !ok {
		g = x.first
		for _, taken := range x.gids { // those of adopted procs were given by another sigmad
			g = max(g, taken+1)
		}
		x.gids[realm] = g
	}
	return g
}

// adopt notes the group that a former sigmad gave to a realm, unless the realm has one.
func (x *realmGroups) adopt(realm sigma.RealmID, gid uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.gids[realm]; !ok {
		x.gids[realm] = gid
	}
}

// weaken reads which protections a test wants off (launcher-protocol.md); 0 unless the machine was
// started for that.
func (k *Kernel) weaken(env []string) uint32 {
	if !k.cfg.AllowWeaken {
		return 0
	}
	for _, e := range env {
		if bits, ok := strings.CutPrefix(e, "SIGMA_WEAKEN="); ok {
			n, err := strconv.ParseUint(bits, 10, 32)
			if err == nil {
				return uint32(n)
			}
		}
	}
	return 0
}
