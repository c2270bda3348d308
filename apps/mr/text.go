package mr

import (
	"bytes"
	"errors"
	"io"
)

// blockLeast is how much of a file is read at once: enough that the system call does not count,
// little enough to stay in the processor's cache.
const blockLeast = 256 << 10

// reader cuts text into pieces of whole records. Its buffer is used for one file after another.
type reader struct {
	between func(byte) bool // nil = newlines
	buf     []byte
}

// first is the index of the first byte of p that stands between records, -1 if there is none.
func (r *reader) first(p []byte) int {
	if r.between == nil {
		return bytes.IndexByte(p, '\n')
	}
	for i, c := range p {
		if r.between(c) {
			return i
		}
	}
	return -1
}

// last is the index of the last one.
func (r *reader) last(p []byte) int {
	if r.between == nil {
		return bytes.LastIndexByte(p, '\n')
	}
	for i := len(p) - 1; i >= 0; i-- {
		if r.between(p[i]) {
			return i
		}
	}
	return -1
}

// readFunc reads into p from an offset of a file; n < len(p) only at its end, with a nil error or
// io.EOF.
type readFunc func(p []byte, offset int64) (n int, err error)

// records gives take the records that start in [from, to) of a file, reading beyond to for the end
// of the last one. One that began before from is somebody else's. It returns how many bytes of
// [from, to) there were.
func (r *reader) records(read readFunc, from, to int64, take func(text []byte) error) (int64, error) {
	pos, foreign := from, false
	if from > 0 {
		pos, foreign = from-1, true // from the byte before, to see whether a record begins at from
	}
	for kept := 0; ; { // bytes of an unfinished record at the start of buf
		r.reserve(kept)
		room, beyond := len(r.buf)-kept, pos >= to
		if !beyond {
			room = int(min(int64(room), to-pos))
		} else {
			room = min(room, max(4<<10, kept)) // most records end soon
		}
		n, err := read(r.buf[kept:kept+room], pos)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		pos += int64(n)
		ended, have, begin, end := n < room, kept+n, 0, 0
		switch {
		case beyond:
			if i := r.first(r.buf[kept:have]); i >= 0 {
				ended, have = true, kept+i+1
			}
		case foreign:
			i := r.first(r.buf[:have])
			if begin = i + 1; i < 0 {
				begin = have
			}
			foreign = i < 0
			fallthrough
		default:
			end = begin + r.last(r.buf[begin:have]) + 1
		}
		if ended {
			end = have
		}
		if end > begin {
			if err := take(r.buf[begin:end]); err != nil {
				return 0, err
			}
		}
		kept = copy(r.buf, r.buf[max(begin, end):have])
		if ended || pos >= to && kept == 0 {
			return max(min(pos, to)-from, 0), nil
		}
	}
}

// reserve makes room for a block after kept bytes; as much as is kept at least, so that a record of
// many megabytes is not looked at again for each block.
func (r *reader) reserve(kept int) {
	if need := kept + max(blockLeast, kept); len(r.buf) < need {
		buf := make([]byte, 2*need)
		copy(buf, r.buf[:kept])
		r.buf = buf
	}
}
