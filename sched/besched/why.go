package besched

import (
	"fmt"
	"maps"
	"slices"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
)

// firstsMax realms are looked at again, of those with jobs that wait.
const firstsMax = 256

// Idle reports whether no job waits at all.
func (c *Core) Idle() bool { return len(c.where)+len(c.aside.jobs) == 0 }

// Firsts are the first jobs of realms that wait, of firstsMax at most.
func (c *Core) Firsts() (ids []sigma.ProcID) {
	for _, cl := range c.turns.classes {
		for _, q := range slices.Concat([]*queue(cl.heap), []*queue(cl.over)) {
			if len(ids) == firstsMax {
				return ids
			}
			ids = append(ids, q.first.ID)
		}
	}
	return ids
}

// Why says why a job waits; news is false if it does not, or if that was said before. It names no
// other realm.
func (c *Core) Why(id sigma.ProcID) (r decision.Record, news bool) {
	w := c.where[id]
	if w == nil {
		j, is := c.aside.jobs[id]
		if !is {
			return r, false
		}
		why :=
			fmt.Sprintf("it should be near machine %s, which has no room; it waits %v for it, then any machine will do",
				j.Near, sigma.NearWait)
		r = decision.New("besched", j.Realm, id, decision.Near, why)
		return c.machinesLack(r, &j), true
	}
	reason, why := c.reason(w)
	news = reason != w.told
	w.told = reason
	if !news {
		return r, false
	}
	return c.machinesLack(decision.New("besched", w.Realm, id, reason, why), &w.Job), true
}

// reason is the main one of a job that waits in a queue.
func (c *Core) reason(w *waiting) (decision.Reason, string) {
	q := w.q
	if q.first != w {
		_, first := c.reason(q.first)
		return decision.Behind,
			fmt.Sprintf(
				"%d procs of its realm wait here, and others come before it; the first of them waits because %s",
				q.many, first)
	}
	others := c.turns.grants - w.served - (q.granted - w.granted)
	offered := fmt.Sprintf("no machine offers the %v that it asks for", w.Memory)
	switch {
	case len(c.machines) > 0 && w.Memory > c.largest:
		return decision.TooLarge, fmt.Sprintf("it asks for %v; no machine that is there has more than %v", w.Memory,
			c.largest)
	case q.kept != nil:
		return decision.Overtaken, fmt.Sprintf("%s; smaller procs went first, and now machine %s is kept for it",
			offered, q.kept.life.Machine)
	case c.keptFit(w):
		return decision.Kept, "machines that have room are kept for procs that have waited for longer"
	case c.credits.best(w.Memory) != nil:
		return decision.Turn,
			"there is room, but its realm holds more than its part of memory, and others come first: realms take " +
				"turns by what they used for each of their shares"
	case others > 0 && q.overtaken > 0:
		return decision.Overtaken, fmt.Sprintf("%s; smaller procs of other realms, which fit, went first", offered)
	case others > 0:
		return decision.Turn,
			fmt.Sprintf(
				"%s; since it waits %d procs of other realms were given room, whose turn it was: realms take turns "+
					"by what they used for each of their shares", offered, others)
	}
	return decision.Memory, offered
}

// keptFit reports whether a machine with room for a job is kept for another.
func (c *Core) keptFit(w *waiting) bool {
	return slices.ContainsFunc(c.kept, func(m *machine) bool { return m.kept != w.q && m.roomAt(w.Memory) != nil })
}

// machinesLack adds what each machine lacks for a job.
func (c *Core) machinesLack(r decision.Record, j *Job) decision.Record {
	for _, id := range slices.Sorted(maps.Keys(c.machines)) {
		if len(r.Machines) == decision.MachinesMax {
			break
		}
		r.Lacks(id, c.machines[id].lacks(j))
	}
	return r
}

// lacks says what a machine lacks for a job.
func (m *machine) lacks(j *Job) string {
	switch {
	case m.memory < j.Memory:
		return fmt.Sprintf("is too small: it has %v of memory", m.memory)
	case m.kept != nil && m.kept.first.ID != j.ID:
		return "is kept for a proc that has waited for longer"
	case len(m.credits) == 0:
		return "offers nothing now: it is full, or offers what it has to another besched"
	}
	return fmt.Sprintf("has %v of %v free", m.room(), m.memory)
}
