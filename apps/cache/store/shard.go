package store

import (
	"encoding/binary"
	"sync"

	"sigmaos.dev/sigma"
)

// shard is the part of a store whose keys have hashes that begin alike.
//
// Its index is a table of entries u64, tag << 32 | address + 1, with linear probing; 0 = free. An
// entry's first place grows with its tag, whatever the table's size: that lets the table grow by a
// quarter, and Scan go on where it was after the table has grown.
type shard struct {
	store     *Store
	budget    int // bytes of all below
	segBytes  int
	inlineMax int // longer values are large records

	mu         sync.Mutex
	index      []byte   // mu; mapped
	entries    int      // mu; of index
	count      int      // mu; entries in use
	ghost      ghost    // mu
	segs       [][]byte // mu; mapped, by number; nil = the number is free
	ends       []int    // mu; bytes written of each segment
	ids        []int    // mu; free numbers
	spare      []int    // mu; mapped segments without records
	inUse      int      // mu; segments with records
	small      queue    // mu
	main       queue    // mu
	large      [][]byte // mu; mapped, by number
	largeIDs   []uint32 // mu; free numbers
	largeBytes int      // mu
	uses       int      // mu; counted for the sample
	stats      Stats    // mu; but what Store.Stats adds
	hot        hot      // mu
}

const (
	entryBytes    = 8
	entriesFirst  = 1024
	segParts      = 128 // of a shard, so that a segment that is filling wastes little
	segLeast      = 32 << 10
	segMost       = 1 << 20
	segLarge      = 8 // a value of more than that part of a segment has a mapping of its own
	reserved      = 2 // segments that only records that move may take
	spareMost     = 2
	smallPart     = 10      // of the budget, which the small queue may have
	deadPart      = 8       // of the budget, which dead records may have before live ones are moved together
	fullNumerator = 4       // the index grows when more than 4 of 5 entries are in use
	fullDivisor   = 5       //
	growDivisor   = 4       // by that part
	doubleBelow   = 1 << 14 // entries; a table that is smaller doubles
)

func (sh *shard) init(s *Store, budget int) (err error) {
	sh.store, sh.budget, sh.segBytes = s, budget, segLeast
	for sh.segBytes < segMost && sh.segBytes*2*segParts <= budget {
		sh.segBytes *= 2
	}
	sh.inlineMax = sh.segBytes / segLarge
	sh.entries = entriesFirst
	if sh.index, err = mapped(sh.entries * entryBytes); err == nil {
		sh.ghost.slots, err = mapped(ghostBytes(sh.entries))
	}
	return err
}

// usedLocked gives how many bytes of its budget the shard uses. Spare segments do not count.
func (sh *shard) usedLocked() int {
	return sh.inUse*sh.segBytes + sh.largeBytes + len(sh.index) + len(sh.ghost.slots)
}

// sampleLocked counts a use, and gives one use in hotSample to the statistics of hot keys.
func (sh *shard) sampleLocked(key []byte, tag uint32) {
	if sh.uses++; sh.uses%hotSample == 0 {
		sh.hot.see(key, tag)
	}
}

// address of a record: its segment's number and place.
func (sh *shard) address(seg, off int) uint32 {
	return uint32(seg*(sh.segBytes/unit) + off/unit)
}

func (sh *shard) record(at uint32) record {
	units := uint32(sh.segBytes / unit)
	return record(sh.segs[at/units][at%units*unit:])
}

// item is what a record tells. Its value is the record's own.
func (sh *shard) item(r record) Item {
	v := r.inline()
	if r.is(bitLarge) {
		v = sh.large[binary.LittleEndian.Uint32(v)]
	}
	return Item{Value: v, Flags: r.flags(), Expiry: r.expiry(), Version: r.version()}
}

func (sh *shard) entry(slot int) (tag, at uint32) {
	e := binary.LittleEndian.Uint64(sh.index[slot*entryBytes:])
	return uint32(e >> 32), uint32(e) - 1
}

func (sh *shard) setEntry(slot int, tag, at uint32) {
	binary.LittleEndian.PutUint64(sh.index[slot*entryBytes:], uint64(tag)<<32|uint64(at+1))
}

func (sh *shard) home(tag uint32) int { return int(uint64(tag) * uint64(sh.entries) >> 32) }

func (sh *shard) next(slot int) int {
	if slot++; slot == sh.entries {
		return 0
	}
	return slot
}

// lookup gives the entry for which is says so of those with a tag; -1 = there is none, at entry
// free.
func (sh *shard) lookup(tag uint32, is func(at uint32) bool) (slot int, found uint32, free int) {
	for slot = sh.home(tag); ; slot = sh.next(slot) {
		t, at := sh.entry(slot)
		if t == 0 {
			return -1, 0, slot
		}
		if t == tag && is(at) {
			return slot, at, -1
		}
	}
}

// probe finds the record of a key, whether it has expired or not.
func (sh *shard) probe(key []byte, tag uint32) (slot int, found uint32, free int) {
	return sh.lookup(tag, func(at uint32) bool { return string(sh.record(at).key()) == string(key) })
}

// findLocked finds the record of a key's item. One that is not valid any more is removed.
func (sh *shard) findLocked(key []byte, tag uint32, now int64) (slot int, at uint32) {
	slot, at, _ = sh.probe(key, tag)
	if slot >= 0 && !sh.validLocked(key, sh.record(at), now) {
		sh.stats.Expired++
		sh.removeLocked(slot, at)
		return -1, 0
	}
	return slot, at
}

func (sh *shard) validLocked(key []byte, r record, now int64) bool {
	floor := sh.store.cfg.Floor
	return !r.expired(now) && (floor == nil || r.version() >= floor(key))
}

// removeLocked removes a record, which stays as a dead one until its queue comes by.
func (sh *shard) removeLocked(slot int, at uint32) {
	sh.killLocked(sh.record(at))
	sh.vacateLocked(slot)
}

// vacateLocked frees an entry, and has those behind it that may move up do so.
func (sh *shard) vacateLocked(slot int) {
	sh.count--
	for from := sh.next(slot); ; from = sh.next(from) {
		tag, at := sh.entry(from)
		if tag == 0 {
			break
		}
		if h := sh.home(tag); slot <= from && (h <= slot || h > from) || slot > from && h <= slot && h > from {
			sh.setEntry(slot, tag, at)
			slot = from
		}
	}
	clear(sh.index[slot*entryBytes:][:entryBytes])
}

// accountLocked counts a record that comes, or with by = -1 goes.
func (sh *shard) accountLocked(r record, by int) {
	k, v := r.lengths()
	bytes := r.size()
	if r.is(bitLarge) {
		v = len(sh.item(r).Value)
		bytes += pages(v)
	}
	sh.queueOf(r).bytes += by * bytes
	sh.stats.Bytes += int64(by * (k + v))
	sh.stats.Sizes[sizeClass(v)] += int64(by)
}

// killLocked has a record be a dead one.
func (sh *shard) killLocked(r record) {
	sh.accountLocked(r, -1)
	if r.is(bitLarge) {
		sh.freeLarge(binary.LittleEndian.Uint32(r.inline()))
	}
	r.set(bitDead)
	sh.queueOf(r).dead += r.size()
}

func (sh *shard) freeLarge(id uint32) {
	sh.largeBytes -= pages(len(sh.large[id]))
	unmap(sh.large[id])
	sh.large[id] = nil
	sh.largeIDs = append(sh.largeIDs, id)
}

// putLocked stores an item in the place of the record at an entry; slot -1 = there is none.
func (sh *shard) putLocked(key []byte, tag uint32, slot int, at uint32, it Item, now int64) error {
	n := fresh{key: key, tag: tag, value: it.Value}
	large := len(it.Value) > sh.inlineMax
	if slot >= 0 {
		r := sh.record(at)
		r.touch()
		if !large && !r.is(bitLarge) && r.size() == sizeOf(len(key), len(it.Value)) {
			sh.accountLocked(r, -1)
			r.write(r.head()&bitsAll, n.key, n.value, it)
			sh.accountLocked(r, 1)
			return nil
		}
		n.bits = r.head() & (bitsFreq | bitMain)
	} else if sh.ghost.take(tag) {
		n.bits = bitMain
	}
	if err := sh.growLocked(now); err != nil {
		return err
	}
	if large {
		id, err := sh.mapLargeLocked(it.Value, now)
		if err != nil {
			return err
		}
		n.value, n.bits = binary.LittleEndian.AppendUint32(nil, id), n.bits|bitLarge
	}
	return sh.placeLocked(n, it, now)
}

// fresh is a record that comes.
type fresh struct {
	key   []byte
	tag   uint32
	value []byte // or what stands for it
	bits  uint64
}

// placeLocked makes a record, in the place of the key's record if there is one.
func (sh *shard) placeLocked(n fresh, it Item, now int64) error {
	q := &sh.small
	if n.bits&bitMain != 0 {
		q = &sh.main
	}
	where, err := sh.roomLocked(q, sizeOf(len(n.key), len(n.value)), now)
	if err != nil {
		if n.bits&bitLarge != 0 {
			sh.freeLarge(binary.LittleEndian.Uint32(n.value))
		}
		return err
	}
	r := sh.record(where)
	r.write(n.bits, n.key, n.value, it)
	slot, at, free := sh.probe(n.key, n.tag) // making room may have moved or evicted the old record
	if slot >= 0 {
		sh.killLocked(sh.record(at))
	} else {
		slot = free
		sh.count++
	}
	sh.setEntry(slot, n.tag, where)
	sh.accountLocked(r, 1)
	return nil
}

func noMemory(err error) error {
	return &sigma.Error{Op: "store.Update", Kind: sigma.KindNoSpace, Msg: "the cache gets no memory from the machine",
		Hint: "give its proc more memory than its limit, by a quarter", Err: err}
}
