package store

import (
	"strings"

	"sigmaos.dev/wire/sigmap"
)

// Bounds of the changes that a shard keeps: for watches, and for a move that is under way. Of a
// store with a limit all watches together have a fourth of it, and each move an eighth.
const (
	changesMax     = 1024
	changesBytes   = 1 << 20
	changesLeast   = 16 << 10 // bytes of a shard, however many shards there are
	movingMax      = 1 << 20
	movingBytes    = 256 << 20
	changesAtATime = 512
)

// changes are the latest changes of a shard. Their versions have no gaps.
type changes struct {
	all   []Change // from head on
	head  int
	base  uint64 // the version before the first
	bytes int
	// unseen are how many changes there were since all waiters were woken last, unseenBytes what
	// they take.
	unseen, unseenBytes int
}

// size is what a change takes in memory.
func (c *Change) size() int { return len(c.Key) + len(c.Value) + keyCost }

// tell adds a change, and wakes those who wait for it. The caller calls trim after its last change.
func (h *shard) tell(c Change) {
	l := &h.log
	if len(l.all) == l.head {
		l.all, l.head, l.base = l.all[:0], 0, c.Version-1
	}
	l.all = append(l.all, c)
	l.bytes += c.size()
	l.unseen++
	l.unseenBytes += c.size()
	for w := range h.waiters {
		if w.wants(c.Key) {
			w.wake()
		}
	}
}

// trim drops changes beyond the bounds. Before that waiters see changes of other keys, too, and go
// on behind them.
func (s *Store) trim(h *shard) {
	l := &h.log
	most, bytes := changesMax, changesBytes
	if s.limit > 0 {
		bytes = min(bytes, max(s.limit/4/len(s.shards), changesLeast))
	}
	if l.unseen >= most/4 || l.unseenBytes >= bytes/4 {
		l.unseen, l.unseenBytes = 0, 0
		h.wakeAll()
	}
	if h.move.Other != 0 && (h.state == Serving || h.state == Frozen) || h.state == Arriving {
		most, bytes = movingMax, movingBytes
		if s.limit > 0 {
			bytes = min(bytes, s.limit/8)
		}
	}
	for n := len(l.all) - l.head; n > most || l.bytes > bytes && n > 1; n-- {
		old := &l.all[l.head]
		l.bytes -= old.size()
		*old = Change{}
		l.head++
		l.base++
	}
	if l.head > 64 && l.head > len(l.all)/2 {
		n := copy(l.all, l.all[l.head:])
		clear(l.all[n:])
		l.all, l.head = l.all[:n], 0
	}
}

// kept is the version after which all changes are kept.
func (h *shard) kept() uint64 {
	if len(h.log.all) == h.log.head {
		return h.rev
	}
	return h.log.base
}

// since gives changes after a version, as many as one page has; ok is false if they are not kept.
func (h *shard) since(version uint64) (some []Change, ok bool) {
	l := &h.log
	if version >= h.rev {
		return nil, version == h.rev
	}
	if len(l.all) == l.head || version < l.base {
		return nil, false
	}
	size := 0
	for _, c := range l.all[l.head+int(version-l.base):] {
		if len(some) == changesAtATime || size > PageMax {
			break
		}
		some = append(some, c)
		size += len(c.Key) + len(c.Value) + itemLeast
	}
	return some, true
}

// Waiter waits for changes of keys.
type Waiter struct {
	Prefix string
	Exact  bool // the prefix is one key
	// Woken has a token when there may be a change.
	Woken chan struct{}
}

// NewWaiter makes a Waiter.
func NewWaiter(prefix string, exact bool) *Waiter {
	return &Waiter{Prefix: prefix, Exact: exact, Woken: make(chan struct{}, 1)}
}

func (w *Waiter) wants(key string) bool {
	if w.Exact {
		return key == w.Prefix
	}
	return strings.HasPrefix(key, w.Prefix)
}

func (w *Waiter) wake() {
	select {
	case w.Woken <- struct{}{}:
	default:
	}
}

// At is a place in the changes of a shard.
type At struct {
	Shard   uint16
	Version uint64
}

// News is what has become of a shard since a place.
type News struct {
	At             // where to go on
	Code    Code   // Done, NotHere or Trimmed
	Group   uint64 // of NotHere
	Changes []Change
}

// Since gives the changes of shards after places, of the keys that w wants, in the order of places.
// News without changes has only a place to go on from. A shard where nothing has changed is left
// out. If a shard has further changes and none of these is wanted, w is woken. Call Await before,
// so that no change is missed.
func (s *Store) Since(w *Waiter, places []At) (news []News) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	size := 0
	for _, at := range places {
		h := s.shards[at.Shard]
		if r := elsewhere(h); r != nil {
			news = append(news, News{At: at, Code: NotHere, Group: r.Version})
			continue
		}
		some, ok := h.since(at.Version)
		if !ok {
			news = append(news, News{At: At{at.Shard, h.rev}, Code: Trimmed})
			continue
		}
		if len(some) == 0 || size > PageMax {
			continue
		}
		n := News{At: At{at.Shard, some[len(some)-1].Version}}
		for _, c := range some {
			if w.wants(c.Key) {
				n.Changes = append(n.Changes, c)
				size += len(c.Key) + len(c.Value) + itemLeast
			}
		}
		if len(n.Changes) == 0 && n.Version < h.rev {
			w.wake()
		}
		news = append(news, n)
	}
	return news
}

// Await has w woken by changes in shards, and when one of them goes, until stop is called.
func (s *Store) Await(w *Waiter, places []At) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var in []*shard
	for _, at := range places {
		if h := s.shards[at.Shard]; h != nil {
			if h.waiters == nil {
				h.waiters = map[*Waiter]struct{}{}
			}
			h.waiters[w] = struct{}{}
			in = append(in, h)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range in {
			delete(h.waiters, w)
		}
	}
}

// wakeAll wakes all who wait for the shard.
func (h *shard) wakeAll() {
	for w := range h.waiters {
		w.wake()
	}
}

// Versions gives the present places of shards that are served here.
func (s *Store) Versions(shards []uint16) (at []At) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, id := range shards {
		if h := s.shards[id]; elsewhere(h) == nil {
			at = append(at, At{id, h.rev})
		}
	}
	return at
}

// EncodeNews and ParseNews are for answers to watches.
func EncodeNews(all []News) []byte       { return encodeList(all, (*News).code) }
func ParseNews(b []byte) ([]News, error) { return parseList(b, 2+8+1+8+2, (*News).code) }

func (n *News) code(c *sigmap.Coder) {
	c.U16(&n.Shard)
	c.U64(&n.Version)
	c.U8((*uint8)(&n.Code))
	c.U64(&n.Group)
	sigmap.List(c, &n.Changes, itemLeast+1, func(h *Change) { h.code(c) })
}
