package schedd

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sched/decision"
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

// maxima is the memory that realms may have at this machine at most (sigma.RealmLimits.MaxMemory):
// the limits of their procs that run, and reservations, together. A best-effort proc that would go
// beyond is kept back here when besched gives it to this machine, until others of its realm have
// ended; then it is placed if nobody waits at besched, or takes its realm's turn there again.
// Meanwhile its home may give it to another machine. Latency-critical procs come first also here:
// what best-effort procs of their own realm hold is taken back for them.
type maxima struct {
	most map[sigma.RealmID]sigma.Bytes // of realms that have one
	held map[sigma.RealmID]sigma.Bytes // by all realms
	back map[sigma.RealmID][]keptBack  // oldest first
}

// keptBack is a best-effort proc that was given to this machine and would be too much for its
// realm.
type keptBack struct {
	id     sigma.ProcID
	memory sigma.Bytes
	home   sigma.Life // of another machine's proc
}

// backMost procs of other machines are noted of a realm; of more their homes see to it that they
// are given again.
const backMost = 1024

func newMaxima() maxima {
	return maxima{held: map[sigma.RealmID]sigma.Bytes{}, back: map[sigma.RealmID][]keptBack{}}
}

// Most is what a realm may have here; 0 = all there is. Held is what it has.
func (c *Core) Most(realm sigma.RealmID) (most, held sigma.Bytes) {
	return c.maxima.most[realm], c.maxima.held[realm]
}

// KeptBack counts the procs of a realm that wait here until it has less.
func (c *Core) KeptBack(realm sigma.RealmID) int { return len(c.maxima.back[realm]) }

// add counts memory of the machine that a realm gets.
func (c *Core) add(realm sigma.RealmID, memory sigma.Bytes) {
	c.used += memory
	c.maxima.held[realm] += memory
}

// sub counts memory that it gives back.
func (c *Core) sub(realm sigma.RealmID, memory sigma.Bytes) {
	c.used -= memory
	if held := c.maxima.held[realm]; held > memory {
		c.maxima.held[realm] = held - memory
	} else {
		delete(c.maxima.held, realm)
	}
}

// may reports whether a realm may have so much more.
func (c *Core) may(realm sigma.RealmID, memory sigma.Bytes) bool {
	most := c.maxima.most[realm]
	return most == 0 || c.maxima.held[realm]+memory <= most
}

// locally reports whether a best-effort proc can be placed here without asking besched.
func (c *Core) locally(realm sigma.RealmID, memory sigma.Bytes) bool {
	return c.leased && c.queued == 0 && memory <= c.Free() && c.may(realm, memory) &&
		(c.limit == 0 || c.running < c.limit)
}

// keepBack notes a proc of this machine that was given to it.
func (c *Core) keepBack(now time.Time, p *Proc) []Effect {
	if p.back {
		return nil
	}
	c.leavesQueue(p)
	p.back, p.sent = true, now
	c.maxima.back[p.Realm] = append(c.maxima.back[p.Realm], keptBack{id: p.ID, memory: p.Memory})
	return c.keptBack(p.Realm, p.ID)
}

// keptBack says why a proc is kept back.
func (c *Core) keptBack(realm sigma.RealmID, id sigma.ProcID) []Effect {
	most, held := c.Most(realm)
	why :=
		fmt.Sprintf(
			"machine %s keeps it back: its realm may have %v of memory there and has %v; it goes on when others of "+
				"its realm have ended", c.machine, most, held)
	return []Effect{Decided{decision.New("schedd", realm, id, decision.Maximum, why)}}
}

// keepBackGuest notes another machine's proc.
func (c *Core) keepBackGuest(e Offered) []Effect {
	of := c.maxima.back[e.Realm]
	if len(of) == backMost || slices.ContainsFunc(of, func(b keptBack) bool { return b.id == e.ID }) {
		return nil
	}
	c.maxima.back[e.Realm] = append(of, keptBack{e.ID, e.Memory, e.Home})
	return c.keptBack(e.Realm, e.ID)
}

// notBack forgets a proc that waits no more.
func (c *Core) notBack(p *Proc) {
	p.back = false
	c.setBack(p.Realm, slices.DeleteFunc(c.maxima.back[p.Realm], func(b keptBack) bool { return b.id == p.ID }))
}

func (c *Core) setBack(realm sigma.RealmID, of []keptBack) {
	if len(of) == 0 {
		delete(c.maxima.back, realm)
	} else {
		c.maxima.back[realm] = of
	}
}

// bring lets go on what a realm may have now.
func (c *Core) bring(now time.Time, realm sigma.RealmID) (out []Effect) {
	of := c.maxima.back[realm]
	if len(of) == 0 {
		return nil
	}
	sent := sigma.Bytes(0) // to where they take turns
	for len(of) > 0 && c.may(realm, sent+of[0].memory) {
		b := of[0]
		of = of[1:]
		p := c.procs[b.id]
		switch {
		case b.home.Machine != "":
			if p != nil || c.expected[b.id] != 0 || c.Over(b.home) {
				continue
			}
			if !c.locally(realm, b.memory) {
				sent += b.memory
				out = append(out, Decline{b.id, b.home})
				continue
			}
			out = append(out, c.expect(b.id, realm, b.memory, b.home))
		case p == nil || !p.back:
		case c.locally(realm, b.memory):
			p.back = false
			if out = append(out, c.place(now, p)); c.limit > 0 {
				out = append(out, Room{})
			}
		default:
			p.back = false
			c.queued++
			sent += b.memory
			out = append(out, c.enqueue(now, p))
		}
	}
	c.setBack(realm, of)
	return out
}

// expect charges another machine's proc that is being taken from its home.
func (c *Core) expect(id sigma.ProcID, realm sigma.RealmID, memory sigma.Bytes, home sigma.Life) Effect {
	c.expected[id] = memory
	c.expectedOf[id] = realm
	c.add(realm, memory)
	c.running++
	return Take{id, home}
}

// setMaxima takes what realms may have from now on. What they have already stays, but reservations
// that have not begun and never could.
func (c *Core) setMaxima(now time.Time, of map[sigma.RealmID]sigma.Bytes) (out []Effect) {
	c.maxima.most = maps.Clone(of)
	for _, r := range slices.Clone(c.reserved.pending) {
		if most := of[r.realm]; most > 0 && r.memory > most { // it could never begin here
			c.unreserve(r.id)
			out = append(out, Unfit{r.id})
		}
	}
	for _, realm := range slices.Sorted(maps.Keys(c.maxima.back)) {
		out = append(out, c.bring(now, realm)...)
	}
	return append(out, c.fill(now)...)
}

// makeRoomIn asks best-effort procs of a realm to go, those that were placed last first, until its
// reservations fit into what it may have.
func (c *Core) makeRoomIn(now time.Time, realm sigma.RealmID) (out []Effect) {
	most, held := c.maxima.most[realm], c.maxima.held[realm]
	if most == 0 || held <= most {
		return nil
	}
	why := "its realm reserved what it holds, and may have no more at the machine"
	return c.evictFor(now, held-most, why, func(p *Proc) bool { return p.Realm == realm })
}
