package sigmap

import (
	"context"
	"time"

	"sigmaos.dev/sigma"
)

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
