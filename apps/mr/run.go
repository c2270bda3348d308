package mr

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"sigmaos.dev/sigma"
)

// A run is a file of entries, in blocks: length of the payload, its checksum (CRC-32C), both 32
// bits, low byte first. The payload is, per entry, the lengths of its key and value, its count,
// these three as varints, and the bytes of key and value. The last block has length 0 and, in place
// of the checksum, the number of entries modulo 2^32, by which a file that was cut is recognised.

// pieceMax is how much one message carries; files up to it are put in one round trip.
const pieceMax = 60 << 10

// blockHeader is the bytes before a payload.
const blockHeader = 8

// runWriter writes one run.
type runWriter struct {
	ctx   context.Context
	names sigma.Namespace
	path  string
	crc   *crc32.Table
	buf   []byte // complete blocks
	open  int    // where the open block begins in buf, its header included
	count uint32
	file  sigma.Handle // nil as long as all is in buf
}

func newRunWriter(ctx context.Context, names sigma.Namespace, path string) *runWriter {
	w := &runWriter{ctx: ctx, names: names, path: path, crc: crc32.MakeTable(crc32.Castagnoli)}
	w.buf = make([]byte, blockHeader, 4<<10)
	return w
}

// add appends an entry. Files that exceed one message are written in such pieces.
func (w *runWriter) add(e *entry) error {
	size := len(e.key) + len(e.value) + 3*binary.MaxVarintLen64 + blockHeader
	if len(w.buf)+size > pieceMax && len(w.buf) > blockHeader {
		w.seal()
		if err := w.write(); err != nil {
			return err
		}
		w.buf, w.open = w.buf[:blockHeader], 0
	}
	w.buf = binary.AppendUvarint(w.buf, uint64(len(e.key)))
	w.buf = binary.AppendUvarint(w.buf, uint64(len(e.value)))
	w.buf = binary.AppendUvarint(w.buf, e.count)
	w.buf = append(append(w.buf, e.key...), e.value...)
	w.count++
	return nil
}

// seal fills in the header of the open block.
func (w *runWriter) seal() {
	payload := w.buf[w.open+blockHeader:]
	binary.LittleEndian.PutUint32(w.buf[w.open:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(w.buf[w.open+4:], crc32.Checksum(payload, w.crc))
}

func (w *runWriter) write() (err error) {
	if w.file == nil {
		if w.file, err = w.names.Create(w.ctx, w.path, sigma.OpenWrite|sigma.OpenTruncate, 0o600); err != nil {
			return err
		}
	}
	_, err = w.file.Write(w.buf)
	return err
}

// close ends the run.
func (w *runWriter) close() error {
	if len(w.buf) > w.open+blockHeader {
		w.seal()
	} else {
		w.buf = w.buf[:w.open]
	}
	w.buf = binary.LittleEndian.AppendUint32(w.buf, 0)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, w.count)
	if w.file == nil {
		_, err := w.names.Put(w.ctx, w.path, w.buf, sigma.PutOptions{Perm: 0o600})
		return err
	}
	return errors.Join(w.write(), w.file.Close())
}

// abandon releases a run that will not be finished.
func (w *runWriter) abandon() {
	if w.file != nil {
		w.file.Close()
	}
}

// runReader reads a run.
type runReader struct {
	path  string
	size  uint64
	in    *bufio.Reader
	crc   *crc32.Table
	block []byte // what is left of the current block
	buf   []byte
	seen  uint32
	entry entry // the current one, without hash; valid until next is called again
	close func()
}

// openRun opens the run at path. Its bytes come through a passed file descriptor if the server
// hands one out.
func openRun(ctx context.Context, names sigma.Namespace, path string) (*runReader, error) {
	h, err := names.Open(ctx, path, sigma.OpenRead)
	if err != nil {
		return nil, err
	}
	st, err := h.Stat()
	if err != nil {
		h.Close()
		return nil, err
	}
	f, err := h.File()
	if err != nil {
		return newRunReader(path, h, st.Size, func() { h.Close() }), nil
	}
	return newRunReader(path, f, st.Size, func() { f.Close(); h.Close() }), nil
}

// farBuffer is how much of a run is asked for at once where its bytes come in messages, most likely
// from another machine: many messages, so that a round trip does not count.
const farBuffer = 16 * pieceMax

// newRunReader reads a run of size bytes from in.
func newRunReader(path string, in io.Reader, size uint64, close func()) *runReader {
	most := uint64(pieceMax)
	if _, far := in.(sigma.Handle); far {
		most = farBuffer
	}
	return &runReader{path: path, size: size, in: bufio.NewReaderSize(in, int(min(size+1, most))),
		crc: crc32.MakeTable(crc32.Castagnoli), close: close}
}

// next goes to the next entry; false at the end. A run that is not whole gives an error.
func (r *runReader) next() (bool, error) {
	if len(r.block) == 0 {
		more, err := r.nextBlock()
		if !more || err != nil {
			return false, err
		}
	}
	var v [3]uint64
	for i := range v {
		n := 0
		if v[i], n = binary.Uvarint(r.block); n <= 0 {
			return false, r.damaged(nil)
		}
		r.block = r.block[n:]
	}
	key, value, left := v[0], v[1], uint64(len(r.block))
	if key > left || value > left-key {
		return false, r.damaged(nil)
	}
	r.entry = entry{key: r.block[:key], value: r.block[key : key+value], count: v[2]}
	r.block = r.block[key+value:]
	r.seen++
	return true, nil
}

func (r *runReader) nextBlock() (bool, error) {
	var header [blockHeader]byte
	if _, err := io.ReadFull(r.in, header[:]); err != nil {
		return false, r.damaged(err)
	}
	length, sum := binary.LittleEndian.Uint32(header[:]), binary.LittleEndian.Uint32(header[4:])
	if length == 0 {
		if sum != r.seen {
			return false, r.damaged(nil)
		}
		return false, nil
	}
	if uint64(length) > r.size {
		return false, r.damaged(nil)
	}
	if int(length) > cap(r.buf) {
		r.buf = make([]byte, length)
	}
	r.block = r.buf[:length]
	if _, err := io.ReadFull(r.in, r.block); err != nil {
		return false, r.damaged(err)
	}
	if crc32.Checksum(r.block, r.crc) != sum {
		return false, r.damaged(nil)
	}
	return true, nil
}

func (r *runReader) damaged(err error) error {
	return &sigma.Error{Op: "mr.runReader", Path: r.path, Kind: sigma.KindInvalid,
		Msg: "intermediate file is cut or damaged", Err: err}
}
