package sigma

import (
	"context"
	"os"
	"sync/atomic"
	"time"
)

// Op is what a request asks of a file. It is a method of File or of one of its companions.
type Op uint8

// Questions about a handle. They are answered at once, ask no other program, and need no right and
// no fence.
const (
	OpClose     Op = iota + 1 // release the handle
	OpIdentify                // Reply.ID: the file's, as far as the handle knows it (Identified)
	OpRemembers               // Reply.Yes: the server remembers replies to numbered mutations (Rememberer)
	OpRecall                  // Get from memory; Reply.Yes: the answer is known (Recaller)
	OpStreams                 // Reply.Yes: there are descriptors of the file; the server kit may make a stream of it
)

// Requests about a file. Each has the meaning of the method of its name.
const (
	OpWalk Op = iota + 16
	OpStat
	OpSetStat
	OpOpen
	OpCreate
	OpReadAt
	OpWriteAt
	OpReadDir
	OpMkdir
	OpSymlink
	OpReadLink
	OpRemove
	OpRename
	OpSync
	OpGet
	OpPut
	OpReadAtIf
	OpWriteAtIf
	OpWatch
	OpCall
	OpPassFile
	OpPassBulk
	OpPublish
	OpSpace
	OpLease
	OpRenew
	OpRevoke
	OpFind
)

var opNames = [...]string{OpClose: "Close", OpIdentify: "Identify", OpRemembers: "Remembers", OpRecall: "Recall",
	OpStreams: "Streams", OpWalk: "Walk", OpStat: "Stat", OpSetStat: "SetStat", OpOpen: "Open",
	OpCreate: "Create", OpReadAt: "ReadAt", OpWriteAt: "WriteAt", OpReadDir: "ReadDir", OpMkdir: "Mkdir",
	OpSymlink: "Symlink", OpReadLink: "ReadLink", OpRemove: "Remove", OpRename: "Rename", OpSync: "Sync", OpGet: "Get",
	OpPut: "Put", OpReadAtIf: "ReadAtIf", OpWriteAtIf: "WriteAtIf", OpWatch: "Watch", OpCall: "Call",
	OpPassFile: "PassFile", OpPassBulk: "PassBulk", OpPublish: "Publish", OpSpace: "Space", OpLease: "Lease",
	OpRenew: "Renew", OpRevoke: "Revoke", OpFind: "Find"}

// String is the name of the method that o stands for.
func (o Op) String() string { return opNames[o] }

// OfHandle reports whether o is a question about a handle.
func (o Op) OfHandle() bool { return o < OpWalk }

// Request is one request to a file. Fields that an Op has no use for are zero.
type Request struct {
	Op      Op
	Flags   OpenFlags  // Open, Create
	Perm    uint32     // Create, Mkdir
	Name    string     // the directory's entry: Create, Mkdir, Symlink, Remove, Rename. Call: the method
	Text    string     // Symlink: the target. Rename: the new name
	Names   []string   // Walk, Get, Put, Recall
	Data    []byte     // WriteAt, WriteAtIf, Put: bytes. ReadAt, ReadAtIf: room to fill. Call: the payload
	Offset  uint64     // in bytes; ReadDir: the cookie; Find: FileID.Path
	Count   int        // Get, Recall: bytes; ReadDir: entries
	Version Version    // Watch, ReadAtIf, WriteAtIf
	Put     PutOptions // Put
	Change  StatChange // SetStat
	Dir     File       // Rename: the new directory
	Files   []*os.File // Call; the receiver's, also if it fails
	Lease   LeaseID    // Renew, Revoke
	TTL     time.Duration
}

// Reply is the answer to a Request. Fields that an Op has no use for are zero.
type Reply struct {
	File    File       // Walk, Create, Find
	IDs     []FileID   // Walk
	ID      FileID     // Get, Put, Recall, Identify
	Stat    Stat       // Stat
	Stop    *Stopped   // Get, Put, Recall
	Data    []byte     // Get, Recall: bytes. Call: the reply. PassBulk without Files: a ticket
	Size    uint64     // Get, Recall: of the whole file, in bytes
	Text    string     // ReadLink
	Entries []DirEntry // ReadDir
	Next    uint64     // ReadDir: the cookie to go on with
	N       int        // bytes: ReadAt, ReadAtIf, WriteAt, WriteAtIf
	More    bool       // ReadDir
	Yes     bool       // Remembers, Recall, Streams
	Version Version    // Watch, WriteAtIf
	Lease   LeaseID    // Lease
	Files   []*os.File // Call; PassFile, PassBulk: one
	Space   Space      // Space
}

// OpenFlags say what a handle is opened for.
type OpenFlags uint32

// Open flags. OpenRead is the zero value.
const (
	OpenRead      OpenFlags = 0
	OpenWrite     OpenFlags = 1 << iota // 2: write only, unless OpenReadWrite
	OpenReadWrite                       // 4
	OpenTruncate                        // 8: cut to 0 bytes first
	OpenAppend                          // 16: every write goes to the end
	OpenExclusive                       // 32: with Create: fail with KindExists if the name is taken
	// OpenHidden (64), with Create: the file is nobody's but this handle's until it is published
	// (Publisher), which gives it its name, or takes the place of the file of that name unless
	// OpenExclusive is set. KindUnsupported where files are seen at once.
	OpenHidden
)

// Writes reports whether f opens for writing.
func (f OpenFlags) Writes() bool { return f&(OpenWrite|OpenReadWrite|OpenTruncate|OpenAppend) != 0 }

// Handler carries out requests to one file. It is the form in which a request passes all that
// stands between its client and the tree: a fence, a view, a role or a session is one Handle. Safe
// for concurrent use, as File is.
type Handler interface {
	// Handle carries out r. Its errors are those of the method that r.Op stands for.
	Handle(ctx context.Context, r Request) (Reply, error)
}

// Stub is a File with all companions whose methods are requests to its Handler. A handler embeds it
// and sets Handler to itself, to be used where a File is. treeserver.Do is the other direction.
type Stub struct{ Handler }

var _ interface {
	File
	Getter
	Putter
	Conditional
	Watcher
	Leaser
	Finder
	Identified
	Caller
	Recaller
	FilePasser
	BulkPasser
	Publisher
	Spacious
	Rememberer
} = Stub{}

// now asks what concerns only the handle.
func (s Stub) now(r Request) Reply {
	a, _ := s.Handle(context.Background(), r)
	return a
}

// only carries out a request whose reply is empty.
func (s Stub) only(ctx context.Context, r Request) error {
	_, err := s.Handle(ctx, r)
	return err
}

// file carries out a request whose reply is a file descriptor.
func (s Stub) file(ctx context.Context, op Op) (*os.File, error) {
	a, err := s.Handle(ctx, Request{Op: op})
	if err == nil && len(a.Files) != 1 {
		err = Errorf("sigma.Stub", KindUnsupported, "the server passes no descriptors")
	}
	if err != nil {
		return nil, err
	}
	return a.Files[0], nil
}

func (s Stub) Walk(ctx context.Context, names []string) (File, []FileID, error) {
	a, err := s.Handle(ctx, Request{Op: OpWalk, Names: names})
	return a.File, a.IDs, err
}

func (s Stub) Stat(ctx context.Context) (Stat, error) {
	a, err := s.Handle(ctx, Request{Op: OpStat})
	return a.Stat, err
}

func (s Stub) SetStat(ctx context.Context, c StatChange) error {
	return s.only(ctx, Request{Op: OpSetStat, Change: c})
}

func (s Stub) Open(ctx context.Context, f OpenFlags) error {
	return s.only(ctx, Request{Op: OpOpen, Flags: f})
}

func (s Stub) Create(ctx context.Context, name string, f OpenFlags, perm uint32) (File, error) {
	a, err := s.Handle(ctx, Request{Op: OpCreate, Name: name, Flags: f, Perm: perm})
	return a.File, err
}

func (s Stub) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	a, err := s.Handle(ctx, Request{Op: OpReadAt, Data: p, Offset: offset})
	return a.N, err
}

func (s Stub) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	a, err := s.Handle(ctx, Request{Op: OpWriteAt, Data: p, Offset: offset})
	return a.N, err
}

func (s Stub) ReadDir(ctx context.Context, cookie uint64, most int) ([]DirEntry, uint64, bool, error) {
	a, err := s.Handle(ctx, Request{Op: OpReadDir, Offset: cookie, Count: most})
	return a.Entries, a.Next, a.More, err
}

func (s Stub) Mkdir(ctx context.Context, name string, perm uint32) error {
	return s.only(ctx, Request{Op: OpMkdir, Name: name, Perm: perm})
}

func (s Stub) Symlink(ctx context.Context, name, target string) error {
	return s.only(ctx, Request{Op: OpSymlink, Name: name, Text: target})
}

func (s Stub) ReadLink(ctx context.Context) (string, error) {
	a, err := s.Handle(ctx, Request{Op: OpReadLink})
	return a.Text, err
}

func (s Stub) Remove(ctx context.Context, name string) error {
	return s.only(ctx, Request{Op: OpRemove, Name: name})
}

func (s Stub) Rename(ctx context.Context, name string, newDir File, newName string) error {
	return s.only(ctx, Request{Op: OpRename, Name: name, Dir: newDir, Text: newName})
}

func (s Stub) Sync(ctx context.Context) error { return s.only(ctx, Request{Op: OpSync}) }

func (s Stub) Close() { s.now(Request{Op: OpClose}) }

func (s Stub) Get(ctx context.Context, names []string, offset uint64, count int) (GetResult, *Stopped, error) {
	a, err := s.Handle(ctx, Request{Op: OpGet, Names: names, Offset: offset, Count: count})
	return GetResult{Data: a.Data, ID: a.ID, Size: a.Size}, a.Stop, err
}

func (s Stub) Put(ctx context.Context, names []string, data []byte, o PutOptions) (FileID, *Stopped, error) {
	a, err := s.Handle(ctx, Request{Op: OpPut, Names: names, Data: data, Put: o})
	return a.ID, a.Stop, err
}

func (s Stub) ReadAtIf(ctx context.Context, p []byte, offset uint64, v Version) (int, error) {
	a, err := s.Handle(ctx, Request{Op: OpReadAtIf, Data: p, Offset: offset, Version: v})
	return a.N, err
}

func (s Stub) WriteAtIf(ctx context.Context, p []byte, offset uint64, v Version) (int, Version, error) {
	a, err := s.Handle(ctx, Request{Op: OpWriteAtIf, Data: p, Offset: offset, Version: v})
	return a.N, a.Version, err
}

func (s Stub) Watch(ctx context.Context, since Version) (Version, error) {
	a, err := s.Handle(ctx, Request{Op: OpWatch, Version: since})
	return a.Version, err
}

func (s Stub) Lease(ctx context.Context, ttl time.Duration) (LeaseID, error) {
	a, err := s.Handle(ctx, Request{Op: OpLease, TTL: ttl})
	return a.Lease, err
}

func (s Stub) Renew(ctx context.Context, id LeaseID) error {
	return s.only(ctx, Request{Op: OpRenew, Lease: id})
}

func (s Stub) Revoke(ctx context.Context, id LeaseID) error {
	return s.only(ctx, Request{Op: OpRevoke, Lease: id})
}

func (s Stub) Find(ctx context.Context, path uint64) (File, error) {
	a, err := s.Handle(ctx, Request{Op: OpFind, Offset: path})
	return a.File, err
}

func (s Stub) FileID() FileID { return s.now(Request{Op: OpIdentify}).ID }

func (s Stub) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	a, err := s.Handle(ctx, Request{Op: OpCall, Name: method, Data: payload, Files: files})
	return a.Data, a.Files, err
}

func (s Stub) Recall(names []string, offset uint64, count int) (GetResult, *Stopped, bool, error) {
	a, err := s.Handle(context.Background(), Request{Op: OpRecall, Names: names, Offset: offset, Count: count})
	return GetResult{Data: a.Data, ID: a.ID, Size: a.Size}, a.Stop, a.Yes, err
}

func (s Stub) PassFile(ctx context.Context) (*os.File, error) { return s.file(ctx, OpPassFile) }

func (s Stub) PassBulk(ctx context.Context) (*os.File, error) { return s.file(ctx, OpPassBulk) }

func (s Stub) Publish(ctx context.Context) error { return s.only(ctx, Request{Op: OpPublish}) }

func (s Stub) Space(ctx context.Context) (Space, error) {
	a, err := s.Handle(ctx, Request{Op: OpSpace})
	return a.Space, err
}

func (s Stub) Remembers() bool { return s.now(Request{Op: OpRemembers}).Yes }

// What a request may carry beside itself (000 Fig 4-2). It travels in the context, because it
// concerns every operation of a File alike: who makes a request adds it, the session's client
// writes it into the message, the server kit takes it out, and whoever passes the request on need
// not know of it.

// Once names one mutation, so that it can be sent again and is applied at most once: a server that
// remembers replies answers the second sending as it answered the first.
type Once struct {
	Client uint64 // who numbers: a random number, never 0
	Seq    uint64 // counts the client's mutations from 1
	Done   uint64 // the client has the replies of all up to this one; they may be forgotten
	Again  bool   // it may have been sent before: a server that remembers no replies answers KindLost and does nothing
}

// Fence protects from deposed leaders (000 §3.6): a server that has seen a newer epoch of a fence
// refuses, as KindStale, requests that carry an older one.
type Fence struct {
	// of the fence within the realm, most often the path of its epoch file; "" = not fenced. At
	// most PathMax bytes
	Name  string
	Epoch Epoch
}

type (
	onceKey  struct{}
	fenceKey struct{}
	syncKey  struct{}
	staleKey struct{}
)

// WithOnce makes the requests of ctx carry o. It is for one mutation.
func WithOnce(ctx context.Context, o Once) context.Context {
	return context.WithValue(ctx, onceKey{}, o)
}

// OnceOf returns what WithOnce put into ctx; Client is 0 if nothing did.
func OnceOf(ctx context.Context) Once {
	o, _ := ctx.Value(onceKey{}).(Once)
	return o
}

// WithFence makes the requests of ctx carry f.
func WithFence(ctx context.Context, f Fence) context.Context {
	return context.WithValue(ctx, fenceKey{}, f)
}

// FenceOf returns what WithFence put into ctx; Name is "" if nothing did.
func FenceOf(ctx context.Context) Fence {
	f, _ := ctx.Value(fenceKey{}).(Fence)
	return f
}

// WithSync makes the reads of ctx tell what is current: all that was acknowledged to anybody before
// they were asked is in them (they are linearizable). Other reads of a realm's names may be
// answered by what the machine remembers, see docs/reference/named.md.
func WithSync(ctx context.Context) context.Context {
	return context.WithValue(ctx, syncKey{}, true)
}

// IsSync reports whether WithSync made ctx.
func IsSync(ctx context.Context) bool {
	is, _ := ctx.Value(syncKey{}).(bool)
	return is
}

// WithStale lets the reads of ctx tell what the machine remembers of a realm's names while the name
// service does not answer, however old that is; the Age says whether they did. What is not
// remembered is asked for as ever. It may lack even the caller's own last changes. Of reads that
// are to be current (WithSync) nothing is remembered.
func WithStale(ctx context.Context) (context.Context, *Age) {
	a := &Age{}
	return context.WithValue(ctx, staleKey{}, a), a
}

// AgeOf returns what WithStale put into ctx; nil if nothing did.
func AgeOf(ctx context.Context) *Age {
	a, _ := ctx.Value(staleKey{}).(*Age)
	return a
}

// Age gathers how old the answers of several reads were. Safe for concurrent use.
type Age struct{ most atomic.Int64 }

// Most is the greatest age noted: all that had changed so long ago is in every answer. 0: the
// answers were as of reads without WithStale.
func (a *Age) Most() time.Duration { return time.Duration(a.most.Load()) }

// Note is called by who answers from memory.
func (a *Age) Note(d time.Duration) {
	for {
		was := a.most.Load()
		if int64(d) <= was || a.most.CompareAndSwap(was, int64(d)) {
			return
		}
	}
}
