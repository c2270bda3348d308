package besched

import (
	"maps"
	"slices"

	"sigmaos.dev/sigma"
)

// How jobs come to the machine where their data is.
//
// A job that should be near a machine (Job.Near) is given to that machine as long as it has room.
// If it has none, others of the same batch included, the job is set aside, as if it had not been
// sent yet: it has no turn, delays nobody, and no lease is recalled for it. When the machine parks
// a credit with room for it, or after sigma.NearWait (Hurry), it goes to the end of its realm's
// queue, so that its realm has its part and no more.

// aside are the jobs that wait for the machine that they should be near.
type aside struct {
	jobs map[sigma.ProcID]Job
	of   map[sigma.MachineID][]sigma.ProcID // in the order in which they came
	hope []*waiting                         // jobs of the batch that is being queued whose machine had room before it
}

func newAside() aside {
	return aside{jobs: map[sigma.ProcID]Job{}, of: map[sigma.MachineID][]sigma.ProcID{}}
}

func (a *aside) add(j Job) {
	a.jobs[j.ID] = j
	a.of[j.Near] = append(a.of[j.Near], j.ID)
}

func (a *aside) remove(id sigma.ProcID) {
	j, is := a.jobs[id]
	if !is {
		return
	}
	delete(a.jobs, id)
	of := a.of[j.Near]
	i := slices.Index(of, id)
	if of = slices.Delete(of, i, i+1); len(of) == 0 {
		delete(a.of, j.Near)
	} else {
		a.of[j.Near] = of
	}
}

// knows reports whether a job is here.
func (c *Core) knows(id sigma.ProcID) bool {
	if c.where[id] != nil {
		return true
	}
	return len(c.aside.jobs) > 0 && c.Expecting(id)
}

// expects reports whether a job is to wait for the machine that it should be near: one that attends
// and is large enough.
func (c *Core) expects(j *Job) bool {
	if j.Near == "" {
		return false
	}
	m := c.machines[j.Near]
	return m != nil && m.memory >= j.Memory && (m.kept != nil || m.roomAt(j.Memory) == nil)
}

// hopes reports whether a job came with the batch that is being queued and found that its machine
// has room, which others of the batch have taken meanwhile.
func (c *Core) hopes(w *waiting) bool {
	return len(c.aside.hope) > 0 && w.hopes && c.expects(&w.Job)
}

// setAside takes a job that hopes out of its queue.
func (c *Core) setAside(w *waiting) {
	c.remove(w)
	c.aside.add(w.Job)
}

// despair ends the batch: who hopes for a machine that has no more room waits for it, beside the
// queues.
func (c *Core) despair() {
	for _, w := range c.aside.hope {
		if c.where[w.ID] == w && c.hopes(w) {
			c.setAside(w)
		}
		w.hopes = false
	}
	c.aside.hope = nil
}

// Expecting reports whether a job is aside; the shell tells Hurry of it after sigma.NearWait.
func (c *Core) Expecting(id sigma.ProcID) bool {
	_, is := c.aside.jobs[id]
	return is
}

// Hurry has a job wait no more for the machine that it should be near, if it still does. The leases
// returned are recalled, because a job waits.
func (c *Core) Hurry(id sigma.ProcID) ([]Grant, []Ticket) {
	j, is := c.aside.jobs[id]
	if !is {
		return nil, nil
	}
	c.queue(j)
	return c.matched()
}

// queue gives a job that was aside its place in its realm's queue.
func (c *Core) queue(j Job) {
	c.aside.remove(j.ID)
	if c.Waiting() == 0 {
		c.turns.settle()
	}
	c.where[j.ID] = c.turns.add(j)
}

// admit queues the jobs that are aside for a machine as far as it has room, so that none waits
// without recalling leases: if nobody waits the machine takes them all.
func (c *Core) admit(machine sigma.MachineID, room sigma.Bytes) {
	if c.machines[machine].kept != nil {
		return
	}
	n := 0
	for _, id := range slices.Clone(c.aside.of[machine]) {
		if j := c.aside.jobs[id]; j.Memory <= room && n < GrantMax {
			room -= j.Memory
			n++
			c.queue(j)
		}
	}
}

// asideGone drops the jobs of a home that is gone, and queues those that should be near it.
func (c *Core) asideGone(life sigma.Life) {
	for _, id := range slices.Sorted(maps.Keys(c.aside.jobs)) {
		if c.aside.jobs[id].Home == life {
			c.aside.remove(id)
		}
	}
	for _, id := range slices.Clone(c.aside.of[life.Machine]) {
		c.queue(c.aside.jobs[id])
	}
}

// asideQueues adds what is aside to what waits.
func (c *Core) asideQueues(of map[sigma.RealmID]*Queued) {
	for _, j := range c.aside.jobs {
		q := of[j.Realm]
		if q == nil {
			q = &Queued{Realm: j.Realm, Shares: max(1, c.turns.shares[j.Realm])}
			of[j.Realm] = q
		}
		q.Jobs++
		q.Memory += j.Memory
	}
}

// near is the credit of the machine that a job should be near, if it has room.
func (c *Core) near(j *Job) *credit {
	if j.Near == "" {
		return nil
	}
	if m := c.machines[j.Near]; m != nil && m.kept == nil {
		return m.roomAt(j.Memory)
	}
	return nil
}
