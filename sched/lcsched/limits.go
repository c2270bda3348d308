package lcsched

import (
	"fmt"

	"sigmaos.dev/sigma"
)

// Limits are those of a realm's reservations (sigma.RealmLimits); 0 = there is none.
//
// What a realm can always reserve is kept for it in pieces: a machine's piece is what others cannot
// reserve there, as far as the realm itself does not. Pieces are taken where the realm has reserved
// already and then where most is free, so that they are few and large, and stay where they are
// until the machine goes or the minimum is another. A realm that asks for more than one piece at
// one machine has to wait like others for the rest.
type Limits struct {
	Realm      sigma.RealmID
	Max        Amount // at each machine
	Min        Amount // at all machines together
	Reservable Amount // at all machines together
}

// Amount is of a machine, or of several.
type Amount struct {
	CPU    sigma.MilliCPU
	Memory sigma.Bytes
}

func (a Amount) plus(b Amount) Amount { return Amount{a.CPU + b.CPU, a.Memory + b.Memory} }

// less is what a has more than b, of each.
func (a Amount) less(b Amount) Amount {
	return Amount{a.CPU - min(a.CPU, b.CPU), a.Memory - min(a.Memory, b.Memory)}
}

func (a Amount) least(b Amount) Amount { return Amount{min(a.CPU, b.CPU), min(a.Memory, b.Memory)} }

// within reports whether a is no more than most, where most has a limit.
func (a Amount) within(most Amount) bool {
	return (most.CPU == 0 || a.CPU <= most.CPU) && (most.Memory == 0 || a.Memory <= most.Memory)
}

func (a Amount) String() string {
	return fmt.Sprintf("%v cores and %v of memory", cpus(a.CPU), a.Memory)
}

// Limited: these are the limits of realms' reservations from now on. What is reserved stays.
type Limited struct{ Limits []Limits }

func (Limited) event() {}

func (c *Core) limited(e Limited) {
	was := c.limits
	c.limits = map[sigma.RealmID]Limits{}
	for _, l := range e.Limits {
		c.limits[l.Realm] = l
	}
	for _, m := range c.machines {
		c.dropPieces(m, func(r sigma.RealmID) bool { return c.limits[r].Min != was[r].Min })
	}
	for _, limits := range []map[sigma.RealmID]Limits{was, c.limits} {
		for r := range limits {
			if min := c.limits[r].Min; min != was[r].Min {
				c.minima.lacks(r, min)
			}
		}
	}
	for _, w := range c.queue { // it may fit anywhere now
		w.fresh, c.fresh = true, true
	}
}

func (j *Job) amount() Amount { return Amount{j.CPU, j.Memory} }

// piece is what is kept for a realm at the machine and not reserved by it.
func (m *machine) piece(realm sigma.RealmID) Amount { return m.pieces[realm].less(m.of[realm]) }

// free is what a realm could reserve at the machine.
func (m *machine) free(realm sigma.RealmID) Amount {
	others := m.aside.less(m.piece(realm))
	return Amount{m.cpu, m.memory}.less(Amount{m.heldCPU, m.heldMem}).less(others)
}

// whole is what a realm could reserve at the machine if nothing were reserved.
func (m *machine) whole(realm sigma.RealmID) Amount {
	return Amount{m.cpu, m.memory}.less(m.pieced.less(m.pieces[realm]))
}

// Kept is what is kept of all machines for the reservations of a realm, those that it has included.
func (c *Core) Kept(realm sigma.RealmID) (a Amount) {
	for _, m := range c.machines {
		if m.left.IsZero() {
			a = a.plus(m.pieces[realm])
		}
	}
	return a
}

// bars reports whether a realm's limits stop a job, and whether they would for ever.
func (c *Core) bars(j *Job) (bars, never bool) {
	l, has := c.limits[j.Realm]
	if !has {
		return false, false
	}
	a := j.amount()
	never = !a.within(l.Max) || !a.within(l.Reservable)
	return never || !c.of[j.Realm].plus(a).within(l.Reservable), never
}

// barred says why they do; "" = they do not.
func (c *Core) barred(j *Job) (why string, never bool) {
	l := c.limits[j.Realm]
	switch a := j.amount(); {
	case !a.within(l.Max):
		return fmt.Sprintf("it reserves %v; its realm may have at each machine %s", a, most(l.Max)), true
	case !a.within(l.Reservable):
		return fmt.Sprintf("it reserves %v; its realm may reserve at all machines %s", a, most(l.Reservable)), true
	case !c.of[j.Realm].plus(a).within(l.Reservable):
		return fmt.Sprintf("its realm has reserved %v; it may reserve %s", c.of[j.Realm], most(l.Reservable)), false
	}
	return "", false
}

// most is a limit in words.
func most(a Amount) string {
	switch {
	case a.CPU == 0:
		return fmt.Sprintf("%v of memory", a.Memory)
	case a.Memory == 0:
		return fmt.Sprintf("%v cores", cpus(a.CPU))
	}
	return a.String()
}
