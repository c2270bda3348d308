package schedd

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sigma"
)

// enqueue sends a proc to its scheduler. A best-effort proc goes to the besched where it was sent
// before, if that is attended; else to the one where the fewest of its realm wait, and to one after
// the other if those are as many: a realm that waits at one besched only would have no turn for the
// room that another has to give, which would take it for one that wants nothing.
func (c *Core) enqueue(now time.Time, p *Proc) Effect {
	p.sent = now
	if p.Class != sigma.BestEffort {
		return Enqueue{p}
	}
	if !slices.Contains(c.shards, p.Shard) {
		p.Shard = c.shardOf(c.realms[p.Realm])
	}
	c.waitsAt(p, p.Shard)
	return Enqueue{p}
}

// shardOf is the besched for the next proc of a realm; "" if none is attended.
func (c *Core) shardOf(r *realm) (least besched.Shard) {
	n := len(c.shards)
	for i := range n {
		if s := c.shards[(r.sent+i)%n]; i == 0 || r.waits[s] < r.waits[least] {
			least = s
		}
	}
	r.sent++
	return least
}

// waitsAt counts a proc where it waits; "" is nowhere.
func (c *Core) waitsAt(p *Proc, shard besched.Shard) {
	r := c.realms[p.Realm]
	if p.counted != "" {
		r.waits[p.counted]--
	}
	if shard != "" {
		if r.waits == nil {
			r.waits = map[besched.Shard]int{}
		}
		r.waits[shard]++
	}
	p.counted = shard
}

// requeue sends what has waited since before a time to its scheduler again. That a proc is there
// twice does no harm: it is placed once.
func (c *Core) requeue(now, before time.Time) []Effect {
	return append(c.requeueClass(now, before, sigma.BestEffort), c.requeueClass(now, before, sigma.LatencyCritical)...)
}

func (c *Core) requeueClass(now, before time.Time, class sigma.Class) []Effect {
	return c.requeueThose(now, class, func(p *Proc) bool { return !p.sent.After(before) })
}

// resend sends what was sent to a shard that is lost, or to none, to the others.
func (c *Core) resend(now time.Time, lost besched.Shard) []Effect {
	return c.requeueThose(now, sigma.BestEffort, func(p *Proc) bool { return p.Shard == lost || p.Shard == "" })
}

func (c *Core) requeueThose(now time.Time, class sigma.Class, is func(*Proc) bool) (out []Effect) {
	if c.queued == 0 && len(c.maxima.back) == 0 && class == sigma.BestEffort || c.reserved.queued == 0 &&
		class == sigma.LatencyCritical {
		return nil
	}
	among := c.procs
	if class == sigma.LatencyCritical {
		among = c.reserved.sent
	}
	for _, p := range sorted(among, func(p *Proc) bool {
		return p.State == sigma.ProcQueued && p.Class == class && c.reserved.by[p.ID] == nil && is(p)
	}) {
		out = append(out, c.enqueue(now, p))
	}
	return out
}

// line is a realm's latency-critical procs that wait for a machine, in order of Spawn. The first of
// them are at lcsched, sentMax at most: so many it looks at for each realm, and so many are sent
// again when it may have lost them, however many wait. When one of those has a machine, or ends,
// the next is sent.
type line struct {
	sent int    // that are at lcsched
	back int    // that are not yet
	last uint64 // seq of the last that was sent
}

// sentMax procs of a realm wait at lcsched. As many overtake each other there if the first do not
// fit.
const sentMax = 256

func (c *Core) joinLine(p *Proc) {
	c.reserved.queued++
	c.realms[p.Realm].line.back++
	c.reserved.behind[p.Realm] = true
}

func (c *Core) leavesLine(p *Proc) {
	c.reserved.queued--
	l := &c.realms[p.Realm].line
	if c.reserved.sent[p.ID] == nil {
		l.back--
		return
	}
	delete(c.reserved.sent, p.ID)
	l.sent--
	c.reserved.behind[p.Realm] = l.back > 0
}

// advance sends what has a place at lcsched now. It looks at each proc once.
func (c *Core) advance(now time.Time) (out []Effect) {
	for _, id := range slices.Sorted(maps.Keys(c.reserved.behind)) {
		r := c.realms[id]
		if r == nil || r.line.back == 0 || r.line.sent >= sentMax {
			continue
		}
		l := &r.line
		from, _ := slices.BinarySearchFunc(r.order, l.last+1, func(p *Proc, seq uint64) int {
			return cmp.Compare(p.seq, seq)
		})
		for _, p := range r.order[from:] {
			if l.back == 0 || l.sent == sentMax {
				break
			}
			l.last = p.seq
			if p.Class == sigma.LatencyCritical && p.State == sigma.ProcQueued {
				l.back--
				l.sent++
				c.reserved.sent[p.ID] = p
				out = append(out, c.enqueue(now, p))
			}
		}
	}
	clear(c.reserved.behind)
	return out
}
