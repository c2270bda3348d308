package store

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// What a store can have.
const (
	// LimitMin is the least limit: below it a store has too few segments to tell queues apart.
	LimitMin = 4 << 20
	// KeyMax bounds the bytes of a key, so that 12 bits of a record's head tell its length.
	KeyMax = 1<<12 - 1
	// ValueMax bounds the bytes of a value where the limit allows as much: a value travels in one
	// message of a call, which has less than 16 MiB.
	ValueMax = 8 << 20
	// valuePart is the part of a shard that one value may take, so that one value does not evict
	// most others.
	valuePart = 8

	shardBudget = 64 << 20 // bytes of a shard, below which the lock is not worth dividing
	shardsMax   = 64
)

// Config says what a store is. The zero value of all but Limit is good.
type Config struct {
	Limit int64 // bytes; LimitMin at least
	// Floor gives the least version that an item of the key may have; an older one is not there. It
	// is called with a shard locked, and must be quick. nil = 0.
	Floor func(key []byte) uint64
}

// Item is a value and what belongs to it.
type Item struct {
	Value   []byte
	Flags   uint32 // the client's
	Expiry  int64  // in ms since 1970; 0 = it does not expire
	Version uint64 // differs from those of all former values of the key; set by the store
}

// Action is what becomes of an item.
type Action uint8

// The actions.
const (
	Leave  Action = iota // nothing changes
	Put                  // the item that was given takes the place of the old one
	Retime               // the old one gets the expiry and flags that were given, and a new version
	Remove               // there is none any more
)

// Store is a cache. Safe for concurrent use.
type Store struct {
	cfg      Config
	seed     maphash.Seed
	shards   []shard
	shift    uint // of a hash, for the shard's number
	valueMax int
	version  atomic.Uint64 // given last
}

// New makes an empty store. It takes memory as items come. Close it.
func New(cfg Config) (*Store, error) {
	if cfg.Limit < LimitMin {
		return nil, &sigma.Error{Op: "store.New", Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf("a cache of %d bytes is too small", cfg.Limit), Hint: fmt.Sprintf("at least %d", LimitMin)}
	}
	n := 1
	for n < min(shardsMax, 4*runtime.GOMAXPROCS(0)) && cfg.Limit/int64(2*n) >= shardBudget {
		n *= 2
	}
	s := &Store{cfg: cfg, seed: maphash.MakeSeed(), shards: make([]shard, n), shift: uint(64 - bits.Len(uint(n-1)))}
	// A version that another member gave before is less, as long as clocks are about right.
	s.version.Store(uint64(time.Now().UnixNano()))
	for i := range s.shards {
		if err := s.shards[i].init(s, int(cfg.Limit/int64(n))); err != nil {
			s.Close()
			return nil, err
		}
	}
	s.valueMax = min(ValueMax, s.shards[0].budget/valuePart)
	return s, nil
}

// Close gives the memory back. The store must not be used any more.
func (s *Store) Close() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.clearLocked()
		unmap(sh.index)
		unmap(sh.ghost.slots)
		sh.index, sh.ghost.slots = nil, nil
		sh.mu.Unlock()
	}
}

// Now is the time as the store wants it.
func Now() int64 { return time.Now().UnixMilli() }

// ValueMax is the most bytes that a value of this store has.
func (s *Store) ValueMax() int { return s.valueMax }

// NextVersion gives a version that is greater than those of all items.
func (s *Store) NextVersion() uint64 { return s.version.Add(1) }

func (s *Store) shard(key []byte) (sh *shard, tag uint32) {
	h := maphash.Bytes(s.seed, key)
	return &s.shards[h>>s.shift&uint64(len(s.shards)-1)], max(uint32(h), 1)
}

// Get gives the item of a key, if there is one, its value appended to buf.
func (s *Store) Get(key, buf []byte, now int64) (it Item, found bool) {
	sh, tag := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.stats.Gets++
	sh.sampleLocked(key, tag)
	slot, at := sh.findLocked(key, tag, now)
	if slot < 0 {
		it.Value = buf
		return it, false
	}
	sh.stats.Hits++
	r := sh.record(at)
	r.touch()
	it = sh.item(r)
	it.Value = append(buf, it.Value...)
	return it, true
}

// Peek is Get that does not count as a use: it gives no value, but its length.
func (s *Store) Peek(key []byte, now int64) (it Item, length int, found bool) {
	sh, tag := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slot, at := sh.findLocked(key, tag, now)
	if slot < 0 {
		return it, 0, false
	}
	it = sh.item(sh.record(at))
	length, it.Value = len(it.Value), nil
	return it, length, true
}

// Set stores an item. KindTooBig: the key or value is too long; KindNoSpace: the machine has no
// memory.
func (s *Store) Set(key []byte, it Item, now int64) error {
	return s.Update(key, now, func(Item, bool) (Item, Action) { return it, Put })
}

// Update has change say what becomes of a key's item; nothing else happens to the key meanwhile.
// change gets the item that is there, whose value is valid until it returns and must not be part of
// what it gives. Errors are those of Set.
func (s *Store) Update(key []byte, now int64, change func(old Item, found bool) (Item, Action)) error {
	if len(key) > KeyMax {
		return tooBig("the key", len(key), KeyMax)
	}
	sh, tag := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sampleLocked(key, tag)
	slot, at := sh.findLocked(key, tag, now)
	var old Item
	if slot >= 0 {
		old = sh.item(sh.record(at))
	}
	it, act := change(old, slot >= 0)
	if act == Put && it.Expiry != 0 && it.Expiry <= now {
		act = Remove
	}
	switch act {
	case Put:
		if len(it.Value) > s.valueMax {
			return tooBig("the value", len(it.Value), s.valueMax)
		}
		it.Version = s.version.Add(1)
		sh.stats.Sets++
		return sh.putLocked(key, tag, slot, at, it, now)
	case Retime:
		if slot >= 0 {
			r := sh.record(at)
			r.setExpiry(it.Expiry)
			r.setFlags(it.Flags)
			r.setVersion(s.version.Add(1))
		}
	case Remove:
		if slot >= 0 {
			sh.stats.Deletes++
			sh.removeLocked(slot, at)
		}
	}
	return nil
}

func tooBig(what string, is, most int) error {
	return &sigma.Error{Op: "store.Update", Kind: sigma.KindTooBig,
		Msg:  fmt.Sprintf("%s has %d bytes; the most are %d", what, is, most),
		Hint: "a cache with more memory takes values up to an eighth of 64 MiB"}
}

// Flush removes all items.
func (s *Store) Flush() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.clearLocked()
		sh.mu.Unlock()
	}
}

// Scan calls each with some keys, and gives where to go on: 0 at first, and 0 when all have been
// told. A key that is there all the while is told once at least. Keys are valid until each returns.
func (s *Store) Scan(cursor uint64, most int, now int64, each func(key []byte)) (next uint64) {
	for told := 0; ; {
		i, from := int(cursor>>32), uint32(cursor)
		if i >= len(s.shards) {
			return 0
		}
		sh := &s.shards[i]
		sh.mu.Lock()
		after, over := sh.scanLocked(from, most-told, now, func(key []byte) {
			told++
			each(key)
		})
		sh.mu.Unlock()
		if cursor = uint64(i)<<32 | uint64(after); over {
			cursor = uint64(i+1) << 32
		}
		if told >= most || !over {
			if int(cursor>>32) >= len(s.shards) {
				return 0
			}
			return cursor
		}
	}
}
