package replica

import "io"

// chunkSize is the size of the pieces in which a snapshot is kept in memory.
const chunkSize = 256 << 10

// chunks is a snapshot in memory. In pieces it takes no more than its size, and can be freed while
// it is read.
type chunks struct {
	all  [][]byte // chunkSize each, but the last; nil = freed
	size int64
}

// ReadFrom appends all of r.
func (c *chunks) ReadFrom(r io.Reader) (n int64, err error) {
	for {
		if int64(len(c.all))*chunkSize == c.size {
			c.all = append(c.all, make([]byte, 0, chunkSize))
		}
		last := &c.all[len(c.all)-1]
		got, err := r.Read((*last)[len(*last):chunkSize])
		*last = (*last)[:len(*last)+got]
		c.size += int64(got)
		n += int64(got)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// Size implements stored.
func (c *chunks) Size() int64 { return c.size }

// ReadAt implements stored. What was drained is gone.
func (c *chunks) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) && at < c.size {
		piece := c.all[at/chunkSize]
		if piece == nil {
			return n, io.ErrUnexpectedEOF
		}
		got := copy(b[n:], piece[at%chunkSize:])
		n += got
		at += int64(got)
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// drain gives a reader of the first n bytes, which frees what it has read.
func (c *chunks) drain(n int64) io.Reader { return &drained{c: c, left: n} }

type drained struct {
	c        *chunks
	at, left int64
}

func (d *drained) Read(b []byte) (int, error) {
	i := d.at / chunkSize
	end := min(d.left, chunkSize-d.at%chunkSize) // of this piece
	if end == 0 {
		return 0, io.EOF
	}
	n, err := d.c.ReadAt(b[:min(int64(len(b)), end)], d.at)
	d.at, d.left = d.at+int64(n), d.left-int64(n)
	if d.at/chunkSize > i {
		d.c.all[i] = nil
	}
	return n, err
}
