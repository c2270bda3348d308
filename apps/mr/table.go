package mr

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math/bits"
)

// shortMax is the length of words that are kept in the table itself; longer ones lie in its arena.
const shortMax = 16

// table counts words. Words of up to shortMax letters are two integers and a count in an
// open-addressing array, without a pointer; the few longer ones have an array of their own and
// their bytes one after another in the arena. So counting a word allocates nothing and the garbage
// collector has nothing to follow.
//
// It trusts that words are of letters (no zero byte). Not safe for concurrent use.
type table struct {
	masks keyMasks

	short      []shortSlot // length is a power of two
	shortShift uint        // 64 - log2(len(short))
	shortUsed  int

	long      []longSlot
	longShift uint
	longUsed  int
	arena     []byte
}

type shortSlot struct{ lo, hi, count uint64 } // lo == 0: empty

type longSlot struct {
	hash, count    uint64 // count == 0: empty
	offset, length uint64 // in the arena
}

const slotsLeast = 1 << 10

func newTable() *table {
	t := &table{masks: newKeyMasks()}
	t.short, t.shortShift = make([]shortSlot, 16*slotsLeast), 64-14
	t.long, t.longShift = make([]longSlot, slotsLeast), 64-10
	return t
}

// reset forgets all words and keeps the memory.
func (t *table) reset() {
	clear(t.short)
	clear(t.long)
	t.shortUsed, t.longUsed, t.arena = 0, 0, t.arena[:0]
}

// memory is about how many bytes the words occupy. An empty table has none, though it keeps what it
// had; one that grows takes three times as much for a moment.
func (t *table) memory() int { return 2*24*t.shortUsed + 2*32*t.longUsed + len(t.arena) }

// words is how many different words there are.
func (t *table) words() int { return t.shortUsed + t.longUsed }

// Two odd numbers without pattern (the first bits of the square roots of 2 and 3).
const (
	mix1 = 0x6a09e667f3bcc909
	mix2 = 0xbb67ae8584caa73b
)

// hashShort mixes a key; all bits of the result depend on all bits of the key. The table uses the
// high bits, partitions the low ones.
func hashShort(lo, hi uint64) uint64 {
	a, b := bits.Mul64(lo^mix1, hi^mix2)
	return a ^ b
}

func hashLong(w []byte) uint64 {
	h := uint64(len(w))
	for ; len(w) >= 16; w = w[16:] {
		h = hashShort(h^binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:]))
	}
	var tail [16]byte
	copy(tail[:], w)
	return hashShort(h^binary.LittleEndian.Uint64(tail[:]), binary.LittleEndian.Uint64(tail[8:]))
}

func (t *table) addShort(lo, hi, count uint64) {
	slots := t.short
	mask := uint64(len(slots) - 1)
	for i := hashShort(lo, hi) >> (t.shortShift & 63); ; i++ {
		s := &slots[i&mask]
		if s.lo == lo && s.hi == hi {
			s.count += count
			return
		}
		if s.lo == 0 {
			*s = shortSlot{lo, hi, count}
			if t.shortUsed++; t.shortUsed > len(slots)/2 {
				t.growShort()
			}
			return
		}
	}
}

func (t *table) growShort() {
	old := t.short
	t.short = make([]shortSlot, 2*len(old))
	t.shortShift--
	mask := uint64(len(t.short) - 1)
	for _, s := range old {
		if s.lo == 0 {
			continue
		}
		i := hashShort(s.lo, s.hi) >> (t.shortShift & 63)
		for t.short[i&mask].lo != 0 {
			i++
		}
		t.short[i&mask] = s
	}
}

func (t *table) addLong(w []byte, count uint64) {
	h := hashLong(w)
	mask := uint64(len(t.long) - 1)
	for i := h >> (t.longShift & 63); ; i++ {
		s := &t.long[i&mask]
		if s.count == 0 {
			*s = longSlot{h, count, uint64(len(t.arena)), uint64(len(w))}
			t.arena = append(t.arena, w...)
			if t.longUsed++; t.longUsed > len(t.long)/2 {
				t.growLong()
			}
			return
		}
		if s.hash == h && bytes.Equal(t.bytes(s), w) {
			s.count += count
			return
		}
	}
}

func (t *table) growLong() {
	old := t.long
	t.long = make([]longSlot, 2*len(old))
	t.longShift--
	mask := uint64(len(t.long) - 1)
	for _, s := range old {
		if s.count == 0 {
			continue
		}
		i := s.hash >> (t.longShift & 63)
		for t.long[i&mask].count != 0 {
			i++
		}
		t.long[i&mask] = s
	}
}

func (t *table) bytes(s *longSlot) []byte { return t.arena[s.offset : s.offset+s.length] }

// add counts any word, for those who have it as bytes.
func (t *table) add(w []byte, count uint64) {
	if len(w) > shortMax {
		t.addLong(w, count)
		return
	}
	lo, hi := keyOf(w)
	t.addShort(lo, hi, count)
}

// keyOf packs a word of up to shortMax letters.
func keyOf(w []byte) (lo, hi uint64) {
	var key [shortMax]byte
	copy(key[:], w)
	return binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
}

// shortBytes unpacks a key into buf.
func (s *shortSlot) bytes(buf *[shortMax]byte) []byte {
	binary.LittleEndian.PutUint64(buf[:], s.lo)
	binary.LittleEndian.PutUint64(buf[8:], s.hi)
	n := 8 - bits.LeadingZeros64(s.lo)/8
	if s.hi != 0 {
		n = 16 - bits.LeadingZeros64(s.hi)/8
	}
	return buf[:n]
}

// partition says which of n reducers gets words with this hash.
func partition(hash uint64, n int) int { return int(uint64(uint32(hash)) * uint64(n) >> 32) }

// entry is a word with its count. Word is valid until the iteration goes on.
type entry struct {
	hash  uint64
	word  []byte
	count uint64
}

// all gives every word once, in no order.
func (t *table) all() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		var buf [shortMax]byte
		for i := range t.short {
			if s := &t.short[i]; s.lo != 0 && !yield(entry{hashShort(s.lo, s.hi), s.bytes(&buf), s.count}) {
				return
			}
		}
		for i := range t.long {
			if s := &t.long[i]; s.count != 0 && !yield(entry{s.hash, t.bytes(s), s.count}) {
				return
			}
		}
	}
}
