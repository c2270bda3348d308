package schedd

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
)

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
