package procs

import (
	"cmp"
	"context"
	"slices"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// What processors of machines are used for, and who lends and borrows them
// (docs/reference/commands/top.md defines both words).

// machineUse is a machine's line of top. Processors are cores: 1.5 is one and a half all the time.
type machineUse struct {
	Machine  string  `json:"machine"`
	Missing  string  `json:"missing,omitempty"` // why nothing else is known
	Cores    float64 `json:"cores"`
	LC       float64 `json:"lc_cores"`          // used by latency-critical procs
	Reserved float64 `json:"lc_reserved_cores"` // by them
	BE       float64 `json:"be_cores"`
	System   float64 `json:"system_cores"` // used by services
	Sigmad   float64 `json:"sigmad_cores"`
	Lent     float64 `json:"lent_cores"` // reserved, not used, and used by best-effort procs
	// used by realms beyond their shares: of what is lent, and of other realms' shares
	Borrowed   float64 `json:"borrowed_cores"`
	Memory     uint64  `json:"memory_bytes"` // that procs' limits may add up to
	Held       uint64  `json:"memory_held_bytes"`
	ReservedLC uint64  `json:"memory_lc_reserved_bytes"`
	Used       uint64  `json:"memory_used_bytes"`
	Free       uint64  `json:"memory_free_bytes"`
	realms     []realmPart
}

// realmPart is a realm's part of a machine.
type realmPart struct {
	realm          string
	shares         uint32
	lc, reserved   float64 // cores
	be             float64
	active         bool // it has best-effort procs there
	lent, borrowed float64
}

// lend finds who lends and who borrows at a machine. Best-effort procs have a right to what is
// neither reserved nor used by services and sigmad, each realm to its part by shares of those that
// have such procs there. What a realm uses beyond its part it borrows: first from realms that leave
// of theirs, by what they leave, then from reservations of which less is used, by what is not.
func lend(m *machineUse) {
	var shares, used float64
	for _, r := range m.realms {
		if used += r.be; r.active || r.be > 0 {
			shares += float64(max(1, r.shares))
		}
	}
	right := max(0, m.Cores-m.Reserved-m.System-m.Sigmad)
	var borrowed, left, idle float64
	leaves := make([]float64, len(m.realms))
	for i := range m.realms {
		r := &m.realms[i]
		idle += max(0, r.reserved-r.lc)
		if !r.active && r.be == 0 {
			continue
		}
		part := right * float64(max(1, r.shares)) / shares
		r.borrowed, leaves[i] = max(0, r.be-part), max(0, part-r.be)
		borrowed, left = borrowed+r.borrowed, left+leaves[i]
	}
	m.Borrowed, m.Lent = borrowed, min(idle, max(0, used-right))
	ofShares := min(left, max(0, borrowed-m.Lent))
	for i := range m.realms {
		r := &m.realms[i]
		if left > 0 {
			r.lent += ofShares * leaves[i] / left
		}
		if idle > 0 {
			r.lent += m.Lent * max(0, r.reserved-r.lc) / idle
		}
	}
}

// usesOf makes what top shows of two reads of /sys/load. A machine that was not there before, or
// whose sigmad is another, has no processors in use: nothing is known to compare with.
func usesOf(before, now []report.Load) []machineUse {
	type key struct{ machine, realm string }
	was := map[key]report.Load{}
	for _, l := range before {
		was[key{l.Machine, l.Realm}] = l
	}
	out := []machineUse{}
	at := map[string]int{} // in out
	compared := map[string]bool{}
	for _, l := range now {
		old, known := was[key{l.Machine, l.Realm}]
		span := l.At - old.At
		rate := func(new, old float64) float64 {
			if !compared[l.Machine] || span <= 0 {
				return 0
			}
			return max(0, new-old) / span
		}
		if l.Missing != "" {
			out = append(out, machineUse{Machine: l.Machine, Missing: l.Missing})
			continue
		}
		if l.Realm == "" {
			compared[l.Machine] = known && old.Since.Equal(l.Since) && old.Missing == ""
			at[l.Machine] = len(out)
			out = append(out, machineUse{Machine: l.Machine, Cores: l.Cores, Reserved: l.Reserved,
				LC: rate(l.LC, old.LC), BE: rate(l.BE, old.BE), System: rate(l.Services, old.Services),
				Sigmad: rate(l.Sigmad, old.Sigmad),
				Memory: l.Memory, Held: l.MemoryGiven, ReservedLC: l.MemoryLC, Used: l.MemoryUsed, Free: l.MemoryFree})
			continue
		}
		i, is := at[l.Machine]
		if !is {
			continue
		}
		if !known { // all that it used was since
			span = l.At - was[key{l.Machine, ""}].At
		}
		m := &out[i]
		m.realms = append(m.realms, realmPart{realm: l.Realm, shares: l.Shares, reserved: l.Reserved,
			lc: rate(l.LC, old.LC), be: rate(l.BE, old.BE), active: l.Running > 0})
	}
	for i := range out {
		lend(&out[i])
	}
	return out
}

// sampledAt gives the time of measurement of each machine in a read of /sys/load.
func sampledAt(all []report.Load) map[string]float64 {
	out := map[string]float64{}
	for _, l := range all {
		if l.Realm == "" && l.Missing == "" {
			out[l.Machine] = l.At
		}
	}
	return out
}

// otherTime is what to compare a read of /sys/load with: of each machine the last read, or, if that
// was taken there at the same time as now, what that one was compared with.
func otherTime(was, last, now []report.Load) (out []report.Load) {
	lastAt, nowAt := sampledAt(last), sampledAt(now)
	same := func(machine string) bool {
		at, is := lastAt[machine]
		again, still := nowAt[machine]
		return is && still && at == again
	}
	for _, l := range was {
		if same(l.Machine) {
			out = append(out, l)
		}
	}
	for _, l := range last {
		if !same(l.Machine) {
			out = append(out, l)
		}
	}
	return out
}

// compared says whether all machines that answered have another sample than the last to be compared
// with.
func (t *topView) compared() bool {
	was := sampledAt(t.loadWas)
	for machine := range sampledAt(t.load) {
		if _, is := was[machine]; !is {
			return false
		}
	}
	return true
}

// sampleMachines reads /sys/load.
func (t *topView) sampleMachines(ctx context.Context, system *sdk.Client, p *Picture) error {
	now, err := cli.Lines[report.Load](ctx, system, "/sys/load")
	if err != nil {
		if k := sigma.KindOf(err); k == sigma.KindNotFound || k == sigma.KindUnsupported { // an older sigmad
			return nil
		}
		return err
	}
	t.loadWas = otherTime(t.loadWas, t.load, now)
	p.Machines = usesOf(t.loadWas, now)
	t.load = now
	of := map[string]*realmUse{}
	for i := range p.Realms {
		of[p.Realms[i].Realm] = &p.Realms[i]
	}
	for _, m := range p.Machines {
		for _, r := range m.realms {
			if u := of[r.realm]; u != nil {
				u.LC, u.Reserved, u.BE, u.Lent, u.Borrowed = u.LC+r.lc, u.Reserved+r.reserved, u.BE+r.be, u.Lent+r.lent,
					u.Borrowed+r.borrowed
			}
		}
	}
	for i := range p.Machines {
		m := &p.Machines[i]
		for _, x := range []*float64{&m.LC, &m.BE, &m.System, &m.Sigmad, &m.Lent, &m.Borrowed} {
			*x = hundredths(*x)
		}
	}
	for i := range p.Realms {
		u := &p.Realms[i]
		for _, x := range []*float64{&u.LC, &u.BE, &u.Lent, &u.Borrowed} {
			*x = hundredths(*x)
		}
	}
	slices.SortStableFunc(p.Machines, func(a, b machineUse) int { return cmp.Compare(a.Machine, b.Machine) })
	return nil
}

// hundredths of a core are what a sample of some procs can tell.
func hundredths(cores float64) float64 { return float64(int(cores*100+0.5)) / 100 }
