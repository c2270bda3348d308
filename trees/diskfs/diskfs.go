// Package diskfs serves a directory of the local disk as a sigma.Tree, one subtree per realm. It
// is the common ground of ux (scratch files that are written in place) and s3 (objects that are
// replaced as a whole); a Policy is all they differ in.
//
// It promises
//   - that no name leads out of a realm's subtree: every step is one openat2 of one component with
//     RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_XDEV. What a realm calls a symlink or an
//     endpoint is a symlink on disk whose target begins with a tag that says which it is; the
//     kernel never follows it, and a symlink without a tag is not there;
//   - that concurrent changes are atomic, that handles follow renames, that an open file can be
//     read after it was removed or replaced, and that Put replaces atomically. Temporary files lie
//     outside the served subtree;
//   - that the version of a file grows with every change of it, also over restarts, and that no
//     watcher misses a change;
//   - that requests of a leader who was deposed are refused (000 §3.6, package fence), also after a
//     restart: the epochs of a realm are in a file of its own beside its tree, which is on the disk
//     before an epoch is admitted;
//   - that a realm stays within its quota and its share of the server's file descriptors.
//
// It assumes that it alone changes the directory (it takes a flock on it), that the file system
// keeps times in nanoseconds (New checks), and that the server's uid owns everything: files have
// mode 0600 and directories 0700 whatever is asked for, and tenants reach them through this package
// or through descriptors it passes.
//
// # Versions
//
// The version of a file is its modification time on disk, in nanoseconds, set explicitly after each
// change to max(version+1, now). So it costs no storage of its own, survives restarts, and is
// published together with the bytes when a file is replaced by rename. While a file is in use its
// version is kept in memory, because the kernel writes a coarser time between the change and our
// setting of it. A crash of the server in that instant may leave the time of an unacknowledged
// change up to one kernel tick behind; acknowledged changes are exact. A time that is set is kept
// beside it (attr.go).
//
// # Publishing
//
// With Policy.Objects, and with OpenHidden, a file opened for writing is a temporary file of which
// nobody else sees anything until Sync or Publish renames it into its place; Close without either
// discards it. So a writer that dies leaves nothing half-written. As long as it is hidden a
// descriptor for writing may be passed (passed.go).
//
// # Locks
//
// In this order: Tree.mu; body.mu (bytes of one file change); space.names (read: names are
// resolved; write: names change); space.mu (everything in memory). System calls on names are made
// under space.names, because the table in memory and the directory on disk must change together;
// none but close and that of passed.go is made under space.mu, and none that waits for the disk to
// be flushed under either.
package diskfs

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/trees/diskspace"
	"sigmaos.dev/trees/treeserver"
)

// Policy is what distinguishes the trees made of directories.
type Policy struct {
	// Objects: files are immutable once published. Opening one for writing needs OpenTruncate and
	// starts a new one.
	Objects bool
	// Links: symlinks and endpoints can be made.
	Links bool
	// Attributes: modes and times of files can be set. Nobody is refused anything for a mode: it is
	// kept for who looks at it.
	Attributes bool
	// CheckEntry may refuse a new entry by name and kind; top says that its directory is the
	// realm's root. nil allows all.
	CheckEntry func(top bool, name string, kind sigma.FileKind) error
}

// Defaults and limits.
const (
	// OpenMaxDefault bounds the descriptors one realm may hold in the server: a busy machine runs
	// some hundred procs, each with a handful of open files, and the server's own limit is at least
	// a hundred times as large.
	OpenMaxDefault = 4096
	// ListingMax bounds the memory of one realm's unfinished listings; it is enough for a directory
	// of a million names.
	ListingMax = 64 * sigma.MiB
	// ActiveMax is how many realms keep their directories open while nobody uses them: with three
	// each, well below what a server may open.
	ActiveMax = 1024
	// EntryCost is charged to the quota for each entry besides the size of a file, or what the disk
	// has for each of its inodes if that is more (Tree.entryCost): a block of the disk, as much as
	// an inode, a name, and what the last block of the file has in excess are at most. So no number
	// of small files takes more of a disk than is charged, nor a larger part of its inodes than of
	// its bytes.
	EntryCost = 4096
)

// parkTries bounds what one Attach does for the room of all: with two, the number of open
// directories falls whenever it is too high and realms are idle.
const parkTries = 2

// Config says where the tree is and what bounds it.
type Config struct {
	Dir    string // made if missing; nothing else may use it
	Policy Policy
	// QuotaBytes bounds the sizes of a realm's files plus the cost of each entry; sparse parts
	// count. 0 means no quota. With one, the first Attach of a realm reads all its directories.
	QuotaBytes sigma.Bytes
	Quota      *Quota // instead, for quotas that differ and change; nil if all are QuotaBytes
	OpenMax    int    // descriptors per realm; 0 means OpenMaxDefault
	// Board is where changes are counted, for those on this machine who remember what they found;
	// nil means nowhere.
	Board *changeboard.Board
}

// Quota is who knows the realms' quotas. Its functions are called by many at once.
type Quota struct {
	// Of gives a realm's quota; 0 means none. It is asked whenever a realm takes more, and must not
	// wait. With ask, before something is refused, it may find out whether the quota is another
	// now, and wait for that.
	Of func(realm sigma.RealmID, ask bool) sigma.Bytes
	// Refused makes the error of a realm that has held bytes of a quota and needs more.
	Refused func(realm sigma.RealmID, held, more, quota sigma.Bytes) *sigma.Error
}

// quota is a realm's quota; see Quota.Of.
func (t *Tree) quota(realm sigma.RealmID, ask bool) uint64 {
	if t.cfg.Quota == nil {
		return uint64(t.cfg.QuotaBytes)
	}
	return uint64(t.cfg.Quota.Of(realm, ask))
}

// disk tells of the disk that the files are on.
func (t *Tree) disk() (sigma.Space, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(t.homes, &st) }); err != nil {
		return sigma.Space{}, err
	}
	block := uint64(st.Frsize)
	return sigma.Space{Total: sigma.Bytes(st.Blocks * block), Free: sigma.Bytes(st.Bavail * block), Files: st.Files,
		Room: st.Ffree}, nil
}

// Left is how many bytes all realms together may still add; see diskspace.Left.
func (t *Tree) Left() (sigma.Bytes, error) {
	disk, err := t.disk()
	if err != nil {
		return 0, sigma.Wrap("diskfs.Left", "", err)
	}
	left := diskspace.Left(disk)
	return left - min(left, sigma.Bytes(max(0, t.promised.Load()))), nil
}

// Used tells what is charged to a realm's quota, with what descriptors that are open for writing
// may still add; false if nobody used the realm's files yet.
func (t *Tree) Used(realm sigma.RealmID) (sigma.Bytes, bool) {
	t.mu.Lock()
	sp := t.spaces[realm]
	t.mu.Unlock()
	if sp == nil {
		return 0, false
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sigma.Bytes(sp.used), sp.root != nil
}

// Tree serves the directory. Safe for concurrent use.
type Tree struct {
	cfg   Config
	clock clock
	dir   int // descriptors of Dir, Dir/realms and Dir/trash
	homes int
	trash trash
	// entryCost is charged for each entry; see EntryCost.
	entryCost uint64
	promised  atomic.Int64 // bytes charged for descriptors that were passed, written or not
	// leases: the file system grants them, so descriptors for writing may be passed.
	leases bool

	mu     sync.Mutex
	spaces map[sigma.RealmID]*space // guarded by mu
	active list.List                // guarded by mu: spaces with open directories, the latest first
	closed bool                     // guarded by mu
}

var _ sigma.Tree = (*Tree)(nil)

// New opens or makes the directory and removes what an earlier server left unfinished. KindBusy if
// another server has it.
func New(cfg Config) (*Tree, error) {
	const op = "diskfs.New"
	if cfg.OpenMax == 0 {
		cfg.OpenMax = OpenMaxDefault
	}
	if cfg.Dir == "" || cfg.OpenMax < 0 {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "a directory and a limit of open files above 0 are needed")
	}
	t := &Tree{cfg: cfg, spaces: map[sigma.RealmID]*space{}, dir: -1, homes: -1, trash: trash{fd: -1}}
	if err := t.setUp(); err != nil {
		t.Close()
		return nil, wrap(op, cfg.Dir, err)
	}
	return t, nil
}

func (t *Tree) setUp() (err error) {
	if t.dir, err = openRoot(t.cfg.Dir); err != nil {
		return err
	}
	if err := unix.Flock(t.dir, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &sigma.Error{Kind: sigma.KindBusy, Msg: "another server uses this directory",
			Hint: "stop it, or choose another directory"}
	}
	if t.homes, err = openOrMakeDir(t.dir, "realms"); err != nil {
		return err
	}
	if t.trash.fd, err = openOrMakeDir(t.dir, "trash"); err != nil {
		return err
	}
	if err := t.trash.empty(context.Background()); err != nil {
		return err
	}
	disk, err := t.disk()
	if err != nil {
		return err
	}
	t.entryCost = EntryCost
	if disk.Files > 0 {
		t.entryCost = max(t.entryCost, uint64(disk.Total)/disk.Files)
	}
	t.leases = checkLeases(&t.trash)
	return checkTimes(t.dir)
}

// Attach returns the root of p's realm, which is made if there is none. Only a System principal may
// name another realm.
func (t *Tree) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	const op = "diskfs.Attach"
	realm, err := p.RealmNamed(op, name)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	sp, err := t.space(realm)
	if err != nil {
		return nil, wrap(op, "", err)
	}
	for {
		parked, f := sp.attach()
		switch {
		case f != nil:
			t.parkOthers(sp)
			return treeserver.Fenced(sp.fences, f), nil
		case !parked:
			return nil, sigma.Errorf(op, sigma.KindStale, "the realm is being removed")
		}
		if err := sp.unpark(); err != nil {
			return nil, wrap(op, "", err)
		}
	}
}

// parkOthers notes that sp is in use, and closes directories of realms that are not, those attached
// longest ago first, so that a server has room for any number of realms.
func (t *Tree) parkOthers(sp *space) {
	t.mu.Lock()
	if sp.active == nil {
		sp.active = t.active.PushFront(sp)
	} else {
		t.active.MoveToFront(sp.active)
	}
	var idle []*space
	for e := t.active.Back(); t.active.Len() > ActiveMax && e != nil && len(idle) < parkTries; {
		other, before := e.Value.(*space), e.Prev()
		if other != sp {
			idle = append(idle, other)
			t.active.Remove(e)
			other.active = nil
		}
		e = before
	}
	t.mu.Unlock()
	for _, other := range idle {
		if other.park() {
			continue
		}
		t.mu.Lock() // it is in use, and asked again when all others have been
		if other.active == nil {
			other.active = t.active.PushFront(other)
		}
		t.mu.Unlock()
	}
}

// space returns the realm's part of the tree, loading it at its first use. Others wait for that,
// also of other realms only for the making of it, not for the counting of its bytes.
func (t *Tree) space(realm sigma.RealmID) (*space, error) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, sigma.Errorf("diskfs.Attach", sigma.KindUnavailable, "the tree is closed")
	}
	sp := t.spaces[realm]
	if sp == nil {
		sp = newSpace(t, realm)
		t.spaces[realm] = sp
	}
	t.mu.Unlock()
	err := sp.load()
	if err != nil {
		t.mu.Lock()
		if t.spaces[realm] == sp {
			delete(t.spaces, realm) // the next Attach tries again
		}
		t.mu.Unlock()
		sp.end()
	}
	return sp, err
}

// RemoveRealm removes all files of a realm. Handles on them, and who watches through one, answer
// KindStale from then on. It is no error if there are none. If it fails half-way, the names are
// gone and New removes the rest.
func (t *Tree) RemoveRealm(ctx context.Context, realm sigma.RealmID) error {
	const op = "diskfs.RemoveRealm"
	if err := realm.Check(); err != nil {
		return sigma.Wrap(op, "", err)
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return sigma.Errorf(op, sigma.KindUnavailable, "the tree is closed")
	}
	sp := t.spaces[realm]
	delete(t.spaces, realm)
	if sp != nil {
		if sp.active != nil {
			t.active.Remove(sp.active)
		}
		sp.end()
	}
	err := t.trash.take(t.homes, string(realm))
	t.mu.Unlock()
	if err != nil && err != unix.ENOENT {
		return wrap(op, "", err)
	}
	return wrap(op, "", t.trash.empty(ctx))
}

// Close ends the service. Open handles answer KindStale.
func (t *Tree) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	for _, sp := range t.spaces {
		sp.end()
	}
	t.trash.close()
	closeFD(t.homes)
	closeFD(t.dir)
}
