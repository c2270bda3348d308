// Package besched is the queue of best-effort procs (001 §4.3): spawns wait in their realm's queue
// until a machine that has room, and has said so by parking a credit, takes them. Core is the pure
// state machine, Service the shell that answers calls.
//
// While no job waits there is no turn to take: then each machine gets a lease, which is the right
// to place procs for itself without asking (docs/adr/0006-placement-leases.md). That of a machine
// that is alone is for all it has room for; with several, each places only as many as it has cores,
// and the others go where the load is least for the machine's size. As soon as a job waits, all
// leases are recalled, and everything goes through the queue again.
//
// Whose turn it is decides what the realms' procs used, in proportion to the realms' shares, not
// how many there were of them (docs/adr/0012-turns-by-what-was-used.md). Memory is the admission,
// and who holds far more than its part of it loses its turn
// (docs/adr/0039-memory-has-its-part-in-turns.md). A job that fits nowhere when it is its realm's
// turn is overtaken by as much memory as it asks for; then a machine is kept for it alone.
//
// It promises that every job is granted at most once while it is known here, that jobs of one realm
// are granted in order (but for those that wait for a machine that they should be near), that no
// realm with a waiting job is passed over for ever, and that no machine has a lease for longer than
// its recall takes while a job waits, nor one for a machine alone while there are two. Jobs are not
// kept across a crash (001 §3.4), nor beyond the session of the machine they are from: their homes
// send them again. That no proc starts twice is therefore not this package's promise but the
// home's, from which whoever is granted a job takes it (schedd).
//
// A system has several, its shards, which do not know of one another: Offers is the machine's side,
// which brings them together (docs/adr/0027-besched-is-a-fleet.md).
//
// Users: cmd/besched; kernel and sim for Offers and the names of the methods.
package besched

import (
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// GrantMax bounds the jobs of one grant, so that one machine does not take a whole burst while
// others are about to ask.
const GrantMax = 64

// Job is one proc that waits for a machine.
type Job struct {
	ID     sigma.ProcID
	Realm  sigma.RealmID
	Memory sigma.Bytes
	Home   sigma.Life // where it was spawned, and where its descriptor is

	Program uint64 // tells programs of a realm apart; 0 = it is all the same

	Near sigma.MachineID // where it should be if there is room within sigma.NearWait; "" = anywhere

	Prepaid time.Duration // what its realm was charged with when it was granted; 0 before
}

// Ticket names a parked credit.
type Ticket uint64

// Lease is the right to place procs without asking.
type Lease uint8

// The kinds of leases.
const (
	NoLease     Lease = iota
	LeaseAlone        // of the only machine: for all that fits
	LeaseShared       // of one of several: while it runs fewer procs than it has cores
)

// Grant gives jobs, or a lease, to whoever parked the credit, which is used up by it. A lease has
// the number of the credit.
type Grant struct {
	Ticket Ticket
	Jobs   []Job // none if it is a lease, or the word whether the machine is kept for a job
	Lease  Lease
	Kept   bool
}

// Offer is a machine's word that it has room.
type Offer struct {
	Memory sigma.Bytes
	Load   uint32 // procs that it runs or is about to
	Ask    bool   // a lease will do, if no job waits

	// With several shards a machine that is kept for a job here must offer nothing elsewhere.
	Elsewhere bool // it has credits at other shards, and is to be told when it is kept
	Kept      bool // it knows that it is kept, and is to be told when it is no more
}

// lease is one that is held.
type lease struct {
	ticket  Ticket
	machine *machine
	kind    Lease
}

// machine is one that attends.
type machine struct {
	life    sigma.Life
	cpu     uint64 // thousandths of a core
	memory  sigma.Bytes
	kept    *queue    // for whose first job it is kept alone; nil if for none
	credits []*credit // nearly always one
	leases  int
	full    bool                    // it took its credit back, or that was used up to the last
	held    map[sigma.RealmID]int64 // bytes that realms' procs hold
}

// Core is the state. Not safe for concurrent use.
type Core struct {
	machines map[sigma.MachineID]*machine
	kept     []*machine  // those that are kept for a job
	untold   []*machine  // that are kept, or no more, of which they may have to be told
	cpu      uint64      // of all machines
	largest  sigma.Bytes // that a machine has
	where    map[sigma.ProcID]*waiting
	turns    turns
	credits  credits
	recent   recent
	aside    aside
	leases   []lease // oldest first; none while a job waits
	lent     int     // machines that have leases and are not full
}

// NewCore makes an empty queue.
func NewCore() *Core {
	return &Core{machines: map[sigma.MachineID]*machine{}, where: map[sigma.ProcID]*waiting{}, turns: newTurns(),
		aside: newAside()}
}

// Waiting counts the jobs that wait.
func (c *Core) Waiting() int { return len(c.where) }

// Queued is what of one realm waits.
type Queued struct {
	Realm  sigma.RealmID
	Jobs   uint32
	Memory sigma.Bytes // that they ask for
	Shares uint32
}

// Queues tells what waits, by realm.
func (c *Core) Queues() (out []Queued) {
	of := map[sigma.RealmID]*Queued{}
	for _, w := range c.where {
		q := of[w.Realm]
		if q == nil {
			q = &Queued{Realm: w.Realm, Shares: uint32(w.q.shares)}
			of[w.Realm] = q
		}
		q.Jobs++
		q.Memory += w.Memory
	}
	c.asideQueues(of)
	for _, realm := range slices.Sorted(maps.Keys(of)) {
		out = append(out, *of[realm])
	}
	return out
}

// Home tells where a job that waits is from; none if it does not wait.
func (c *Core) Home(id sigma.ProcID) sigma.Life {
	if w := c.where[id]; w != nil {
		return w.Home
	}
	return c.aside.jobs[id].Home
}

// Largest is the most memory that a machine here has.
func (c *Core) Largest() sigma.Bytes { return c.largest }

// Attend makes a machine known, which offers memory and cores and sends jobs from now on. It must
// not attend yet. The leases returned are recalled, because they were for a machine alone.
func (c *Core) Attend(life sigma.Life, cpu sigma.MilliCPU, memory sigma.Bytes) []Ticket {
	m := &machine{life: life, cpu: max(1, uint64(cpu)), memory: memory, held: map[sigma.RealmID]int64{}}
	c.machines[life.Machine] = m
	c.cpu += m.cpu
	c.largest = max(c.largest, memory)
	return c.recall(LeaseAlone, len(c.machines) > 1)
}

// Gone drops all that a machine has here: credits, leases and the jobs it is the home of.
func (c *Core) Gone(life sigma.Life) ([]Grant, []Ticket) {
	m := c.machines[life.Machine]
	if m == nil || m.life != life {
		return nil, nil
	}
	delete(c.machines, life.Machine)
	c.cpu -= m.cpu
	c.largest = 0
	for _, other := range c.machines {
		c.largest = max(c.largest, other.memory)
	}
	if m.kept != nil {
		c.unkeep(m)
	}
	for _, cr := range slices.Clone(m.credits) {
		c.credits.remove(cr)
	}
	c.forget(m)
	c.leases = slices.DeleteFunc(c.leases, func(l lease) bool { return l.machine == m })
	c.count(m, 0, true)
	for _, w := range c.where {
		if w.Home == life {
			c.remove(w)
		}
	}
	c.asideGone(life)
	grants, recalled := c.matched()
	return grants, append(recalled, c.recall(LeaseShared,
		len(c.machines) == 1)...) // who is left may have the other kind
}

// recall takes the leases of a kind back, if so.
func (c *Core) recall(kind Lease, so bool) (out []Ticket) {
	if !so {
		return nil
	}
	c.leases = slices.DeleteFunc(c.leases, func(l lease) bool {
		if l.kind == kind {
			out = append(out, l.ticket)
			c.count(l.machine, l.machine.leases-1, l.machine.full)
		}
		return l.kind == kind
	})
	return out
}

// Enqueue adds jobs of machines that attend; others' are ignored, as are jobs that are there
// already. The leases returned are recalled, because a job waits.
func (c *Core) Enqueue(jobs []Job) ([]Grant, []Ticket) {
	if c.Waiting() == 0 {
		c.turns.settle()
	}
	for _, j := range jobs {
		if m := c.machines[j.Home.Machine]; c.knows(j.ID) || m == nil || m.life != j.Home {
			continue
		}
		j.Prepaid = 0
		if c.expects(&j) {
			c.aside.add(j)
			continue
		}
		w := c.turns.add(j)
		c.where[j.ID] = w
		if w.hopes = j.Near != "" && c.near(&j) != nil; w.hopes {
			c.aside.hope = append(c.aside.hope, w)
		}
	}
	return c.matched()
}

// matched is what follows when there are more jobs: the leases returned are recalled, if one waits.
func (c *Core) matched() ([]Grant, []Ticket) {
	grants := c.match()
	waits := c.Waiting() > 0
	return grants, append(c.recall(LeaseAlone, waits), c.recall(LeaseShared, waits)...)
}

// Cancel takes a job out, if it still waits. Those behind it may fit a credit that it did not.
func (c *Core) Cancel(id sigma.ProcID) []Grant {
	w := c.where[id]
	if w == nil {
		c.aside.remove(id)
		return nil
	}
	c.remove(w)
	return c.match()
}

// Park makes the offer of a machine that attends. The grant may come at once.
func (c *Core) Park(t Ticket, machine sigma.MachineID, o Offer) []Grant {
	if m := c.machines[machine]; m != nil {
		c.count(m, m.leases, false)
		c.credits.add(&credit{ticket: t, machine: m, Offer: o})
		if o.Kept || o.Elsewhere && m.kept != nil {
			c.untold = append(c.untold, m)
		}
		c.admit(machine, o.Memory)
	}
	return c.match()
}

// Leased reports whether the lease t has not been recalled.
func (c *Core) Leased(t Ticket) bool {
	return slices.ContainsFunc(c.leases, func(l lease) bool { return l.ticket == t })
}

// leasedTo is the machine that the lease t was given to; "" if it has been recalled.
func (c *Core) leasedTo(t Ticket) sigma.MachineID {
	if i := slices.IndexFunc(c.leases, func(l lease) bool { return l.ticket == t }); i >= 0 {
		return c.leases[i].machine.life.Machine
	}
	return ""
}

// Leave takes a credit or lease back; false if it was used up by a grant, or recalled, before.
func (c *Core) Leave(t Ticket) bool {
	if cr := c.credits.find(t); cr != nil {
		c.credits.remove(cr)
		c.count(cr.machine, cr.machine.leases, len(cr.machine.credits) == 0)
		return true
	}
	i := slices.IndexFunc(c.leases, func(l lease) bool { return l.ticket == t })
	if i >= 0 {
		m := c.leases[i].machine
		c.count(m, m.leases-1, m.full)
		c.leases = slices.Delete(c.leases, i, i+1)
	}
	return i >= 0
}

// Charge takes note of what procs used on a machine. It must be told of the memory that procs hold
// there once it attends, and of each change after that.
func (c *Core) Charge(machine sigma.MachineID, charges []Charge) {
	m := c.machines[machine]
	for _, ch := range charges {
		if ch.Realm.Check() != nil {
			continue
		}
		c.turns.charge(ch, c.span())
		if m != nil && ch.Held != 0 {
			c.holds(m, ch.Realm, ch.Held)
		}
	}
}

// Shares sets those of all realms; one that is not named has 1.
func (c *Core) Shares(of map[sigma.RealmID]uint32) { c.turns.setShares(of) }

// span bounds, in seconds for each share, how far one realm's turn can be ahead of or behind the
// others'.
func (c *Core) span() float64 { return spanMax.Seconds() * float64(c.cpu) / 1000 }

func (c *Core) remove(w *waiting) {
	if q := w.q; q.first == w && q.kept != nil {
		c.unkeep(q.kept)
	}
	delete(c.where, w.ID)
	c.turns.remove(w)
}

// match gives jobs to credits, that of the realm whose turn it is to the machine with the least
// load that has room, and leases to those who are left when no job is. A realm whose first job fits
// nowhere is passed over, until it has been for so long that a machine is kept for it.
func (c *Core) match() (out []Grant) {
	var given []*credit
	give := func(cr *credit, q *queue) {
		if len(cr.jobs) == 0 {
			given = append(given, cr)
		}
		w := q.first
		c.turns.prepay(q, w, c.span())
		c.holds(cr.machine, q.realm, int64(w.Memory))
		cr.jobs = append(cr.jobs, w.Job)
		c.recent.ran(w.Program, cr.machine.life.Machine)
		c.credits.use(cr, w.Memory)
		if c.remove(w); q.first == nil {
			c.turns.absent(q)
		}
	}
	for i := 0; i < len(c.kept); {
		m := c.kept[i]
		if cr := m.roomAt(m.kept.first.Memory); cr != nil {
			give(cr, m.kept) // and it is kept no more
		} else {
			i++
		}
	}
	for c.Waiting() > 0 && c.credits.free() > 0 {
		q, late := c.turns.next(c.credits.most, c.largest, c.credits.memory)
		if q == nil {
			break
		}
		if c.hopes(q.first) {
			c.setAside(q.first)
			continue
		}
		if late != nil && late.overtaken >= late.first.Memory && c.keep(late) {
			continue
		}
		cr := c.bestFor(&q.first.Job)
		if cr == nil && q.first.Memory == 0 {
			break
		} else if cr == nil {
			c.credits.most = q.first.Memory - 1
			continue
		}
		c.turns.overtake(late, q)
		for _, m := range c.kept {
			c.turns.overtake(m.kept, q) // so that the next of its realm waits no longer than it must
		}
		give(cr, q)
	}
	c.despair()
	for _, cr := range given {
		c.credits.remove(cr)
		c.count(cr.machine, cr.machine.leases, len(cr.machine.credits) == 0 && cr.Memory < sigma.MemoryLeast)
		out = append(out, Grant{Ticket: cr.ticket, Jobs: cr.jobs})
	}
	return c.lend(c.tell(out))
}

// tell answers the credits of machines that must know whether they are kept.
func (c *Core) tell(out []Grant) []Grant {
	for _, m := range c.untold {
		for _, cr := range slices.Clone(m.credits) {
			if kept := m.kept != nil; kept && cr.Elsewhere || !kept && cr.Kept {
				c.credits.remove(cr)
				out = append(out, Grant{Ticket: cr.ticket, Kept: kept})
			}
		}
	}
	c.untold = c.untold[:0]
	return out
}

// lend gives leases to those who ask for one, if no job waits. A lease uses a credit up until the
// machine has parked the next one, so of several machines half keep theirs (but one that has the
// only credit while there is no lease): a job that comes meanwhile would find none, wait, and so
// have all leases recalled, again and again where jobs come faster than credits. Machines that have
// a lease and are full do not count: they will park nothing for as long as they are.
func (c *Core) lend(out []Grant) []Grant {
	if c.Waiting() > 0 || c.credits.asks == 0 {
		return out
	}
	kind, most := LeaseAlone, 1
	if len(c.machines) > 1 {
		kind, most = LeaseShared, c.credits.free()-(c.credits.free()+c.lent)/2
	}
	for _, cr := range c.credits.asking(most) {
		c.credits.remove(cr)
		c.leases = append(c.leases, lease{cr.ticket, cr.machine, kind})
		c.count(cr.machine, cr.machine.leases+1, false)
		out = append(out, Grant{Ticket: cr.ticket, Lease: kind})
	}
	return out
}

// count takes note of how many leases a machine has, and whether it is full.
func (c *Core) count(m *machine, leases int, full bool) {
	if m.leases > 0 && !m.full {
		c.lent--
	}
	m.leases, m.full = leases, full
	if m.leases > 0 && !m.full {
		c.lent++
	}
}

// keep reserves a machine for the first job of a realm: that with the most room of those that are
// large enough, and not more than half of all. It reports whether there was one.
func (c *Core) keep(q *queue) bool {
	if len(c.kept) > 0 && 2*(len(c.kept)+1) > len(c.machines) {
		return false
	}
	var best *machine
	room := sigma.Bytes(0)
	for _, m := range c.machines {
		if m.kept != nil || m.memory < q.first.Memory {
			continue
		}
		r := m.room()
		if best == nil || r > room || r == room && m.life.Machine < best.life.Machine {
			best, room = m, r
		}
	}
	if best == nil {
		return false
	}
	best.kept, q.kept = q, best
	c.kept = append(c.kept, best)
	c.untold = append(c.untold, best)
	return true
}

func (c *Core) unkeep(m *machine) {
	m.kept.kept, m.kept = nil, nil
	c.untold = append(c.untold, m)
	c.kept = slices.DeleteFunc(c.kept, func(k *machine) bool { return k == m })
	for _, cr := range m.credits { // they are everybody's again
		c.credits.most = max(c.credits.most, cr.Memory)
	}
}
