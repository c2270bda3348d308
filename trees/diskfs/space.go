package diskfs

import (
	"container/list"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/diskspace"
	"sigmaos.dev/trees/fence"
)

// space is one realm's part of the tree: its directories on disk, and in memory one node for each
// file that a handle refers to.
type space struct {
	t     *Tree
	realm sigma.RealmID

	active *list.Element // of Tree.active; nil if it is not there; guarded by Tree.mu

	loading sync.Once
	loadErr error
	home    int // descriptors of realms/REALM and its temp; they and the root's are written under names and mu
	temp    int
	fences  *fence.Table // set by load

	names sync.RWMutex // names on disk and the table of nodes agree whenever it is free

	mu      sync.Mutex
	table   map[uint64]*node // guarded by mu: by inode number
	root    *node            // guarded by mu
	used    uint64           // guarded by mu: bytes charged
	open    int              // guarded by mu: descriptors held for handles
	listing int              // guarded by mu: bytes of listings held by handles
	temps   uint64           // guarded by mu: names given to temporary files
	recent  map[entry]*node  // guarded by mu: directories that were lately walked through, each with a reference
	orphans []*body          // guarded by mu: see sweepLocked
	spare   uint64           // guarded by mu: sum of that of the bodies
	dead    bool             // guarded by mu: removed or closed
	parked  bool             // guarded by mu: nobody has a handle, and home, temp and the root are closed
}

// recentMax directories are kept open after their last use, so that walking through them again
// costs no system call.
const recentMax = 128

// entry is a name in a directory.
type entry struct {
	dir  *node
	name string
}

// node is a file that handles refer to, wherever it is moved. When another inode replaces it by
// Put, the node stays and takes on that inode. Fields but sp and fd are guarded by space.mu; parent
// and name change only under space.names as well.
type node struct {
	sp      *space
	kind    sigma.FileKind
	ino     uint64
	id      uint64
	version sigma.Version
	target  string // of a link
	attr    attributes
	parent  *node // nil at the root; holds a reference
	name    string
	refs    int // handles, children, and operations under way
	fd      int // of a directory, else -1
	body    *body
	left    *body // of a removed file: its bytes, while somebody has them open
	removed bool
	wake    chan struct{} // closed at the next change; nil when nobody waits
}

// body is the bytes of one file while somebody has them open.
type body struct {
	sp  *space
	fd  int
	ino uint64
	id  uint64
	// fixed: the disk could only be read when it was opened.
	fixed bool

	mu   sync.Mutex // one change of the bytes at a time
	size uint64     // guarded by mu for writing and by space.mu for both
	temp string     // guarded by mu: name of the temporary file while not published
	bad  bool       // guarded by mu: a write failed, so it must not be published

	passed atomic.Bool // changed under mu: a descriptor for writing was passed, and may be open
	spare  uint64      // guarded by mu: what is charged for what may be written by it

	// Guarded by space.mu:
	version sigma.Version
	node    *node // whose bytes these are now; nil if not published, replaced or removed
	was     *node // whose bytes these were when it was removed
	refs    int
}

func newSpace(t *Tree, realm sigma.RealmID) *space {
	return &space{t: t, realm: realm, home: -1, temp: -1, table: map[uint64]*node{}, recent: map[entry]*node{}}
}

// load opens the realm's directories, empties temp and counts what is charged, once.
func (sp *space) load() error {
	sp.loading.Do(func() { sp.loadErr = sp.loadNow() })
	return sp.loadErr
}

func (sp *space) loadNow() (err error) {
	if sp.home, err = openOrMakeDir(sp.t.homes, string(sp.realm)); err != nil {
		return err
	}
	if sp.temp, err = openOrMakeDir(sp.home, "temp"); err != nil {
		return err
	}
	if err := sp.loadFences(); err != nil {
		return err
	}
	left, _, err := readNames(sp.temp, 0)
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := unix.Unlinkat(sp.temp, name, 0); err != nil {
			return err
		}
	}
	fd, err := openOrMakeDir(sp.home, "tree")
	if err != nil {
		return err
	}
	used := uint64(0)
	if sp.t.cfg.Quota != nil || sp.t.cfg.QuotaBytes > 0 {
		used, err = usage(fd, sp.t.entryCost)
	}
	in, attr := info{}, attributes{}
	if err == nil {
		in, err = look(fd, "")
	}
	if in.marked {
		attr = loadAttributes(fd)
	}
	if err != nil {
		closeFD(fd)
		return err
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.used = used
	sp.root = &node{sp: sp, kind: sigma.KindDir, ino: in.ino, id: in.id, version: in.version, attr: attr, fd: fd,
		refs: 1}
	sp.table[in.ino] = sp.root
	return nil
}

// attach returns a handle of the root, or says that the realm must be unparked before; neither if
// it is dead.
func (sp *space) attach() (parked bool, f *file) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.dead || sp.parked {
		return sp.parked && !sp.dead, nil
	}
	sp.root.refs++
	return false, &file{sp: sp, n: sp.root}
}

// park closes the realm's directories if nobody uses them. What is known of it stays: versions,
// fences, what is charged.
func (sp *space) park() bool {
	sp.names.Lock()
	defer sp.names.Unlock()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.dead || sp.root == nil {
		return true
	}
	sp.forgetLocked()
	if sp.root.refs > 1 || sp.open > 0 {
		return false
	}
	sp.parked = true
	sp.closeLocked()
	return true
}

// closeLocked closes the realm's directories.
func (sp *space) closeLocked() {
	for _, fd := range []*int{&sp.home, &sp.temp, &sp.root.fd} {
		closeFD(*fd)
		*fd = -1
	}
}

// unpark opens them again.
func (sp *space) unpark() (err error) {
	sp.names.Lock()
	defer sp.names.Unlock()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.dead || !sp.parked {
		return nil
	}
	if sp.home, err = openDirAt(sp.t.homes, string(sp.realm)); err == nil {
		if sp.temp, err = openDirAt(sp.home, "temp"); err == nil {
			sp.root.fd, err = openDirAt(sp.home, "tree")
		}
	}
	if err != nil {
		sp.closeLocked()
		return err
	}
	sp.parked = false
	return nil
}

// usage adds up what is charged for everything below dir. It goes up with "..", which is safe while
// nobody is served, so that it needs one descriptor however deep the tree is.
func usage(dir int, cost uint64) (uint64, error) {
	total := uint64(0)
	cur, err := openDirAt(dir, ".")
	if err != nil {
		return 0, err
	}
	defer func() { closeFD(cur) }()
	pending := [][]string{nil} // per level: directories still to be counted
	down := true
	for {
		level := len(pending) - 1
		if down {
			names, _, err := readNames(cur, 0)
			if err != nil {
				return 0, err
			}
			for _, name := range names {
				var st unix.Stat_t
				if err := unix.Fstatat(cur, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
					return 0, err
				}
				total += cost
				if st.Mode&unix.S_IFMT == unix.S_IFREG {
					total += uint64(st.Size)
				} else if st.Mode&unix.S_IFMT == unix.S_IFDIR {
					pending[level] = append(pending[level], name)
				}
			}
		}
		next := ".."
		if n := len(pending[level]); n > 0 {
			next, pending[level] = pending[level][n-1], pending[level][:n-1]
			pending, down = append(pending, nil), true
		} else {
			pending, down = pending[:level], false
		}
		if len(pending) == 0 {
			return total, nil
		}
		fd, err := unix.Openat(cur, next, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		closeFD(cur)
		cur = fd
	}
}

// end makes all handles stale, wakes all watchers and lets go of the root. Descriptors go with the
// handles that hold them.
func (sp *space) end() {
	// A load under way ends first, and none begins.
	sp.loading.Do(func() { sp.loadErr = sigma.Errorf("diskfs.Attach", sigma.KindStale, "the realm is being removed") })
	sp.names.Lock() // as do operations under way
	defer sp.names.Unlock()
	sp.mu.Lock()
	if sp.dead {
		sp.mu.Unlock()
		return
	}
	sp.dead = true
	sp.t.promised.Add(-int64(sp.spare))
	for _, n := range sp.table {
		n.wakeLocked()
	}
	root := sp.root
	sp.forgetLocked()
	for _, b := range sp.orphans {
		closeFD(b.fd)
	}
	sp.orphans = nil
	sp.mu.Unlock()
	if root != nil {
		sp.release(root)
	}
	closeFD(sp.temp)
	closeFD(sp.home)
	sp.temp, sp.home = -1, -1
}

// charge accounts for more bytes, or answers KindNoSpace.
func (sp *space) charge(op string, more uint64) error {
	if left, err := sp.t.Left(); err == nil && more > uint64(left) {
		return &sigma.Error{Op: op, Realm: sp.realm, Kind: sigma.KindNoSpace,
			Msg:  "the disk of the server is full: what is left of it is kept for names",
			Hint: "remove files, or ask the provider for room"}
	}
	held, quota := sp.chargeWithin(more, sp.t.quota(sp.realm, false))
	if quota > 0 {
		held, quota = sp.chargeWithin(more, sp.t.quota(sp.realm, true))
	}
	if quota > 0 {
		return sp.refused(op, held, more, quota)
	}
	return nil
}

// chargeWithin charges if the quota allows it; otherwise it tells what is charged, and of what.
func (sp *space) chargeWithin(more, quota uint64) (held, of uint64) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	full := func() bool { return quota > 0 && (more > quota || sp.used > quota-more) }
	if full() {
		sp.sweepLocked()
	}
	if full() {
		return sp.used, quota
	}
	sp.used += more
	return 0, 0
}

func (sp *space) refused(op string, held, more, quota uint64) error {
	var err *sigma.Error
	if q := sp.t.cfg.Quota; q != nil {
		err = q.Refused(sp.realm, sigma.Bytes(held), sigma.Bytes(more), sigma.Bytes(quota))
	} else {
		err = &sigma.Error{Kind: sigma.KindNoSpace,
			Msg: fmt.Sprintf("the realm's quota is used up: it has %v of %v, and this takes %v", sigma.Bytes(held),
				sigma.Bytes(quota), sigma.Bytes(more)), Hint: "remove files, or ask the provider for more"}
	}
	err.Op, err.Realm = op, sp.realm
	return err
}

func (sp *space) uncharge(less uint64) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.unchargeLocked(less)
}

// promiseLocked notes that bodies have more, or less, that may be written by a descriptor.
func (sp *space) promiseLocked(more int64) {
	if !sp.dead { // else it was taken back
		sp.spare += uint64(more)
		sp.t.promised.Add(more)
	}
}

// unchargeLocked never goes below 0, which it could only if somebody else changed the directory.
func (sp *space) unchargeLocked(less uint64) { sp.used -= min(less, sp.used) }

// reserveLocked takes one of the realm's share of descriptors.
func (sp *space) reserveLocked(op string) error {
	if sp.open >= sp.t.cfg.OpenMax {
		sp.forgetLocked()
		sp.sweepLocked()
	}
	if sp.open >= sp.t.cfg.OpenMax {
		return &sigma.Error{Op: op, Realm: sp.realm, Kind: sigma.KindBusy, Msg: "the realm has too many files open",
			Hint: "close some, or open fewer at once"}
	}
	sp.open++
	return nil
}

// Space implements sigma.Spacious: what the realm's quota leaves, or the disk if that is less.
func (f *file) Space(ctx context.Context) (sigma.Space, error) {
	const op = "diskfs.Space"
	if _, err := f.check(ctx, op); err != nil {
		return sigma.Space{}, err
	}
	sp := f.sp
	room, err := sp.t.disk()
	if err != nil {
		return sigma.Space{}, wrap(op, "", err)
	}
	room.Free = min(room.Free, diskspace.Left(room))
	if quota := sigma.Bytes(sp.t.quota(sp.realm, false)); quota > 0 {
		sp.mu.Lock()
		used := sigma.Bytes(sp.used)
		sp.mu.Unlock()
		room.Total, room.Free = min(room.Total, quota), min(room.Free, quota-min(used, quota))
	}
	return room, nil
}

// tempName returns a name in sp.temp that was not given before.
func (sp *space) tempName() string {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.temps++
	return strconv.FormatUint(sp.temps, 10)
}
