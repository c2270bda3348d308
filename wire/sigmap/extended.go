package sigmap

import (
	"cmp"
	"errors"
	"time"

	"sigmaos.dev/sigma"
)

// The messages that sigmaP adds to 9P2000.L.

type (
	// Rfail is the error reply of the sigma dialect: a kind to decide by, words for people.
	Rfail struct {
		Kind            sigma.Kind
		Path, Msg, Hint string
	}
	// Rstop answers Tget and Tput when the walk met a symlink or endpoint.
	Rstop struct {
		Walked uint16
		Kind   sigma.FileKind
		Target string
	}
	// Rreset comes unasked, with NoTag, as the first word of a server that took over the connection
	// from one that died. See ResetVersion.
	Rreset struct{ Nonce uint64 }
	// Tget reads up to Count bytes at Offset of the file that Names lead to from Fid.
	Tget struct {
		Fid    uint32
		Names  []string
		Offset uint64
		Count  uint32
	}
	// Rget has the bytes, the file's id and whole size.
	Rget struct {
		ID   sigma.FileID
		Size uint64
		Data []byte
	}
	// Tput makes or replaces the file that Names lead to from Fid.
	Tput struct {
		Fid     uint32
		Names   []string
		Options sigma.PutOptions
		Data    []byte
	}
	// Rput has the file's new id.
	Rput struct{ ID sigma.FileID }
	// Twatch waits until the version of Fid's file is beyond Since.
	Twatch struct {
		Fid   uint32
		Since sigma.Version
	}
	// Rwatch has the version then.
	Rwatch struct{ Version sigma.Version }
	// Tlease grants (ID 0, TTL), renews (ID, TTL any) or revokes (ID, TTL 0) a lease of the tree
	// Fid belongs to.
	Tlease struct {
		Fid uint32
		ID  sigma.LeaseID
		TTL time.Duration
	}
	// Rlease has the lease's id.
	Rlease struct{ ID sigma.LeaseID }
	// Tcall runs Method of the file. File descriptors may come with it (SCM_RIGHTS, in order).
	Tcall struct {
		Fid     uint32
		Method  string
		Payload []byte
	}
	// Rcall is the result. File descriptors may come with it.
	Rcall struct{ Payload []byte }
	// Tpass asks for a file descriptor of the open file.
	Tpass struct{ Fid uint32 }
	// Rpass comes with it.
	Rpass struct{}
	// Tbulk asks for a stream of the open file's bytes.
	Tbulk struct{ Fid uint32 }
	// Rbulk comes with its socket, or has what to say on one to this machine.
	Rbulk struct{ Ticket []byte }
	// Treadif is Tread of what the file has at a version.
	Treadif struct {
		Fid     uint32
		Offset  uint64
		Count   uint32
		Version sigma.Version
	}
	// Rreadif has the bytes.
	Rreadif struct{ Data []byte }
	// Twriteif is Twrite if the file is at a version.
	Twriteif struct {
		Fid     uint32
		Offset  uint64
		Version sigma.Version
		Data    []byte
	}
	// Rwriteif says how much was written and at which version the file is by that.
	Rwriteif struct {
		Count   uint32
		Version sigma.Version
	}
	// Tlist asks for up to Max entries of the open directory after Cookie, with all that
	// sigma.DirEntry has.
	Tlist struct {
		Fid    uint32
		Cookie uint64
		Max    uint32
	}
	// Rlist has them, fewer if they do not fit, and the cookie to go on with; More is false at the
	// end.
	Rlist struct {
		Next    uint64
		More    bool
		Entries []sigma.DirEntry
	}
	// Tfind makes NewFid a handle of the file whose id is Path, in the tree that Fid is the root
	// of.
	Tfind struct {
		Fid, NewFid uint32
		Path        uint64
	}
	// Rfind says that it is done.
	Rfind struct{}
	// Tdescribe asks for all that sigma.Stat has; Tgetattr does not carry the name, the owner and
	// whether the file is ephemeral.
	Tdescribe struct{ Fid uint32 }
	// Rdescribe has it.
	Rdescribe struct{ Stat sigma.Stat }
)

// ListEntrySize is how many bytes an entry of Rlist takes besides its name.
const ListEntrySize = 21 + 8 + 8 + 2

func (*Rfail) Type() Type     { return typeRfail }
func (*Rreset) Type() Type    { return typeRreset }
func (*Rstop) Type() Type     { return typeRstop }
func (*Tget) Type() Type      { return typeTget }
func (*Rget) Type() Type      { return typeTget + 1 }
func (*Tput) Type() Type      { return typeTput }
func (*Rput) Type() Type      { return typeTput + 1 }
func (*Twatch) Type() Type    { return typeTwatch }
func (*Rwatch) Type() Type    { return typeTwatch + 1 }
func (*Tlease) Type() Type    { return typeTlease }
func (*Rlease) Type() Type    { return typeTlease + 1 }
func (*Tcall) Type() Type     { return typeTcall }
func (*Rcall) Type() Type     { return typeTcall + 1 }
func (*Tpass) Type() Type     { return typeTpass }
func (*Rpass) Type() Type     { return typeTpass + 1 }
func (*Tbulk) Type() Type     { return typeTbulk }
func (*Rbulk) Type() Type     { return typeTbulk + 1 }
func (*Treadif) Type() Type   { return typeTreadif }
func (*Rreadif) Type() Type   { return typeTreadif + 1 }
func (*Twriteif) Type() Type  { return typeTwriteif }
func (*Rwriteif) Type() Type  { return typeTwriteif + 1 }
func (*Tlist) Type() Type     { return typeTlist }
func (*Rlist) Type() Type     { return typeTlist + 1 }
func (*Tfind) Type() Type     { return typeTfind }
func (*Rfind) Type() Type     { return typeTfind + 1 }
func (*Tdescribe) Type() Type { return typeTdescribe }
func (*Rdescribe) Type() Type { return typeTdescribe + 1 }

func (m *Rreset) fields(c *Coder) { c.U64(&m.Nonce) }
func (m *Rfail) fields(c *Coder) {
	c.U16((*uint16)(&m.Kind))
	c.Str(&m.Path)
	c.Str(&m.Msg)
	c.Str(&m.Hint)
}
func (m *Rstop) fields(c *Coder) {
	c.U16(&m.Walked)
	c.U8((*uint8)(&m.Kind))
	c.Str(&m.Target)
}
func (m *Tget) fields(c *Coder) {
	c.U32(&m.Fid)
	c.names(&m.Names)
	c.U64(&m.Offset)
	c.U32(&m.Count)
}
func (m *Rget) fields(c *Coder) {
	c.FileID(&m.ID)
	c.U64(&m.Size)
	c.Data(&m.Data)
}

// Bits of a Tput's flags.
const (
	putMustMake  = 1
	putMustExist = 2
	putAppend    = 4
	putWait      = 8
)

func (m *Tput) fields(c *Coder) {
	o := &m.Options
	var flags uint32
	for _, f := range []struct {
		on  bool
		bit uint32
	}{{o.MustMake, putMustMake}, {o.MustExist, putMustExist}, {o.Append, putAppend}, {o.Wait, putWait}} {
		if f.on {
			flags |= f.bit
		}
	}
	c.U32(&m.Fid)
	c.names(&m.Names)
	c.U8((*uint8)(&o.Kind))
	c.U32(&flags)
	c.U32(&o.Perm)
	c.U64((*uint64)(&o.IfVersion))
	c.U64((*uint64)(&o.Lease))
	c.Data(&m.Data)
	if c.decoding {
		o.MustMake, o.MustExist, o.Append, o.Wait = flags&putMustMake != 0, flags&putMustExist != 0,
			flags&putAppend != 0, flags&putWait != 0
	}
	if flags > 15 || o.Kind != sigma.KindFile && o.Kind != sigma.KindSymlink && o.Kind != sigma.KindEndpoint &&
		o.Kind != sigma.KindPipe {
		c.Fail("put has unknown flags or a kind that cannot be put")
	}
}
func (m *Rput) fields(c *Coder)   { c.FileID(&m.ID) }
func (m *Twatch) fields(c *Coder) { c.U32(&m.Fid); c.U64((*uint64)(&m.Since)) }
func (m *Rwatch) fields(c *Coder) { c.U64((*uint64)(&m.Version)) }
func (m *Tlease) fields(c *Coder) {
	c.U32(&m.Fid)
	c.U64((*uint64)(&m.ID))
	c.Duration(&m.TTL)
}
func (m *Rlease) fields(c *Coder) { c.U64((*uint64)(&m.ID)) }
func (m *Tcall) fields(c *Coder)  { c.U32(&m.Fid); c.Str(&m.Method); c.Data(&m.Payload) }
func (m *Rcall) fields(c *Coder)  { c.Data(&m.Payload) }
func (m *Tpass) fields(c *Coder)  { c.U32(&m.Fid) }
func (m *Rpass) fields(*Coder)    {}
func (m *Tbulk) fields(c *Coder)  { c.U32(&m.Fid) }
func (m *Rbulk) fields(c *Coder)  { c.Data(&m.Ticket) }
func (m *Treadif) fields(c *Coder) {
	c.U32(&m.Fid)
	c.U64(&m.Offset)
	c.U32(&m.Count)
	c.U64((*uint64)(&m.Version))
}
func (m *Rreadif) fields(c *Coder) { c.Data(&m.Data) }
func (m *Twriteif) fields(c *Coder) {
	c.U32(&m.Fid)
	c.U64(&m.Offset)
	c.U64((*uint64)(&m.Version))
	c.Data(&m.Data)
}
func (m *Rwriteif) fields(c *Coder) {
	c.U32(&m.Count)
	c.U64((*uint64)(&m.Version))
}
func (m *Tlist) fields(c *Coder) {
	c.U32(&m.Fid)
	c.U64(&m.Cookie)
	c.U32(&m.Max)
}
func (m *Rlist) fields(c *Coder) {
	c.U64(&m.Next)
	c.Bool(&m.More)
	List(c, &m.Entries, ListEntrySize, c.ListEntry)
}

// ListEntry is an entry of Rlist.
func (c *Coder) ListEntry(e *sigma.DirEntry) {
	c.FileID(&e.ID)
	c.U64(&e.Size)
	c.U64(&e.Next)
	c.Str(&e.Name)
}
func (m *Tfind) fields(c *Coder)     { c.U32(&m.Fid); c.U32(&m.NewFid); c.U64(&m.Path) }
func (m *Rfind) fields(*Coder)       {}
func (m *Tdescribe) fields(c *Coder) { c.U32(&m.Fid) }
func (m *Rdescribe) fields(c *Coder) { c.Stat(&m.Stat) }

// Stat is what Rdescribe tells.
func (c *Coder) Stat(st *sigma.Stat) {
	c.FileID(&st.ID)
	c.Str(&st.Name)
	c.U32(&st.Perm)
	c.U64(&st.Size)
	c.Time(&st.Modified)
	c.Str(&st.Owner)
	c.Bool(&st.Ephemeral)
	c.U64(&st.Hole)
}

// Fail makes the reply for err in the dialect of the session. Causes stay here, because they may
// speak of the server's own files and peers: what travels is the words of the outermost sigma.Error
// that has any.
func Fail(err error, plain bool) Message {
	kind := sigma.KindOf(err)
	if plain {
		return &Rlerror{Errno: uint32(kind.Errno())}
	}
	r := &Rfail{Kind: kind, Hint: clip(sigma.HintOf(err))}
	for ; err != nil; err = errors.Unwrap(err) {
		if e, ok := err.(*sigma.Error); ok {
			r.Path = cmp.Or(r.Path, clip(e.Path))
			r.Msg = cmp.Or(r.Msg, clip(e.Msg))
		}
	}
	return r
}
