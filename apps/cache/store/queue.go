package store

import (
	"encoding/binary"
	"hash/maphash"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A queue is the segments of its records, the oldest first. A record goes in at the end of the last
// segment. What becomes of the oldest record is decided when room is needed: it goes in again, into
// this queue or the other, or its item is evicted. So a queue needs no links between records, and
// has no gaps: the room of dead records comes back when the queue has come by. If there are many of
// them, live records go in again until it has, rather than being evicted.
type queue struct {
	segs  []int // numbers
	tail  int   // where the oldest record is in the first
	bytes int   // of live records and their large values
	dead  int   // bytes of dead records
}

const (
	// stepsMost bounds the records that are looked at for one insertion while none of them is dead;
	// afterwards items are evicted although they were asked for.
	stepsMost = 512
	// movesMost bounds them when dead records are among them. It is far more than stepsMost, as
	// what is evicted then need not have been.
	movesMost = 8192
	// promoteUses is how often an item is asked for in the small queue to get into the main one.
	// With 2, which the paper has, fewer uses hit on each Zipf trace of the tests.
	promoteUses = 1
)

func (sh *shard) queueOf(r record) *queue {
	if r.is(bitMain) {
		return &sh.main
	}
	return &sh.small
}

// roomLocked gives room for a record at the end of a queue, for which it evicts if need be.
func (sh *shard) roomLocked(q *queue, size int, now int64) (at uint32, err error) {
	for steps := 0; ; steps++ {
		// Records that moved may have taken what is reserved. Unless it comes back, insertions
		// would use it up.
		borrowed, most := sh.usedLocked()+reserved*sh.segBytes > sh.budget, stepsMost
		if sh.manyDeadLocked() {
			most = movesMost
		}
		if !borrowed || steps >= most {
			at, ok, err := sh.extendLocked(q, size, reserved)
			if ok {
				return at, nil
			}
			if err != nil && sh.inUse == 0 {
				return 0, noMemory(err)
			}
		}
		if !sh.stepLocked(now, steps) {
			return 0, noMemory(nil)
		}
	}
}

// manyDeadLocked reports whether dead records take more than one part in deadPart of the budget.
// Then live records are moved together, and none is evicted.
func (sh *shard) manyDeadLocked() bool { return (sh.small.dead+sh.main.dead)*deadPart > sh.budget }

// extendLocked gives room at the end of a queue, if there is some without evicting. keep is how
// many segments have to be left to the budget.
func (sh *shard) extendLocked(q *queue, size, keep int) (at uint32, ok bool, err error) {
	if n := len(q.segs); n > 0 {
		last := q.segs[n-1]
		if off := sh.ends[last]; off+size <= sh.segBytes {
			sh.ends[last] += size
			return sh.address(last, off), true, nil
		}
	}
	if sh.usedLocked()+(1+keep)*sh.segBytes > sh.budget {
		return 0, false, nil
	}
	seg, err := sh.segmentLocked()
	if err != nil {
		return 0, false, err
	}
	q.segs = append(q.segs, seg)
	sh.inUse++
	sh.ends[seg] = size
	return sh.address(seg, 0), true, nil
}

// segmentLocked gives an empty segment.
func (sh *shard) segmentLocked() (seg int, err error) {
	if n := len(sh.spare); n > 0 {
		seg, sh.spare = sh.spare[n-1], sh.spare[:n-1]
		return seg, nil
	}
	m, err := mapped(sh.segBytes)
	if err != nil {
		return 0, err
	}
	if n := len(sh.ids); n > 0 {
		seg, sh.ids = sh.ids[n-1], sh.ids[:n-1]
	} else {
		seg = len(sh.segs)
		sh.segs, sh.ends = append(sh.segs, nil), append(sh.ends, 0)
	}
	sh.segs[seg] = m
	return seg, nil
}

// releaseLocked takes the first segment of a queue back.
func (sh *shard) releaseLocked(q *queue) {
	seg := q.segs[0]
	q.segs, q.tail = slices.Delete(q.segs, 0, 1), 0
	sh.inUse--
	if len(sh.spare) < spareMost {
		sh.spare = append(sh.spare, seg)
		return
	}
	unmap(sh.segs[seg])
	sh.segs[seg] = nil
	sh.ids = append(sh.ids, seg)
}

// stepLocked decides on the oldest record of a queue, the one of which something has to go. It
// reports false if there is none in either.
func (sh *shard) stepLocked(now int64, steps int) bool {
	q, together := &sh.main, sh.manyDeadLocked()
	if together && sh.small.dead > sh.main.dead || !together && sh.small.bytes*smallPart > sh.budget ||
		len(q.segs) == 0 {
		q = &sh.small
	}
	if len(q.segs) == 0 {
		return false
	}
	seg := q.segs[0]
	if q.tail < sh.ends[seg] {
		at := sh.address(seg, q.tail)
		r := sh.record(at)
		q.tail += r.size()
		if r.is(bitDead) {
			q.dead -= r.size()
		} else {
			sh.decideLocked(r, at, now, together && steps < movesMost, steps >= stepsMost)
		}
	}
	if q.tail == sh.ends[seg] {
		sh.releaseLocked(q)
	}
	return true
}

// decideLocked decides what becomes of a live record whose turn it is. together has it go in again
// in any case, evict has it not.
func (sh *shard) decideLocked(r record, at uint32, now int64, together, evict bool) {
	tag := uint32(maphash.Bytes(sh.store.seed, r.key()))
	tag = max(tag, 1)
	slot, _, _ := sh.lookup(tag, func(other uint32) bool { return other == at })
	freq, bits := r.freq(), r.head()&(bitLarge|bitMain)
	switch {
	case !sh.validLocked(r.key(), r, now):
		sh.stats.Expired++
		sh.dropLocked(r, slot)
		return
	case together:
		bits |= freq
	case evict:
		bits = bitsAll
	case bits&bitMain != 0 && freq > 0:
		bits |= freq - 1
	case bits&bitMain == 0 && freq >= promoteUses:
		bits |= bitMain
	default:
		bits = bitsAll
	}
	if bits == bitsAll || !sh.moveLocked(r, tag, slot, bits) {
		if !r.is(bitMain) {
			sh.ghost.add(tag)
		}
		sh.stats.Evicted++
		sh.dropLocked(r, slot)
	}
}

// dropLocked ends the item of a record that its queue has left behind.
func (sh *shard) dropLocked(r record, slot int) {
	sh.accountLocked(r, -1)
	if r.is(bitLarge) {
		sh.freeLarge(binary.LittleEndian.Uint32(r.inline()))
	}
	sh.vacateLocked(slot)
}

// moveLocked copies a record to the end of the queue that the bits tell. It reports false if there
// is no room.
func (sh *shard) moveLocked(r record, tag uint32, slot int, bits uint64) bool {
	q := &sh.small
	if bits&bitMain != 0 {
		q = &sh.main
	}
	size := r.size()
	to, ok, _ := sh.extendLocked(q, size, 0)
	if !ok {
		return false
	}
	sh.accountLocked(r, -1)
	copied := sh.record(to)[:size]
	copy(copied, r)
	copied.setHead(copied.head()&^bitsAll | bits)
	sh.accountLocked(copied, 1)
	sh.setEntry(slot, tag, to)
	return true
}

// growLocked has the index have room for one more entry.
func (sh *shard) growLocked(now int64) error {
	for steps := 0; (sh.count+1)*fullDivisor > sh.entries*fullNumerator; steps++ {
		n := sh.entries + sh.entries/growDivisor
		if sh.entries < doubleBelow {
			n = 2 * sh.entries
		}
		if sh.usedLocked()+n*entryBytes+ghostBytes(n)+reserved*sh.segBytes <= sh.budget {
			return sh.resizeLocked(n)
		}
		if !sh.stepLocked(now, steps) {
			return noMemory(nil)
		}
	}
	return nil
}

func (sh *shard) resizeLocked(entries int) error {
	index, err := mapped(entries * entryBytes)
	if err != nil {
		return noMemory(err)
	}
	slots, err := mapped(ghostBytes(entries))
	if err != nil {
		unmap(index)
		return noMemory(err)
	}
	old, g := sh.index, ghost{slots}
	sh.ghost.moveTo(&g)
	unmap(sh.ghost.slots)
	sh.index, sh.entries, sh.ghost = index, entries, g
	for i := 0; i < len(old); i += entryBytes {
		e := binary.LittleEndian.Uint64(old[i:])
		if e == 0 {
			continue
		}
		slot := sh.home(uint32(e >> 32))
		for binary.LittleEndian.Uint64(sh.index[slot*entryBytes:]) != 0 {
			slot = sh.next(slot)
		}
		binary.LittleEndian.PutUint64(sh.index[slot*entryBytes:], e)
	}
	unmap(old)
	return nil
}

// mapLargeLocked keeps a large value apart.
func (sh *shard) mapLargeLocked(value []byte, now int64) (id uint32, err error) {
	for steps := 0; sh.usedLocked()+pages(len(value))+reserved*sh.segBytes > sh.budget; steps++ {
		if !sh.stepLocked(now, steps) {
			return 0, noMemory(nil)
		}
	}
	m, err := mapped(len(value))
	if err != nil {
		return 0, noMemory(err)
	}
	copy(m, value)
	sh.largeBytes += pages(len(value))
	if n := len(sh.largeIDs); n > 0 {
		id, sh.largeIDs = sh.largeIDs[n-1], sh.largeIDs[:n-1]
		sh.large[id] = m
		return id, nil
	}
	sh.large = append(sh.large, m)
	return uint32(len(sh.large) - 1), nil
}

// clearLocked removes all records and gives their memory back.
func (sh *shard) clearLocked() {
	for _, m := range slices.Concat(sh.segs, sh.large) {
		unmap(m)
	}
	clear(sh.index)
	clear(sh.ghost.slots)
	sh.segs, sh.ends, sh.ids, sh.spare, sh.inUse = nil, nil, nil, nil, 0
	sh.large, sh.largeIDs, sh.largeBytes = nil, nil, 0
	sh.small, sh.main, sh.count = queue{}, queue{}, 0
	sh.stats.Bytes, sh.stats.Sizes = 0, [sizeClasses]int64{}
}

// scanLocked calls each with the keys of a part of the shard, that of the tags from from on, which
// has about most keys, and gives where the next part begins. over says that this was the last.
func (sh *shard) scanLocked(from uint32, most int, now int64, each func(key []byte)) (next uint32, over bool) {
	step := uint64(1) << 32
	if sh.count > most {
		step = step/uint64(sh.count)*uint64(max(most, 1)) + 1
	}
	end := uint64(from) + step
	over = end >= 1<<32
	last := uint32(min(end, 1<<32) - 1)
	beyond, slot := sh.home(last), sh.home(from)
	for walked, passed := 0, false; walked < sh.entries; walked++ {
		tag, at := sh.entry(slot)
		if passed = passed || slot == beyond; tag == 0 && passed {
			break
		}
		if r := record(nil); tag != 0 && tag >= from && tag <= last {
			if r = sh.record(at); sh.validLocked(r.key(), r, now) {
				each(r.key())
			}
		}
		slot = sh.next(slot)
	}
	return uint32(end), over
}

// pageBytes is what a mapping is a multiple of.
const pageBytes = 4096

func pages(n int) int { return (n + pageBytes - 1) &^ (pageBytes - 1) }

// mapped gives zeroed memory apart from Go's heap, which the machine provides as it is used.
func mapped(n int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	return m, os.NewSyscallError("mmap", err)
}

// unmap gives it back.
func unmap(m []byte) {
	if m != nil {
		unix.Munmap(m)
	}
}
