package mr

import (
	"encoding/binary"
	"math/bits"
)

// How words are found quickly.
//
// The obvious loop asks of every byte whether it is a letter and mispredicts at both ends of every
// word, which costs more than all the rest. Here 64 bytes at a time become a word of 64 bits, one
// per letter (eight bytes at once with plain arithmetic), and the ends of words are the bits that
// differ from their neighbour. Walking those bits has one badly predicted branch per 64 bytes
// instead of two per word. A word of up to 16 letters is then two machine words, which are its key
// in the table: no byte is looked at alone.

// padding is how many bytes beyond the text a buffer must have, so that 16 bytes can be loaded from
// any of the text. What they are does not matter.
const padding = 64

// isLetter reports whether c is part of words.
func isLetter(c byte) bool { return (c|0x20)-'a' < 26 }

// letters8 gives one bit for each byte of x that is a letter, the lowest for the byte at the lowest
// address.
func letters8(x uint64) uint64 {
	const ones = 0x0101010101010101
	low := (x | 0x20*ones) & (0x7f * ones)
	// The high bit of a byte of low+k is set where low >= 0x80-k; no carry leaves a byte.
	m := (low + (0x80-'a')*ones) &^ (low + (0x80-'z'-1)*ones) &^ x & (0x80 * ones)
	return (m >> 7) * 0x0102040810204080 >> 56
}

// letters64 gives one bit for each of the 64 bytes of p that is a letter.
func letters64(p []byte) (m uint64) {
	p = p[:64]
	m = letters8(binary.LittleEndian.Uint64(p))
	m |= letters8(binary.LittleEndian.Uint64(p[8:])) << 8
	m |= letters8(binary.LittleEndian.Uint64(p[16:])) << 16
	m |= letters8(binary.LittleEndian.Uint64(p[24:])) << 24
	m |= letters8(binary.LittleEndian.Uint64(p[32:])) << 32
	m |= letters8(binary.LittleEndian.Uint64(p[40:])) << 40
	m |= letters8(binary.LittleEndian.Uint64(p[48:])) << 48
	return m | letters8(binary.LittleEndian.Uint64(p[56:]))<<56
}

// keyMasks cuts two loaded words to a word's length of up to 16.
type keyMasks [shortMax + 1]struct{ lo, hi uint64 }

func newKeyMasks() (k keyMasks) {
	for n := range k {
		k[n].lo = ^uint64(0) >> (64 - 8*min(n, 8)) // a shift by 64 gives 0
		k[n].hi = ^uint64(0) >> (64 - 8*max(n-8, 0))
	}
	return k
}

// scan counts the complete words of buf[:n] and returns where the incomplete one at the end begins,
// n if there is none. len(buf) must be at least n+padding.
func (t *table) scan(buf []byte, n int) int {
	start, open := 0, uint64(0) // open is 1 inside a word, which began at start
	for base := 0; base < n; base += 64 {
		m := letters64(buf[base:])
		if n-base < 64 { // what lies beyond n has no edges: it goes on as the last byte was
			valid := ^uint64(0) >> (64 - (n - base))
			if m&valid>>(n-base-1) != 0 {
				m |= ^valid
			} else {
				m &= valid
			}
		}
		edges := m ^ (m<<1 | open)
		if open != 0 && edges != 0 {
			end := base + bits.TrailingZeros64(edges)
			edges &= edges - 1
			t.word(buf, start, end)
			open = 0
		}
		for edges != 0 {
			start = base + bits.TrailingZeros64(edges)
			edges &= edges - 1
			if edges == 0 {
				open = 1
				break
			}
			end := base + bits.TrailingZeros64(edges)
			edges &= edges - 1
			t.word(buf, start, end)
		}
	}
	if open == 0 {
		return n
	}
	return start
}

// word counts the word buf[start:end].
func (t *table) word(buf []byte, start, end int) {
	length := end - start
	if length > shortMax {
		t.addLong(buf[start:end], 1)
		return
	}
	p, k := buf[start:start+shortMax], &t.masks[length]
	t.addShort(binary.LittleEndian.Uint64(p)&k.lo, binary.LittleEndian.Uint64(p[8:])&k.hi, 1)
}
