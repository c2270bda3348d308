package mr

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"iter"
	"math/bits"
	"slices"
)

// shortMax is the length of keys that are kept in the table itself; longer ones lie in its arena.
const shortMax = 16

// table counts entries: keys, with or without a value. Keys of up to shortMax bytes without a value
// are two integers and a count in an open-addressing array, without a pointer; the others have an
// array of their own and their bytes one after another in the arena. So counting a key allocates
// nothing and the garbage collector has nothing to follow. Not safe for concurrent use.
type table struct {
	masks [shortMax + 1]struct{ lo, hi uint64 } // cut two loaded words to a key's length

	short      []shortSlot // length is a power of two
	shortShift uint        // 64 - log2(len(short))
	shortUsed  int

	long      []longSlot
	longShift uint
	longUsed  int
	arena     []byte

	most    int  // bytes of memory that it should have
	crowded bool // it has more
}

// A short key is not all zeros in its first eight bytes, nor zero in its last one, so that its
// length is known from it.
type shortSlot struct{ lo, hi, count uint64 } // lo == 0: empty

type longSlot struct {
	hash, count uint64 // count == 0: empty
	offset      uint64 // in the arena, of the key, which the value follows
	key, value  uint32 // lengths
}

// entry is a key with a value and how often it was emitted. The hash is the key's.
type entry struct {
	hash       uint64
	key, value []byte
	count      uint64
}

const slotsLeast = 1 << 10

func newTable(most int) *table {
	t := &table{most: most}
	for n := range t.masks {
		t.masks[n].lo = ^uint64(0) >> (64 - 8*min(n, 8)) // a shift by 64 gives 0
		t.masks[n].hi = ^uint64(0) >> (64 - 8*max(n-8, 0))
	}
	t.short, t.shortShift = make([]shortSlot, 16*slotsLeast), 64-14
	t.long, t.longShift = make([]longSlot, slotsLeast), 64-10
	return t
}

// reset forgets all entries and keeps the memory.
func (t *table) reset() {
	clear(t.short)
	clear(t.long)
	t.shortUsed, t.longUsed, t.arena, t.crowded = 0, 0, t.arena[:0], false
}

// entered checks the size after a new entry. A table takes about the memory that is estimated here,
// and three times as much for a moment while it grows.
func (t *table) entered() {
	t.crowded = 2*24*t.shortUsed+2*32*t.longUsed+len(t.arena) > t.most
}

// entries is how many there are.
func (t *table) entries() int { return t.shortUsed + t.longUsed }

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

// pack makes two integers of a short key; lo is 0 of another.
func (t *table) pack(key []byte) (lo, hi uint64) {
	length := len(key)
	if uint(length-1) >= shortMax || key[length-1] == 0 {
		return 0, 0
	}
	if cap(key) < shortMax {
		return keyOf(key)
	}
	p, k := key[:shortMax], &t.masks[length] // what follows the key is masked out
	return binary.LittleEndian.Uint64(p) & k.lo, binary.LittleEndian.Uint64(p[8:]) & k.hi
}

// add counts an entry.
func (t *table) add(key, value []byte, n uint64) {
	lo, hi := t.pack(key)
	switch {
	case lo == 0:
		t.addLong(hashLong(key), key, value, n)
	case len(value) == 0:
		t.addShort(lo, hi, n)
	default:
		t.addLong(hashShort(lo, hi), key, value, n)
	}
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
			t.entered()
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

func (t *table) addLong(h uint64, key, value []byte, count uint64) {
	mask := uint64(len(t.long) - 1)
	for i := t.slotOf(h, value); ; i++ {
		s := &t.long[i&mask]
		if s.count == 0 {
			*s = longSlot{h, count, uint64(len(t.arena)), uint32(len(key)), uint32(len(value))}
			t.arena = append(append(t.arena, key...), value...)
			if t.longUsed++; t.longUsed > len(t.long)/2 {
				t.growLong()
			}
			t.entered()
			return
		}
		if s.hash == h && bytes.Equal(t.keyAt(s), key) && bytes.Equal(t.valueAt(s), value) {
			s.count += count
			return
		}
	}
}

// slotOf is where an entry should be among the long ones.
func (t *table) slotOf(h uint64, value []byte) uint64 {
	if len(value) > 0 {
		h ^= hashLong(value)
	}
	return h >> (t.longShift & 63)
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
		i := t.slotOf(s.hash, t.valueAt(&s))
		for t.long[i&mask].count != 0 {
			i++
		}
		t.long[i&mask] = s
	}
}

func (t *table) keyAt(s *longSlot) []byte { return t.arena[s.offset : s.offset+uint64(s.key)] }

func (t *table) valueAt(s *longSlot) []byte {
	return t.arena[s.offset+uint64(s.key) : s.offset+uint64(s.key)+uint64(s.value)]
}

// keyOf packs the first shortMax bytes of a key.
func keyOf(key []byte) (lo, hi uint64) {
	var k [shortMax]byte
	copy(k[:], key)
	return binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint64(k[8:])
}

// bytes unpacks a key into buf.
func (s *shortSlot) bytes(buf *[shortMax]byte) []byte {
	binary.LittleEndian.PutUint64(buf[:], s.lo)
	binary.LittleEndian.PutUint64(buf[8:], s.hi)
	n := 8 - bits.LeadingZeros64(s.lo)/8
	if s.hi != 0 {
		n = 16 - bits.LeadingZeros64(s.hi)/8
	}
	return buf[:n]
}

// partition chooses the reducer, of n, that gets keys with this hash.
func partition(hash uint64, n int) int { return int(uint64(uint32(hash)) * uint64(n) >> 32) }

// all gives every entry once, in no order. It is valid until the iteration goes on.
func (t *table) all() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		var buf [shortMax]byte
		for i := range t.short {
			s := &t.short[i]
			if s.lo != 0 && !yield(entry{hashShort(s.lo, s.hi), s.bytes(&buf), nil, s.count}) {
				return
			}
		}
		for i := range t.long {
			s := &t.long[i]
			if s.count != 0 && !yield(entry{s.hash, t.keyAt(s), t.valueAt(s), s.count}) {
				return
			}
		}
	}
}

// sortedEntry is an entry in sorting: the first 16 bytes of its key as two numbers that compare as
// the bytes do, and where the rest is.
type sortedEntry struct {
	first, second uint64
	count         uint64
	long          int // index of the slot of a long one, -1 of a short one
}

// sorted gives all entries in the order of the bytes of their keys, then of their values: one at
// each call, which is valid until the next, and false at the end.
func (t *table) sorted() func() (entry, bool, error) {
	out := make([]sortedEntry, 0, t.entries())
	for i := range t.short {
		if s := &t.short[i]; s.lo != 0 {
			out = append(out, sortedEntry{bits.ReverseBytes64(s.lo), bits.ReverseBytes64(s.hi), s.count, -1})
		}
	}
	for i := range t.long {
		if s := &t.long[i]; s.count != 0 {
			lo, hi := keyOf(t.keyAt(s))
			out = append(out, sortedEntry{bits.ReverseBytes64(lo), bits.ReverseBytes64(hi), s.count, i})
		}
	}
	slices.SortFunc(out, func(a, b sortedEntry) int {
		if n := cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.second, b.second)); n != 0 || a.long < 0 &&
			b.long < 0 {
			return n
		}
		var bufA, bufB [shortMax]byte
		x, y := t.entryOf(&a, &bufA), t.entryOf(&b, &bufB)
		return cmp.Or(bytes.Compare(x.key, y.key), bytes.Compare(x.value, y.value))
	})
	var buf [shortMax]byte
	return func() (e entry, more bool, err error) {
		if more = len(out) > 0; more {
			e, out = t.entryOf(&out[0], &buf), out[1:]
		}
		return e, more, nil
	}
}

// entryOf gives a sorted entry, whose key may be in buf.
func (t *table) entryOf(e *sortedEntry, buf *[shortMax]byte) entry {
	if e.long >= 0 {
		s := &t.long[e.long]
		return entry{s.hash, t.keyAt(s), t.valueAt(s), e.count}
	}
	s := shortSlot{lo: bits.ReverseBytes64(e.first), hi: bits.ReverseBytes64(e.second)}
	return entry{hashShort(s.lo, s.hi), s.bytes(buf), nil, e.count}
}
