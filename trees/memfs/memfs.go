// Package memfs is a tree that lives in the memory of the program that serves it.
//
// It promises everything that sigma.File describes, leases and fences included, and that a tree
// never holds more than Config.SizeMax. It assumes that all who can attach may do everything:
// permission bits are kept and told, not enforced. Its content ends with the program. Procs of
// tenants serve one with the server kit (treeserver) to publish what they compute; tests use it
// wherever any tree will do.
//
// Every operation takes the tree's one mutex for as long as it copies memory, and nothing else is
// done under it.
//
// What the contract leaves open, here: Put changes a file in place, so an open handle reads the new
// bytes (each ReadAt sees one content); a removed file lives until its last handle is closed, and
// is charged until then; versions are taken from the clock in nanoseconds and grow with every
// change, so that they also grow over a restart of the program. Named pipes are here too (pipe.go).
package memfs

import (
	"context"
	"math"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
)

// Limits that keep one client from exhausting the server's memory by other means than content.
const (
	SizeMaxDefault sigma.Bytes = 64 * sigma.MiB
	// EntryCost is charged for each file, directory and link besides its bytes, and covers the
	// server's own bookkeeping of it.
	EntryCost = 512
	// LeasesMax bounds the leases that exist at once; each costs a timer.
	LeasesMax = 4096
	// LeaseMax is the longest life a lease may be given without being renewed.
	LeaseMax = 24 * time.Hour
)

// Config says how large a tree may become.
type Config struct {
	// SizeMax bounds the bytes of all files plus EntryCost for each; 0 means SizeMaxDefault. More
	// is refused with KindNoSpace.
	SizeMax sigma.Bytes
}

// Tree is a tree in memory. Make it with New; Close it to stop the timers of its leases.
type Tree struct {
	sizeMax uint64

	mu     sync.Mutex
	root   *node                    // guarded by mu, as is all that hangs from it
	used   uint64                   // guarded by mu
	nextID uint64                   // guarded by mu
	last   sigma.Version            // guarded by mu: the newest version given
	leases map[sigma.LeaseID]*lease // guarded by mu
	waits  map[place][]*waiter      // guarded by mu: in order of their coming
	fences fence.Epochs             // guarded by mu
	raised chan struct{}            // guarded by mu: closed and replaced when a newer epoch comes
}

var _ sigma.Tree = (*Tree)(nil)

// New makes an empty tree.
func New(cfg Config) *Tree {
	t := &Tree{sizeMax: uint64(cfg.SizeMax), leases: map[sigma.LeaseID]*lease{}, waits: map[place][]*waiter{},
		raised: make(chan struct{})}
	if t.sizeMax == 0 {
		t.sizeMax = uint64(SizeMaxDefault)
	}
	t.root = t.newNodeLocked(sigma.KindDir, 0o777)
	return t
}

// Attach returns the root. The tree has one, so name must be "". Programs act as the owner of all
// files, whom modes keep out (treeserver.Right); the provider passes always.
func (t *Tree) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	if name != "" {
		return nil, sigma.Errorf("memfs.Attach", sigma.KindNotFound, "there is no root %.80q", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handleLocked(t.root, !p.System), nil
}

// Close ends all leases without removing their files. The tree can still be read and written.
func (t *Tree) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, l := range t.leases {
		l.timer.Stop()
		delete(t.leases, id)
	}
}

// node is a file. All fields but id are guarded by Tree.mu.
type node struct {
	id       uint64
	kind     sigma.FileKind
	name     string
	parent   *node // nil for the root and for what was removed
	perm     uint32
	version  sigma.Version
	modified time.Time
	data     []byte           // KindFile
	target   string           // links
	pipe     *pipe            // KindPipe
	children map[string]*node // KindDir
	lease    sigma.LeaseID
	handles  int
	removed  bool
	wake     chan struct{} // closed at the next change; nil when nobody waits
}

func (t *Tree) newNodeLocked(kind sigma.FileKind, perm uint32) *node {
	t.nextID++
	n := &node{id: t.nextID, kind: kind, perm: perm & 0o777}
	switch kind {
	case sigma.KindDir:
		n.children = map[string]*node{}
	case sigma.KindPipe:
		n.pipe = &pipe{}
	}
	t.changedLocked(n)
	return n
}

func (n *node) fileID() sigma.FileID {
	return sigma.FileID{Kind: n.kind, Path: n.id, Version: n.version}
}

func (n *node) size() uint64 {
	switch n.kind {
	case sigma.KindFile:
		return uint64(len(n.data))
	case sigma.KindPipe:
		return uint64(len(n.pipe.buf))
	}
	return uint64(len(n.target))
}

// charge is what the tree is charged for n.
func (n *node) charge() uint64 {
	if n.kind == sigma.KindPipe {
		return EntryCost + PipeMax
	}
	return EntryCost + n.size()
}

// changedLocked gives n a new version and wakes who watches it.
func (t *Tree) changedLocked(n *node) {
	n.modified = time.Now()
	t.last = max(t.last+1, sigma.Version(n.modified.UnixNano()))
	n.version = t.last
	n.wakeLocked()
}

func (n *node) wakeLocked() {
	if n.wake != nil {
		close(n.wake)
		n.wake = nil
	}
}

// chargeLocked accounts for more bytes, or answers KindNoSpace.
func (t *Tree) chargeLocked(op string, more uint64) error {
	if more > t.sizeMax || t.used > t.sizeMax-more {
		return &sigma.Error{Op: op, Kind: sigma.KindNoSpace, Msg: "the tree in memory is full",
			Hint: "remove files, or serve it with a larger limit"}
	}
	t.used += more
	return nil
}

// resizeLocked makes the file's content size bytes long, zero-filled, and charges or frees the
// difference.
func (t *Tree) resizeLocked(op string, n *node, size uint64) error {
	old := uint64(len(n.data))
	if size <= old {
		t.used -= old - size
		clear(n.data[size:]) // a later growth must not show what was cut off
		n.data = n.data[:size]
		if size == 0 {
			n.data = nil
		}
		return nil
	}
	if size > math.MaxInt64 {
		return sigma.Errorf(op, sigma.KindTooBig, "no file can have %d bytes", size)
	}
	if err := t.chargeLocked(op, size-old); err != nil {
		return err
	}
	// append grows the capacity by a quarter or more, so that writing a file piece by piece does
	// not copy it for each piece.
	n.data = append(n.data, make([]byte, size-old)...)
	return nil
}

// linkLocked makes n the entry name of dir.
func (t *Tree) linkLocked(dir *node, name string, n *node) {
	n.parent, n.name = dir, name
	dir.children[name] = n
	t.changedLocked(dir)
}

// unlinkLocked takes n out of its directory for good.
func (t *Tree) unlinkLocked(n *node) {
	delete(n.parent.children, n.name)
	t.changedLocked(n.parent)
	t.freedLocked(place{n.parent, n.name})
	if l := t.leases[n.lease]; l != nil {
		delete(l.files, n)
	}
	n.parent, n.removed, n.lease = nil, true, 0
	n.wakeLocked()
	if n.kind == sigma.KindDir {
		t.dirGoneLocked(n)
	}
	t.freeLocked(n)
}

// freeLocked stops charging for a removed file that has no handle any more.
func (t *Tree) freeLocked(n *node) {
	if n.removed && n.handles == 0 {
		t.used -= n.charge()
		n.data, n.target = nil, ""
	}
}
