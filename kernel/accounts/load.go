package accounts

import (
	"cmp"
	"context"
	gometrics "runtime/metrics"
	"slices"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
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
func (x *Accounts) load(ctx context.Context) (report.MachineLoad, []report.RealmLoad) {
	look, cancel := context.WithTimeout(ctx, loadLook)
	system := x.ServicesUsage(look) // first: they are few
	used := x.lookAtProcs(look)
	cancel()
	known, _ := x.cfg.Shares.Known()
	m := report.MachineLoad{Machine: string(x.cfg.Machine), Since: x.cfg.Start, Cores: float64(x.cfg.CPU) / 1000,
		MemoryUsed: uint64(used)}
	for i, u := range system {
		if t := (u.UserTime + u.SystemTime).Seconds(); i == len(system)-1 {
			m.Sigmad = t
		} else {
			m.Services += t
		}
	}
	spent, running := x.cfg.Ledger.Classes()
	m.At = time.Since(x.cfg.Start).Seconds()
	of := map[sigma.RealmID]*report.RealmLoad{}
	x.cfg.Procs.With(func(v procs.View) {
		m.Reserved, m.MemoryLC = float64(v.ReservedCPU())/1000, uint64(v.ReservedMemory())
		m.Memory, m.MemoryFree = uint64(v.Capacity()), uint64(v.Free())
		for _, id := range v.Realms() {
			of[id] = &report.RealmLoad{Reserved: float64(v.ReservedBy(id)) / 1000}
		}
	})
	m.MemoryGiven = m.Memory - min(m.Memory, m.MemoryFree)
	for c, t := range spent {
		r := of[c.Realm]
		if r == nil {
			r = &report.RealmLoad{}
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
	var realms []report.RealmLoad
	for id, r := range of {
		r.Machine, r.Realm, r.At, r.Shares, r.Running = m.Machine, string(id), m.At, max(1, known[id].Shares),
			running[id]
		if r.Reserved > 0 || r.LC > 0 || r.BE > 0 || r.Running > 0 {
			realms = append(realms, *r)
		}
	}
	slices.SortFunc(realms, func(a, b report.RealmLoad) int { return cmp.Compare(a.Realm, b.Realm) })
	return m, realms
}

// lookAtProcs has the ledger know what procs have used until now, as far as that is learnt before
// ctx ends, and gives how much memory they use.
func (x *Accounts) lookAtProcs(ctx context.Context) (used sigma.Bytes) {
	var mu sync.Mutex
	services.EachOf(launchers.MetersMax, x.cfg.Ledger.Procs(), func(p meter.Proc) {
		if ctx.Err() != nil {
			return
		}
		u, err := x.cfg.Runner.Usage(ctx, p.Realm, p.ID)
		if err != nil {
			return
		}
		x.cfg.Ledger.Uses(time.Now(), p.ID, u.UserTime+u.SystemTime, false)
		mu.Lock()
		used += u.Memory
		mu.Unlock()
	})
	return used
}

// loadLines are what this machine tells: of itself, and of its realms.
func (x *Accounts) loadLines() ([]byte, error) {
	return memo.Recall(x.cfg.Memo, roles.Load, func(ctx context.Context) ([]byte, error) {
		m, realms := x.load(ctx)
		text, err := report.Line(m)
		if err != nil {
			return nil, err
		}
		more, err := report.Lines(realms)
		return append(text, more...), err
	})
}

// loadHere answers peerLoad.
func (x *Accounts) loadHere(context.Context, sigmap.None) ([]byte, error) {
	text, err := x.loadLines()
	if most :=
		sigmap.DataMax - 16; len(text) > most {
		// the machine's own line is first; with hundreds of realms there the last are not told
		text = text[:most]
		text = text[:lastLine(text)]
	}
	return text, err
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
func (x *Accounts) loadOf(ctx context.Context, m sigma.MachineID) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadMax)
	defer cancel()
	if m == x.cfg.Machine {
		return x.loadLines()
	}
	if !slices.Contains(x.cfg.Cluster.Others(), m) {
		return nil, sigma.Errorf("kernel.load", sigma.KindUnavailable, "the machine is away")
	}
	text, err = peerLoad.Ask(ctx, x.cfg.Reach.At(m), sigmap.None{})
	return slices.Clone(text), err
}

// LoadFile is /sys/load. It is the provider's: what others do on a machine is no tenant's business.
func (x *Accounts) LoadFile(provider bool) sigma.File {
	return computed.File("/sys/"+roles.Load, roles.Load, 0o400, func(ctx context.Context) ([]byte, error) {
		if !provider {
			return nil, sigma.Errorf("kernel.load", sigma.KindPermission, "only the provider may read this")
		}
		machines := x.cfg.Machines()
		type answer struct {
			m    sigma.MachineID
			text []byte
		}
		var mu sync.Mutex
		answers := make([]answer, 0, len(machines))
		services.EachOf(loadAsks, machines, func(m sigma.MachineID) {
			text, err := x.loadOf(ctx, m)
			if err != nil {
				text, _ = report.Line(report.UsageMissing{Machine: string(m), Missing: err.Error()})
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

// ServicesUsage tells what the services and sigmad use that status lists, in its order, the
// launcher left out. One that is being restarted uses nothing; of one that cannot be asked now, or
// not before ctx ends, it tells what was measured last.
func (x *Accounts) ServicesUsage(ctx context.Context) (out []sigma.Usage) {
	l := x.cfg.Launcher.Now()
	for _, s := range x.cfg.Services.List() {
		out = append(out, s.Usage(ctx, l))
	}
	return append(out, ownUsage())
}

// ownUsage is sigmad's, as far as it can see itself: memory is what its language holds.
func ownUsage() sigma.Usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return sigma.Usage{}
	}
	held := []gometrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	gometrics.Read(held)
	now := sigma.Bytes(held[0].Value.Uint64() - held[1].Value.Uint64())
	return sigma.Usage{UserTime: time.Duration(r.Utime.Nano()), SystemTime: time.Duration(r.Stime.Nano()), Memory: now,
		MemoryPeak: max(now, sigma.Bytes(r.Maxrss)*sigma.KiB)}
}
