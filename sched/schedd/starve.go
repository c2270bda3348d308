package schedd

import (
	"cmp"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// StarvedAfter is how long a realm waits for memory of its home before others that have more than
// their part of it give some back. Turns are taken when procs end, so who has procs that do not end
// would otherwise keep it for ever.
const StarvedAfter = 30 * time.Second

// starving is a realm with procs that wait here, of which none was placed for long.
type starving struct {
	realm sigma.RealmID
	wants sigma.Bytes // its first proc
	since time.Time
}

// starved has best-effort procs asked to go, if a realm waits that has less than its part of this
// machine, for room that others have beyond theirs. The parts are those of the realms that hold
// memory here or wait, by their shares. Who has no more than its part is left alone; of who has
// more, the proc that was placed last goes first. Nobody is asked in vain: it is done only if there
// will be room.
func (c *Core) starved(now time.Time, shares map[sigma.RealmID]uint32) []Effect {
	waits := c.starvingRealms(now)
	if len(waits) == 0 {
		return nil
	}
	held, leaving, be := map[sigma.RealmID]sigma.Bytes{}, sigma.Bytes(0), []*Proc{}
	for _, p := range c.sorted(func(p *Proc) bool { return p.charged && p.Class == sigma.BestEffort && !p.Ended() }) {
		if p.evicting {
			leaving += p.Memory
			continue
		}
		held[p.Realm] += p.Memory
		be = append(be, p)
	}
	slices.SortStableFunc(be, func(a, b *Proc) int { return b.Times.Placed.Compare(a.Times.Placed) })
	total := uint64(0)
	weigh := func(realm sigma.RealmID) uint64 { return uint64(max(1, shares[realm])) }
	for realm := range held {
		total += weigh(realm)
	}
	for _, w := range waits {
		if held[w.realm] == 0 {
			total += weigh(w.realm)
		}
	}
	all := float64(c.capacity - min(c.capacity, c.reserved.memory))
	part := func(realm sigma.RealmID) sigma.Bytes {
		return sigma.Bytes(all * float64(weigh(realm)) / float64(total))
	}
	for _, w := range waits {
		if held[w.realm]+w.wants > part(w.realm) {
			continue
		}
		if w.wants <= c.Free()+leaving { // it is on its way
			return nil
		}
		lacks := w.wants - c.Free() - leaving
		var going []*Proc
		left := map[sigma.RealmID]sigma.Bytes{}
		for _, p := range be {
			if lacks > 0 && p.Realm != w.realm && held[p.Realm]-left[p.Realm] > part(p.Realm) {
				going = append(going, p)
				left[p.Realm] += p.Memory
				lacks -= min(lacks, p.Memory)
			}
		}
		if lacks > 0 {
			continue
		}
		var out []Effect
		for _, p := range going {
			out = append(out,
				goes(p, "its realm holds more than its part of the machine's memory, and another has waited for long"))
			out = append(out, c.evict(now, p, GraceDefault)...)
		}
		return out // one at a time
	}
	return nil
}

// starvingRealms are those that have waited for StarvedAfter, the longest first. Procs that only
// their own realm's maximum keeps back are none of others' concern.
func (c *Core) starvingRealms(now time.Time) []starving {
	if c.queued == 0 {
		return nil
	}
	first := map[sigma.RealmID]*Proc{}
	for _, p := range c.procs {
		if p.State == sigma.ProcQueued && p.Class == sigma.BestEffort && !p.Away() && !p.back &&
			p.Memory <= c.capacity && c.may(p.Realm, p.Memory) &&
			(first[p.Realm] == nil || p.seq < first[p.Realm].seq) {
			first[p.Realm] = p
		}
	}
	var out []starving
	for realm, p := range first {
		since := p.Times.Spawned
		if at := c.realms[realm].placed; at.After(since) {
			since = at
		}
		if now.Sub(since) >= StarvedAfter {
			out = append(out, starving{realm, p.Memory, since})
		}
	}
	slices.SortFunc(out, func(a, b starving) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.realm, b.realm))
	})
	return out
}
