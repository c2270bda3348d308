package mount

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"path"
	"strings"
	"sync"
	"syscall"

	"sigmaos.dev/sigma"
)

// A server of a tree may be any tenant's program, and the FileIDs that it gives are what it likes:
// one for two files, or for a directory and its child. So a node stands at one place, a name in its
// parent's node, and is found by that alone. The FileID only tells whether the place still has the
// same file. Nothing that a server says gives a node a second parent or makes it its own ancestor,
// and the kernel, which knows files by their nodes, has the same tree as the mount.

const (
	// inodesMax bounds the files that the kernel may remember at one time. Each takes about 1.3 KiB
	// here.
	inodesMax = 1 << 17
	// inodesFull is from how many the kernel is asked to forget those that were looked up least
	// recently.
	inodesFull = inodesMax * 3 / 4
)

// identity is what a server says of which file it is.
type identity struct {
	server string
	path   uint64 // 0 = the file has no identity but its place
	kind   sigma.FileKind
}

// identify gives the identity of an entry of the directory.
func (n *node) identify(l *life, name string, f sigma.File, id sigma.FileID) identity {
	server := ""
	if s, ok := f.(interface{ Server() string }); ok {
		server = s.Server()
	}
	if server == "" {
		names, _ := sigma.ParsePath(n.m.pathOf(path.Join(n.Path(nil), name)))
		server = l.serverOf(names)
	}
	return identity{server: server, path: id.Path, kind: id.Kind}
}

// known gives the node that stands at name in the directory, if it is of that file.
func (n *node) known(name string, id identity) *node {
	if to := n.entry(name); to != nil && to.isOf(id) {
		return to
	}
	return nil
}

// isOf says whether the node is of that file. Publication gives an object another identity. While a
// program has the object open, the node takes the identity that the server tells next.
func (n *node) isOf(id identity) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.anew && len(n.opens) > 0 && id.server == n.server && id.kind == n.kind {
		n.path, n.anew = id.path, false
	}
	return n.identity == id
}

// number gives the inode number that stat(2) shows for name in a directory. A place has the same
// number each time, and two places have different ones. Nodes are not looked up by it.
func (n *node) number(name string, id uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], n.StableAttr().Ino)
	binary.LittleEndian.PutUint64(b[8:], id)
	sum := sha256.Sum256(append(b[:], name...))
	return max(binary.LittleEndian.Uint64(sum[:])>>1, 2) // 1 is the root's, and of the highest the library makes use
}

// takes says whether the mount shows an entry of that name in the directory: ENAMETOOLONG if the
// name is too long, or its place too deep.
func (n *node) takes(name string) syscall.Errno {
	at := path.Join(n.Path(nil), name)
	if len(name) > sigma.NameMax || strings.Count(at, "/") >= sigma.DepthMax || len(n.m.pathOf(at)) > sigma.PathMax {
		return syscall.ENAMETOOLONG
	}
	return 0
}

// ofTenant says that a program of the realm serves the file, and not the system.
func (n *node) ofTenant() bool {
	if strings.HasPrefix(n.server, "/") {
		return !servesSystem(n.server)
	}
	return n.m.tenants
}

// servesSystem says whether the server at a path is the system's; "" is that of the realm's root.
func servesSystem(path string) bool {
	return path == "" || sigma.IsProvided(path[1:])
}

// inodes are the nodes that the kernel remembers, the least recently looked up at the back.
type inodes struct {
	mu  sync.Mutex
	all *list.List // mu; of *node

	full  chan struct{} // has room for one notice that there are many
	over  chan struct{} // closed by close
	ended sync.WaitGroup
}

func newInodes() *inodes {
	return &inodes{all: list.New(), full: make(chan struct{}, 1), over: make(chan struct{})}
}

// touch notes that a node is looked up in a directory. It fails when the kernel remembers too many
// others.
func (c *inodes) touch(dir, n *node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if dir.listed != nil {
		c.all.MoveToFront(dir.listed)
	}
	if n.listed != nil {
		c.all.MoveToFront(n.listed)
		return nil
	}
	if c.all.Len() >= inodesFull {
		select {
		case c.full <- struct{}{}:
		default:
		}
	}
	if c.all.Len() >= inodesMax {
		return sigma.Errorf("mount.inodes", sigma.KindBusy, "programs use more than %d files of the mount", inodesMax)
	}
	n.listed = c.all.PushFront(n)
	return nil
}

// forget notes that the kernel has forgotten a node.
func (c *inodes) forget(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.listed != nil {
		c.all.Remove(n.listed)
		n.listed = nil
	}
}

// oldest takes the node that was looked up least recently to the front, unless there are few.
func (c *inodes) oldest() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all.Len() < inodesFull {
		return nil
	}
	c.all.MoveToFront(c.all.Back())
	return c.all.Front().Value.(*node)
}

// trim asks the kernel to forget nodes whenever there are many, until close. The kernel may make it
// wait for who looks a file up, so nobody who does waits for it.
func (c *inodes) trim() {
	for {
		select {
		case <-c.full:
		case <-c.over:
			return
		}
		for range inodesMax - inodesFull {
			n := c.oldest()
			if n == nil {
				break
			}
			if name, parent := n.Parent(); parent != nil && len(n.Children()) == 0 {
				parent.NotifyEntry(name)
			}
		}
	}
}

// close ends trim.
func (c *inodes) close() {
	close(c.over)
	c.ended.Wait()
}
