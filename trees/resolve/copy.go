package resolve

import (
	"io"

	"sigmaos.dev/wire/sigmap"
)

// Copying a file is one operation, so that it may read ahead and write behind as single reads and
// writes may not: those see and show what is there at their time. Two buffers take turns; the
// session has all messages of one under way at once.

// copyMost is the size of a buffer; it begins with copyLeast, so that small files cost little.
const (
	copyLeast = sigmap.DataMax
	copyMost  = 32 * sigmap.DataMax
)

var (
	_ io.WriterTo   = (*handle)(nil)
	_ io.ReaderFrom = (*handle)(nil)
)

// block is what one half of a copy gives the other.
type block struct {
	data []byte
	err  error
}

// WriteTo implements io.WriterTo, which io.Copy uses: from the position to the end. While a block
// is written the next is read.
func (h *handle) WriteTo(w io.Writer) (total int64, err error) {
	if h.stop != nil { // of a pipe each piece is passed on when it comes
		return io.Copy(w, struct{ io.Reader }{h})
	}
	blocks, free, quit, ended := make(chan block), make(chan []byte, 2), make(chan struct{}), make(chan struct{})
	defer func() { close(quit); <-ended }()
	free <- nil
	free <- nil
	pos := h.pos
	go func() {
		defer close(ended)
		for size := copyLeast; ; size = min(4*size, copyMost) {
			var buf []byte
			select {
			case buf = <-free:
			case <-quit:
				return
			}
			if cap(buf) < size {
				buf = make([]byte, size)
			}
			buf = buf[:cap(buf)]
			n, err := h.ReadAt(buf, int64(pos))
			pos += uint64(n)
			select {
			case blocks <- block{buf[:n], err}:
			case <-quit:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		b := <-blocks
		if len(b.data) > 0 {
			n, err := w.Write(b.data)
			total += int64(n)
			h.pos += uint64(n)
			if err == nil && n < len(b.data) {
				err = io.ErrShortWrite
			}
			if err != nil {
				return total, err
			}
		}
		switch b.err {
		case nil:
			free <- b.data[:0]
		case io.EOF:
			return total, nil
		default:
			return total, b.err
		}
	}
}

// ReadFrom implements io.ReaderFrom, which io.Copy uses. What r gives is written at once; what it
// gives meanwhile, with the next write.
func (h *handle) ReadFrom(r io.Reader) (total int64, err error) {
	if h.stop != nil {
		return io.Copy(struct{ io.Writer }{h}, r)
	}
	writing, size := false, copyLeast
	written := make(chan block, 1) // with what was written, which is used again
	var spare []byte
	settle := func() error {
		b := <-written
		writing = false
		h.pos += uint64(len(b.data))
		total += int64(len(b.data))
		spare = b.data[:0]
		return b.err
	}
	begin := func(data []byte) {
		writing = true
		at := int64(h.pos)
		go func() {
			n, err := h.WriteAt(data, at)
			written <- block{data[:n], err}
		}()
	}
	buf := make([]byte, 0, size)
	for {
		n, rerr := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		last := rerr != nil
		if writing && (last || len(buf) == cap(buf) || len(written) > 0) {
			if err := settle(); err != nil {
				return total, err
			}
		}
		if !writing && len(buf) > 0 {
			full := len(buf) == cap(buf)
			begin(buf)
			if full {
				size = min(4*size, copyMost)
			}
			if buf = spare; cap(buf) < size {
				buf = make([]byte, 0, size)
			}
			spare = nil
		}
		if last {
			if writing {
				err = settle()
			}
			if err == nil && rerr != io.EOF {
				err = rerr
			}
			return total, err
		}
	}
}
