package lcsched

import (
	"fmt"
	"maps"
	"slices"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
)

// looksMax jobs that wait are looked at again for why they do.
const looksMax = 256

// Firsts are those that wait for the longest time, looksMax at most.
func (c *Core) Firsts() (ids []sigma.ProcID) {
	for _, w := range c.queue[:min(len(c.queue), looksMax)] {
		ids = append(ids, w.ID)
	}
	return ids
}

// Why says why a job waits; news is false if it does not, or if that was said before. It names no
// other realm.
func (c *Core) Why(id sigma.ProcID) (r decision.Record, news bool) {
	w := c.known[id]
	if w == nil {
		return r, false
	}
	reason, why := c.reason(w)
	if reason == w.told {
		return r, false
	}
	w.told = reason
	r = decision.New("lcsched", w.Realm, id, reason, why)
	r.Name = w.Name
	for _, m := range slices.Sorted(maps.Keys(c.machines)) {
		if len(r.Machines) == decision.MachinesMax {
			break
		}
		_, lacks := c.lacksAt(c.machines[m], w)
		r.Lacks(m, lacks)
	}
	return r, true
}

// nearest are the reasons of single machines, the first that would be the first to go.
var nearest = [...]decision.Reason{decision.GivingWay, decision.Reserved, decision.Minimum, decision.Kept,
	decision.Maximum, decision.Cordoned, decision.TooLarge, decision.Labels, decision.Away}

// reason is the main one: that of the machine which lacks least, if not its realm's limit for all
// machines.
func (c *Core) reason(w *waiting) (decision.Reason, string) {
	if w.hopes {
		return decision.Near,
			fmt.Sprintf("it should be near machine %s, which has no room; it waits %v for it, then any machine will do",
				w.Near, sigma.NearWait)
	}
	if why, _ := c.barred(&w.Job); why != "" {
		return decision.Maximum, why
	}
	of, best := "", len(nearest)
	for _, id := range slices.Sorted(maps.Keys(c.machines)) {
		reason, why := c.lacksAt(c.machines[id], w)
		if at := slices.Index(nearest[:], reason); at < best {
			best, of = at, fmt.Sprintf("machine %s %s", id, why)
		}
	}
	if best == len(nearest) {
		return decision.Away, "no machine is there"
	}
	switch nearest[best] {
	case decision.Reserved, decision.Minimum, decision.TooLarge, decision.Labels:
		return nearest[best], c.lacks(&w.Job)
	}
	return nearest[best], of
}

// lacksAt says what a machine lacks for a job.
func (c *Core) lacksAt(m *machine, w *waiting) (decision.Reason, string) {
	free := Amount{m.cpu, m.memory}.less(Amount{m.heldCPU, m.heldMem})
	switch own := m.free(w.Realm); {
	case !m.left.IsZero():
		return decision.Away, "is away"
	case !m.has(w.Where):
		return decision.Labels, "has other labels"
	case !fits(w, Amount{m.cpu, m.memory}):
		return decision.TooLarge, fmt.Sprintf("is too small: it has %v", Amount{m.cpu, m.memory})
	case m.closed:
		return decision.Cordoned, "takes nothing new, says its operator"
	case m.keptFor != nil && m.keptFor != w && !m.own(w):
		return decision.Kept, "is kept for a proc that has waited for longer"
	case !m.of[w.Realm].plus(w.amount()).within(c.limits[w.Realm].Max):
		return decision.Maximum, fmt.Sprintf("has %v of its realm, which may have %s there", m.of[w.Realm],
			most(c.limits[w.Realm].Max))
	case !fits(w, free):
		return decision.Reserved, fmt.Sprintf("has %v that nobody has reserved", free)
	case !fits(w, own):
		return decision.Minimum,
			fmt.Sprintf("has %v that is neither reserved nor kept for other realms by their minima", own)
	case m.declined[w.ID]:
		return decision.GivingWay, "answered that it has no room yet"
	}
	return decision.Reserved, fmt.Sprintf("has %v that nobody has reserved", free)
}

func fits(w *waiting, free Amount) bool { return w.CPU <= free.CPU && w.Memory <= free.Memory }
