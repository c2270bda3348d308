package cache

import (
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Apply takes an answer of the feed to a poll that was made at the time asked.
func (c *Cache) Apply(asked time.Time, f *sigmap.NamesFeed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alive && f.Number == c.number && f.At < c.applied { // overtaken by a later one
		f = &sigmap.NamesFeed{Number: c.number, At: c.applied}
	}
	if f.Reset || !c.alive || f.Number != c.number {
		c.clearLocked()
		if !c.alive {
			c.budget.caches.Add(1)
		}
		c.alive, c.number, c.began = true, f.Number, f.At
		c.asked = time.Time{}
	} else {
		for i := range f.Changes {
			if x := &f.Changes[i]; x.At > c.applied {
				c.changeLocked(x)
			}
		}
	}
	c.applied = f.At
	if asked.After(c.asked) {
		c.asked = asked
	}
	c.boundLocked()
}

// changeLocked brings what is remembered up to a change.
func (c *Cache) changeLocked(x *sigmap.NamesChange) {
	id, by := x.Node.Stat.ID.Path, changed{at: x.At}
	if x.Kind == sigmap.EntryChanged {
		p := Place{x.Node.Parent, x.Node.Stat.Name}
		c.noteLocked(p, by)
		if it := c.places[p]; it != nil && it.at < x.At && it.id() != id {
			c.dropLocked(it)
		}
		return
	}
	c.noteLocked(idPlace(id), by)
	c.agedListLocked(id, by)
	c.agedListLocked(x.Node.Parent, by)
	it := c.nodes[id]
	if it == nil || it.at >= x.At {
		return
	}
	if x.Kind == sigmap.NodeGone || it.place != (Place{x.Node.Parent, x.Node.Stat.Name}) {
		c.dropLocked(it)
		return
	}
	n := &Node{NamesNode: x.Node, doubt: it.node.doubt}
	if n.Stat.ID.Version == it.node.Stat.ID.Version {
		n.HasData, n.Data = it.node.HasData, it.node.Data
	}
	it.node, it.at = n, x.At
	c.weighLocked(it)
}

func (it *item) id() uint64 {
	if it.node == nil {
		return 0
	}
	return it.node.Stat.ID.Path
}

// agedListLocked forgets a listing that is older than a change of the directory or of a file in it.
func (c *Cache) agedListLocked(dir uint64, by changed) {
	c.noteLocked(listPlace(dir), by)
	if it := c.lists[dir]; it != nil && it.list.at < by.at {
		c.dropListLocked(dir)
	}
}

// putLocked remembers an item, unless what is remembered is newer.
func (c *Cache) putLocked(it *item) {
	old := c.places[it.place]
	if old != nil && old.id() == it.id() && it.node != nil {
		c.renewLocked(old, it)
		return
	}
	var same *item
	if it.node != nil {
		same = c.nodes[it.node.Stat.ID.Path]
	}
	for _, o := range []*item{old, same} {
		if o != nil && o.at >= it.at {
			return
		}
	}
	for _, o := range []*item{old, same} {
		if o != nil {
			c.dropLocked(o)
		}
	}
	c.places[it.place] = it
	c.budget.entries.Add(1)
	if it.node != nil {
		c.nodes[it.node.Stat.ID.Path] = it
	}
	c.linkLocked(it)
	c.weighLocked(it)
}

// renewLocked takes from an answer what it has more than what is remembered of the same file in the
// same place.
func (c *Cache) renewLocked(old, it *item) {
	n := *it.node
	if old.at > it.at { // its attributes are newer already
		n = *old.node
		if n.doubt || n.HasData || it.node.Stat.ID.Version != n.Stat.ID.Version {
			return
		}
		n.HasData, n.Data = it.node.HasData, it.node.Data
	} else if !n.HasData && n.Stat.ID.Version == old.node.Stat.ID.Version {
		n.HasData, n.Data = old.node.HasData, old.node.Data
	}
	old.node, old.at = &n, max(old.at, it.at)
	c.weighLocked(old)
}

// linkLocked puts an item last in the ring.
func (c *Cache) linkLocked(it *item) {
	if c.first == nil {
		it.prev, it.next, c.first = it, it, it
		return
	}
	it.prev, it.next = c.first.prev, c.first
	it.prev.next, it.next.prev = it, it
}

// dropLocked forgets an item.
func (c *Cache) dropLocked(it *item) {
	c.budget.forgot.Add(1)
	c.budget.entries.Add(-1)
	delete(c.places, it.place)
	if it.node != nil {
		delete(c.nodes, it.node.Stat.ID.Path)
		delete(c.lists, it.node.Stat.ID.Path)
	}
	if it.next == it {
		c.first = nil
	} else {
		it.prev.next, it.next.prev = it.next, it.prev
		if c.first == it {
			c.first = it.next
		}
	}
	c.chargeLocked(-it.size)
}

func (c *Cache) dropListLocked(dir uint64) {
	if it := c.lists[dir]; it != nil {
		it.list = nil
		delete(c.lists, dir)
		c.weighLocked(it)
	}
}

// About what things take in memory, with their places in maps.
const (
	itemBytes  = 320
	entryBytes = 72
)

// weighLocked brings the account of an item up to date.
func (c *Cache) weighLocked(it *item) {
	size := itemBytes + len(it.place.Name)
	if it.node != nil {
		size += itemBytes + len(it.node.Data) + len(it.node.Stat.Owner)
	}
	if it.list != nil {
		for i := range it.list.Entries {
			size += entryBytes + len(it.list.Entries[i].Name)
		}
	}
	c.chargeLocked(size - it.size)
	it.size = size
}

func (c *Cache) chargeLocked(by int) {
	c.bytes += by
	c.budget.bytes.Add(int64(by))
}

// boundLocked forgets what was not used for long while there is too much: what was used since it
// was looked at last gets another turn.
func (c *Cache) boundLocked() {
	for c.first != nil && (c.bytes > c.cfg.Bytes || c.budget.Bytes > 0 && c.budget.bytes.Load() > c.budget.Bytes) {
		it := c.first
		if it.used.Load() {
			it.used.Store(false)
			c.first = it.next
			continue
		}
		c.dropLocked(it)
	}
}

// After gives up to most entries of a listing after a cookie, the cookie to go on with, and whether
// there are more.
func (l *Listing) After(cookie uint64, most int) (entries []sigma.DirEntry, next uint64, more bool) {
	low, high := 0, len(l.Entries)
	for low < high {
		if mid := (low + high) / 2; l.Entries[mid].Next <= cookie {
			low = mid + 1
		} else {
			high = mid
		}
	}
	rest := l.Entries[low:]
	if len(rest) == 0 {
		return nil, cookie, false
	}
	n := min(most, len(rest))
	return append([]sigma.DirEntry(nil), rest[:n]...), rest[n-1].Next, n < len(rest)
}
