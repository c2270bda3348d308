package mount

import (
	"container/list"
	"sync"

	"sigmaos.dev/sigma"
)

// What the mount keeps of files that the kernel remembers. A server keeps a descriptor for each
// directory that somebody has a handle of (diskfs.OpenMaxDefault is 4,096 for a realm), and a few
// hundred bytes for each other file, of which a session may have 65,536.
const (
	dirHandlesMax  = 1024
	fileHandlesMax = 16384
)

// handle is a node's handle at the server, shared by those who use it just now.
type handle struct {
	file sigma.File
	life *life
	node *node
	refs int // handles.mu; one of the node, and of each user
	at   *list.Element
}

// handles are those that are kept, the least recently used of which are let go of first. A node
// whose handle is gone walks to the file again.
type handles struct {
	mu    sync.Mutex
	dirs  *list.List // mu
	files *list.List // mu
}

func newHandles() *handles { return &handles{dirs: list.New(), files: list.New()} }

func (c *handles) of(n *node) (*list.List, int) {
	if n.kind == sigma.KindDir {
		return c.dirs, dirHandlesMax
	}
	return c.files, fileHandlesMax
}

// use gives the node's handle if it has one of this life. It must be released.
func (c *handles) use(n *node, l *life) *handle {
	c.mu.Lock()
	h := n.handle
	if h != nil && h.life == l {
		h.refs++
		all, _ := c.of(n)
		all.MoveToFront(h.at)
		c.mu.Unlock()
		return h
	}
	c.mu.Unlock()
	return nil
}

// adopt gives the node a handle, and one reference to the caller.
func (c *handles) adopt(n *node, file sigma.File, l *life) *handle {
	h := &handle{file: file, life: l, node: n, refs: 2}
	c.mu.Lock()
	old := c.dropLocked(n)
	n.handle = h
	all, most := c.of(n)
	h.at = all.PushFront(h)
	var over sigma.File
	if all.Len() > most {
		over = c.dropLocked(all.Back().Value.(*handle).node)
	}
	c.mu.Unlock()
	for _, f := range []sigma.File{old, over} {
		if f != nil {
			f.Close()
		}
	}
	return h
}

// dropLocked takes the handle from the node; what it returns is to be closed.
func (c *handles) dropLocked(n *node) sigma.File {
	h := n.handle
	if h == nil {
		return nil
	}
	all, _ := c.of(n)
	all.Remove(h.at)
	n.handle = nil
	if h.refs--; h.refs == 0 {
		return h.file
	}
	return nil
}

// take gives the node's handle away, if it has one of this life that nobody else uses just now; nil
// otherwise. Who opens a file rarely needs it unopened as well.
func (c *handles) take(n *node, l *life) sigma.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := n.handle; h == nil || h.life != l || h.refs != 1 {
		return nil
	}
	return c.dropLocked(n)
}

func (c *handles) drop(n *node) {
	c.mu.Lock()
	f := c.dropLocked(n)
	c.mu.Unlock()
	if f != nil {
		f.Close()
	}
}

func (c *handles) release(h *handle) {
	c.mu.Lock()
	h.refs--
	last := h.refs == 0
	c.mu.Unlock()
	if last {
		h.file.Close()
	}
}
