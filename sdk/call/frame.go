package call

import (
	"encoding/binary"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// The layout of frames is told in docs/reference/call.md, which has test vectors. All integers are
// little endian.

// frameKind says what a frame is.
type frameKind uint8

const (
	frameHello  frameKind = iota + 1 // first from each side: who this is
	frameName                        // from the caller: a number for a method's name
	frameCall                        // begins a call
	frameData                        // a message of a stream, or a further piece of a long message
	frameReply                       // ends a call well
	frameFail                        // ends a call with an error
	frameCancel                      // the caller wants no answer any more
	frameCredit                      // so much more may be sent
	framePing                        // asks for a pong
	framePong
	frameLeaving // from the server: make new calls elsewhere
	frameEnd
)

// The flags.
const (
	flagFirst    = 1 << iota // a message begins
	flagMore                 // its next piece comes in a frame of data
	flagClose                // of a stream: the caller's last message has been sent
	flagStream               // call: messages go both ways until it ends
	flagDeadline             // call: the time that is left follows
	flagTrace                // call: a trace context follows
	flagRefused              // fail: no handler has seen the call
	flagBulk                 // credit: for messages in pieces
	flagsEnd
)

// What flags mean in other frames. flagFirst of a fail: the call is another member's, which the
// body names.
const (
	flagOwner     = flagBulk // reply, fail: the name of the member that it comes from stands first
	flagForwarded = flagBulk // call: a member makes it for a caller of its own
)

const (
	headBytes  = 12 // size of the body u32, kind u8, flags u8, method u16, call u32
	traceBytes = 25
	// prefixMax is what may stand between a frame's head and the message: of a call time left and
	// trace context, of an answer the owner's name, and of both the length of the whole.
	prefixMax = 1 + memberMax + 4
	// pieceMax is how much of a message one frame carries. A longer message goes in pieces, between
	// which other frames find room: each delays them by about as long as 50 us.
	pieceMax = 128 << 10
	bodyMax  = pieceMax + prefixMax
	nameMax  = 256  // bytes of a method's name
	namesMax = 1024 // methods of a connection that have a number
	textMax  = 1024 // bytes of each text of an error; more is cut off
	failMax  = 8 + 3*textMax
	// messageCost is what a message takes of a window besides its bytes, so that empty ones cannot
	// be queued without end.
	messageCost = 64
	// smallWindow and bulkWindow are how many bytes of messages of one and of several pieces may be
	// under way in one direction of a connection. A hostile peer can have that much held.
	// The first is 64 calls of 64 KiB and as many again.
	smallWindow = 8 << 20
	bulkWindow  = 16 << 20
	// streamWindow is how many bytes of messages of one piece may be under way in one direction of
	// a stream. They do not count for smallWindow, so that a stream that nobody reads holds nobody
	// else up.
	streamWindow = 256 << 10
	magic        = "sigma call/1"
	helloFirst   = byte(len(magic)) // the first byte of a connection: the size of the hello's body
)

func cost(bytes int) int { return bytes + messageCost }

// frame is one frame. Its body aliases what it was parsed from.
type frame struct {
	kind   frameKind
	flags  uint8
	method uint16
	call   uint32
	body   []byte
}

// appendHead appends the head of a frame whose body has that many bytes.
func appendHead(b []byte, f frame, body int) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(body))
	b = append(b, byte(f.kind), f.flags)
	b = binary.LittleEndian.AppendUint16(b, f.method)
	return binary.LittleEndian.AppendUint32(b, f.call)
}

func appendFrame(b []byte, f frame) []byte {
	return append(appendHead(b, f, len(f.body)), f.body...)
}

// parseFrame reads the frame at the beginning of b. size is how many bytes it has in all, as far as
// they are known: if b is shorter, ok is false, and more has to be read.
func parseFrame(b []byte) (f frame, size int, ok bool, err error) {
	if len(b) < headBytes {
		return f, headBytes, false, nil
	}
	f = frame{kind: frameKind(b[4]), flags: b[5], method: binary.LittleEndian.Uint16(b[6:]),
		call: binary.LittleEndian.Uint32(b[8:])}
	n := binary.LittleEndian.Uint32(b)
	if n > bodyMax {
		return f, 0, false, invalid("a frame claims %d bytes; %d are possible", n, bodyMax)
	}
	if f.kind == 0 || f.kind >= frameEnd {
		return f, 0, false, invalid("there is no frame of kind %d", f.kind)
	}
	size = headBytes + int(n)
	if len(b) < size {
		return f, size, false, nil
	}
	f.body = b[headBytes:size:size]
	return f, size, true, nil
}

func invalid(format string, args ...any) *sigma.Error {
	return sigma.Errorf("call.conn", sigma.KindInvalid, format, args...)
}

// opening is what stands before the message in the frame that begins a call, or an answer.
type opening struct {
	left      time.Duration // until the deadline; 0 = none
	trace     *Trace
	forwarded bool
	owner     *string // of an answer: the member that it comes from; nil = it is not told
}

// flags gives those of a frame that begins with o.
func (o *opening) flags() (flags uint8) {
	if o.left > 0 {
		flags |= flagDeadline
	}
	if o.trace != nil {
		flags |= flagTrace
	}
	if o.forwarded {
		flags |= flagForwarded
	}
	if o.owner != nil {
		flags |= flagOwner
	}
	return flags
}

func (o *opening) append(b []byte) []byte {
	if o.left > 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(o.left))
	}
	if o.trace != nil {
		b = append(append(append(b, o.trace.ID[:]...), o.trace.Span[:]...), o.trace.Flags)
	}
	if o.owner != nil {
		b = appendOwner(b, *o.owner)
	}
	return b
}

// parseOpening reads what append wrote of a call and gives what follows.
func parseOpening(flags uint8, b []byte) (o opening, rest []byte, err error) {
	o.forwarded = flags&flagForwarded != 0
	if flags&flagDeadline != 0 {
		if len(b) < 8 {
			return o, nil, invalid("a call is cut off within its deadline")
		}
		left := binary.LittleEndian.Uint64(b)
		if left == 0 || left > 1<<62 {
			return o, nil, invalid("a call has %d ns left", left)
		}
		o.left, b = time.Duration(left), b[8:]
	}
	if flags&flagTrace != 0 {
		if len(b) < traceBytes {
			return o, nil, invalid("a call is cut off within its trace context")
		}
		o.trace = &Trace{ID: [16]byte(b), Span: [8]byte(b[16:]), Flags: b[24]}
		b = b[traceBytes:]
	}
	return o, b, nil
}

// parseFirst reads the length of a message that begins in a frame, and what of it is there.
func parseFirst(flags uint8, b []byte) (total int, piece []byte, err error) {
	if flags&flagMore == 0 {
		if len(b) > pieceMax {
			return 0, nil, invalid("a message of %d bytes is not in pieces", len(b))
		}
		return len(b), b, nil
	}
	if len(b) < 4 {
		return 0, nil, invalid("a message is cut off within its length")
	}
	n := binary.LittleEndian.Uint32(b)
	if n <= pieceMax || n > bulkWindow-messageCost || int(n) <= len(b)-4 {
		return 0, nil, invalid("a message of %d bytes is in pieces", n)
	}
	return int(n), b[4:], nil
}

// appendError appends the body of a frame that ends a call with err.
func appendError(b []byte, err error) []byte {
	e := sigma.Error{Kind: sigma.KindOf(err), Msg: err.Error(), Hint: sigma.HintOf(err)}
	if own, ok := err.(*sigma.Error); ok {
		plain := *own
		plain.Path = "" // it goes apart
		e.Path, e.Msg = own.Path, plain.Error()
	}
	e.Path, e.Msg, e.Hint = cut(e.Path), cut(e.Msg), cut(e.Hint)
	enc := sigmap.NewEncoder(b)
	codeError(enc, &e)
	return enc.Bytes()
}

func cut(s string) string { return s[:min(len(s), textMax)] }

func codeError(c *sigmap.Coder, e *sigma.Error) {
	c.U16((*uint16)(&e.Kind))
	c.Str(&e.Path)
	c.Str(&e.Msg)
	c.Str(&e.Hint)
}

// parseError reads what appendError wrote.
func parseError(b []byte) (*sigma.Error, error) {
	if len(b) > failMax {
		return nil, invalid("an error has %d bytes; %d are possible", len(b), failMax)
	}
	e := &sigma.Error{Op: "call.Call"}
	err := sigmap.Parse(b, func(d *sigmap.Coder) { codeError(d, e) })
	return e, err
}
