package schedd

import (
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

func (c *Core) end(now time.Time, p *Proc, s sigma.Status) []Effect {
	if p.State == sigma.ProcQueued {
		c.leavesQueue(p)
	}
	if p.charged {
		p.charged = false
		c.running--
		if p.Class == sigma.BestEffort {
			c.sub(p.Realm, p.Memory)
		}
	}
	over := c.unreserve(p.ID)
	p.State, p.Status, p.Times.Ended, p.Frozen = sigma.ProcEnded, s, now, false
	p.Descriptor, p.exited, p.View = sigma.Descriptor{}, nil, nil
	r := c.realms[p.Realm]
	if p.owed = p.Guest(); !p.owed {
		r.live--
	}
	c.waitsNoMore(p)
	r.results += resultOf(p)
	r.ended = append(r.ended, p)
	out := append(append([]Effect{Wake{p.ID}}, over...), Room{})
	out = append(out, c.fill(now)...)
	out = append(out, c.bring(now, p.Realm)...)
	return append(out, c.forget(now, p.Realm)...)
}

func resultOf(p *Proc) sigma.Bytes { return sigma.Bytes(len(p.Status.Msg) + len(p.Status.Data)) }

// sweepEvery is how often realms in which nothing happens are looked through for what is too old.
const sweepEvery = time.Minute

// forget drops what a realm has too much of, and what is too old.
func (c *Core) forget(now time.Time, realm sigma.RealmID) (out []Effect) {
	if now.Sub(c.swept) < sweepEvery {
		return c.forgetOf(now, realm, false)
	}
	c.swept = now
	for _, id := range slices.Sorted(maps.Keys(c.realms)) {
		out = append(out, c.forgetOf(now, id, false)...)
	}
	return out
}

func (c *Core) forgetOf(now time.Time, id sigma.RealmID, all bool) (out []Effect) {
	r := c.realms[id]
	var owed []*Proc // of a realm that is gone: their homes wait for them
	for len(r.ended) > 0 && (all || len(r.ended) > EndedMax || r.results > resultsMax ||
		now.Sub(r.ended[0].Times.Ended) >= EndedAge) {
		p := r.ended[0]
		if p.owed && !all {
			break // the home's waiters are not answered yet
		}
		r.ended[0] = nil
		r.ended = r.ended[1:]
		if p.owed {
			owed = append(owed, p)
			continue
		}
		r.results -= resultOf(p)
		r.forgotten++
		p.forgotten = true
		delete(c.procs, p.ID)
		out = append(out, Forget{p.ID})
	}
	if owed != nil { // nothing else is left of all
		r.ended = owed
	}
	if r.forgotten > len(r.order)/2 {
		r.order = slices.DeleteFunc(r.order, func(p *Proc) bool { return p.forgotten })
		r.forgotten = 0
	}
	if len(r.order) == 0 {
		delete(c.realms, id)
	}
	return out
}

// realmGone forgets the ended procs of a realm, but for guests whose homes have not heard of their
// end. Others, of which there are only those that a removal which is under way ends anyway, stay as
// they are; what is kept back goes on when it may, and with the realm's maximum.
func (c *Core) realmGone(now time.Time, id sigma.RealmID) []Effect {
	if c.realms[id] == nil {
		return nil
	}
	return c.forgetOf(now, id, true)
}

// Past is what the next sigmad is told of a proc that has ended.
type Past struct {
	Info         sigma.ProcInfo
	Launch       uint64
	Kin          []sigma.ProcID
	Home, Runner sigma.Life
}

// Past tells it; false of a proc that is not known or has not ended.
func (c *Core) Past(id sigma.ProcID) (Past, bool) {
	p := c.procs[id]
	if p == nil || !p.Ended() {
		return Past{}, false
	}
	return Past{p.ProcInfo, p.Launch, p.Kin, p.Home, p.Runner}, true
}

// remembered enters procs that have ended. The home of a guest is told once more: it may not have
// been.
func (c *Core) remembered(now time.Time, all []Past) (out []Effect) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Past) int { return a.Info.Times.Spawned.Compare(b.Info.Times.Spawned) })
	touched := map[sigma.RealmID]bool{}
	for _, e := range all {
		if c.procs[e.Info.ID] != nil || e.Info.State != sigma.ProcEnded {
			continue
		}
		if c.Over(e.Home) {
			e.Home = sigma.Life{}
		}
		p := &Proc{ProcInfo: e.Info, Launch: e.Launch, startedOK: !e.Info.Times.Started.IsZero(), Kin: e.Kin,
			Home: e.Home, Runner: e.Runner}
		c.enter(p)
		r := c.realms[p.Realm]
		if p.owed = p.Guest(); p.owed {
			out = append(out, Owed{p.ID, p.Home})
		} else {
			r.live--
		}
		r.results += resultOf(p)
		r.ended = append(r.ended, p)
		touched[p.Realm] = true
	}
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		slices.SortStableFunc(c.realms[id].ended, func(a, b *Proc) int { return a.Times.Ended.Compare(b.Times.Ended) })
		out = append(out, c.forgetOf(now, id, false)...)
	}
	return out
}
