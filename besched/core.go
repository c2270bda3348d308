// Package besched is the queue of best-effort procs (001 §4.3): spawns wait in their realm's queue until a machine that has room, and has said so by parking a credit, takes
// them. Core is the pure state machine, Service the shell that answers calls.
//
// While no job waits there is no turn to take: then each machine gets a lease, which is the right to place procs for itself without asking (docs/adr/0006-placement-leases.md).
// As soon as a job waits, all leases are recalled, and everything goes through the queue again.
//
// It promises that every job is granted at most once, that jobs of one realm are granted in order, that realms with waiting jobs take turns, and that no machine has a
// lease for longer than its recall takes while a job waits. Jobs are not kept across a
// crash: machines learn of it by the lost session and answer their waiters (001 §3.4).
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
}

// Ticket names a parked credit.
type Ticket uint64

// Grant gives jobs, or a lease, to whoever parked the credit, which is used up by it. A lease has the number of the credit.
type Grant struct {
	Ticket Ticket
	Jobs   []Job // none if it is a lease
}

// credit is a machine's word that it has room.
type credit struct {
	ticket Ticket
	memory sigma.Bytes
	lease  bool // it may be used up by a lease
}

// Core is the state. Not safe for concurrent use.
type Core struct {
	queues  map[sigma.RealmID]*list.List // of Job; only non-empty ones
	where   map[sigma.ProcID]*list.Element
	turn    []sigma.RealmID // realms with waiting jobs, next first
	credits []credit        // oldest first
	leases  []Ticket        // oldest first; none while a job waits
}

// NewCore makes an empty queue.
func NewCore() *Core {
	return &Core{queues: map[sigma.RealmID]*list.List{}, where: map[sigma.ProcID]*list.Element{}}
}

// Waiting counts the jobs that wait.
func (c *Core) Waiting() int { return len(c.where) }

// Enqueue adds jobs. A job that is there already is ignored. The leases returned are recalled, because a job waits.
func (c *Core) Enqueue(jobs []Job) ([]Grant, []Ticket) {
	for _, j := range jobs {
		if c.where[j.ID] != nil {
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
	if c.Waiting() == 0 {
		return grants, nil
	}
	recalled := c.leases
	c.leases = nil
	return grants, recalled
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

// Park offers memory. The grant may come at once.
func (c *Core) Park(t Ticket, memory sigma.Bytes) []Grant {
	c.credits = append(c.credits, credit{ticket: t, memory: memory})
	return c.match()
}

// Ask is Park for a machine that takes a lease instead when no job waits.
func (c *Core) Ask(t Ticket, memory sigma.Bytes) []Grant {
	c.credits = append(c.credits, credit{t, memory, true})
	return c.match()
}

// Leased reports whether the lease t has not been recalled.
func (c *Core) Leased(t Ticket) bool { return slices.Contains(c.leases, t) }

// Leave takes a credit or lease back; false if it was used up by a grant, or recalled, before.
func (c *Core) Leave(t Ticket) bool {
	if i := slices.Index(c.leases, t); i >= 0 {
		c.leases = slices.Delete(c.leases, i, i+1)
		return true
	}
	for i, cr := range c.credits {
		if cr.ticket == t {
			c.credits = append(c.credits[:i], c.credits[i+1:]...)
			return true
		}
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
		for i, r := range c.turn {
			if r == j.Realm {
				c.turn = append(c.turn[:i], c.turn[i+1:]...)
				break
			}
		}
	}
	return j
}

// match gives jobs to credits, oldest credit first, one job of each realm in turn, and leases to those who are left when no job is. A realm whose first job does not fit a credit is passed over for that credit.
func (c *Core) match() (out []Grant) {
	keep := c.credits[:0]
	for _, cr := range c.credits {
		var jobs []Job
		for passed := 0; passed < len(c.turn) && len(jobs) < GrantMax; {
			realm := c.turn[0]
			first := c.queues[realm].Front()
			if first.Value.(Job).Memory > cr.memory {
				c.turn = append(c.turn[1:], realm)
				passed++
				continue
			}
			passed = 0
			n := len(c.turn)
			j := c.remove(first)
			cr.memory -= j.Memory
			jobs = append(jobs, j)
			if len(c.turn) == n {
				c.turn = append(c.turn[1:], realm)
			}
		}
		if len(jobs) > 0 {
			out = append(out, Grant{cr.ticket, jobs})
		} else {
			keep = append(keep, cr)
		}
	}
	c.credits = keep
	if c.Waiting() > 0 {
		return out
	}
	keep = c.credits[:0]
	for _, cr := range c.credits {
		if cr.lease {
			c.leases = append(c.leases, cr.ticket)
			out = append(out, Grant{Ticket: cr.ticket})
		} else {
			keep = append(keep, cr)
		}
	}
	c.credits = keep
	return out
}
