package named

import (
	"slices"

	"sigmaos.dev/sigma"
)

// A Put may wait until its name is free (000 §3.6): candidates for leadership do. Such a request is
// parked at its name, in order of arrival, and applied again when the name is free or its directory
// is gone; those that come meanwhile queue up behind it. When the leader of the realm ends they all
// try again with the next, in the order in which they get there.

// parkedMax and queueBytesMax bound what waits in a realm.
const parkedMax = 4096

// parking is guarded by leader.queueMu.
type parking struct {
	at    map[entry][]*request
	count int
	bytes int
}

// park makes a request wait for an entry. Its step has been committed.
func (l *leader) park(r *request, e entry) {
	l.queueMu.Lock()
	p := &l.parking
	if p.count >= parkedMax || p.bytes+r.m.size() > queueBytesMax {
		l.queueMu.Unlock()
		r.reply <- reply{err: &sigma.Error{Op: "named.Put", Kind: sigma.KindBusy,
			Msg: "too many requests of the realm wait for names", Hint: "try again, with fewer at a time"}}
		return
	}
	if p.at == nil {
		p.at = map[entry][]*request{}
	}
	p.at[e] = append(p.at[e], r)
	p.count++
	p.bytes += r.m.size()
	r.parkedAt, r.resumed = e, false
	r.taken.Store(false)
	l.queueMu.Unlock()
	if r.gone.Load() { // the caller gave up in between, and did not see that it could take the request back
		l.unpark(r)
	}
}

// unpark takes a request back whose caller gave up.
func (l *leader) unpark(r *request) {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	if i := slices.Index(l.parking.at[r.parkedAt], r); i >= 0 {
		l.takeParkedLocked(r.parkedAt, i, i+1)
	}
}

// takeParkedLocked removes some of those that wait for e.
func (l *leader) takeParkedLocked(e entry, from, to int) []*request {
	p := &l.parking
	rs := slices.Clone(p.at[e][from:to])
	for _, r := range rs {
		p.count--
		p.bytes -= r.m.size()
	}
	if rest := slices.Delete(p.at[e], from, to); len(rest) > 0 {
		p.at[e] = rest
	} else {
		delete(p.at, e)
	}
	return rs
}

// waited reports whether somebody waits for e.
func (l *leader) waited(e entry) bool {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	return len(l.parking.at[e]) > 0
}

// resume returns the requests that a committed step lets go on, those for each name in their order:
// the name is free now, the directory is gone, or the request's leader was deposed.
func (l *leader) resume(s *step) (ready []*request) {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	if l.parking.count == 0 {
		return nil
	}
	take := func(e entry, from, to int) {
		for _, r := range l.takeParkedLocked(e, from, to) {
			r.resumed = true
			ready = append(ready, r)
		}
	}
	for e := range s.names {
		if n := len(l.parking.at[e]); n > 0 && l.tree.child(e.dir, e.name) == 0 {
			take(e, 0, n)
		}
	}
	for e, rs := range l.parking.at {
		if n, changed := s.nodes[e.dir]; changed && n == nil {
			take(e, 0, len(rs))
			continue
		}
		for i := len(rs) - 1; i >= 0 && len(s.raised) > 0; i-- {
			if f, ok := rs[i].m.(fencedOp); ok && f.fence.Epoch < s.raised[f.fence.Name] {
				take(e, i, i+1)
			}
		}
	}
	return ready
}

// unparkAll empties it when the leader has ended.
func (l *leader) unparkAll() (all []*request) {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	for _, rs := range l.parking.at {
		all = append(all, rs...)
	}
	l.parking = parking{}
	return all
}
