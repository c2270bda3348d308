// Package archive is the form of one realm's names in a file: what named writes for "sigma snapshot
// save --realm" and sigma puts into a fresh realm.
//
// It promises: Read calls back with nothing unless the file is whole, if it is given one that was
// checked by Check before; every length is bounded. Directories come before what is in them. It
// assumes nothing of who wrote the file. It is used by named and cmd/sigma.
package archive

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// Magic is how an archive begins. Then come the number of entries u64 and, of each: length of the
// path u32, path, kind u8, mode u32, Unix nanoseconds of the change i64, length of the content u32,
// content; then length 2^32-1 u32 and the SHA-256 of all before. Numbers are little endian.
const Magic = "sigma realm 1\n"

const (
	end     = 1<<32 - 1
	dataMax = 1 << 20
)

// Entry is one name. Paths have no slash at their ends.
type Entry struct {
	Path     string
	Kind     sigma.FileKind
	Perm     uint32
	Modified time.Time
	Data     []byte // of a file; target of a link; text of an endpoint
}

// Writer writes an archive.
type Writer struct {
	out io.Writer
	b   *bufio.Writer
	sum hash.Hash
}

// NewWriter begins an archive of so many entries.
func NewWriter(w io.Writer, entries uint64) *Writer {
	sum := sha256.New()
	a := &Writer{out: w, sum: sum, b: bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)}
	a.b.WriteString(Magic)
	binary.Write(a.b, binary.LittleEndian, entries)
	return a
}

// Add writes one entry. An error of w is returned by this call or a later one.
func (a *Writer) Add(e Entry) error {
	le := binary.LittleEndian
	head := le.AppendUint32(nil, uint32(len(e.Path)))
	head = append(append(head, e.Path...), byte(e.Kind))
	head = le.AppendUint32(head, e.Perm)
	head = le.AppendUint64(head, uint64(e.Modified.UnixNano()))
	head = le.AppendUint32(head, uint32(len(e.Data)))
	a.b.Write(head)
	_, err := a.b.Write(e.Data)
	return err
}

// Close ends the archive.
func (a *Writer) Close() error {
	binary.Write(a.b, binary.LittleEndian, uint32(end))
	if err := a.b.Flush(); err != nil {
		return err
	}
	_, err := a.out.Write(a.sum.Sum(nil))
	return err
}

// Check reads an archive to its end and says how many entries it has.
func Check(r io.Reader) (uint64, error) { return Read(r, func(Entry) error { return nil }) }

// Read calls f for each entry, and returns KindInvalid unless all of the archive is there and as it
// was written. An error of f ends it.
func Read(r io.Reader, f func(Entry) error) (n uint64, err error) {
	bad := func(format string, args ...any) error {
		return &sigma.Error{Op: "archive.Read", Kind: sigma.KindInvalid,
			Msg: "not a whole snapshot of a realm: " + fmt.Sprintf(format, args...)}
	}
	raw := bufio.NewReaderSize(r, 1<<16)
	sum := sha256.New()
	in := io.TeeReader(raw, sum)
	head := make([]byte, len(Magic)+8)
	if _, err := io.ReadFull(in, head); err != nil || string(head[:len(Magic)]) != Magic {
		return 0, bad("its beginning is wrong")
	}
	total := binary.LittleEndian.Uint64(head[len(Magic):])
	for {
		e, last, err := readEntry(in)
		switch {
		case err != nil:
			return n, bad("after %d of %d names: %v", n, total, err)
		case last:
			want, got := sum.Sum(nil), make([]byte, sha256.Size)
			if _, err := io.ReadFull(raw, got); err != nil || string(got) != string(want) {
				return n, bad("its checksum is wrong")
			}
			if _, err := raw.ReadByte(); !errors.Is(err, io.EOF) || n != total {
				return n, bad("there are %d of %d names, or bytes after the end", n, total)
			}
			return n, nil
		case n == total:
			return n, bad("more than %d names", total)
		}
		n++
		if err := f(e); err != nil {
			return n, err
		}
	}
}

func readEntry(r io.Reader) (e Entry, last bool, err error) {
	path, last, err := readBytes(r, sigma.PathMax)
	if err != nil || last {
		return e, last, err
	}
	fixed := make([]byte, 13)
	if _, err := io.ReadFull(r, fixed); err != nil {
		return e, false, err
	}
	e = Entry{Path: string(path), Kind: sigma.FileKind(fixed[0]), Perm: binary.LittleEndian.Uint32(fixed[1:]),
		Modified: time.Unix(0, int64(binary.LittleEndian.Uint64(fixed[5:])))}
	if e.Data, last, err = readBytes(r, dataMax); err == nil && last {
		err = errors.New("content without a length")
	}
	if err != nil {
		return e, false, err
	}
	switch e.Kind {
	case sigma.KindDir, sigma.KindFile, sigma.KindSymlink, sigma.KindEndpoint:
	default:
		return e, false, fmt.Errorf("a file of kind %d", e.Kind)
	}
	for name := range strings.SplitSeq(e.Path, "/") {
		if err := sigma.CheckName(name); err != nil {
			return e, false, err
		}
	}
	return e, false, nil
}

func readBytes(r io.Reader, most int) (b []byte, last bool, err error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, false, err
	}
	switch n := binary.LittleEndian.Uint32(head); {
	case n == end:
		return nil, true, nil
	case n > uint32(most):
		return nil, false, fmt.Errorf("%d bytes in one piece", n)
	default:
		b = make([]byte, n)
	}
	_, err = io.ReadFull(r, b)
	return b, false, err
}
