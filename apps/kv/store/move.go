package store

import "github.com/tidwall/btree"

// A move of a shard from one group to another is a sequence of commands, of which each can be
// repeated. The mover decides their order (apps/kv/balancer); the groups refuse what is out of
// order, by the move's epoch and attempt:
//
//	from: Mark ............................ Freeze ................... Drop
//	to:          Prepare, (Import,                  ImportChanges,
//	                       ImportChanges) ...       ImportSessions, Activate
//
// From Mark on the shard's changes are kept. Mark gives the version after which there are changes:
// those are imported too which watches may not have seen yet. Pages of keys are read while
// writes go on, and changes are imported in their order, so that keys that were read early get
// their latest value. A page that is read after changes were is later than these. After Freeze
// there are no further changes. A mover that begins anew does so by Mark and Prepare with an
// attempt of its own, and then the earlier one's commands are refused. Within an attempt a command
// may come again, and late: it then changes nothing, since pages have numbers and changes versions.
// Only Freeze and Activate count: between them nobody serves the shard.

// away applies the commands of the group that a shard leaves.
func (s *Store) away(h *shard, q *Request) Result {
	if h == nil {
		return Result{Code: NotHere}
	}
	switch q.Op {
	case Mark:
		if h.state == Gone && h.move.Epoch == q.Client {
			return Result{Code: Already, Version: h.rev}
		}
		if h.state == Arriving || h.state == Gone || q.Client < h.move.Epoch || q.If == 0 || q.If > 1<<32-1 {
			return Result{Code: Refused}
		}
		h.move = Move{Epoch: q.Client, Attempt: q.Seq, Other: uint32(q.If)}
		return Result{Version: h.kept()}
	case Freeze:
		if h.state != Serving && h.state != Frozen || !h.move.same(q) || h.move.Other == 0 {
			return Result{Code: Refused}
		}
		h.state = Frozen
		h.wakeAll()
	case Drop:
		if h.state != Frozen && h.state != Gone || h.move.Epoch != q.Client {
			return Result{Code: Refused}
		}
		waiters := h.waiters
		*h = shard{id: h.id, state: Gone, move: h.move, rev: h.rev, waiters: waiters}
	}
	return Result{Version: h.rev}
}

// arrive applies the commands of the group that a shard comes to.
func (s *Store) arrive(h *shard, q *Request) Result {
	if q.Op == Prepare {
		return s.prepare(h, q)
	}
	if h == nil || !h.move.same(q) {
		return Result{Code: Refused}
	}
	if h.state == Serving && q.Op == Activate {
		return Result{Code: Already, Version: h.rev}
	}
	if h.state != Arriving {
		return Result{Code: Refused}
	}
	switch q.Op {
	case Import:
		items, err := ParseItems(q.Value)
		switch {
		case err != nil:
			return Result{Code: Bad}
		case q.If <= h.pages:
			return Result{Version: h.rev}
		case q.If != h.pages+1:
			return Result{Code: Refused}
		}
		h.pages++
		for _, i := range items {
			h.set(i.Key, item{i.Value, i.Version, i.Expires})
		}
	case ImportChanges:
		all, err := ParseChanges(q.Value)
		if err != nil {
			return Result{Code: Bad}
		}
		for _, c := range all {
			h.follow(c)
		}
	case ImportSessions:
		all, err := ParseSessions(q.Value)
		if err != nil {
			return Result{Code: Bad}
		}
		for _, one := range all {
			h.sessions.put(one)
		}
	case Activate:
		if h.rev != q.If {
			return Result{Code: Refused}
		}
		h.state = Serving
	}
	return Result{Version: h.rev}
}

// prepare begins an arrival, with nothing of an earlier attempt. A shard that is served here since
// an earlier epoch is replaced: a later move brings it from its owner, so this group is not the
// owner. A group of one that began anew has such shards.
func (s *Store) prepare(h *shard, q *Request) Result {
	if h != nil {
		again, newer := q.Client == h.move.Epoch, q.Client > h.move.Epoch
		switch h.state {
		case Arriving:
			if h.move.same(q) {
				return Result{Version: h.rev}
			}
			newer = newer || again
		case Serving:
			if again && h.move.Other == 0 {
				return Result{Code: Already, Version: h.rev}
			}
		}
		if !newer {
			return Result{Code: Refused}
		}
	}
	now := newShard(q.Shard, Arriving)
	now.move, now.rev = Move{Epoch: q.Client, Attempt: q.Seq}, q.If
	if h != nil {
		now.waiters = h.waiters
		now.wakeAll()
	}
	s.shards[q.Shard] = now
	return Result{Version: now.rev}
}

// follow makes a change that was made where the shard is served.
func (h *shard) follow(c Change) {
	if c.Version != h.rev+1 {
		return // it is repeated, or one is missing: Activate will find that
	}
	h.rev = c.Version
	old, is := h.keys.Get(c.Key)
	switch {
	case is && old.version > c.Version: // the page was read later
	case c.Gone && is:
		h.remove(c.Key, old)
	case !c.Gone:
		h.set(c.Key, item{c.Value, c.Version, c.Expires})
	}
	h.tell(c)
}

// Export gives a page of a shard's keys after a key, "" = from the first on, expired ones included.
// It is empty after the last.
func (s *Store) Export(id uint16, after string) (items []Item, code Code) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h := s.shards[id]
	if h == nil || h.state == Gone || h.state == Arriving {
		return nil, NotHere
	}
	return page(&h.keys, after), Done
}

// page gives the items after a key, up to PageMax or BatchMax.
func page(keys *btree.Map[string, item], after string) (items []Item) {
	size := 0
	keys.Ascend(after, func(key string, i item) bool {
		if key == after {
			return true
		}
		if size > PageMax || len(items) == BatchMax {
			return false
		}
		items = append(items, Item{key, i.value, i.version, i.expires})
		size += len(key) + len(i.value) + itemLeast
		return true
	})
	return items
}

// Picture is a shard as it was at one moment.
type Picture struct{ keys *btree.Map[string, item] }

// Picture gives a shard that is served here.
func (s *Store) Picture(id uint16) (*Picture, Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.shards[id]
	if h == nil || h.state != Serving {
		return nil, NotHere
	}
	return &Picture{h.keys.Copy()}, Done
}

// Page gives the items after a key; none at the end.
func (p *Picture) Page(after string) []Item { return page(p.keys, after) }

// ExportChanges gives a page of changes after a version, for a move.
func (s *Store) ExportChanges(id uint16, after uint64) ([]Change, Code) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h := s.shards[id]
	if h == nil || h.state == Gone || h.state == Arriving {
		return nil, NotHere
	}
	some, ok := h.since(after)
	if !ok {
		return nil, Trimmed
	}
	return some, Done
}

// ExportSessions gives the sessions of a shard, for a move.
func (s *Store) ExportSessions(id uint16) ([]Session, Code) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h := s.shards[id]
	if h == nil || h.state != Frozen {
		return nil, NotHere
	}
	return h.sessions.all(), Done
}
