package sigmap

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"sigmaos.dev/sigma"
)

// Versions that a session can be negotiated to, best first.
const (
	VersionSeveral = "9P2000.L.sigma2" // VersionSigma, and a record may hold several messages
	VersionSigma   = "9P2000.L.sigma1" // 9P2000.L with the messages of types 128 and up
	VersionPlain   = "9P2000.L"
)

// Limits of a session. MessageMax fits a socket buffer and is what one recvmsg takes; HeaderRoom is
// what the largest fixed part of a message that carries data needs, so that a message carries
// MessageMax - HeaderRoom bytes of data.
const (
	MessageMax = 64 << 10
	HeaderRoom = 4 << 10
	DataMax    = MessageMax - HeaderRoom
	WalkMax    = 64 // names in one walk; longer paths are walked in parts
	NoTag      = 0xffff
	NoFid      = 0xffffffff
	headerSize = 7
)

// Type is the number of a message.
type Type uint8

// Message is one request or reply.
type Message interface {
	Type() Type
	fields(c *Coder)
}

// Encode appends the message with its header (size u32, type u8, tag u16) to buf.
func Encode(buf []byte, tag uint16, m Message) ([]byte, error) {
	start := len(buf)
	size, typ := uint32(0), uint8(m.Type())
	c := NewEncoder(buf)
	c.U32(&size)
	c.U8(&typ)
	c.U16(&tag)
	m.fields(c)
	if err := c.Finish(); err != nil {
		return nil, err
	}
	n := len(c.buf) - start
	if n > MessageMax {
		return nil, sigma.Errorf("sigmap.Encode", sigma.KindTooBig, "a message of %d bytes exceeds %d", n, MessageMax)
	}
	c.buf[start], c.buf[start+1], c.buf[start+2], c.buf[start+3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	return c.buf, nil
}

// Decode reads one whole message. Data fields alias buf. Errors are KindInvalid; tag is valid as
// soon as a header is there, so that the error can be answered.
func Decode(buf []byte) (tag uint16, m Message, err error) {
	var size uint32
	var typ uint8
	tag = NoTag
	c := NewDecoder(buf)
	c.U32(&size)
	c.U8(&typ)
	c.U16(&tag)
	if c.err != nil {
		return NoTag, nil, c.err
	}
	if int64(size) != int64(len(buf)) {
		return tag, nil, sigma.Errorf("sigmap.Decode", sigma.KindInvalid, "a message says it has %d bytes but has %d",
			size, len(buf))
	}
	m = New(Type(typ))
	if m == nil {
		return tag, nil, unknownType(Type(typ))
	}
	m.fields(c)
	return tag, m, c.Finish()
}

func unknownType(t Type) error {
	return sigma.Errorf("sigmap.Decode", sigma.KindUnsupported, "unknown message type %d", uint8(t))
}

// The message types. Below 128 they are 9P2000.L's. A reply's type is its request's plus one.
const (
	typeRlerror   Type = 7
	typeTstatfs   Type = 8
	typeTlopen    Type = 12
	typeTlcreate  Type = 14
	typeTsymlink  Type = 16
	typeTreadlink Type = 22
	typeTgetattr  Type = 24
	typeTsetattr  Type = 26
	typeTreaddir  Type = 40
	typeTfsync    Type = 50
	typeTmkdir    Type = 72
	typeTrenameat Type = 74
	typeTunlinkat Type = 76
	typeTversion  Type = 100
	typeTattach   Type = 104
	typeTflush    Type = 108
	typeTwalk     Type = 110
	typeTread     Type = 116
	typeTwrite    Type = 118
	typeTclunk    Type = 120
	typeTremove   Type = 122
	typeRfail     Type = 129 // an error with kind, message and hint, instead of Rlerror
	typeRstop     Type = 131 // a walk met a link
	typeTget      Type = 132
	typeTput      Type = 134
	typeTwatch    Type = 136
	typeTlease    Type = 138
	typeTcall     Type = 140
	typeTpass     Type = 142
	// another request, with what it carries; it has the reply of that, or one that says how old it
	// is
	typeTwith     Type = 144
	typeTreadif   Type = 146
	typeTwriteif  Type = 148
	typeTfind     Type = 150
	typeTlist     Type = 152
	typeTdescribe Type = 154
	typeTbulk     Type = 158
	typeRreset    Type = 157 // another server has taken over the connection; nobody asked
)

// ResetVersion is the version in the Tversion by which a client whose session was of a version
// answers an Rreset. Whatever else the server receives before it was meant for another.
func ResetVersion(version string, nonce uint64) string {
	return fmt.Sprintf("%s.reset.%016x", version, nonce)
}

// SetTag changes the tag of an encoded message.
func SetTag(msg []byte, tag uint16) { binary.LittleEndian.PutUint16(msg[5:headerSize], tag) }

// Cut takes the first message off a record of several. Nothing but its size is looked at. Errors
// are KindInvalid.
func Cut(record []byte) (msg, rest []byte, err error) {
	var size uint32
	if len(record) >= headerSize {
		size = binary.LittleEndian.Uint32(record)
	}
	if size < headerSize || int64(size) > int64(len(record)) {
		return nil, nil, sigma.Errorf("sigmap.Cut", sigma.KindInvalid,
			"a message says it has %d bytes; %d are left of its record", size, len(record))
	}
	return record[:size:size], record[size:], nil
}

// New returns an empty message of type t, or nil if t is unknown.
func New(t Type) Message {
	if f := constructors[t]; f != nil {
		return f()
	}
	return nil
}

var constructors = [256]func() Message{
	typeRlerror: func() Message {
		return new(Rlerror)
	}, typeRfail: func() Message { return new(Rfail) }, typeRstop: func() Message { return new(Rstop) },
	typeRreset:  func() Message { return new(Rreset) },
	typeTstatfs: func() Message { return new(Tstatfs) }, typeTstatfs + 1: func() Message { return new(Rstatfs) },
	typeTlopen: func() Message { return new(Tlopen) }, typeTlopen + 1: func() Message { return new(Rlopen) },
	typeTlcreate: func() Message { return new(Tlcreate) }, typeTlcreate + 1: func() Message { return new(Rlcreate) },
	typeTsymlink: func() Message { return new(Tsymlink) }, typeTsymlink + 1: func() Message { return new(Rsymlink) },
	typeTreadlink: func() Message {
		return new(Treadlink)
	}, typeTreadlink + 1: func() Message { return new(Rreadlink) },
	typeTgetattr: func() Message { return new(Tgetattr) }, typeTgetattr + 1: func() Message { return new(Rgetattr) },
	typeTsetattr: func() Message { return new(Tsetattr) }, typeTsetattr + 1: func() Message { return new(Rsetattr) },
	typeTreaddir: func() Message { return new(Treaddir) }, typeTreaddir + 1: func() Message { return new(Rreaddir) },
	typeTfsync: func() Message { return new(Tfsync) }, typeTfsync + 1: func() Message { return new(Rfsync) },
	typeTmkdir: func() Message { return new(Tmkdir) }, typeTmkdir + 1: func() Message { return new(Rmkdir) },
	typeTrenameat: func() Message {
		return new(Trenameat)
	}, typeTrenameat + 1: func() Message { return new(Rrenameat) },
	typeTunlinkat: func() Message {
		return new(Tunlinkat)
	}, typeTunlinkat + 1: func() Message { return new(Runlinkat) },
	typeTversion: func() Message { return new(Tversion) }, typeTversion + 1: func() Message { return new(Rversion) },
	typeTattach: func() Message { return new(Tattach) }, typeTattach + 1: func() Message { return new(Rattach) },
	typeTflush: func() Message { return new(Tflush) }, typeTflush + 1: func() Message { return new(Rflush) },
	typeTwalk: func() Message { return new(Twalk) }, typeTwalk + 1: func() Message { return new(Rwalk) },
	typeTread: func() Message { return new(Tread) }, typeTread + 1: func() Message { return new(Rread) },
	typeTwrite: func() Message { return new(Twrite) }, typeTwrite + 1: func() Message { return new(Rwrite) },
	typeTclunk: func() Message { return new(Tclunk) }, typeTclunk + 1: func() Message { return new(Rclunk) },
	typeTremove: func() Message { return new(Tremove) }, typeTremove + 1: func() Message { return new(Rremove) },
	typeTget: func() Message { return new(Tget) }, typeTget + 1: func() Message { return new(Rget) },
	typeTput: func() Message { return new(Tput) }, typeTput + 1: func() Message { return new(Rput) },
	typeTwatch: func() Message { return new(Twatch) }, typeTwatch + 1: func() Message { return new(Rwatch) },
	typeTlease: func() Message { return new(Tlease) }, typeTlease + 1: func() Message { return new(Rlease) },
	typeTcall: func() Message { return new(Tcall) }, typeTcall + 1: func() Message { return new(Rcall) },
	typeTpass: func() Message { return new(Tpass) }, typeTpass + 1: func() Message { return new(Rpass) },
	typeTreadif: func() Message { return new(Treadif) }, typeTreadif + 1: func() Message { return new(Rreadif) },
	typeTwriteif: func() Message { return new(Twriteif) }, typeTwriteif + 1: func() Message { return new(Rwriteif) },
	typeTlist: func() Message { return new(Tlist) }, typeTlist + 1: func() Message { return new(Rlist) },
	typeTwith: func() Message {
		return new(Twith)
	}, typeTwith + 1: func() Message { return new(Rwith) }, typeTfind: func() Message { return new(Tfind) },
	typeTfind + 1: func() Message { return new(Rfind) },
	typeTbulk:     func() Message { return new(Tbulk) }, typeTbulk + 1: func() Message { return new(Rbulk) },
	typeTdescribe: func() Message {
		return new(Tdescribe)
	}, typeTdescribe + 1: func() Message { return new(Rdescribe) },
}

// String names the message's type for logs.
func (t Type) String() string {
	if m := New(t); m != nil {
		return fmt.Sprintf("%T", m)[len("*sigmap."):]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Twith is a request together with what it carries (sigma.Once, sigma.Fence, sigma.WithSync,
// sigma.WithStale). Its reply is that of the request in it, or an Rwith that has it.
type Twith struct {
	Once    sigma.Once  // Client 0 = none
	Fence   sigma.Fence // Name "" = none
	Sync    bool        // the answer must be current
	Stale   bool        // the answer may be old, as an Rwith then says
	Request Message     // of a client; no Twith, Tversion or Tflush
}

// withRoom is what a Twith needs besides the name of its fence and the fields of its request.
const withRoom = 1 + 3*8 + 2 + 8 + 1

func (*Twith) Type() Type { return typeTwith }

func (m *Twith) fields(c *Coder) {
	var flags, typ uint8
	if m.Once.Again {
		flags = withAgain
	}
	if m.Sync {
		flags |= withSync
	}
	if m.Stale {
		flags |= withStale
	}
	if !c.decoding {
		if m.Request == nil {
			c.Fail("a request was left out")
			return
		}
		typ = uint8(m.Request.Type())
	}
	c.U8(&flags)
	c.U64(&m.Once.Client)
	c.U64(&m.Once.Seq)
	c.U64(&m.Once.Done)
	c.Str(&m.Fence.Name)
	c.U64((*uint64)(&m.Fence.Epoch))
	c.U8(&typ)
	if c.decoding {
		m.Once.Again, m.Sync, m.Stale = flags&withAgain != 0, flags&withSync != 0, flags&withStale != 0
	}
	o, f := m.Once, m.Fence
	t := Type(typ)
	switch {
	case c.err != nil:
		return
	case flags > withAgain|withSync|withStale, o.Client == 0 && o != sigma.Once{}, o.Client != 0 && o.Seq <= o.Done:
		c.Fail("a number of a mutation that cannot be")
	case f.Name == "" && f.Epoch != 0, len(f.Name) > sigma.PathMax:
		c.Fail("a fence that cannot be")
	case o.Client == 0 && f.Name == "" && !m.Sync && !m.Stale:
		c.Fail("nothing goes with the request")
	case t%2 != 0 || t == typeTwith || t == typeTversion || t == typeTflush:
		c.Fail("a message that nothing can go with")
	}
	if c.decoding && c.err == nil {
		if m.Request = New(t); m.Request == nil {
			c.err = unknownType(t)
		}
	}
	if c.err == nil {
		m.Request.fields(c)
	}
}

// Bits of flags.
const (
	withAgain = 1 << iota
	withSync
	withStale
)

// Rwith is the reply to a Twith that allows answers which are old, if it is one.
type Rwith struct {
	Age   time.Duration // all that had changed so long ago is in the answer; more than 0
	Reply Message       // of a server; no Rwith, Rversion, Rflush or Rreset
}

func (*Rwith) Type() Type { return typeTwith + 1 }

func (m *Rwith) fields(c *Coder) {
	var typ uint8
	if !c.decoding {
		if m.Reply == nil {
			c.Fail("a reply was left out")
			return
		}
		typ = uint8(m.Reply.Type())
	}
	c.Duration(&m.Age)
	c.U8(&typ)
	t := Type(typ)
	switch {
	case c.err != nil:
		return
	case m.Age <= 0:
		c.Fail("an age that cannot be")
		return
	case t%2 == 0 || t == typeTwith+1 || t == typeTversion+1 || t == typeTflush+1 || t == typeRreset:
		c.Fail("a message that nothing can go with")
		return
	}
	if c.decoding {
		if m.Reply = New(t); m.Reply == nil {
			c.err = unknownType(t)
		}
	}
	if c.err == nil {
		m.Reply.fields(c)
	}
}

// With returns m together with what ctx says it carries, or m itself if that is nothing. Only
// mutations, and finding a file for one, carry numbers; mutations need not say that they must meet
// what is current.
func With(ctx context.Context, m Message) Message {
	o, f, sync := sigma.OnceOf(ctx), sigma.FenceOf(ctx), sigma.IsSync(ctx) && !Mutates(m)
	stale := sigma.AgeOf(ctx) != nil && !sync && !Mutates(m)
	if !numbered(m) {
		o = sigma.Once{}
	}
	if o.Client == 0 && f.Name == "" && !sync && !stale {
		return m
	}
	return &Twith{o, f, sync, stale, m}
}

// Context returns ctx as who carries out the request needs it.
func (m *Twith) Context(ctx context.Context) context.Context {
	if m.Once.Client != 0 && numbered(m.Request) {
		ctx = sigma.WithOnce(ctx, m.Once)
	}
	if m.Fence.Name != "" {
		ctx = sigma.WithFence(ctx, m.Fence)
	}
	if m.Sync {
		ctx = sigma.WithSync(ctx)
	}
	if m.Stale {
		ctx, _ = sigma.WithStale(ctx)
	}
	return ctx
}

// numbered: a file may be taken up for a mutation.
func numbered(m Message) bool {
	_, find := m.(*Tfind)
	return find || Mutates(m)
}

// Mutates reports whether m is one change of files or leases, which may have a number. Calls have
// none: what they do may be many.
func Mutates(m Message) bool {
	switch m := m.(type) {
	case *Tput, *Twrite, *Twriteif, *Tlcreate, *Tmkdir, *Tsymlink, *Trenameat, *Tunlinkat, *Tsetattr:
		return true
	case *Tlopen:
		return m.Flags&linuxTruncate != 0
	case *Tlease:
		return m.ID == 0 || m.TTL == 0 // to renew one twice is as good as once
	}
	return false
}

// linuxTruncate is O_TRUNC of open(2).
const linuxTruncate = 0o1000

// WriteMax is how much data a write of ctx may have, so that what it carries fits too.
func WriteMax(ctx context.Context) int {
	return DataMax - max(0, len(sigma.FenceOf(ctx).Name)+withRoom-(HeaderRoom-64))
}

// Err turns an error reply into an error; nil for other messages.
func Err(m Message) error {
	switch m := m.(type) {
	case *Rfail:
		return &sigma.Error{Op: "sigmap.Err", Kind: m.Kind, Path: clip(m.Path), Msg: clip(m.Msg),
			Hint: clip(m.Hint)} // from any tenant's server
	case *Rlerror:
		return sigma.Errorf("sigmap.Err", sigma.KindOf(errnoOf(m.Errno)), "%v", errnoOf(m.Errno))
	}
	return nil
}
