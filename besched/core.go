// Package besched is the queue of best-effort procs (001 §4.3): spawns wait in their realm's queue until a machine that has room, and has said so by parking a credit, takes
// them. Core is the pure state machine, Service the shell that answers calls.
//
// While no job waits there is no turn to take: then each machine gets a lease, which is the right to place procs for itself without asking (docs/adr/0006-placement-leases.md).
// That of a machine that is alone is for all it has room for; with several, each places only as many as it has cores, and the others go where the load is least for the
// machine's size. As soon as a job waits, all leases are recalled, and everything goes through the queue again.
//
// It promises that every job is granted at most once while it is known here, that jobs of one realm are granted in order, that realms with waiting jobs take turns, and that no
// machine has a lease for longer than its recall takes while a job waits, nor one for a machine alone while there are two. Jobs are not kept across a crash (001 §3.4), nor beyond
// the session of the machine they are from: their homes send them again. That no proc starts twice is therefore not this package's promise but the home's, from which
// whoever is granted a job takes it (schedd).
//
// Users: cmd/besched; kernel for the names of the methods.
package besched

import (
	"container/list"
	"slices"

	"sigmaos.dev/sigma"
)

// GrantMax bounds the jobs of one grant, so that one machine does not take a whole burst while others are about to ask.
const GrantMax = 64

// Job is one proc that waits for a machine.
type Job struct {
	ID     sigma.ProcID
	Realm  sigma.RealmID
	Memory sigma.Bytes
	Home   sigma.Life // where it was spawned, and where its descriptor is
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

// Grant gives jobs, or a lease, to whoever parked the credit, which is used up by it. A lease has the number of the credit.
type Grant struct {
	Ticket Ticket
	Jobs   []Job // none if it is a lease
	Lease  Lease
}

// Offer is a machine's word that it has room.
type Offer struct {
	Memory sigma.Bytes
	Load   uint32 // procs that it runs or is about to
	Ask    bool   // a lease will do, if no job waits
}

// credit is an offer that is parked.
type credit struct {
	Offer
	ticket  Ticket
	machine *machine
	jobs    []Job // given in the match that is under way
}

// lease is one that is held.
type lease struct {
	ticket  Ticket
	machine *machine
	kind    Lease
}

// machine is one that attends.
type machine struct {
	life   sigma.Life
	cpu    uint64 // thousandths of a core
	memory sigma.Bytes
}

// Core is the state. Not safe for concurrent use.
type Core struct {
	machines map[sigma.MachineID]*machine
	queues   map[sigma.RealmID]*list.List // of Job; only non-empty ones
	where    map[sigma.ProcID]*list.Element
	turn     []sigma.RealmID // realms with waiting jobs, next first
	credits  []*credit       // oldest first
	leases   []lease         // oldest first; none while a job waits
}

// NewCore makes an empty queue.
func NewCore() *Core {
	return &Core{machines: map[sigma.MachineID]*machine{}, queues: map[sigma.RealmID]*list.List{}, where: map[sigma.ProcID]*list.Element{}}
}

// Waiting counts the jobs that wait.
func (c *Core) Waiting() int { return len(c.where) }

// Home tells where a job that waits is from; none if it does not wait.
func (c *Core) Home(id sigma.ProcID) sigma.Life {
	if e := c.where[id]; e != nil {
		return e.Value.(Job).Home
	}
	return sigma.Life{}
}

// Largest is the most memory that a machine here has.
func (c *Core) Largest() (most sigma.Bytes) {
	for _, m := range c.machines {
		most = max(most, m.memory)
	}
	return most
}

// Attend makes a machine known, which offers memory and cores and sends jobs from now on. It must not attend yet. The leases returned are recalled, because they were for a machine alone.
func (c *Core) Attend(life sigma.Life, cpu sigma.MilliCPU, memory sigma.Bytes) []Ticket {
	c.machines[life.Machine] = &machine{life, max(1, uint64(cpu)), memory}
	return c.recall(LeaseAlone, len(c.machines) > 1)
}

// Gone drops all that a machine has here: credits, leases and the jobs it is the home of.
func (c *Core) Gone(life sigma.Life) ([]Grant, []Ticket) {
	m := c.machines[life.Machine]
	if m == nil || m.life != life {
		return nil, nil
	}
	delete(c.machines, life.Machine)
	c.credits = slices.DeleteFunc(c.credits, func(cr *credit) bool { return cr.machine == m })
	c.leases = slices.DeleteFunc(c.leases, func(l lease) bool { return l.machine == m })
	for _, q := range c.queues {
		for e := q.Front(); e != nil; {
			next := e.Next()
			if e.Value.(Job).Home == life {
				c.remove(e)
			}
			e = next
		}
	}
	return c.match(), c.recall(LeaseShared, len(c.machines) == 1) // who is left may have the other kind
}

// recall takes the leases of a kind back, if so.
func (c *Core) recall(kind Lease, so bool) (out []Ticket) {
	if !so {
		return nil
	}
	c.leases = slices.DeleteFunc(c.leases, func(l lease) bool {
		if l.kind == kind {
			out = append(out, l.ticket)
		}
		return l.kind == kind
	})
	return out
}

// Enqueue adds jobs of machines that attend; others' are ignored, as are jobs that are there already. The leases returned are recalled, because a job waits.
func (c *Core) Enqueue(jobs []Job) ([]Grant, []Ticket) {
	for _, j := range jobs {
		if m := c.machines[j.Home.Machine]; c.where[j.ID] != nil || m == nil || m.life != j.Home {
			continue
		}
		q := c.queues[j.Realm]
		if q == nil {
			q = list.New()
			c.queues[j.Realm] = q
			c.turn = append(c.turn, j.Realm)
		}
		c.where[j.ID] = q.PushBack(j)
	}
	grants := c.match()
	waits := c.Waiting() > 0
	return grants, append(c.recall(LeaseAlone, waits), c.recall(LeaseShared, waits)...)
}

// Cancel takes a job out, if it still waits. Those behind it may fit a credit that it did not.
func (c *Core) Cancel(id sigma.ProcID) []Grant {
	e := c.where[id]
	if e == nil {
		return nil
	}
	c.remove(e)
	return c.match()
}

// Park makes the offer of a machine that attends. The grant may come at once.
func (c *Core) Park(t Ticket, machine sigma.MachineID, o Offer) []Grant {
	if m := c.machines[machine]; m != nil {
		c.credits = append(c.credits, &credit{ticket: t, machine: m, Offer: o})
	}
	return c.match()
}

// Leased reports whether the lease t has not been recalled.
func (c *Core) Leased(t Ticket) bool {
	return slices.ContainsFunc(c.leases, func(l lease) bool { return l.ticket == t })
}

// Leave takes a credit or lease back; false if it was used up by a grant, or recalled, before.
func (c *Core) Leave(t Ticket) bool {
	if i := slices.IndexFunc(c.leases, func(l lease) bool { return l.ticket == t }); i >= 0 {
		c.leases = slices.Delete(c.leases, i, i+1)
		return true
	}
	if i := slices.IndexFunc(c.credits, func(cr *credit) bool { return cr.ticket == t }); i >= 0 {
		c.credits = slices.Delete(c.credits, i, i+1)
		return true
	}
	return false
}

func (c *Core) remove(e *list.Element) Job {
	j := e.Value.(Job)
	q := c.queues[j.Realm]
	q.Remove(e)
	delete(c.where, j.ID)
	if q.Len() == 0 {
		delete(c.queues, j.Realm)
		i := slices.Index(c.turn, j.Realm)
		c.turn = slices.Delete(c.turn, i, i+1)
	}
	return j
}

// match gives jobs to credits, one job of each realm in turn, each to the machine with the least load that has room, and leases to those who are left when no job is. A realm
// whose first job fits nowhere is passed over.
func (c *Core) match() (out []Grant) {
	for passed := 0; passed < len(c.turn) && len(c.credits) > 0; {
		realm := c.turn[0]
		first := c.queues[realm].Front()
		cr := c.best(first.Value.(Job).Memory)
		if cr == nil {
			c.turn = append(c.turn[1:], realm)
			passed++
			continue
		}
		passed = 0
		n := len(c.turn)
		j := c.remove(first)
		cr.Memory -= j.Memory
		cr.Load++
		cr.jobs = append(cr.jobs, j)
		if len(c.turn) == n {
			c.turn = append(c.turn[1:], realm)
		}
	}
	c.credits = slices.DeleteFunc(c.credits, func(cr *credit) bool {
		if len(cr.jobs) > 0 {
			out = append(out, Grant{Ticket: cr.ticket, Jobs: cr.jobs})
		}
		return len(cr.jobs) > 0
	})
	if c.Waiting() > 0 {
		return out
	}
	kind := LeaseAlone
	if len(c.machines) > 1 {
		kind = LeaseShared
	}
	c.credits = slices.DeleteFunc(c.credits, func(cr *credit) bool {
		if cr.Ask {
			c.leases = append(c.leases, lease{cr.ticket, cr.machine, kind})
			out = append(out, Grant{Ticket: cr.ticket, Lease: kind})
		}
		return cr.Ask
	})
	return out
}

// best is the credit with room for so much whose machine would be loaded least for its size; the oldest of several; nil if there is none.
func (c *Core) best(memory sigma.Bytes) (best *credit) {
	for _, cr := range c.credits {
		if cr.Memory < memory || len(cr.jobs) >= GrantMax {
			continue
		}
		if best == nil || uint64(cr.Load+1)*best.machine.cpu < uint64(best.Load+1)*cr.machine.cpu {
			best = cr
		}
	}
	return best
}
