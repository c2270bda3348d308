// Package archive keeps records in one file of a realm, which is there whole or not at all: what a
// service saves of its state, to restore it elsewhere.
//
// It promises: a Writer that is discarded, or dies, leaves nothing. Read gives an error for a file
// that is cut off, damaged, of another version or of another kind. Both take the memory of one
// record.
//
// It assumes that hidden files become visible as a whole (sigma.OpenHidden), as in /s3 and /ux.
//
// It costs: a checksum of all bytes, and requests of 1 MiB. Users: sigma kv. A Writer is used by
// one goroutine.
package archive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"sigmaos.dev/sigma"
)

// A file is
//
//	magic      8 bytes, the last of which is the version
//	kind       1 byte, its length; its bytes
//	records    each with its length before it, 4 bytes, from 1 on
//	0          4 bytes
//	count      8 bytes, of records
//	checksum   4 bytes, CRC-32C of all before it
//
// Numbers are little endian.

const (
	magic = "sgarch\x00\x01"
	// RecordMax bounds a record in bytes.
	RecordMax  = 16 << 20
	bufferSize = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer is a file that is being written. Call Close or Discard.
type Writer struct {
	file  sigma.Handle
	out   *bufio.Writer
	sum   hash.Hash32
	count uint64
	err   error
}

// Create begins a file at path. kind says what the records are, in 1 to 255 bytes. KindExists:
// there is a file already.
func Create(ctx context.Context, files sigma.Namespace, path, kind string) (*Writer, error) {
	if _, err := files.Stat(ctx, path); err == nil {
		return nil, &sigma.Error{Op: "archive.Create", Path: path, Kind: sigma.KindExists,
			Msg: "there is a file of that name already", Hint: "choose another name, or remove the file first"}
	}
	f, err := files.Create(ctx, path, sigma.OpenWrite|sigma.OpenHidden|sigma.OpenExclusive, 0o644)
	if err != nil {
		return nil, err
	}
	w := &Writer{file: f, sum: crc32.New(castagnoli)}
	w.out = bufio.NewWriterSize(f, bufferSize)
	w.write([]byte(magic))
	w.write(append([]byte{byte(len(kind))}, kind...))
	return w, nil
}

func (w *Writer) write(b []byte) {
	if w.err == nil {
		_, w.err = w.out.Write(b)
		w.sum.Write(b)
	}
}

// Add adds a record of 1 to RecordMax bytes.
func (w *Writer) Add(record []byte) error {
	if len(record) == 0 || len(record) > RecordMax {
		return sigma.Errorf("archive.Add", sigma.KindTooBig, "a record has %d bytes", len(record))
	}
	w.write(binary.LittleEndian.AppendUint32(nil, uint32(len(record))))
	w.write(record)
	w.count++
	return w.err
}

// Close makes the file visible, once it is durable. After an error there is none.
func (w *Writer) Close() error {
	w.write(make([]byte, 4))
	w.write(binary.LittleEndian.AppendUint64(nil, w.count))
	w.write(binary.LittleEndian.AppendUint32(nil, w.sum.Sum32()))
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if w.err != nil {
		w.file.Discard()
		return w.err
	}
	return w.file.Close()
}

// Discard leaves nothing.
func (w *Writer) Discard() { w.file.Discard() }

// Read gives the records of a file to each, in order. Whether the file is whole is known at its
// end only: a caller that must do nothing by halves reads it once with an each that does nothing.
// KindInvalid: the file is none of this kind, or is damaged.
func Read(ctx context.Context, files sigma.Namespace, path, kind string, each func(record []byte) error) error {
	f, err := files.Open(ctx, path, sigma.OpenRead)
	if err != nil {
		return err
	}
	defer f.Close()
	r := &reader{in: bufio.NewReaderSize(f, bufferSize), sum: crc32.New(castagnoli), path: path}
	if head := r.read(len(magic)); r.err != nil || string(head[:len(head)-1]) != magic[:len(magic)-1] {
		return r.damaged("it is no file of this kind")
	} else if v := head[len(head)-1]; v != magic[len(magic)-1] {
		return r.damaged(fmt.Sprintf("it has version %d, and this program knows version %d", v, magic[len(magic)-1]))
	}
	n := r.read(1)
	if r.err == nil {
		n = r.read(int(n[0]))
	}
	if r.err != nil || string(n) != kind {
		return r.damaged(fmt.Sprintf("it is of %.60q, not of %q", n, kind))
	}
	for count := uint64(0); ; count++ {
		head := r.read(4)
		if r.err != nil {
			return r.damaged("it is cut off")
		}
		size := binary.LittleEndian.Uint32(head)
		if size == 0 {
			return r.end(count)
		}
		if size > RecordMax {
			return r.damaged("a record is too long")
		}
		record := r.read(int(size))
		if r.err != nil {
			return r.damaged("it is cut off")
		}
		if err := each(record); err != nil {
			return err
		}
	}
}

type reader struct {
	in   *bufio.Reader
	sum  hash.Hash32
	path string
	err  error
}

// read reads n bytes. What it takes of memory grows with what is there, whatever n says.
func (r *reader) read(n int) []byte {
	var b bytes.Buffer
	if r.err == nil {
		_, r.err = io.CopyN(&b, r.in, int64(n))
		r.sum.Write(b.Bytes())
	}
	return b.Bytes()
}

func (r *reader) damaged(msg string) error {
	if r.err != nil && r.err != io.EOF && r.err != io.ErrUnexpectedEOF {
		return sigma.Wrap("archive.Read", r.path, r.err)
	}
	return &sigma.Error{Op: "archive.Read", Path: r.path, Kind: sigma.KindInvalid,
		Msg: "the file cannot be read: " + msg, Hint: "nothing of it was used; choose another file"}
}

// end checks what follows the last record.
func (r *reader) end(count uint64) error {
	n := r.read(8)
	if r.err != nil {
		return r.damaged("it is cut off")
	}
	want := r.sum.Sum32()
	sum := r.read(4)
	switch {
	case r.err != nil:
		return r.damaged("it is cut off")
	case binary.LittleEndian.Uint32(sum) != want || binary.LittleEndian.Uint64(n) != count:
		return r.damaged("its checksum is wrong")
	}
	if _, err := r.in.ReadByte(); err != io.EOF {
		return r.damaged("something follows its end")
	}
	return nil
}
