package mr

import (
	"bytes"
	"cmp"
	"math/bits"
	"slices"
)

// sortedEntry is a word in sorting: its first 16 letters as two numbers that compare as the letters
// do, and where the rest is.
type sortedEntry struct {
	first, second uint64
	count         uint64
	long          int // index of the slot of a long word, -1 for a short one
}

// sorted gives all words in the order of their bytes.
func (t *table) sorted() []sortedEntry {
	out := make([]sortedEntry, 0, t.words())
	for i := range t.short {
		if s := &t.short[i]; s.lo != 0 {
			out = append(out, sortedEntry{bits.ReverseBytes64(s.lo), bits.ReverseBytes64(s.hi), s.count, -1})
		}
	}
	for i := range t.long {
		if s := &t.long[i]; s.count != 0 {
			lo, hi := keyOf(t.bytes(s)[:shortMax])
			out = append(out, sortedEntry{bits.ReverseBytes64(lo), bits.ReverseBytes64(hi), s.count, i})
		}
	}
	slices.SortFunc(out, func(a, b sortedEntry) int {
		switch {
		case a.first != b.first:
			return cmp.Compare(a.first, b.first)
		case a.second != b.second:
			return cmp.Compare(a.second, b.second)
		case a.long < 0 || b.long < 0: // equal so far, and the short one ends here
			return cmp.Compare(a.long, b.long)
		}
		return bytes.Compare(t.bytes(&t.long[a.long]), t.bytes(&t.long[b.long]))
	})
	return out
}

// wordOf gives the bytes of a sorted entry, of a short one in buf.
func (t *table) wordOf(e *sortedEntry, buf *[shortMax]byte) []byte {
	if e.long >= 0 {
		return t.bytes(&t.long[e.long])
	}
	s := shortSlot{lo: bits.ReverseBytes64(e.first), hi: bits.ReverseBytes64(e.second)}
	return s.bytes(buf)
}
