package sigmap

import (
	"encoding/binary"
	"math"
	"time"

	"sigmaos.dev/sigma"
)

// Coder walks the fields of a message in order, either appending them to a buffer or filling them
// from one. Integers are little endian, strings have a 16-bit length, data a 32-bit length (Plan 9
// manual, section 5, intro). Encoding changes nothing of what is encoded. It is not safe for
// concurrent use.
type Coder struct {
	buf      []byte // encoding: what was written; decoding: what is left
	decoding bool
	err      error
}

// NewEncoder returns a Coder that appends to buf.
func NewEncoder(buf []byte) *Coder { return &Coder{buf: buf} }

// NewDecoder returns a Coder that reads buf. Data fields alias buf.
func NewDecoder(buf []byte) *Coder { return &Coder{buf: buf, decoding: true} }

// Bytes returns what was encoded.
func (c *Coder) Bytes() []byte { return c.buf }

// Decoding tells which way the Coder works.
func (c *Coder) Decoding() bool { return c.decoding }

// Finish returns the first error; when decoding, bytes that are left over are one.
func (c *Coder) Finish() error {
	if c.err == nil && c.decoding && len(c.buf) > 0 {
		c.Fail("message has bytes left over")
	}
	return c.err
}

// Fail records an error unless there is one.
func (c *Coder) Fail(msg string) {
	if c.err == nil {
		c.err = &sigma.Error{Op: "sigmap.Coder", Kind: sigma.KindInvalid, Msg: msg}
	}
}

// Last is a field at the end that those who came before it leave out: f is called if it is there.
// Encoders that have one write it without Last.
func (c *Coder) Last(f func()) {
	if c.err == nil && len(c.buf) > 0 {
		f()
	}
}

func (c *Coder) take(n int) []byte {
	if c.err != nil || n > len(c.buf) {
		c.Fail("message is truncated")
		return nil
	}
	b := c.buf[:n:n]
	c.buf = c.buf[n:]
	return b
}

// U8 is one byte.
func (c *Coder) U8(v *uint8) {
	if !c.decoding {
		c.buf = append(c.buf, *v)
	} else if b := c.take(1); b != nil {
		*v = b[0]
	}
}

// U16 is two bytes.
func (c *Coder) U16(v *uint16) {
	if !c.decoding {
		c.buf = binary.LittleEndian.AppendUint16(c.buf, *v)
	} else if b := c.take(2); b != nil {
		*v = binary.LittleEndian.Uint16(b)
	}
}

// U32 is four bytes.
func (c *Coder) U32(v *uint32) {
	if !c.decoding {
		c.buf = binary.LittleEndian.AppendUint32(c.buf, *v)
	} else if b := c.take(4); b != nil {
		*v = binary.LittleEndian.Uint32(b)
	}
}

// U64 is eight bytes.
func (c *Coder) U64(v *uint64) {
	if !c.decoding {
		c.buf = binary.LittleEndian.AppendUint64(c.buf, *v)
	} else if b := c.take(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

// Bool is one byte, 0 or 1.
func (c *Coder) Bool(v *bool) {
	var b uint8
	if *v {
		b = 1
	}
	c.U8(&b)
	if b > 1 {
		c.Fail("a boolean is neither 0 nor 1")
	}
	if c.decoding {
		*v = b == 1
	}
}

// Str is a string of at most 65535 bytes.
func (c *Coder) Str(v *string) {
	n := uint16(len(*v))
	if !c.decoding && len(*v) > math.MaxUint16 {
		c.Fail("string is longer than 65535 bytes")
		return
	}
	c.U16(&n)
	if !c.decoding {
		c.buf = append(c.buf, *v...)
	} else if b := c.take(int(n)); b != nil {
		*v = string(b)
	}
}

// Data is bytes with a 32-bit length. Decoded data aliases the input.
func (c *Coder) Data(v *[]byte) {
	n := uint32(len(*v))
	c.U32(&n)
	if !c.decoding {
		c.buf = append(c.buf, *v...)
		return
	}
	if uint64(n) > uint64(len(c.buf)) {
		c.Fail("message is truncated")
		return
	}
	*v = c.take(int(n))
}

// Rest is all bytes that are left, without a length. Decoded bytes alias the input.
func Rest(c *Coder, v *[]byte) {
	if !c.decoding {
		c.buf = append(c.buf, *v...)
	} else if c.err == nil {
		*v, c.buf = c.buf, nil
	}
}

// Count is a 16-bit number of elements; least is the size of the smallest element, so that a lying
// count cannot make the decoder allocate.
func (c *Coder) Count(n *int, least int) {
	v := uint16(*n)
	if !c.decoding && *n > math.MaxUint16 {
		c.Fail("more than 65535 elements")
		return
	}
	c.U16(&v)
	if c.decoding && int(v)*least > len(c.buf) {
		c.Fail("message is truncated")
		v = 0
	}
	*n = int(v)
}

// Strs is a counted list of strings.
func (c *Coder) Strs(v *[]string) {
	n := len(*v)
	c.Count(&n, 2)
	if c.decoding && c.err == nil {
		*v = make([]string, n)
	}
	for i := 0; i < n && c.err == nil; i++ {
		c.Str(&(*v)[i])
	}
}

// names are the components of a walk; more than WalkMax are refused before room is made for them.
func (c *Coder) names(v *[]string) {
	if len(*v) > WalkMax || c.decoding && len(c.buf) >= 2 && binary.LittleEndian.Uint16(c.buf) > WalkMax {
		c.Fail("more than 64 names in one walk")
		return
	}
	c.Strs(v)
}

// Time is nanoseconds since 1970 as 64 bits; 0 is the zero time.
func (c *Coder) Time(t *time.Time) {
	var ns uint64
	if !t.IsZero() {
		ns = uint64(t.UnixNano())
	}
	c.U64(&ns)
	if c.decoding {
		*t = time.Time{}
		if ns != 0 {
			*t = time.Unix(0, int64(ns)).UTC()
		}
	}
}

// Duration is nanoseconds as 64 bits.
func (c *Coder) Duration(d *time.Duration) {
	v := uint64(*d)
	c.U64(&v)
	if c.decoding {
		*d = time.Duration(v)
	}
}

// Qid is a 9P qid: type, 32-bit version, path. Only the low 32 bits of a FileID's version travel in
// it.
func (c *Coder) Qid(id *sigma.FileID) {
	t, v := kindToQid(id.Kind), uint32(id.Version)
	c.U8(&t)
	c.U32(&v)
	c.U64(&id.Path)
	if c.decoding {
		id.Kind, id.Version = qidToKind(t), sigma.Version(v)
	}
}

// FileID is a qid with the whole version, used in the messages that sigmaP adds.
func (c *Coder) FileID(id *sigma.FileID) {
	c.Qid(id)
	c.U64((*uint64)(&id.Version))
}

// Qid types. A plain 9P client knows directory and symlink and takes the others for files.
const (
	qidDir      = 0x80
	qidEndpoint = 0x10 // Plan 9's "mounted channel"
	qidSymlink  = 0x02
	qidDevice   = 0x01
	qidCallable = 0x09
	qidPipe     = 0x41 // Plan 9's "append only", and that it is no plain file
)

func kindToQid(k sigma.FileKind) uint8 {
	switch k {
	case sigma.KindDir:
		return qidDir
	case sigma.KindSymlink:
		return qidSymlink
	case sigma.KindEndpoint:
		return qidEndpoint
	case sigma.KindDevice:
		return qidDevice
	case sigma.KindCallable:
		return qidCallable
	case sigma.KindPipe:
		return qidPipe
	}
	return 0
}

func qidToKind(t uint8) sigma.FileKind {
	switch {
	case t&qidDir != 0:
		return sigma.KindDir
	case t&qidSymlink != 0:
		return sigma.KindSymlink
	case t&qidEndpoint != 0:
		return sigma.KindEndpoint
	case t == qidCallable:
		return sigma.KindCallable
	case t == qidPipe:
		return sigma.KindPipe
	case t == qidDevice:
		return sigma.KindDevice
	}
	return sigma.KindFile
}

// List is a counted list of anything; least is the size of the smallest element.
func List[T any](c *Coder, v *[]T, least int, each func(*T)) {
	n := len(*v)
	c.Count(&n, least)
	if c.decoding {
		*v = make([]T, n)
	}
	for i := 0; i < n && c.err == nil; i++ {
		each(&(*v)[i])
	}
}
