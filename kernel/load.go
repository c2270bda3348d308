package kernel

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// /sys/load: what the processors and the memory of all machines are used for. Each machine tells of
// itself, from what the ledger counts and the launcher measures; two reads tell what was used
// between (docs/reference/paths/sys-load.md).

const (
	// loadMax is how long a machine may take to answer: one that is stuck must not hold up a
	// picture of the others.
	loadMax = time.Second
	// loadLook is how long it looks at its procs; those that it has not come to by then were looked
	// at before, by the ledger.
	loadLook = 700 * time.Millisecond
	// loadAsks machines are asked at a time.
	loadAsks = 64
)

// load is what is used of this machine.
func (k *Kernel) load(ctx context.Context) (state.MachineLoad, []state.RealmLoad) {
	look, cancel := context.WithTimeout(ctx, loadLook)
	system := k.servicesUsage(look) // first: they are few
	used := k.lookAtProcs(look)
	cancel()
	known, _ := k.shares.Known()
	m := state.MachineLoad{Machine: string(k.cfg.Machine), Since: k.start, Cores: float64(k.cfg.CPU) / 1000,
		MemoryUsed: uint64(used)}
	for i, u := range system {
		if t := (u.UserTime + u.SystemTime).Seconds(); i == len(system)-1 {
			m.Sigmad = t
		} else {
			m.Services += t
		}
	}
	spent, running := k.ledger.Classes()
	m.At = time.Since(k.start).Seconds()
	of := map[sigma.RealmID]*state.RealmLoad{}
	k.procs.With(func(v procs.View) {
		m.Reserved, m.MemoryLC = float64(v.ReservedCPU())/1000, uint64(v.ReservedMemory())
		m.Memory, m.MemoryFree = uint64(v.Capacity()), uint64(v.Free())
		for _, id := range v.Realms() {
			of[id] = &state.RealmLoad{Reserved: float64(v.ReservedBy(id)) / 1000}
		}
	})
	m.MemoryGiven = m.Memory - min(m.Memory, m.MemoryFree)
	for c, t := range spent {
		r := of[c.Realm]
		if r == nil {
			r = &state.RealmLoad{}
			of[c.Realm] = r
		}
		if c.Class == sigma.LatencyCritical {
			r.LC += t.Seconds()
			m.LC += t.Seconds()
		} else {
			r.BE += t.Seconds()
			m.BE += t.Seconds()
		}
	}
	var realms []state.RealmLoad
	for id, r := range of {
		r.Machine, r.Realm, r.At, r.Shares, r.Running = m.Machine, string(id), m.At, max(1, known[id].Shares),
			running[id]
		if r.Reserved > 0 || r.LC > 0 || r.BE > 0 || r.Running > 0 {
			realms = append(realms, *r)
		}
	}
	slices.SortFunc(realms, func(a, b state.RealmLoad) int { return cmp.Compare(a.Realm, b.Realm) })
	return m, realms
}

// lookAtProcs has the ledger know what procs have used until now, as far as that is learnt before
// ctx ends, and gives how much memory they use.
func (k *Kernel) lookAtProcs(ctx context.Context) (used sigma.Bytes) {
	var mu sync.Mutex
	services.EachOf(launchers.MetersMax, k.ledger.Procs(), func(p meter.Proc) {
		if ctx.Err() != nil {
			return
		}
		u, err := k.runner.Usage(ctx, p.Realm, p.ID)
		if err != nil {
			return
		}
		k.ledger.Uses(time.Now(), p.ID, u.UserTime+u.SystemTime, false)
		mu.Lock()
		used += u.Memory
		mu.Unlock()
	})
	return used
}

// loadLines are what this machine tells: of itself, and of its realms.
func (k *Kernel) loadLines() ([]byte, error) {
	return memo.Recall(&k.memo, roles.Load, func() ([]byte, error) {
		ctx, cancel := k.asked() // several wait for it
		defer cancel()
		m, realms := k.load(ctx)
		text, err := state.Line(m)
		if err != nil {
			return nil, err
		}
		more, err := state.Lines(realms)
		return append(text, more...), err
	})
}

// peerLoad answers another machine's sigmad.
func (k *Kernel) peerLoad(ctx context.Context, _ identity.Subject, _ []byte) ([]byte, error) {
	text, err := k.loadLines()
	if err != nil {
		return nil, err
	}
	if most :=
		sigmap.DataMax - 16; len(text) > most {
		// the machine's own line is first; with hundreds of realms there the last are not told
		text = text[:most]
		text = text[:lastLine(text)]
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text) })
}

// lastLine is where the last whole line ends.
func lastLine(text []byte) int {
	for i := len(text); i > 0; i-- {
		if text[i-1] == '\n' {
			return i
		}
	}
	return 0
}

// loadOf asks a machine, for loadMax at most.
func (k *Kernel) loadOf(ctx context.Context, m sigma.MachineID) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadMax)
	defer cancel()
	if m == k.cfg.Machine {
		return k.loadLines()
	}
	if !slices.Contains(k.cluster.Others(), m) {
		return nil, sigma.Errorf("kernel.load", sigma.KindUnavailable, "the machine is away")
	}
	err = k.reach.Ask(ctx, m, peerLoad, nil, func(c *sigmap.Coder) { c.Data(&text) })
	return slices.Clone(text), err
}

// loadFile is /sys/load. It is the provider's: what others do on a machine is no tenant's business.
func (r *root) loadFile() sigma.File {
	k := r.tree.k
	return computed.File("/sys/"+roles.Load, roles.Load, 0o400, func(ctx context.Context) ([]byte, error) {
		if !r.tree.principal.System {
			return nil, sigma.Errorf("kernel.load", sigma.KindPermission, "only the provider may read this")
		}
		machines := k.usageMachines()
		type answer struct {
			m    sigma.MachineID
			text []byte
		}
		var mu sync.Mutex
		answers := make([]answer, 0, len(machines))
		services.EachOf(loadAsks, machines, func(m sigma.MachineID) {
			text, err := k.loadOf(ctx, m)
			if err != nil {
				text, _ = state.Line(state.UsageMissing{Machine: string(m), Missing: err.Error()})
			}
			mu.Lock()
			answers = append(answers, answer{m, text})
			mu.Unlock()
		})
		slices.SortFunc(answers, func(a, b answer) int { return cmp.Compare(a.m, b.m) })
		var out []byte
		for _, a := range answers {
			out = append(out, a.text...)
		}
		return out, ctx.Err()
	})
}
