package schedd

import (
	"fmt"
	"slices"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
)

// reserved is what lcsched has given latency-critical procs of this machine
// (docs/adr/0022-reservations.md). There is one account of memory: used has their reservations too,
// so nothing is offered for best-effort procs that somebody reserved. What best-effort procs hold
// when a reservation comes they are asked to give back, those that were placed last first; the proc
// starts when it is there.
type reserved struct {
	by      map[sigma.ProcID]*reservation
	pending []*reservation // that have not begun, oldest first
	cpu     sigma.MilliCPU
	of      map[sigma.RealmID]sigma.MilliCPU // of cpu, each realm's
	most    sigma.MilliCPU                   // that can be reserved; 0 = whatever lcsched says
	memory  sigma.Bytes
	waits   sigma.Bytes // memory of pending
	queued  int         // procs that wait at lcsched, or here for a place in its queue

	sent   map[sigma.ProcID]*Proc // of queued, those at lcsched: sentMax of a realm at most
	behind map[sigma.RealmID]bool // realms of which more may be sent
}

// reservation is one proc's.
type reservation struct {
	id     sigma.ProcID
	realm  sigma.RealmID
	cpu    sigma.MilliCPU
	memory sigma.Bytes
	home   sigma.Life // of another machine's proc
	begun  bool       // it has its memory: the proc is placed here, or is being taken from its home
}

// Lent is the memory that best-effort procs hold.
func (c *Core) Lent() sigma.Bytes { return c.used - c.reserved.memory }

// ReservedCPU is what is reserved of the machine's cores.
func (c *Core) ReservedCPU() sigma.MilliCPU { return c.reserved.cpu }

// ReservedMemory is what is reserved of its memory.
func (c *Core) ReservedMemory() sigma.Bytes { return c.reserved.memory }

// Reserved reports whether a reservation here is held by a proc.
func (c *Core) Reserved(id sigma.ProcID) bool { return c.reserved.by[id] != nil }

// Reservations lists the procs that hold one here.
func (c *Core) Reservations() (ids []sigma.ProcID) {
	for id := range c.reserved.by {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Reservation is what a proc holds here, and whose it is.
func (c *Core) Reservation(id sigma.ProcID) (realm sigma.RealmID, cpu sigma.MilliCPU, memory sigma.Bytes) {
	if r := c.reserved.by[id]; r != nil {
		return r.realm, r.cpu, r.memory
	}
	return "", 0, 0
}

// QueuedLC counts the latency-critical procs that wait for a machine.
func (c *Core) QueuedLC() int { return c.reserved.queued }

func (c *Core) leavesQueue(p *Proc) {
	if p.back {
		c.notBack(p)
		return
	}
	if p.Class == sigma.BestEffort {
		c.queued--
		c.waitsAt(p, "")
	} else {
		c.leavesLine(p)
	}
}

// unwanted answers a grant that comes too late.
func (c *Core) unwanted(id sigma.ProcID, class sigma.Class) []Effect {
	if class != sigma.LatencyCritical || c.reserved.by[id] != nil {
		return nil
	}
	return []Effect{Unreserved{id}}
}

// reserve takes what lcsched granted, if reservations leave room for it, and has best-effort procs
// make room.
func (c *Core) reserve(now time.Time, r reservation) []Effect {
	v := &c.reserved
	switch {
	case v.by[r.id] != nil:
		return nil
	case r.memory > c.capacity-min(c.capacity, v.memory) || c.maxima.most[r.realm] > 0 &&
		r.memory+c.reservedOf(r.realm) > c.maxima.most[r.realm] || v.most > 0 && r.cpu > v.most-min(v.most, v.cpu):
		return []Effect{Unfit{r.id}}
	}
	c.hold(&r)
	v.pending = append(v.pending, &r)
	v.waits += r.memory
	out := append([]Effect{Room{}}, c.fill(now)...)
	out = append(out, c.makeRoom(now)...)
	out = append(out, c.makeRoomIn(now, r.realm)...)
	return append(out, c.givesWay(&r)...)
}

func (c *Core) hold(r *reservation) {
	c.reserved.by[r.id] = r
	c.reserved.cpu += r.cpu
	c.reserved.memory += r.memory
	c.reserved.of[r.realm] += r.cpu
	c.add(r.realm, r.memory)
}

// unreserve ends a reservation, if there is one.
func (c *Core) unreserve(id sigma.ProcID) []Effect {
	v := &c.reserved
	r := v.by[id]
	if r == nil {
		return nil
	}
	delete(v.by, id)
	v.cpu -= r.cpu
	v.memory -= r.memory
	if v.of[r.realm] -= r.cpu; v.of[r.realm] == 0 {
		delete(v.of, r.realm)
	}
	c.sub(r.realm, r.memory)
	if !r.begun {
		v.pending = slices.DeleteFunc(v.pending, func(x *reservation) bool { return x == r })
		v.waits -= r.memory
	}
	return []Effect{Unreserved{id}}
}

// reservedOf is the memory that a realm's reservations have here.
func (c *Core) reservedOf(realm sigma.RealmID) (memory sigma.Bytes) {
	for _, r := range c.reserved.by {
		if r.realm == realm {
			memory += r.memory
		}
	}
	return memory
}

// ReservedBy is what of the machine's cores a realm has reserved.
func (c *Core) ReservedBy(realm sigma.RealmID) sigma.MilliCPU { return c.reserved.of[realm] }

// mayBegin reports whether a reservation fits into what its realm may have, beside what is there
// already.
func (c *Core) mayBegin(r *reservation) bool {
	most := c.maxima.most[r.realm]
	if most == 0 {
		return true
	}
	held := c.maxima.held[r.realm] + r.memory
	for _, other := range c.reserved.pending {
		if other.realm == r.realm {
			held -= other.memory
		}
	}
	return held <= most
}

// fill begins the reservations that have room.
func (c *Core) fill(now time.Time) (out []Effect) {
	v := &c.reserved
	for i := 0; i < len(v.pending); {
		r := v.pending[i]
		if c.used-v.waits+r.memory > c.capacity {
			break
		}
		if !c.mayBegin(r) {
			i++
			continue
		}
		v.pending = slices.Delete(v.pending, i, i+1)
		v.waits -= r.memory
		r.begun = true
		p := c.procs[r.id]
		switch {
		case r.home.Machine != "" && p == nil && !c.Over(r.home):
			c.expected[r.id], c.expectedOf[r.id] = r.memory, r.realm
			c.running++
			out = append(out, Take{r.id, r.home})
		case r.home.Machine == "" && p != nil && p.State == sigma.ProcQueued:
			c.leavesQueue(p)
			out = append(out, c.place(now, p))
		default:
			out = append(out, c.unreserve(r.id)...)
		}
	}
	return out
}

// makeRoom asks best-effort procs to go, those that were placed last first, until what they hold
// and the reservations fit.
func (c *Core) makeRoom(now time.Time) (out []Effect) {
	if c.used <= c.capacity {
		return nil
	}
	return c.evictFor(now, c.used-c.capacity, "latency-critical procs reserved the memory that it holds",
		func(*Proc) bool {
			return true
		})
}

// evictFor asks some of the best-effort procs to go, until what is lacking is coming.
func (c *Core) evictFor(now time.Time, lacks sigma.Bytes, why string, of func(*Proc) bool) (out []Effect) {
	be := c.sorted(func(p *Proc) bool { return p.charged && p.Class == sigma.BestEffort && !p.Ended() && of(p) })
	slices.SortStableFunc(be, func(a, b *Proc) int { return b.Times.Placed.Compare(a.Times.Placed) })
	for _, p := range be {
		if p.evicting {
			lacks -= min(lacks, p.Memory)
		}
	}
	for _, p := range be {
		if lacks == 0 {
			break
		}
		if !p.evicting {
			out = append(out, goes(p, why))
			out = append(out, c.evict(now, p, GraceDefault)...)
			lacks -= min(lacks, p.Memory)
		}
	}
	return out
}

// goes says why a proc is asked to go.
func goes(p *Proc, why string) Effect {
	return Decided{decision.New("schedd", p.Realm, p.ID, decision.Evicted, "it is asked to go: "+why)}
}

// givesWay reports whether a reservation waits for best-effort procs to end.
func (c *Core) givesWay(r *reservation) []Effect {
	if r.begun || c.reserved.by[r.id] != r {
		return nil
	}
	why :=
		fmt.Sprintf(
			"machine %s is reserved for it; best-effort procs there are asked to go, and have yet to give back memory",
			c.machine)
	return []Effect{Decided{decision.New("schedd", r.realm, r.id, decision.GivingWay, why)}}
}

// dropPending ends the reservations that have not begun.
func (c *Core) dropPending() (out []Effect) {
	for len(c.reserved.pending) > 0 {
		out = append(out, c.unreserve(c.reserved.pending[0].id)...)
	}
	return out
}
