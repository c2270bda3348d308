package schedd

import (
	"slices"
	"time"

	"sigmaos.dev/besched"
	"sigmaos.dev/sigma"
)

// enqueue sends a proc to its scheduler. A best-effort proc goes to the besched where it was sent before, if that is attended; else to the one where the fewest of its realm wait, and to one after the other if those are as many:
// a realm that waits at one besched only would have no turn for the room that another has to give, which would take it for one that wants nothing.
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

// requeue sends what has waited since before a time to its scheduler again. That a proc is there twice does no harm: it is placed once.
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
	if c.queued == 0 && len(c.maxima.back) == 0 && class == sigma.BestEffort || c.reserved.queued == 0 && class == sigma.LatencyCritical {
		return nil
	}
	for _, p := range c.sorted(func(p *Proc) bool {
		return p.State == sigma.ProcQueued && p.Class == class && c.reserved.by[p.ID] == nil && is(p)
	}) {
		out = append(out, c.enqueue(now, p))
	}
	return out
}
