// Package wal is a write-ahead log in files of a realm: a sequence of records, of which each is on
// disk when Append returns. It is for procs, which reach files by sigmaP only: etcd's and other
// logs want a directory of a local file system, with locks and mapped memory.
//
// It promises: a record whose Append returned nil is given by Open, whatever dies, as long as the
// disk keeps what was synced. A record that a crash cut off at the end is dropped. A damaged record
// anywhere else is an error, never an end of the log. Append in the room that Grow made does not
// fail for want of space.
//
// It assumes that one Log at a time has the directory; that Sync of a file is what fsync(2) is, and
// that a hidden file is there whole or not at all (docs/reference/paths/ux.md).
//
// It costs: an Append is one write and one Sync, two requests to the machine, and one fdatasync
// that changes no size of a file, since a file grows by zeros in advance. So each byte is written
// twice.
//
// Users: lib/replica. A Log is used by one goroutine at a time.
package wal

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"

	"sigmaos.dev/sigma"
)

// A log is a number of segments, files named by a number in 16 hexadecimal digits and ".log". Those
// with greater numbers come later. A segment is
//
//	magic       8 bytes
//	nonce       8 bytes, random
//	before      8 bytes, the number of the segment before; 0 = none
//	end         8 bytes, where that ended
//	checksum    4 bytes, CRC-32C of all before it
//	0           12 bytes
//	records     each at a multiple of 16 bytes: the nonce, 8 bytes; its length, 4 bytes; CRC-32C of
//	            its offset, length and bytes, 4 bytes; its bytes
//	zeros
//
// Numbers are little endian. A record is on disk before the next one is written, so a record after
// one that cannot be read proves damage.

const (
	magic      = "sgwal\x00\x001"
	headSize   = 48
	recordHead = 16
	align      = 16
	// growth is by how many bytes a segment grows at a time, and growthLeast where not so many are
	// left.
	growth      = 1 << 20
	growthLeast = 16 << 10
	// RecordMax bounds a record in bytes.
	RecordMax = 256 << 20
	// readAhead is how many bytes Open reads at a time.
	readAhead = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Config says where a log is.
type Config struct {
	Files sigma.Namespace
	Dir   string // a path of the realm; it exists
	// Reserve is how many bytes of records there is room for after Grow.
	Reserve int64
}

// Log is a log that is open for writing.
type Log struct {
	cfg     Config
	segment uint64 // the last; 0 = there is none
	nonce   [8]byte
	file    sigma.Handle
	end     int64 // of the records
	size    int64 // up to which the file has zeros after them
	broken  error // what is on disk is unknown
}

// Name gives the name of the file of a segment.
func Name(segment uint64) string { return fmt.Sprintf("%016x.log", segment) }

// Number reads a name that is 16 hexadecimal digits and suffix.
func Number(name, suffix string) (n uint64, is bool) {
	digits, is := strings.CutSuffix(name, suffix)
	n, err := strconv.ParseUint(digits, 16, 64)
	return n, is && err == nil && len(digits) == 16
}

// Open reads the records of all segments from number first on, and gives them to each in order.
// KindInvalid: they are damaged, or one is missing. The log is then ready for Append, unless there
// is no segment: then Cut makes one.
func Open(ctx context.Context, cfg Config, first uint64, each func(segment uint64, record []byte) error) (*Log, error) {
	l := &Log{cfg: cfg}
	entries, err := cfg.Files.ReadDir(ctx, cfg.Dir)
	if err != nil {
		return nil, sigma.Wrap("wal.Open", cfg.Dir, err)
	}
	var segments []uint64
	for _, e := range entries {
		if n, is := Number(e.Name, ".log"); is && n >= first {
			segments = append(segments, n)
		}
	}
	slices.Sort(segments)
	for i, n := range segments {
		if err := l.read(ctx, n, i == 0, i == len(segments)-1, each); err != nil {
			l.Close()
			return nil, sigma.Wrap("wal.Open", l.path(n), err)
		}
	}
	return l, nil
}

func (l *Log) path(segment uint64) string { return l.cfg.Dir + "/" + Name(segment) }

func damaged(format string, args ...any) error {
	return sigma.Errorf("wal.Open", sigma.KindInvalid, "the log is damaged: "+format, args...)
}

// read reads a segment. What it says of the one before is compared unless it is the first.
func (l *Log) read(ctx context.Context, n uint64, isFirst, isLast bool, each func(uint64, []byte) error) error {
	flags := sigma.OpenRead
	if isLast {
		flags = sigma.OpenReadWrite
	}
	f, err := l.cfg.Files.Open(ctx, l.path(n), flags)
	if err != nil {
		return err
	}
	before, until := l.segment, l.end
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.segment, l.end = f, n, headSize
	st, err := f.Stat()
	if err != nil {
		return err
	}
	head := make([]byte, headSize)
	if _, err := f.ReadAt(head, 0); err != nil && err != io.EOF {
		return err
	}
	number := binary.LittleEndian.Uint64
	if string(head[:8]) != magic || binary.LittleEndian.Uint32(head[32:]) != crc32.Checksum(head[:32], castagnoli) {
		return damaged("a segment does not begin as one")
	}
	l.nonce = [8]byte(head[8:16])
	if !isFirst && (number(head[16:]) != before || number(head[24:]) > uint64(until)) {
		return damaged("what came before segment %d is missing", n)
	}
	in := &window{file: f, size: int64(st.Size)}
	for {
		record, next, err := l.record(in, l.end)
		if err != nil {
			return err
		}
		if record == nil {
			break
		}
		if err := each(n, record); err != nil {
			return err
		}
		l.end = next
	}
	for at := l.end + align; at+recordHead <= in.size; at += align {
		if record, _, err := l.record(in, at); record != nil || err != nil {
			return cmp.Or(err, damaged("a record at %d of segment %d cannot be read, and later ones can", l.end, n))
		}
	}
	l.size = l.end // zeros are written again over what was cut off
	return nil
}

// record reads the record at an offset, and gives where the next one is; nil = there is none.
func (l *Log) record(in *window, at int64) (record []byte, next int64, err error) {
	head, err := in.bytes(at, recordHead)
	if err != nil || head == nil || !bytes.Equal(head[:8], l.nonce[:]) {
		return nil, 0, err
	}
	size, sum := binary.LittleEndian.Uint32(head[8:]), binary.LittleEndian.Uint32(head[12:])
	if size == 0 || size > RecordMax {
		return nil, 0, nil
	}
	record, err = in.bytes(at+recordHead, int(size))
	if err != nil || record == nil || checksum(at, record) != sum {
		return nil, 0, err
	}
	return bytes.Clone(record), at + length(len(record)), nil
}

// length is what a record takes.
func length(bytes int) int64 { return (int64(recordHead+bytes) + align - 1) &^ (align - 1) }

func checksum(at int64, record []byte) uint32 {
	var head [12]byte
	binary.LittleEndian.PutUint64(head[:], uint64(at))
	binary.LittleEndian.PutUint32(head[8:], uint32(len(record)))
	return crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, record)
}

// window is a part of a file in memory.
type window struct {
	file sigma.Handle
	size int64
	at   int64
	data []byte
}

// bytes gives n bytes at an offset; nil = the file ends before. They are good until the next call.
func (w *window) bytes(at int64, n int) ([]byte, error) {
	if at+int64(n) > w.size {
		return nil, nil
	}
	if at < w.at || at+int64(n) > w.at+int64(len(w.data)) {
		w.at, w.data = at, make([]byte, min(max(int64(n), readAhead), w.size-at))
		if got, err := w.file.ReadAt(w.data, at); err != nil && err != io.EOF {
			return nil, err
		} else if got < len(w.data) {
			return nil, damaged("a file is shorter than it was")
		}
	}
	return w.data[at-w.at:][:n], nil
}

func (l *Log) put(to []byte, at int64, record []byte) {
	copy(to, l.nonce[:])
	binary.LittleEndian.PutUint32(to[8:], uint32(len(record)))
	binary.LittleEndian.PutUint32(to[12:], checksum(at, record))
	copy(to[recordHead:], record)
}

// Segment is the number of the segment that Append writes; 0 = there is none.
func (l *Log) Segment() uint64 { return l.segment }

// Room is how many bytes of records Append can take without more of the disk.
func (l *Log) Room() int64 { return l.size - l.end }

// Append writes a record of 1 to RecordMax bytes, and returns when it is on disk. KindNoSpace:
// nothing was written. After any other error what is on disk is unknown, and the log takes no more.
func (l *Log) Append(record []byte) error {
	const op = "wal.Append"
	n := length(len(record))
	switch {
	case l.broken != nil:
		return l.broken
	case len(record) == 0 || len(record) > RecordMax:
		return sigma.Errorf(op, sigma.KindTooBig, "a record has %d bytes; the most are %d", len(record), RecordMax)
	case l.file == nil:
		return sigma.Errorf(op, sigma.KindInvalid, "the log has no segment yet")
	}
	if err := l.growTo(l.end + n); err != nil {
		return err
	}
	b := make([]byte, n)
	l.put(b, l.end, record)
	_, err := l.file.WriteAt(b, l.end)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return l.breakBy(op, err)
	}
	l.end += n
	return nil
}

func (l *Log) breakBy(op string, err error) error {
	// Of a write that failed half-way for want of space as well nobody knows what it has written.
	l.broken = &sigma.Error{Op: op, Path: l.path(l.segment), Kind: sigma.KindLost, Err: err,
		Msg: "what is in the log is unknown, since writing to it failed", Hint: "open it again"}
	return l.broken
}

// Grow makes room for Config.Reserve bytes of records, and for what the next Grow takes. The error
// is of KindNoSpace if there is none: the log can be used on.
func (l *Log) Grow() error {
	if l.broken != nil || l.file == nil || l.Room() >= l.cfg.Reserve {
		return l.broken
	}
	return l.growTo(l.end + l.cfg.Reserve)
}

var zeros = make([]byte, growth)

// growTo makes the file have zeros up to an offset. On a full disk it takes what is left.
func (l *Log) growTo(size int64) error {
	for step := growth; l.size < size; {
		_, err := l.file.WriteAt(zeros[:step], l.size)
		switch {
		case err == nil:
			l.size += int64(step)
		case sigma.KindOf(err) != sigma.KindNoSpace:
			return l.breakBy("wal.Grow", err)
		case step > growthLeast:
			step /= 4
		default:
			return sigma.Wrap("wal.Grow", l.path(l.segment), err)
		}
	}
	return nil
}

// Cut begins the next segment, whose first record is record. number, which must be greater than
// that of the last one, is the segment's. KindNoSpace: the log can be used on as it is.
func (l *Log) Cut(ctx context.Context, number uint64, record []byte) (err error) {
	const op = "wal.Cut"
	switch {
	case l.broken != nil:
		return l.broken
	case len(record) == 0 || len(record) > RecordMax || number <= l.segment:
		return sigma.Errorf(op, sigma.KindInvalid, "segment %d with %d bytes", number, len(record))
	}
	next := &Log{cfg: l.cfg, segment: number, end: headSize}
	rand.Read(next.nonce[:])
	n := length(len(record))
	b := make([]byte, headSize+n+max(0, l.cfg.Reserve))
	copy(b, magic)
	copy(b[8:], next.nonce[:])
	binary.LittleEndian.PutUint64(b[16:], l.segment)
	binary.LittleEndian.PutUint64(b[24:], uint64(l.end))
	binary.LittleEndian.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli))
	next.put(b[headSize:], headSize, record)
	next.end, next.size = headSize+n, int64(len(b))
	path := l.path(number)
	f, err := l.cfg.Files.Create(ctx, path, sigma.OpenWrite|sigma.OpenHidden|sigma.OpenExclusive, 0o600)
	if err != nil {
		return sigma.Wrap(op, path, err)
	}
	if _, err = f.WriteAt(b, 0); err != nil {
		f.Discard()
		return sigma.Wrap(op, path, err)
	}
	if err = f.Close(); err == nil {
		next.file, err = l.cfg.Files.Open(ctx, path, sigma.OpenReadWrite)
	}
	if err != nil {
		if sigma.KindOf(err) == sigma.KindNoSpace {
			return sigma.Wrap(op, path, err)
		}
		return l.breakBy(op, err)
	}
	if l.file != nil {
		l.file.Close()
	}
	*l = *next
	return nil
}

// Trim removes the segments below number first. What cannot be removed is left to the next time.
func (l *Log) Trim(ctx context.Context, first uint64) error {
	entries, err := l.cfg.Files.ReadDir(ctx, l.cfg.Dir)
	for _, e := range entries {
		if n, is := Number(e.Name, ".log"); is && n < min(first, l.segment) {
			err = errors.Join(err, l.cfg.Files.Remove(ctx, l.path(n)))
		}
	}
	return sigma.Wrap("wal.Trim", l.cfg.Dir, err)
}

// Close releases the file.
func (l *Log) Close() {
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.broken = nil, sigma.Errorf("wal.Append", sigma.KindCanceled, "the log was closed")
}
