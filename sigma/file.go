package sigma

import (
	"context"
	"os"
	"time"
)

// FileKind is what a name stands for. Kinds are distinct types and never guessed from content
// (lessons: names).
type FileKind uint8

// The kinds of files.
const (
	KindFile     FileKind = iota // bytes
	KindDir                      // entries
	KindSymlink                  // another path, absolute in the realm, or relative to the link's directory
	KindEndpoint                 // an Endpoint; walking through it continues at the server it names
	KindDevice                   // a file of a server whose content is computed (/proc/PID/status)
	KindCallable                 // a file that answers calls (Caller)
	KindPipe                     // a named pipe: what is written by some is read once, by whoever comes first
)

func (k FileKind) String() string {
	return [...]string{"file", "dir", "symlink", "endpoint", "device", "callable", "pipe"}[min(k, 6)]
}

// FileID identifies a file within its server: two handles with equal FileID.Path are the same file.
// The ids that Walk of a remote handle returns have only the low 32 bits of the version, as 9P's
// do; Stat, ReadDir, Get and Put tell all of it.
type FileID struct {
	Kind    FileKind
	Path    uint64 // never reused by a server during its life
	Version Version
}

// Stat describes a file.
type Stat struct {
	ID        FileID
	Name      string // last component; "" at a root
	Perm      uint32 // mode bits 0777
	Size      uint64 // bytes; number of entries is not told
	Hole      uint64 // bytes of Size that nothing stores, as far as the server tells
	Modified  time.Time
	Owner     string // principal, "" = the realm
	Ephemeral bool   // vanishes with its lease
}

// Blocks is how many blocks of 512 bytes the file takes, as stat(2) counts them.
func (st Stat) Blocks() uint64 { return (st.Size - min(st.Size, st.Hole) + 511) / 512 }

// DirEntry is one entry of a directory listing.
type DirEntry struct {
	Name string
	ID   FileID
	Size uint64 // 0 where the server would have to look it up
	Next uint64 // cookie to go on after this entry; 0 = only the one that ReadDir returns is known
}

// Principal is on whose behalf a request is made. It is stamped by the machine from the descriptor
// the request came through, never claimed by a message.
type Principal struct {
	Realm   RealmID
	Proc    ProcID    // "" for the admin socket
	Machine MachineID // where the proc runs
	System  bool      // acts for the provider and may name any realm
}

// RealmNamed is the realm whose tree p gets by attaching with a name: its own if that is "". Only a
// System principal may name another; the error is of KindPermission, or of KindInvalid if the name
// is none.
func (p Principal) RealmNamed(op, name string) (RealmID, error) {
	id := p.Realm
	if name != "" && RealmID(name) != id {
		if !p.System {
			return "", Errorf(op, KindPermission, "only the provider may choose a realm")
		}
		id = RealmID(name)
	}
	return id, Wrap(op, "", id.Check())
}

// Tree is something with a root, the thing a server serves. Safe for concurrent use.
type Tree interface {
	// Attach returns the root as p may see it. name chooses among roots of servers that have
	// several and is "" otherwise.
	Attach(ctx context.Context, p Principal, name string) (File, error)
}

// File is a handle on one file of a tree: what a server implements and what a client of that server
// holds, so that a remote file is as good as a local one. A handle follows the file through
// renames. Handles are cheap; Close releases one.
//
// A handle that is a Handler too takes its methods as requests (Request).
//
// Errors are *Error. Methods may be called concurrently on one handle, except Open and Close.
// Slices given are not kept; slices returned belong to the caller. The source of the operations is
// 000 Fig 4-2 and the 9P2000.L protocol.
//
// A server embeds treeserver.Base, which answers KindUnsupported to everything.
type File interface {
	// Walk returns a handle for the file reached by names and the ids of all files on the way
	// (len(ids) == len(names)). With no names it returns another handle of the same file. It stops
	// at a symlink or endpoint that is not the last name, and at a missing name: then the File is
	// nil, ids are those that were reached, and the error is nil if at least one was reached, else
	// the reason. A directory whose mode does not let pass fails all of it (KindPermission).
	Walk(ctx context.Context, names []string) (File, []FileID, error)
	// Stat describes the file.
	Stat(ctx context.Context) (Stat, error)
	// SetStat changes what is non-nil in c.
	SetStat(ctx context.Context, c StatChange) error
	// Open prepares this handle for ReadAt, WriteAt or ReadDir. KindPermission if f is not allowed.
	Open(ctx context.Context, f OpenFlags) error
	// Create makes a file in this directory and returns an open handle of it. An existing one is
	// opened (and truncated if asked), unless OpenExclusive is set.
	Create(ctx context.Context, name string, f OpenFlags, perm uint32) (File, error)
	// ReadAt fills p from offset; n < len(p) only at the end, and n == 0 with a nil error means end
	// of file. Of a pipe it takes what is there, whatever the offset, and waits while there is
	// nothing and somebody may still write; the end is when the last writer has gone.
	ReadAt(ctx context.Context, p []byte, offset uint64) (int, error)
	// WriteAt writes all of p at offset (at the end if opened with OpenAppend). A pipe has no
	// offsets; it waits for room, up to PipeAtomic bytes go in one piece, and KindUnavailable says
	// that the last reader has gone.
	WriteAt(ctx context.Context, p []byte, offset uint64) (int, error)
	// ReadDir returns up to max entries after the cookie (0 = from the start) and the cookie to go
	// on with; more == false at the end, and no entries with more == true are no end. A cookie is
	// good for any later ReadDir on this handle. A server that sets DirEntry.Next saves the server
	// kit from asking for one entry at a time. Names are unique in a listing and every entry that
	// exists during the whole listing is in it.
	ReadDir(ctx context.Context, cookie uint64, max int) (entries []DirEntry, next uint64, more bool, err error)
	// Mkdir, Symlink: KindExists if the name is taken.
	Mkdir(ctx context.Context, name string, perm uint32) error
	Symlink(ctx context.Context, name, target string) error
	// ReadLink gives the target of a symlink or the text of an endpoint.
	ReadLink(ctx context.Context) (string, error)
	// Remove removes name from this directory: a file, a symlink, an endpoint or an empty
	// directory.
	Remove(ctx context.Context, name string) error
	// Rename moves name of this directory to newName in newDir, a handle of the same server,
	// replacing a file (or empty directory) of that name atomically.
	Rename(ctx context.Context, name string, newDir File, newName string) error
	// Sync makes written data durable.
	Sync(ctx context.Context) error
	// Close releases the handle. It never fails in a way that the caller could act on.
	Close()
}

// PipeAtomic is how many bytes one WriteAt puts into a pipe without other writers' among them, as
// on Linux.
const PipeAtomic = 4096

// StatChange lists attributes to change; nil ones stay.
type StatChange struct {
	Perm     *uint32
	Size     *uint64
	Modified *time.Time
}

// The following interfaces are what sigmaP adds to 9P; a File implements those it can do better
// than, or not at all by, the plain calls. treeserver.Do falls back to plain calls for Getter and
// Putter, and answers KindUnsupported for most of the others. Stub has all of them.

// GetResult is the answer to Get.
type GetResult struct {
	Data []byte
	ID   FileID // of the file read, with the version that Data is
	Size uint64 // of the whole file
}

// Stopped says that a walk met a symlink or endpoint: Walked names were used up (the last is the
// link), Target is its content. Client code continues there.
type Stopped struct {
	Walked int
	Kind   FileKind // KindSymlink or KindEndpoint
	Target string
}

// Getter reads a (small) file in one round trip.
type Getter interface {
	// Get walks names from this file and reads up to count bytes at offset. If it meets a link on
	// the way or at the end it returns *Stopped and no error.
	Get(ctx context.Context, names []string, offset uint64, count int) (GetResult, *Stopped, error)
}

// PutOptions qualify Put.
type PutOptions struct {
	// KindFile, KindSymlink or KindEndpoint (Data is then the target), or KindPipe (no Data, and
	// the name must be free)
	Kind      FileKind
	Perm      uint32
	MustMake  bool    // KindExists if there is a file
	Wait      bool    // with MustMake: if there is a file, wait until it is gone, in order of arrival (000 §3.6)
	MustExist bool    // KindNotFound if there is none (set, 000 Fig 4-1)
	Append    bool    // add at the end instead of replacing
	IfVersion Version // if not 0: only if the file is at this version, else KindVersion
	Lease     LeaseID // if not 0: the file is ephemeral
}

// Putter writes a small file in one round trip, atomically: a reader sees the old or the new
// content, never a part.
type Putter interface {
	// Put walks all but the last of names and makes or replaces the last. Links on the way, and an
	// existing symlink at the end unless o.Kind is a link, give *Stopped.
	Put(ctx context.Context, names []string, data []byte, o PutOptions) (FileID, *Stopped, error)
}

// Conditional reads and writes an opened file only as long as it is at a version (000 Fig 4-2).
type Conditional interface {
	// ReadAtIf is ReadAt of the bytes that the file has at version v; KindVersion if it is not at v
	// (any more). 0 means any.
	ReadAtIf(ctx context.Context, p []byte, offset uint64, v Version) (int, error)
	// WriteAtIf is WriteAt if the file is at version v, else KindVersion and nothing is written. 0
	// means any. now is the version that the write gave the file, for the next one.
	WriteAtIf(ctx context.Context, p []byte, offset uint64, v Version) (n int, now Version, err error)
}

// Watcher waits for changes.
type Watcher interface {
	// Watch returns as soon as the file's version is greater than since (a directory's version
	// grows with every entry made, changed by rename, or removed), with the version it has then; or
	// with KindNotFound when the file is removed. Since versions are compared, no change between
	// two calls is missed.
	Watch(ctx context.Context, since Version) (Version, error)
}

// Leaser grants leases (000 §3.4). A File at a tree's root implements it.
type Leaser interface {
	Lease(ctx context.Context, ttl time.Duration) (LeaseID, error)
	Renew(ctx context.Context, id LeaseID) error
	// Revoke ends the lease and removes its ephemeral files before it returns.
	Revoke(ctx context.Context, id LeaseID) error
}

// Finder takes up handles again after a server was restarted or another took its place. A File at a
// tree's root implements it, for who stands between the tree and its users; others get
// KindPermission.
type Finder interface {
	// Find returns a new handle of the file whose FileID.Path is path. KindStale if it is gone; if
	// ctx carries a mutation that may have been made before (Once.Again), a handle all the same, by
	// which to ask what became of it.
	Find(ctx context.Context, path uint64) (File, error)
}

// Identified is a File that knows its id without asking anybody. The version may be missing; Path
// is 0 if it does not know it after all.
type Identified interface {
	FileID() FileID
}

// Caller answers calls by method name (KindCallable).
type Caller interface {
	// Call runs method with payload. Passed file descriptors belong to the receiver. p is who
	// calls.
	Call(ctx context.Context, method string, payload []byte, files []*os.File) (reply []byte, replyFiles []*os.File,
		err error)
}

// Recaller is a File that may have an answer at once, because it remembers what others hold or
// finds the bytes in memory.
type Recaller interface {
	// Recall is Get that asks nobody and does not wait, not even for a disk. known is false where
	// it would have to, or would fail for any other reason than what it remembers; then Get must
	// be called. What a context carries (Once, Fence, WithSync, WithStale) does not come here.
	Recall(names []string, offset uint64, count int) (r GetResult, stop *Stopped, known bool, err error)
}

// FilePasser hands out a file descriptor of an opened file, so that its bytes need not pass through
// the server.
type FilePasser interface {
	// PassFile returns a regular file: open for reading only if the handle is, and open for reading
	// and writing if nobody else sees the file yet (OpenHidden). What was passed for writing must
	// be closed before the file can be published, or used through the handle again; until then both
	// are KindBusy. It cannot grow beyond WriteDescriptorMax. KindUnsupported where the server
	// cannot, KindPermission for a file that others may see.
	PassFile(ctx context.Context) (*os.File, error)
}

// BulkPasser hands out a stream for the bytes of an opened file (package bulk), which need not pass
// through who hands it out.
type BulkPasser interface {
	// PassBulk returns a connected socket, on which the file's server speaks as package bulk says,
	// until the handle is closed. KindUnsupported where there is none, or the file must be read and
	// written by messages.
	PassBulk(ctx context.Context) (*os.File, error)
}

// WriteDescriptorMax is how large a program can make a file by a descriptor that was passed to it:
// the launcher gives each proc this limit of file sizes (RLIMIT_FSIZE), beyond which a write fails
// and the proc gets SIGXFSZ. What is larger is written through the handle. It is what such a
// descriptor costs of a quota while it is out, so it is a compromise between the largest file and
// the smallest quota that have use of it.
const WriteDescriptorMax = GiB

// Publisher is a File whose written bytes become visible all at once (s3, or OpenHidden): by Sync,
// or by Publish, which does not wait for the disk. Close discards what was not published. The
// server kit calls Publish when a client closes the handle itself, not when its session dies; so
// what a dying writer left half-written is never seen.
type Publisher interface {
	// Publish makes what was written visible. It does nothing if nothing is to be published. A
	// client's handle cannot be used for anything but Close afterwards.
	Publish(ctx context.Context) error
}

// Space is how much a realm can store where a file is.
type Space struct {
	Total, Free Bytes  // both 0 where there is no bound that the server knows
	Files, Room uint64 // how many files there may be, and how many more; as Total and Free
}

// Spacious is a File whose server knows how much room there is for its realm.
type Spacious interface {
	Space(ctx context.Context) (Space, error)
}

// Rememberer is a File whose server remembers its replies to numbered mutations, or that passes
// them on to one that is asked the same. To others a mutation that may have been sent before does
// not come: the server kit answers KindLost for them.
type Rememberer interface {
	Remembers() bool
}
