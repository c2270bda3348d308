package sigmap

import "sigmaos.dev/sigma"

// The messages of 9P2000.L that sigmaOS serves; layouts as in the diod protocol description and
// Linux' net/9p.

type (
	// Rlerror is the plain error reply.
	Rlerror struct{ Errno uint32 }
	// Tversion starts a session; Msize bounds later messages.
	Tversion struct {
		Msize   uint32
		Version string
	}
	// Rversion answers with what the server takes.
	Rversion struct {
		Msize   uint32
		Version string
	}
	// Tattach makes Fid the root. Uname and NUname are never believed: the connection says who
	// calls.
	Tattach struct {
		Fid, Afid    uint32
		Uname, Aname string
		NUname       uint32
	}
	// Rattach answers with the root's id.
	Rattach struct{ ID sigma.FileID }
	// Tflush asks to forget the request OldTag.
	Tflush struct{ OldTag uint16 }
	// Rflush: no reply to OldTag will follow.
	Rflush struct{}
	// Twalk makes NewFid what Names lead to from Fid.
	Twalk struct {
		Fid, NewFid uint32
		Names       []string
	}
	// Rwalk has the ids of the files on the way; fewer than asked for means that NewFid was not
	// made.
	Rwalk struct{ IDs []sigma.FileID }
	// Tlopen opens Fid with Linux open flags.
	Tlopen struct{ Fid, Flags uint32 }
	// Rlopen answers with the largest piece to read or write at once.
	Rlopen struct {
		ID     sigma.FileID
		IOUnit uint32
	}
	// Tlcreate makes Name in directory Fid, which becomes the open file.
	Tlcreate struct {
		Fid              uint32
		Name             string
		Flags, Mode, GID uint32
	}
	// Rlcreate answers as Rlopen.
	Rlcreate struct {
		ID     sigma.FileID
		IOUnit uint32
	}
	// Tsymlink makes a symbolic link.
	Tsymlink struct {
		Fid          uint32
		Name, Target string
		GID          uint32
	}
	// Rsymlink has the link's id.
	Rsymlink struct{ ID sigma.FileID }
	// Treadlink asks for a link's target.
	Treadlink struct{ Fid uint32 }
	// Rreadlink is the target.
	Rreadlink struct{ Target string }
	// Tgetattr asks for attributes.
	Tgetattr struct {
		Fid  uint32
		Mask uint64
	}
	// Rgetattr has them; DataVersion is the 64-bit version.
	Rgetattr struct {
		Valid                                                                  uint64
		ID                                                                     sigma.FileID
		Mode, UID, GID                                                         uint32
		NLink, RDev, Size, BlockSize, Blocks                                   uint64
		ATime, ATimeNsec, MTime, MTimeNsec, CTime, CTimeNsec, BTime, BTimeNsec uint64
		Gen, DataVersion                                                       uint64
	}
	// Tsetattr changes the attributes in Valid (AttrSet*).
	Tsetattr struct {
		Fid, Valid, Mode, UID, GID               uint32
		Size, ATime, ATimeNsec, MTime, MTimeNsec uint64
	}
	// Rsetattr is empty.
	Rsetattr struct{}
	// Treaddir reads entries after the cookie Offset.
	Treaddir struct {
		Fid    uint32
		Offset uint64
		Count  uint32
	}
	// Rreaddir holds entries, see DirEntries.
	Rreaddir struct{ Data []byte }
	// Tfsync makes written data durable.
	Tfsync struct{ Fid, DataSync uint32 }
	// Rfsync is empty.
	Rfsync struct{}
	// Tmkdir makes a directory.
	Tmkdir struct {
		Fid       uint32
		Name      string
		Mode, GID uint32
	}
	// Rmkdir has its id.
	Rmkdir struct{ ID sigma.FileID }
	// Trenameat moves a name.
	Trenameat struct {
		OldDir  uint32
		OldName string
		NewDir  uint32
		NewName string
	}
	// Rrenameat is empty.
	Rrenameat struct{}
	// Tunlinkat removes a name.
	Tunlinkat struct {
		Dir   uint32
		Name  string
		Flags uint32
	}
	// Runlinkat is empty.
	Runlinkat struct{}
	// Tread reads.
	Tread struct {
		Fid    uint32
		Offset uint64
		Count  uint32
	}
	// Rread has what was read; empty at the end of the file.
	Rread struct{ Data []byte }
	// Twrite writes.
	Twrite struct {
		Fid    uint32
		Offset uint64
		Data   []byte
	}
	// Rwrite says how much was written.
	Rwrite struct{ Count uint32 }
	// Tclunk releases a fid.
	Tclunk struct{ Fid uint32 }
	// Rclunk is empty.
	Rclunk struct{}
	// Tremove exists in 9P2000.L but is answered EOPNOTSUPP and clunks: sigmaOS removes by
	// Tunlinkat, which Linux uses too.
	Tremove struct{ Fid uint32 }
	// Rremove is empty.
	Rremove struct{}
	// Tstatfs asks about the file system; df uses it.
	Tstatfs struct{ Fid uint32 }
	// Rstatfs answers.
	Rstatfs struct {
		FSType, BlockSize                                       uint32
		Blocks, BlocksFree, BlocksAvail, Files, FilesFree, FSID uint64
		NameLen                                                 uint32
	}
)

// What Rstatfs says of every file system of sigmaOS.
const (
	FSType  = 0x01021997 // V9FS_MAGIC of Linux
	FSBlock = 4096       // bytes that blocks are counted in
)

// Bits of Tsetattr.Valid.
const (
	AttrSetMode    = 1 << 0
	AttrSetSize    = 1 << 3
	AttrSetMTime   = 1 << 5 // to the server's now unless AttrSetMTimeTo
	AttrSetMTimeTo = 1 << 8
)

// GetattrBasic is the mask of everything that stat(2) tells.
const (
	GetattrBasic   uint64 = 0x7ff
	GetattrVersion uint64 = 1 << 13
)

func (*Rlerror) Type() Type   { return typeRlerror }
func (*Tversion) Type() Type  { return typeTversion }
func (*Rversion) Type() Type  { return typeTversion + 1 }
func (*Tattach) Type() Type   { return typeTattach }
func (*Rattach) Type() Type   { return typeTattach + 1 }
func (*Tflush) Type() Type    { return typeTflush }
func (*Rflush) Type() Type    { return typeTflush + 1 }
func (*Twalk) Type() Type     { return typeTwalk }
func (*Rwalk) Type() Type     { return typeTwalk + 1 }
func (*Tlopen) Type() Type    { return typeTlopen }
func (*Rlopen) Type() Type    { return typeTlopen + 1 }
func (*Tlcreate) Type() Type  { return typeTlcreate }
func (*Rlcreate) Type() Type  { return typeTlcreate + 1 }
func (*Tsymlink) Type() Type  { return typeTsymlink }
func (*Rsymlink) Type() Type  { return typeTsymlink + 1 }
func (*Treadlink) Type() Type { return typeTreadlink }
func (*Rreadlink) Type() Type { return typeTreadlink + 1 }
func (*Tgetattr) Type() Type  { return typeTgetattr }
func (*Rgetattr) Type() Type  { return typeTgetattr + 1 }
func (*Tsetattr) Type() Type  { return typeTsetattr }
func (*Rsetattr) Type() Type  { return typeTsetattr + 1 }
func (*Treaddir) Type() Type  { return typeTreaddir }
func (*Rreaddir) Type() Type  { return typeTreaddir + 1 }
func (*Tfsync) Type() Type    { return typeTfsync }
func (*Rfsync) Type() Type    { return typeTfsync + 1 }
func (*Tmkdir) Type() Type    { return typeTmkdir }
func (*Rmkdir) Type() Type    { return typeTmkdir + 1 }
func (*Trenameat) Type() Type { return typeTrenameat }
func (*Rrenameat) Type() Type { return typeTrenameat + 1 }
func (*Tunlinkat) Type() Type { return typeTunlinkat }
func (*Runlinkat) Type() Type { return typeTunlinkat + 1 }
func (*Tread) Type() Type     { return typeTread }
func (*Rread) Type() Type     { return typeTread + 1 }
func (*Twrite) Type() Type    { return typeTwrite }
func (*Rwrite) Type() Type    { return typeTwrite + 1 }
func (*Tclunk) Type() Type    { return typeTclunk }
func (*Rclunk) Type() Type    { return typeTclunk + 1 }
func (*Tremove) Type() Type   { return typeTremove }
func (*Rremove) Type() Type   { return typeTremove + 1 }
func (*Tstatfs) Type() Type   { return typeTstatfs }
func (*Rstatfs) Type() Type   { return typeTstatfs + 1 }

func (m *Rlerror) fields(c *Coder)  { c.U32(&m.Errno) }
func (m *Tversion) fields(c *Coder) { c.U32(&m.Msize); c.Str(&m.Version) }
func (m *Rversion) fields(c *Coder) { c.U32(&m.Msize); c.Str(&m.Version) }
func (m *Tattach) fields(c *Coder) {
	c.U32(&m.Fid)
	c.U32(&m.Afid)
	c.Str(&m.Uname)
	c.Str(&m.Aname)
	c.U32(&m.NUname)
}
func (m *Rattach) fields(c *Coder) { c.Qid(&m.ID) }
func (m *Tflush) fields(c *Coder)  { c.U16(&m.OldTag) }
func (m *Rflush) fields(*Coder)    {}
func (m *Twalk) fields(c *Coder)   { c.U32(&m.Fid); c.U32(&m.NewFid); c.names(&m.Names) }
func (m *Rwalk) fields(c *Coder) {
	List(c, &m.IDs, 13, func(e *sigma.FileID) {
		c.Qid(e)
	})
}
func (m *Tlopen) fields(c *Coder) { c.U32(&m.Fid); c.U32(&m.Flags) }
func (m *Rlopen) fields(c *Coder) { c.Qid(&m.ID); c.U32(&m.IOUnit) }
func (m *Tlcreate) fields(c *Coder) {
	c.U32(&m.Fid)
	c.Str(&m.Name)
	c.U32(&m.Flags)
	c.U32(&m.Mode)
	c.U32(&m.GID)
}
func (m *Rlcreate) fields(c *Coder) { c.Qid(&m.ID); c.U32(&m.IOUnit) }
func (m *Tsymlink) fields(c *Coder) {
	c.U32(&m.Fid)
	c.Str(&m.Name)
	c.Str(&m.Target)
	c.U32(&m.GID)
}
func (m *Rsymlink) fields(c *Coder)  { c.Qid(&m.ID) }
func (m *Treadlink) fields(c *Coder) { c.U32(&m.Fid) }
func (m *Rreadlink) fields(c *Coder) { c.Str(&m.Target) }
func (m *Tgetattr) fields(c *Coder)  { c.U32(&m.Fid); c.U64(&m.Mask) }
func (m *Rgetattr) fields(c *Coder) {
	c.U64(&m.Valid)
	c.Qid(&m.ID)
	for _, v := range []*uint32{&m.Mode, &m.UID, &m.GID} {
		c.U32(v)
	}
	for _, v := range []*uint64{&m.NLink, &m.RDev, &m.Size, &m.BlockSize, &m.Blocks, &m.ATime, &m.ATimeNsec, &m.MTime,
		&m.MTimeNsec,
		&m.CTime, &m.CTimeNsec, &m.BTime, &m.BTimeNsec, &m.Gen, &m.DataVersion} {
		c.U64(v)
	}
}
func (m *Tsetattr) fields(c *Coder) {
	for _, v := range []*uint32{&m.Fid, &m.Valid, &m.Mode, &m.UID, &m.GID} {
		c.U32(v)
	}
	for _, v := range []*uint64{&m.Size, &m.ATime, &m.ATimeNsec, &m.MTime, &m.MTimeNsec} {
		c.U64(v)
	}
}
func (m *Rsetattr) fields(*Coder)   {}
func (m *Treaddir) fields(c *Coder) { c.U32(&m.Fid); c.U64(&m.Offset); c.U32(&m.Count) }
func (m *Rreaddir) fields(c *Coder) { c.Data(&m.Data) }
func (m *Tfsync) fields(c *Coder) {
	c.U32(&m.Fid)
	if !c.decoding || len(c.buf) > 0 { // clients older than Linux 3.x and gVisor's leave it out
		c.U32(&m.DataSync)
	}
}
func (m *Rfsync) fields(*Coder) {}
func (m *Tmkdir) fields(c *Coder) {
	c.U32(&m.Fid)
	c.Str(&m.Name)
	c.U32(&m.Mode)
	c.U32(&m.GID)
}
func (m *Rmkdir) fields(c *Coder) { c.Qid(&m.ID) }
func (m *Trenameat) fields(c *Coder) {
	c.U32(&m.OldDir)
	c.Str(&m.OldName)
	c.U32(&m.NewDir)
	c.Str(&m.NewName)
}
func (m *Rrenameat) fields(*Coder)   {}
func (m *Tunlinkat) fields(c *Coder) { c.U32(&m.Dir); c.Str(&m.Name); c.U32(&m.Flags) }
func (m *Runlinkat) fields(*Coder)   {}
func (m *Tread) fields(c *Coder)     { c.U32(&m.Fid); c.U64(&m.Offset); c.U32(&m.Count) }
func (m *Rread) fields(c *Coder)     { c.Data(&m.Data) }
func (m *Twrite) fields(c *Coder)    { c.U32(&m.Fid); c.U64(&m.Offset); c.Data(&m.Data) }
func (m *Rwrite) fields(c *Coder)    { c.U32(&m.Count) }
func (m *Tclunk) fields(c *Coder)    { c.U32(&m.Fid) }
func (m *Rclunk) fields(*Coder)      {}
func (m *Tremove) fields(c *Coder)   { c.U32(&m.Fid) }
func (m *Rremove) fields(*Coder)     {}
func (m *Tstatfs) fields(c *Coder)   { c.U32(&m.Fid) }
func (m *Rstatfs) fields(c *Coder) {
	c.U32(&m.FSType)
	c.U32(&m.BlockSize)
	for _, v := range []*uint64{&m.Blocks, &m.BlocksFree, &m.BlocksAvail, &m.Files, &m.FilesFree, &m.FSID} {
		c.U64(v)
	}
	c.U32(&m.NameLen)
}

// DirEntry is one entry of Rreaddir.Data; Next is the cookie to go on after it.
type DirEntry struct {
	ID   sigma.FileID
	Next uint64
	Name string
}

// DirEntrySize is how many bytes an entry takes besides its name.
const DirEntrySize = 13 + 8 + 1 + 2

// direntType is DT_DIR, DT_LNK or DT_REG of readdir(3), which ls and find of a plain client go by.
func direntType(k sigma.FileKind) uint8 {
	switch k {
	case sigma.KindDir:
		return 4
	case sigma.KindSymlink:
		return 10
	}
	return 8
}

// AppendDirEntry appends e to data unless it would exceed max; it reports whether it did.
func AppendDirEntry(data []byte, max int, e DirEntry) ([]byte, bool) {
	if len(data)+DirEntrySize+len(e.Name) > max {
		return data, false
	}
	c := NewEncoder(data)
	t := direntType(e.ID.Kind)
	c.Qid(&e.ID)
	c.U64(&e.Next)
	c.U8(&t)
	c.Str(&e.Name)
	return c.Bytes(), true
}

// DecodeDirEntries reads Rreaddir.Data.
func DecodeDirEntries(data []byte) ([]DirEntry, error) {
	var out []DirEntry
	c := NewDecoder(data)
	for len(c.buf) > 0 && c.err == nil {
		var e DirEntry
		var t uint8
		c.Qid(&e.ID)
		c.U64(&e.Next)
		c.U8(&t)
		c.Str(&e.Name)
		out = append(out, e)
	}
	return out, c.Finish()
}
