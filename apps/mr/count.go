package mr

import (
	"bytes"
	"errors"
	"io"
)

// blockLeast is how much of a file is read at once: enough that the system call does not count,
// little enough to stay in the processor's cache.
const blockLeast = 256 << 10

// counter feeds text into a table. After each block it calls full when the table is larger than
// sizeMax; full must make room.
type counter struct {
	table   *table
	sizeMax int
	full    func() error
	buf     []byte
}

func newCounter(sizeMax int, full func() error) *counter {
	return &counter{table: newTable(), sizeMax: sizeMax, full: full, buf: make([]byte, blockLeast+padding)}
}

// whole counts the words of a whole file.
func (c *counter) whole(text []byte) error {
	if len(text)+padding > len(c.buf) {
		c.buf = make([]byte, len(text)+padding)
	}
	n := copy(c.buf, text)
	if rest := c.table.scan(c.buf, n); rest < n {
		c.table.add(c.buf[rest:n], 1)
	}
	return c.room()
}

func (c *counter) room() error {
	if c.table.memory() <= c.sizeMax {
		return nil
	}
	return c.full()
}

// readFunc reads into p from an offset of a file; n < len(p) only at its end, with a nil error or
// io.EOF.
type readFunc func(p []byte, offset int64) (n int, err error)

// split counts the words that start in [from, to) of a file, reading beyond to for the end of the
// last one. A word that began before from is somebody else's. It returns how many bytes of [from,
// to) there were.
func (c *counter) split(read readFunc, from, to int64) (int64, error) {
	pos, foreign := from, false
	if from > 0 {
		pos, foreign = from-1, true // the byte before tells whether the first letters belong to an earlier word
	}
	kept := 0 // bytes of an unfinished word at the start of buf
	for {
		c.reserve(kept)
		room := len(c.buf) - padding - kept
		beyond := pos >= to
		if !beyond {
			room = int(min(int64(room), to-pos))
		} else {
			room = min(room, max(4<<10, kept)) // most words end soon
		}
		n, err := read(c.buf[kept:kept+room], pos)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		pos += int64(n)
		end := n < room
		have := kept + n
		switch {
		case foreign:
			i := bytes.IndexFunc(c.buf[:have], notLetter)
			if i < 0 {
				kept = 0
				break
			}
			foreign = false
			have = copy(c.buf, c.buf[i:have])
			kept = c.scan(have)
		case beyond:
			i := bytes.IndexFunc(c.buf[kept:have], notLetter)
			if i < 0 {
				kept = have
				break
			}
			c.table.add(c.buf[:kept+i], 1)
			kept, end = 0, true
		default:
			kept = c.scan(have)
		}
		if end && kept > 0 {
			c.table.add(c.buf[:kept], 1)
			kept = 0
		}
		if err := c.room(); err != nil {
			return 0, err
		}
		if end || pos >= to && kept == 0 {
			return max(min(pos, to)-from, 0), nil
		}
	}
}

// notLetter is for bytes.IndexFunc, which gives runes: those of several bytes, and RuneError, are
// no letters.
func notLetter(r rune) bool { return r > 'z' || !isLetter(byte(r)) }

// scan counts the complete words of the first n bytes of buf, moves the unfinished one to its start
// and returns its length.
func (c *counter) scan(n int) int {
	rest := c.table.scan(c.buf, n)
	return copy(c.buf, c.buf[rest:n])
}

// reserve makes room for a block after kept bytes; as much as is kept at least, so that a word of
// many megabytes is not looked at again for each block.
func (c *counter) reserve(kept int) {
	need := kept + max(blockLeast, kept) + padding
	if len(c.buf) < need {
		buf := make([]byte, 2*need)
		copy(buf, c.buf[:kept])
		c.buf = buf
	}
}
