package sigmap

import "sigmaos.dev/sigma"

// AsOwner, after a realm's id in the name of an attach, makes a System principal act as the owner
// of the realm's files. File modes bind the owner (treeserver.Right), and not the provider. sigmad
// attaches so for requests of the realm's programs.
const AsOwner = "/owner"

// What a machine asks of named for its cache of names: calls of a realm's root, which named answers
// to System principals. A realm's changes have one order, that of its versions; an answer is the
// state at one version of it.
var (
	// CallFeed says what changed since; it waits for a change.
	CallFeed = Method[NamesPoll, NamesFeed]{Name: "feed", Request: (*Coder).NamesPoll, Reply: (*Coder).NamesFeed}
	// CallLook finds the files along a path, and the content of the last if it is small.
	CallLook = Method[NamesLook, NamesFound]{Name: "look", Request: (*Coder).NamesLook, Reply: (*Coder).NamesFound}
	// CallLookDir finds a piece of a listing.
	CallLookDir = Method[NamesLookDir, NamesListing]{Name: "look-dir", Request: (*Coder).NamesLookDir,
		Reply: (*Coder).NamesListing}
	CallUse = Method[None, RealmUse]{Name: "use", Reply: codeRealmUse}
	// CallForget names clients (sigma.Once) that are gone.
	CallForget = Method[[]uint64, None]{Name: "forget", Request: (*Coder).Clients}
)

// RealmUse is what a realm may have of names, and has, as far as named knows.
type RealmUse struct{ Limits, Use sigma.RealmLimits }

func codeRealmUse(c *Coder, u *RealmUse) {
	c.RealmLimits(&u.Limits)
	c.RealmLimits(&u.Use)
}

// NamesPoll asks for the changes after a version. Number is what the feed said before, 0 at first.
type NamesPoll struct {
	Number uint64
	Since  sigma.Version
	Wait   uint32 // milliseconds to wait for a change
}

// NamesPoll is a call's payload.
func (c *Coder) NamesPoll(p *NamesPoll) {
	c.U64(&p.Number)
	c.U64((*uint64)(&p.Since))
	c.U32(&p.Wait)
}

// NamesFeed is all that changed between the version asked for and At. If Reset is true that is not
// known, because the feed is another or kept no more: what is remembered must be forgotten.
type NamesFeed struct {
	Number  uint64
	At      sigma.Version
	Reset   bool
	Changes []NamesChange
}

// NamesFeed is a call's reply.
func (c *Coder) NamesFeed(f *NamesFeed) {
	c.U64(&f.Number)
	c.U64((*uint64)(&f.At))
	c.Bool(&f.Reset)
	List(c, &f.Changes, NamesChangeLeast, c.NamesChange)
}

// ChangeKind says what a NamesChange tells.
type ChangeKind uint8

// The kinds of changes.
const (
	NodeChanged  ChangeKind = iota // Node is how the file is now
	NodeGone                       // the file with the id, which was in Parent, is removed
	EntryChanged                   // the name in Parent leads to the file with the id, or if that is 0 to nothing
	changeKindEnd
)

// NamesChange is one change. Of Node only what the kind tells is set.
type NamesChange struct {
	Kind ChangeKind
	At   sigma.Version // of the realm
	Node NamesNode
}

// Sizes of an encoded NamesChange: the least, and the most beside the name and the owner.
const (
	NamesChangeLeast = 1 + 8 + 8 + 8
	NamesChangeSize  = 1 + 8 + 8 + 21 + 2 + 4 + 8 + 8 + 2 + 1 + 16
)

// NamesChange is one of NamesFeed.
func (c *Coder) NamesChange(x *NamesChange) {
	c.U8((*uint8)(&x.Kind))
	c.U64((*uint64)(&x.At))
	switch x.Kind {
	case NodeChanged:
		c.NamesNode(&x.Node)
		return
	case EntryChanged:
		c.Str(&x.Node.Stat.Name)
	case NodeGone:
	default:
		c.Fail("unknown kind of change")
	}
	c.U64(&x.Node.Parent)
	c.U64(&x.Node.Stat.ID.Path)
}

// NamesNode is one file and where it is.
type NamesNode struct {
	Parent uint64 // the directory's id; 0 = it is the root
	Stat   sigma.Stat
}

// NamesNode is a file of the structures around.
func (c *Coder) NamesNode(n *NamesNode) {
	c.U64(&n.Parent)
	c.Stat(&n.Stat)
}

// NamesLook asks for the files that names lead to from the file with id From.
type NamesLook struct {
	From  uint64
	Names []string
	Max   uint32 // content up to so many bytes is wanted
}

// NamesLook is a call's payload.
func (c *Coder) NamesLook(l *NamesLook) {
	c.U64(&l.From)
	c.names(&l.Names)
	c.U32(&l.Max)
}

// NamesFound is what a look finds: the first file and those that names led to. If they are fewer
// than names, Why says why: KindNotFound, KindNotDir (also if a link is in the way), or KindStale
// if there is no first file.
type NamesFound struct {
	Number  uint64 // of the feed
	At      sigma.Version
	Why     sigma.Kind // KindOther if all were reached
	Nodes   []NamesNode
	HasData bool // Data is the content of the last file, the target if that is a link
	Data    []byte
}

// NamesFound is a call's reply.
func (c *Coder) NamesFound(f *NamesFound) {
	c.U64(&f.Number)
	c.U64((*uint64)(&f.At))
	c.U16((*uint16)(&f.Why))
	List(c, &f.Nodes, 8+21, c.NamesNode)
	c.Bool(&f.HasData)
	c.Data(&f.Data)
}

// NamesLookDir asks for entries after a cookie.
type NamesLookDir struct {
	Dir    uint64
	Cookie uint64
	Max    uint32
}

// NamesLookDir is a call's payload.
func (c *Coder) NamesLookDir(l *NamesLookDir) {
	c.U64(&l.Dir)
	c.U64(&l.Cookie)
	c.U32(&l.Max)
}

// NamesListing is a piece of a directory's listing.
type NamesListing struct {
	Number  uint64
	At      sigma.Version
	Dir     NamesNode
	Next    uint64
	More    bool
	Entries []sigma.DirEntry
}

// NamesListing is a call's reply.
func (c *Coder) NamesListing(l *NamesListing) {
	c.U64(&l.Number)
	c.U64((*uint64)(&l.At))
	c.NamesNode(&l.Dir)
	c.U64(&l.Next)
	c.Bool(&l.More)
	List(c, &l.Entries, ListEntrySize, c.ListEntry)
}

// ForgetMax bounds the clients of one forget.
const ForgetMax = 1024

// Clients are those of a forget.
func (c *Coder) Clients(ids *[]uint64) { List(c, ids, 8, func(id *uint64) { c.U64(id) }) }
