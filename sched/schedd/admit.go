package schedd

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// Live counts the procs of a realm that are at home here and have not ended.
func (c *Core) Live(realm sigma.RealmID) int {
	if r := c.realms[realm]; r != nil {
		return r.live
	}
	return 0
}

// Use is what of a realm is at this machine.
type Use struct {
	Running int         // procs, guests too
	Waiting int         // queued and starting: those at home here that no other machine has taken, and guests
	Memory  sigma.Bytes // limits of those that run
	Ended   int         // that are remembered
}

// Use counts what of a realm is here. It looks at each of its procs.
func (c *Core) Use(realm sigma.RealmID) (u Use) {
	r := c.realms[realm]
	if r == nil {
		return u
	}
	for _, p := range r.order {
		switch {
		case p.forgotten:
		case p.Ended():
			u.Ended++
		case p.Away():
		case p.State == sigma.ProcRunning:
			u.Running++
			u.Memory += p.Memory
		default:
			u.Waiting++
		}
	}
	return u
}

// Realms are those that have procs here, remembered ones too.
func (c *Core) Realms() []sigma.RealmID { return slices.Sorted(maps.Keys(c.realms)) }

// After yields the procs of a realm that are at home here, in order of Spawn, each with a number
// that After goes on behind; 0 is before the first.
func (c *Core) After(realm sigma.RealmID, seq uint64) iter.Seq2[uint64, *Proc] {
	return func(yield func(uint64, *Proc) bool) {
		r := c.realms[realm]
		if r == nil {
			return
		}
		from, _ := slices.BinarySearchFunc(r.order, seq+1, func(p *Proc, seq uint64) int {
			return cmp.Compare(p.seq, seq)
		})
		for _, p := range r.order[from:] {
			if !p.forgotten && !p.Guest() && !yield(p.seq, p) {
				return
			}
		}
	}
}

// PlacedBefore lists the best-effort procs that run here, and did before a time.
func (c *Core) PlacedBefore(at time.Time) (out []sigma.ProcID) {
	for id, p := range c.procs {
		if p.State == sigma.ProcRunning && p.Class == sigma.BestEffort && !p.Away() && p.Times.Placed.Before(at) {
			out = append(out, id)
		}
	}
	return out
}

// Here returns up to n of the procs that run here, oldest first.
func (c *Core) Here(n int) (out []sigma.ProcInfo) {
	for _, p := range c.sorted(func(p *Proc) bool { return p.charged }) {
		if len(out) == n {
			break
		}
		out = append(out, p.ProcInfo)
	}
	return out
}

// Owes reports whether a home has still to be told that a proc ended here.
func (c *Core) Owes() bool {
	for _, p := range c.procs {
		if p.owed {
			return true
		}
	}
	return false
}

// List returns up to n of the procs of a realm that are at home here, oldest first, without the
// first skip.
func (c *Core) List(realm sigma.RealmID, all bool, skip, n int) (out []sigma.ProcInfo) {
	for _, p := range c.After(realm, 0) {
		if !all && p.Ended() {
			continue
		}
		if skip--; skip >= 0 {
			continue
		}
		if len(out) == n {
			break
		}
		out = append(out, p.ProcInfo)
	}
	return out
}

// CanSpawn says whether a realm may have the procs ds too, and whether each could ever be admitted.
func (c *Core) CanSpawn(realm sigma.RealmID, ds []sigma.Descriptor) error {
	var waiting sigma.Bytes
	largest := max(c.capacity, c.largest)
	for _, d := range ds {
		if d.Class == sigma.BestEffort && memoryOf(d) > largest {
			return &sigma.Error{Op: "schedd.CanSpawn", Kind: sigma.KindInvalid,
				Msg: fmt.Sprintf("memory %v can never be admitted: the largest machine has %v for best-effort procs",
					memoryOf(d), largest),
				Hint: "ask for less memory"}
		}
		if most, _ := c.Most(realm); most > 0 && memoryOf(d) > most {
			return &sigma.Error{Op: "schedd.CanSpawn", Realm: realm, Kind: sigma.KindInvalid,
				Msg: fmt.Sprintf("memory %v can never be admitted: the realm may have %v at each machine", memoryOf(d),
					most),
				Hint: "ask for less memory; the provider raises it with: sigma realm set --max-memory SIZE REALM"}
		}
		waiting += sizeOf(d)
	}
	all := c.waiting + waiting
	if r := c.realms[realm]; r != nil {
		waiting += r.waiting
	}
	switch live := c.Live(realm); {
	case live+len(ds) > QueuedMax:
		return sigma.Errorf("schedd.CanSpawn", sigma.KindBusy,
			"the realm has %d procs that have not ended; %d are allowed", live, QueuedMax)
	case waiting > waitingMax:
		return &sigma.Error{Op: "schedd.CanSpawn", Kind: sigma.KindBusy,
			Msg: fmt.Sprintf(
				"the realm's procs that wait to be started would occupy more than %v, with their arguments, "+
					"environments and labels", waitingMax),
			Hint: "put long input into a file of the realm and pass its path, and spawn more when some have started"}
	case all > waitingSum && waiting > waitingPart:
		return &sigma.Error{Op: "schedd.CanSpawn", Kind: sigma.KindBusy,
			Msg: fmt.Sprintf(
				"the procs of all realms that wait to be started at this machine would occupy more than %v, and the "+
					"realm's more than its part of %v", waitingSum, waitingPart),
			Hint: "spawn more when some have started"}
	}
	return nil
}

func memoryOf(d sigma.Descriptor) sigma.Bytes {
	if d.Memory == 0 {
		return sigma.MemoryDefault
	}
	return d.Memory
}

func profileOf(d sigma.Descriptor) sigma.Profile {
	if d.Profile == "" {
		return sigma.ProfileSigma
	}
	return d.Profile
}

// procBytes is about what a proc that waits occupies beside what its descriptor names.
const procBytes = sigma.KiB

// sizeOf is about what a proc with the descriptor occupies while it waits: each string that
// somebody can choose is in it.
func sizeOf(d sigma.Descriptor) sigma.Bytes {
	n := len(d.Program) + len(d.Name) + len(d.TraceParent) + len(d.Profile) + len(d.Spread) + len(d.Near)
	for _, list := range [][]string{d.Args, d.Env, d.Where} {
		for _, s := range list {
			n += len(s) + 16
		}
	}
	for _, e := range d.View {
		n += len(e.Path) + len(e.Target) + 40
	}
	return procBytes + sigma.Bytes(n)
}
