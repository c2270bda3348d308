package store

import (
	"sync"
	"time"

	"github.com/tidwall/btree"
)

// State says what a group does with a shard.
type State uint8

// The states.
const (
	Serving  State = iota
	Arriving       // a move brings it
	Frozen         // it moves away, and all that it has is still here
	Gone           // it has moved away
	stateEnd
)

func (s State) String() string {
	return [...]string{"serving", "arriving", "frozen", "gone", "?"}[min(s, stateEnd)]
}

// Move is one attempt at a move of a shard.
type Move struct {
	Epoch   uint64 // of the configuration that has the move; grows
	Attempt uint64 // random
	Other   uint32 // the group that the shard goes to; of an arriving shard 0
}

func (m Move) same(r *Request) bool { return m.Epoch == r.Client && m.Attempt == r.Seq }

// item is what a key has.
type item struct {
	value   string
	version uint64
	expires uint64
}

// shard is a part of a store's keys.
type shard struct {
	id    uint16
	state State
	move  Move // the latest
	// pages is how many pages of keys an arriving shard has imported.
	pages uint64
	rev   uint64
	bytes int
	keys  btree.Map[string, item]
	// due are the keys that expire, each behind the eight bytes of its time.
	due      btree.Map[string, struct{}]
	sessions sessions
	log      changes
	waiters  map[*Waiter]struct{}
	ops      uint64 // requests, for the balancer
}

// keyCost is what a key takes in memory besides its bytes.
const keyCost = 100

// Store is the state of one group. Safe for concurrent use.
type Store struct {
	limit  int // bytes that all together may take; 0 = any
	mu     sync.RWMutex
	shards map[uint16]*shard // mu
	clock  uint64            // mu; the latest of the leaders' clocks
	found  bool              // mu
}

// New makes a store without shards.
func New() *Store { return &Store{shards: map[uint16]*shard{}} }

// SetLimit says how many bytes the store may take: it keeps fewer changes for watches and moves
// then. It refuses nothing. Call it before the store is used.
func (s *Store) SetLimit(bytes int) { s.limit = bytes }

// Founded reports whether Found has been applied.
func (s *Store) Founded() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.found
}

// Apply applies an encoded request and gives its encoded result. It keeps nothing of command.
func (s *Store) Apply(_ uint64, command []byte) []byte { return s.ApplyTo(command, nil) }

// ApplyTo is Apply that appends the result to reply.
func (s *Store) ApplyTo(command, reply []byte) []byte {
	var q Request
	if q.Parse(command) != nil {
		return (&Result{Code: Bad}).Append(reply)
	}
	s.mu.Lock()
	r := s.applyLocked(&q)
	s.mu.Unlock()
	return r.Append(reply)
}

func (s *Store) applyLocked(q *Request) Result {
	s.clock = max(s.clock, q.Now)
	if q.Op == Found {
		return s.foundLocked(q)
	}
	r := s.changeLocked(s.shards[q.Shard], q)
	if h := s.shards[q.Shard]; h != nil {
		s.trim(h)
	}
	return r
}

func (s *Store) changeLocked(h *shard, q *Request) Result {
	switch q.Op {
	case Put, Delete:
		return s.write(h, q)
	case Expire:
		if h != nil && h.state == Serving {
			h.expire(s.clock)
		}
		return Result{}
	case Mark, Freeze, Drop:
		return s.away(h, q)
	case Prepare, Import, ImportChanges, ImportSessions, Activate:
		return s.arrive(h, q)
	}
	return Result{Code: Bad} // reads are no commands
}

// foundLocked gives the group its first shards.
func (s *Store) foundLocked(q *Request) Result {
	ids, err := ParseShards(q.Value)
	if err != nil {
		return Result{Code: Bad}
	}
	if s.found {
		return Result{Code: Already}
	}
	s.found = true
	for _, id := range ids {
		if id < ShardsMax && s.shards[id] == nil {
			s.shards[id] = newShard(id, Serving)
		}
	}
	return Result{}
}

func newShard(id uint16, state State) *shard { return &shard{id: id, state: state} }

// elsewhere is the result of a request for a shard that is not served here; nil if it is.
func elsewhere(h *shard) *Result {
	switch {
	case h == nil:
		return &Result{Code: NotHere}
	case h.state == Serving:
		return nil
	}
	return &Result{Code: NotHere, Version: uint64(h.move.Other)}
}

func (s *Store) write(h *shard, q *Request) Result {
	if r := h.answered(q); r != nil {
		return *r
	}
	r := h.change(q, s.clock)
	if q.Client != 0 {
		h.sessions.put(Session{Client: q.Client, Seq: q.Seq, Code: r.Code, Version: r.Version})
	}
	return r
}

// Answered gives the result of a write that needs no room: its session has made it before, or a
// later one, or its shard is not served here. It is nil for any other.
func (s *Store) Answered(q *Request) *Result {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.shards[q.Shard].answered(q)
}

func (h *shard) answered(q *Request) *Result {
	if r := elsewhere(h); r != nil || q.Client == 0 {
		return r
	}
	switch last := h.sessions.of(q.Client); {
	case last == nil || last.Seq < q.Seq:
		return nil
	case last.Seq == q.Seq:
		return &Result{Code: last.Code, Version: last.Version}
	}
	return &Result{Code: Old}
}

// change makes a Put or Delete whose condition holds.
func (h *shard) change(q *Request, clock uint64) Result {
	h.ops++
	key := string(q.Key)
	var old item
	is, live := false, false
	if q.Cond != Always || q.Op == Delete { // a Put finds what it replaces by itself
		old, is = h.keys.Get(key)
		live = is && !past(old, clock)
	}
	if q.Cond == IfVersion {
		if has := old.version; live && has != q.If || !live && q.If != 0 {
			if !live {
				has = 0
			}
			return Result{Code: Mismatch, Version: has}
		}
	}
	if q.Op == Delete {
		if is {
			h.rev++
			h.remove(key, old)
			h.tell(Change{Item: Item{Key: key, Version: h.rev}, Gone: true})
		}
		if !live {
			return Result{Code: Missing}
		}
		return Result{Version: h.rev}
	}
	h.rev++
	now := item{value: string(q.Value), version: h.rev}
	if q.TTL != 0 {
		now.expires = clock + q.TTL
	}
	h.set(key, now)
	h.tell(Change{Item: Item{Key: key, Value: now.value, Version: now.version, Expires: now.expires}})
	return Result{Version: h.rev}
}

func past(i item, clock uint64) bool { return i.expires != 0 && i.expires <= clock }

func (h *shard) set(key string, i item) {
	old, was := h.keys.Set(key, i)
	if was {
		h.bytes -= len(old.value)
		if old.expires != 0 {
			h.due.Delete(dueKey(old.expires, key))
		}
	} else {
		h.bytes += len(key) + keyCost
	}
	h.bytes += len(i.value)
	if i.expires != 0 {
		h.due.Set(dueKey(i.expires, key), struct{}{})
	}
}

func (h *shard) remove(key string, old item) {
	h.keys.Delete(key)
	h.bytes -= len(key) + keyCost + len(old.value)
	if old.expires != 0 {
		h.due.Delete(dueKey(old.expires, key))
	}
}

// dueKey orders keys by their times.
func dueKey(at uint64, key string) string {
	b := make([]byte, 8, 8+len(key))
	for i := range b {
		b[i] = byte(at >> (56 - 8*i))
	}
	return string(append(b, key...))
}

// expireMax is how many keys one command removes.
const expireMax = 256

// expire removes keys whose time has passed.
func (h *shard) expire(clock uint64) {
	var keys []string
	h.due.Scan(func(k string, _ struct{}) bool {
		if k >= dueKey(clock+1, "") || len(keys) == expireMax {
			return false
		}
		keys = append(keys, k[8:])
		return true
	})
	for _, key := range keys {
		if old, is := h.keys.Get(key); is {
			h.rev++
			h.remove(key, old)
			h.tell(Change{Item: Item{Key: key, Version: h.rev}, Gone: true})
		}
	}
}

// Due lists shards that have keys whose time has passed.
func (s *Store) Due(now time.Time) (shards []uint16) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	clock := max(s.clock, uint64(now.UnixMilli()))
	for id, h := range s.shards {
		if k, _, is := h.due.Min(); is && h.state == Serving && k < dueKey(clock+1, "") {
			shards = append(shards, id)
		}
	}
	return shards
}

// Read answers a request that reads, by the later of now and the leaders' clocks, and appends the
// encoded result to reply.
func (s *Store) Read(q *Request, now time.Time, reply []byte) []byte {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h := s.shards[q.Shard]
	if r := elsewhere(h); r != nil {
		return r.Append(reply)
	}
	clock := max(s.clock, uint64(now.UnixMilli()))
	switch q.Op {
	case Get:
		i, is := h.keys.Get(string(q.Key))
		if !is || past(i, clock) {
			return (&Result{Code: Missing, Version: h.rev}).Append(reply)
		}
		reply = (&Result{Version: i.version}).Append(reply)
		return append(reply, i.value...)
	case GetMany:
		return h.many(q, clock, reply)
	case Range:
		return h.page(q, clock, reply)
	}
	return (&Result{Code: Bad}).Append(reply)
}

// many answers with the items of those keys that are there, as far as they fit one answer.
func (h *shard) many(q *Request, clock uint64, reply []byte) []byte {
	keys, err := ParseKeys(q.Value)
	if err != nil || len(keys) > BatchMax {
		return (&Result{Code: Bad}).Append(reply)
	}
	var found []Item
	size := 0
	done := 0
	for _, key := range keys {
		if size > PageMax {
			break
		}
		done++
		if i, is := h.keys.Get(key); is && !past(i, clock) {
			found = append(found, Item{key, i.value, i.version, i.expires})
			size += len(key) + len(i.value) + itemLeast
		}
	}
	return (&Result{Version: uint64(done), Value: EncodeItems(found)}).Append(reply)
}

// page answers a Range with what fits one answer. The version is that of the shard.
func (h *shard) page(q *Request, clock uint64, reply []byte) []byte {
	most := int(min(q.If, BatchMax))
	end := string(q.Value)
	var found []Item
	size := 0
	h.keys.Ascend(string(q.Key), func(key string, i item) bool {
		if len(found) >= most || size > PageMax || end != "" && key >= end {
			return false
		}
		if !past(i, clock) {
			if q.TTL != 0 {
				i.value = ""
			}
			found = append(found, Item{key, i.value, i.version, i.expires})
			size += len(key) + len(i.value) + itemLeast
		}
		return true
	})
	return (&Result{Version: h.rev, Value: EncodeItems(found)}).Append(reply)
}

// ShardInfo is what there is of a shard.
type ShardInfo struct {
	Shard   uint16 `json:"shard"`
	State   State  `json:"-"`
	Is      string `json:"state"`
	Keys    int    `json:"keys"`
	Bytes   int    `json:"bytes"`
	Ops     uint64 `json:"ops"` // puts and deletes since this copy was made: start, snapshot or arrival
	Version uint64 `json:"version"`
}

// Shards tells of all shards, those that have gone included.
func (s *Store) Shards() (all []ShardInfo) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, h := range s.shards {
		all = append(all, ShardInfo{id, h.state, h.state.String(), h.keys.Len(), h.bytes, h.ops, h.rev})
	}
	return all
}

// Bytes is what keys, the changes that are kept and sessions take.
func (s *Store) Bytes() (n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, h := range s.shards {
		n += h.size()
	}
	return n
}

// Copied is what an arriving shard takes, which a further Prepare frees; 0 of any other.
func (s *Store) Copied(shard uint16) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if h := s.shards[shard]; h != nil && h.state == Arriving {
		return h.size()
	}
	return 0
}

func (h *shard) size() int { return h.bytes + h.log.bytes + len(h.sessions.byClient)*sessionCost }
