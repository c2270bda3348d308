package mr

import (
	"bufio"
	"encoding/binary"
	"iter"
	"math/bits"
	"strconv"
)

// How words are found quickly.
//
// The obvious loop asks of every byte whether it is a letter and mispredicts at both ends of every
// word, which costs more than all the rest. Here 64 bytes at a time become a word of 64 bits, one
// per letter (eight bytes at once with plain arithmetic), and the ends of words are the bits that
// differ from their neighbour. Walking those bits has one badly predicted branch per 64 bytes
// instead of two per word.

// IsLetter reports whether c is one of A-Z and a-z.
func IsLetter(c byte) bool { return (c|0x20)-'a' < 26 }

// NotLetter stands between words (Mapper.Between).
func NotLetter(c byte) bool { return !IsLetter(c) }

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

// Words gives the words of a text: runs of letters, as long as possible.
func Words(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		start, open := 0, uint64(0) // open is 1 inside a word, which began at start
		for base := 0; base < len(text); base += 64 {
			var m uint64
			if len(text)-base >= 64 {
				m = letters64(text[base:])
			} else {
				var rest [64]byte
				copy(rest[:], text[base:])
				m = letters64(rest[:])
			}
			edges := m ^ (m<<1 | open)
			if open != 0 && edges != 0 {
				end := base + bits.TrailingZeros64(edges)
				edges &= edges - 1
				if open = 0; !yield(text[start:end]) {
					return
				}
			}
			for edges != 0 {
				start = base + bits.TrailingZeros64(edges)
				if edges &= edges - 1; edges == 0 {
					open = 1
					break
				}
				end := base + bits.TrailingZeros64(edges)
				edges &= edges - 1
				if !yield(text[start:end]) {
					return
				}
			}
		}
		if open != 0 {
			yield(text[start:])
		}
	}
}

// Sum is the Reducer that writes KEY<TAB>COUNT, how often the key was emitted.
func Sum(key []byte, values Values, out *bufio.Writer) error {
	sum := uint64(0)
	for _, n := range values {
		sum += n
	}
	out.Write(key)
	out.WriteByte('\t')
	out.Write(strconv.AppendUint(out.AvailableBuffer(), sum, 10))
	return out.WriteByte('\n')
}

// Each is the Reducer that writes each key as a line, as often as it was emitted.
func Each(key []byte, values Values, out *bufio.Writer) error {
	for _, n := range values {
		for range n {
			out.Write(key)
			out.WriteByte('\n')
		}
	}
	return nil
}
