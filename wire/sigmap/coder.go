package sigmap

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"slices"
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

// optional is a field at the end that may be left out: f is called if it is there. Decoding sets
// there.
func optional(c *Coder, there *bool, f func()) {
	if c.decoding {
		*there = c.err == nil && len(c.buf) > 0
	}
	if *there {
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

// Rest is all bytes that are left, without a length. Decoded bytes alias the input, and if nothing
// comes before them, so does what was encoded.
func Rest(c *Coder, v *[]byte) {
	if !c.decoding && c.buf == nil {
		c.buf = slices.Clip(*v)
	} else if !c.decoding {
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

// Method is one method of a file that answers calls: its name, and the layouts of its request and
// its reply. Both sides use the same declaration, because a function of a Coder encodes and
// decodes. It is a package variable of the package that both sides import.
//
// A payload whose function is nil is empty; it is ignored by its receiver.
type Method[Q, R any] struct {
	Name    string
	Request func(*Coder, *Q)
	Reply   func(*Coder, *R)
}

// None is a request or a reply that is empty.
type None = struct{}

// exchange is a request with its reply, and what codes them: one allocation for each side.
type exchange[Q, R any] struct {
	c Coder
	q Q
	r R
}

// Ask makes the call. File descriptors that come with the reply are closed.
func (m Method[Q, R]) Ask(ctx context.Context, to sigma.Caller, q Q) (R, error) {
	r, files, err := m.AskFiles(ctx, to, q)
	closeFiles(files)
	return r, err
}

// Tell is Ask of a method whose reply is empty, or does not matter.
func (m Method[Q, R]) Tell(ctx context.Context, to sigma.Caller, q Q) error {
	_, err := Method[Q, None]{Name: m.Name, Request: m.Request}.Ask(ctx, to, q)
	return err
}

// AskFiles is Ask for a reply that has file descriptors, which the caller must close. There are
// none with an error.
func (m Method[Q, R]) AskFiles(ctx context.Context, to sigma.Caller, q Q) (r R, files []*os.File, err error) {
	var payload []byte
	x := m.exchange()
	if m.Request != nil {
		x.q = q
		if payload, err = encode(&x.c, m.Request, &x.q); err != nil {
			return r, nil, err
		}
	}
	reply, files, err := to.Call(ctx, m.Name, payload, nil)
	if err == nil && m.Reply != nil {
		err = decode(&x.c, m.Reply, &x.r, reply)
		r = x.r
	}
	if err != nil {
		closeFiles(files)
		files = nil
	}
	return r, files, err
}

// exchange makes one, unless both payloads are empty.
func (m Method[Q, R]) exchange() *exchange[Q, R] {
	if m.Request == nil && m.Reply == nil {
		return nil
	}
	return new(exchange[Q, R])
}

// Payload encodes a request.
func (m Method[Q, R]) Payload(q Q) ([]byte, error) {
	x := &exchange[Q, None]{q: q}
	return encode(&x.c, m.Request, &x.q)
}

// Parse decodes a request.
func (m Method[Q, R]) Parse(payload []byte) (Q, error) {
	var x exchange[Q, None]
	err := decode(&x.c, m.Request, &x.q, payload)
	return x.q, err
}

// Answer encodes a reply.
func (m Method[Q, R]) Answer(r R) ([]byte, error) {
	x := &exchange[None, R]{r: r}
	return encode(&x.c, m.Reply, &x.r)
}

// Handler answers the calls of one method. Who says who asks whom.
type Handler[Who any] struct {
	Name string
	Call func(who Who, ctx context.Context, payload []byte) (reply []byte, files []*os.File, err error)
}

// Handlers are the methods of one file, by name.
type Handlers[Who any] map[string]Handler[Who]

// Table makes Handlers.
func Table[Who any](hs ...Handler[Who]) Handlers[Who] {
	t := make(Handlers[Who], len(hs))
	for _, h := range hs {
		t[h.Name] = h
	}
	return t
}

// Guarded has handlers answer those only whom may does not refuse.
func Guarded[Who any](may func(Who) error, hs ...Handler[Who]) []Handler[Who] {
	for i, h := range hs {
		hs[i].Call = func(who Who, ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			if err := may(who); err != nil {
				return nil, nil, err
			}
			return h.Call(who, ctx, payload)
		}
	}
	return hs
}

// On makes a Handler of a function, as a rule of a method of Who.
func On[Who, Q, R any](m Method[Q, R], f func(Who, context.Context, Q) (R, error)) Handler[Who] {
	return OnFiles(m, func(who Who, ctx context.Context, q Q) (R, []*os.File, error) {
		r, err := f(who, ctx, q)
		return r, nil, err
	})
}

// Do is On for a method whose reply is empty.
func Do[Who, Q any](m Method[Q, None], f func(Who, context.Context, Q) error) Handler[Who] {
	return OnFiles(m, func(who Who, ctx context.Context, q Q) (None, []*os.File, error) {
		return None{}, nil, f(who, ctx, q)
	})
}

// OnFiles is On for a reply that has file descriptors. They are the caller's also if there is an
// error.
func OnFiles[Who, Q, R any](m Method[Q, R], f func(Who, context.Context, Q) (R, []*os.File, error)) Handler[Who] {
	return Handler[Who]{m.Name, func(who Who, ctx context.Context, payload []byte) (reply []byte, files []*os.File,
		err error) {
		x := m.exchange()
		var q Q
		if m.Request != nil {
			if err := decode(&x.c, m.Request, &x.q, payload); err != nil {
				return nil, nil, err
			}
			q = x.q
		}
		r, files, err := f(who, ctx, q)
		if err == nil && m.Reply != nil {
			x.r = r
			reply, err = encode(&x.c, m.Reply, &x.r)
		}
		return reply, files, err
	}}
}

func encode[T any](c *Coder, f func(*Coder, *T), v *T) ([]byte, error) {
	if f == nil {
		return nil, nil
	}
	*c = Coder{}
	f(c, v)
	return payloadOf(c)
}

func decode[T any](c *Coder, f func(*Coder, *T), v *T, payload []byte) error {
	if f == nil {
		return nil
	}
	*c = Coder{buf: payload, decoding: true}
	f(c, v)
	return c.Finish()
}

// At is the file at a path of a tree, to be called there.
func At(t interface {
	Call(ctx context.Context, path, method string, payload []byte) ([]byte, error)
}, path string) Via {
	return func(ctx context.Context, method string, payload []byte) ([]byte, error) {
		return t.Call(ctx, path, method, payload)
	}
}

// Via is a sigma.Caller that passes no file descriptors.
type Via func(ctx context.Context, method string, payload []byte) ([]byte, error)

// Call implements sigma.Caller.
func (v Via) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	closeFiles(files)
	reply, err := v(ctx, method, payload)
	return reply, nil, err
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
