package binfs

import (
	"context"
	"os"
	"slices"
	"strconv"
	"time"

	"sigmaos.dev/sigma"
)

// node is a file of the mount.
type node struct {
	p       *program
	lookups int64 // how often the kernel was told of it, less what it forgot; lookupsUnknown after a take-over
}

const lookupsUnknown = -1

func (c *Cache) addKeyLocked(p *program, k key) {
	if c.at[p] == nil {
		c.at[p] = c.order.PushBack(p)
	}
	c.known[k] = p
	c.paths[place{k.realm, k.path}]++
	p.keys = append(p.keys, k)
}

// touchLocked notes a use.
func (c *Cache) touchLocked(p *program) {
	if at := c.at[p]; at != nil {
		c.order.MoveToBack(at)
	}
	if now := time.Now(); p.content != nil && now.Sub(p.used) > time.Minute { // so that the order survives a restart
		p.used = now
		os.Chtimes(contentPath(c.cfg.Dir, *p.content)+".txt", now, now)
	}
}

// dropLocked takes a program that nobody uses out of the cache and off the disk.
func (c *Cache) dropLocked(p *program) {
	if p.dropped {
		return
	}
	p.dropped = true
	for _, k := range p.keys {
		delete(c.known, k)
		at := place{k.realm, k.path}
		if c.paths[at]--; c.paths[at] == 0 {
			delete(c.paths, at)
		}
	}
	c.forgetPlaceLocked(p)
	if p.content != nil && c.contents[*p.content] == p {
		delete(c.contents, *p.content)
	}
	for _, n := range append(p.nodes, p.node) {
		if c.nodes[n] != nil && c.nodes[n].p == p {
			delete(c.nodes, n)
		}
	}
	removeStored(p.stored)
	c.work.Go(p.closeFiles)
}

func (c *Cache) forgetPlaceLocked(p *program) {
	c.order.Remove(c.at[p])
	delete(c.at, p)
	c.bytes -= p.bytes
	p.bytes = 0
}

// room makes room for n more bytes, as far as programs are there that nobody uses.
func (c *Cache) room(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := c.order.Front(); at != nil && (c.bytes+n > int64(c.cfg.Max) || c.order.Len() > programsMax); {
		p := at.Value.(*program)
		at = at.Next()
		c.evictLocked(p)
	}
}

// evictUnused makes all the room there is to make.
func (c *Cache) evictUnused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evictUnusedLocked()
}

func (c *Cache) evictUnusedLocked() (freed bool) {
	for at := c.order.Front(); at != nil; {
		p := at.Value.(*program)
		at = at.Next()
		freed = c.evictLocked(p) || freed
	}
	return freed
}

// evictLocked drops a program unless a proc may run it.
func (c *Cache) evictLocked(p *program) bool {
	if p.users > 0 || p.live > 0 {
		return false
	}
	c.count.evicted.Add(1)
	c.dropLocked(p)
	return true
}

// grew counts bytes that were stored.
func (c *Cache) grew(p *program, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.dropped && c.at[p] != nil {
		p.bytes += n
		c.bytes += n
	}
}

// discard makes the next start fetch a program anew.
func (c *Cache) discard(p *program) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.ok = false
}

// finish makes a program whose chunks are all here one that is started by its plain file.
func (c *Cache) finish(p *program) {
	p.mu.Lock()
	unsure, o, hashes := p.plain, p.object, slices.Clone(p.hashes)
	p.mu.Unlock()
	if unsure && o != nil {
		ctx, cancel := context.WithTimeout(c.ctx, tryMax)
		defer cancel()
		if err := o.Check(ctx); err != nil {
			p.mu.Lock()
			p.ended = err
			p.mu.Unlock()
			c.discard(p)
			close(p.done)
			return
		}
	}
	p.closeWriting()
	close(p.done)
	content := contentHash(p.name.Size, hashes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.dropped || p.content != nil {
		return
	}
	if other := c.contents[content]; other != nil && !other.dropped { // another realm has the same
		c.mergeLocked(p, other)
		c.saveLocked(other, hashes)
		return
	}
	path := contentPath(c.cfg.Dir, content)
	if err := os.Rename(p.stored, path); err != nil {
		c.cfg.Log.Warn("a program cannot be remembered", "path", p.name.Path, "err", err)
		return
	}
	os.Remove(p.stored + ".log")
	p.mu.Lock()
	p.stored = path
	p.mu.Unlock()
	p.content = &content
	c.contents[content] = p
	if n := c.nodes[p.node]; n != nil && n.lookups != 0 {
		p.nodes = append(p.nodes, p.node)
	}
	c.saveLocked(p, hashes)
}

// mergeLocked lets other have the names of p, which has the same bytes. Who has p keeps it.
func (c *Cache) mergeLocked(p, other *program) {
	for _, k := range p.keys {
		c.known[k] = other
		other.keys = append(other.keys, k)
	}
	p.keys = nil
	if n := c.nodes[p.node]; n != nil && n.lookups != 0 {
		other.nodes = append(other.nodes, p.node)
	}
	c.forgetPlaceLocked(p)
	removeStored(p.stored)
	p.dropped, p.merged = true, true
	c.unusedLocked(p)
}

// showLocked lets the kernel find a program's node.
func (c *Cache) showLocked(p *program) {
	if c.nodes[p.node] == nil {
		c.nodes[p.node] = &node{p: p}
	}
	if p.content != nil && !slices.Contains(p.nodes, p.node) {
		p.nodes = append(p.nodes, p.node)
		c.saveLocked(p, p.hashes) // fixed since it was loaded
	}
}

// adoptNodeLocked makes a node of a former life known, in case the mount is still the one it was.
func (c *Cache) adoptNodeLocked(p *program, number uint64) {
	c.lastNode = max(c.lastNode, number)
	if c.cfg.Mount == nil || c.nodes[number] != nil {
		return
	}
	c.nodes[number] = &node{p: p, lookups: lookupsUnknown}
	p.live++
}

var _ nodes = (*Cache)(nil)

// lookup implements nodes.
func (c *Cache) lookup(name string) (uint64, int64, bool) {
	number, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[number]
	if n == nil {
		return 0, 0, false
	}
	switch n.lookups {
	case lookupsUnknown:
	case 0:
		n.p.live++
		fallthrough
	default:
		n.lookups++
	}
	return number, n.p.name.Size, true
}

// size implements nodes.
func (c *Cache) size(number uint64) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[number]; n != nil {
		return n.p.name.Size, true
	}
	return 0, false
}

// forget implements nodes. Of a node of a former life the kernel forgets all at once.
func (c *Cache) forget(number, lookups uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[number]
	if n == nil || n.lookups == 0 {
		return
	}
	if n.lookups != lookupsUnknown && lookups < uint64(n.lookups) {
		n.lookups -= int64(lookups)
		return
	}
	c.unknownLocked(number, n)
}

// unknownLocked notes that the kernel does not know a node any more.
func (c *Cache) unknownLocked(number uint64, n *node) {
	if n.lookups != 0 {
		n.lookups = 0
		n.p.live--
	}
	if number != n.p.node || n.p.complete() {
		delete(c.nodes, number)
	}
	c.unusedLocked(n.p)
}

// unusedLocked lets go of a program that nobody has any more, if nobody shall find it again: a
// failure is not remembered.
func (c *Cache) unusedLocked(p *program) {
	switch {
	case p.users > 0 || p.live > 0:
	case p.merged:
		p.merged = false
		c.work.Go(p.closeFiles)
	case !p.ok:
		c.dropLocked(p)
	}
}

// began implements nodes.
func (c *Cache) began() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for number, n := range c.nodes {
		c.unknownLocked(number, n)
	}
}

// read implements nodes.
func (c *Cache) read(ctx context.Context, number uint64, b []byte, offset int64) (int, error) {
	c.mu.Lock()
	n := c.nodes[number]
	c.mu.Unlock()
	if n == nil {
		return 0, sigma.Errorf("binfs.read", sigma.KindStale, "no such node")
	}
	if n.p.adopted { // by a start of this life it is seen to
		n.p.fill()
	}
	return n.p.readAt(ctx, b, offset)
}
