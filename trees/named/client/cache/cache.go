// Package cache is what a machine remembers of one realm's names: files, which names lead to them,
// which names lead to nothing, small contents and listings. It is a pure core: it knows no
// connection and no clock, and is told what named answers and what named's feed tells.
//
// It promises, while its feed is alive: what it answers is the state of the realm at one version,
// the one that the feed has reached; that version only grows, and is never less than any that was
// seen on this machine in an answer of named's (Enter, Require). It answers nothing that a change
// made on this machine concerns (Forget) until that was asked of named again, and nothing at all
// when the feed was not answered for the lease, but to who wants what is old (WantOld). It holds at
// most so many bytes.
//
// The difficulty is that three streams meet here in any order: answers of named to who asked (a
// miss), changes that the feed tells, and changes made from here. An answer may be older than a
// change that was heard of meanwhile: what it says about a changed file is not taken. An answer may
// be newer than the feed: what it says would show one file newer than the others, so that nothing
// is answered until the feed has come as far as the newest file seen.
//
// It assumes that files' ids are never used twice, that a file has one place, and that the change
// of a directory's entries changes the directory's version.
//
// Users: trees/named/client. Lock: Cache.mu alone; it is held for moments, by readers shared.
package cache

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Config bounds a Cache.
type Config struct {
	Bytes   int           // all that is remembered, about
	DataMax int           // of one file; longer contents are not remembered
	ListMax int           // entries of one listing; longer ones are not remembered
	Lease   time.Duration // for so long an answer of the feed stands
	Budget  *Budget       // shared with other caches; nil = one of its own
}

// Budget bounds and counts several caches together. Safe for concurrent use.
type Budget struct {
	Bytes int64 // 0 = no bound

	hits, misses, forgot   atomic.Uint64
	bytes, entries, caches atomic.Int64
}

// Counts says what caches do and hold.
type Counts struct {
	Hits, Misses uint64 // answers that came from what is remembered, and questions for which that was not enough
	Forgotten    uint64 // files, names and absences that were forgotten, because they changed or there were too many
	Entries      uint64 // remembered now
	Bytes        uint64 // that they take, about
	Feeds        uint64 // realms that a feed tells of
}

// Counts tells of all caches with this budget.
func (b *Budget) Counts() Counts {
	return Counts{b.hits.Load(), b.misses.Load(), b.forgot.Load(), uint64(b.entries.Load()), uint64(b.bytes.Load()),
		uint64(b.caches.Load())}
}

// Node is a file as it was at one version. It is never changed, nor is its Data.
type Node struct {
	sigmap.NamesNode
	HasData bool // Data is the whole content, of a link the target
	Data    []byte
	doubt   bool // a change made from here may not be in it
}

// IsLink reports whether a walk stops at it.
func (n *Node) IsLink() bool {
	return n.Stat.ID.Kind == sigma.KindSymlink || n.Stat.ID.Kind == sigma.KindEndpoint
}

// Place is a name in a directory.
type Place struct {
	Dir  uint64
	Name string
}

// listPlace stands for the listing of a directory among places; no name has a slash.
func listPlace(dir uint64) Place { return Place{dir, "/"} }

// idPlace stands for a file among places.
func idPlace(id uint64) Place { return Place{id, ""} }

// allLists stands for all listings.
var allLists = listPlace(0)

// item is what is remembered of one place.
type item struct {
	place Place
	node  *Node // nil = nothing is there
	at    sigma.Version
	list  *Listing

	size       int
	used       atomic.Bool
	prev, next *item // in the order in which they are to be forgotten
}

// Listing is all of a directory, in named's order.
type Listing struct {
	Entries []sigma.DirEntry
	at      sigma.Version
}

// Cache is safe for concurrent use.
type Cache struct {
	cfg    Config
	budget *Budget

	mu     sync.RWMutex
	places map[Place]*item  // mu
	nodes  map[uint64]*item // mu; the same, of files
	lists  map[uint64]*item // mu; those that have a listing, by id
	first  *item            // mu; of a ring; to be forgotten next
	bytes  int              // mu

	alive   bool          // mu; there is a feed
	number  uint64        // mu; of the feed
	applied sigma.Version // mu; how far it has come
	began   sigma.Version // mu; where it began
	asked   time.Time     // mu; everything that changed before is known
	need    sigma.Version // mu; nothing is answered before the feed has come so far
	needAt  time.Time     // mu; or as far as it was then
	doubtAt time.Time     // mu; nothing is answered before the feed was asked after

	fetches int               // mu; under way
	ticks   uint64            // mu; counts Forget
	recent  map[Place]changed // mu; what changed while fetches are under way
	lost    changed           // mu; like recent, for everything
}

// changed says what is known of a place that changed: the version of the realm, or that it was done
// from here.
type changed struct {
	at   sigma.Version
	tick uint64
}

// recentMax bounds what is noted for the fetches that are under way; beyond it they all count as
// too old.
const recentMax = 4096

// New makes an empty cache without a feed.
func New(cfg Config) *Cache {
	c := &Cache{cfg: cfg, budget: cfg.Budget}
	if c.budget == nil {
		c.budget = &Budget{}
	}
	c.clearLocked()
	return c
}

func (c *Cache) clearLocked() {
	c.budget.forgot.Add(uint64(len(c.places)))
	c.budget.entries.Add(-int64(len(c.places)))
	c.chargeLocked(-c.bytes)
	c.places, c.nodes, c.lists, c.first = map[Place]*item{}, map[uint64]*item{}, map[uint64]*item{}, nil
}

// Clear forgets everything, and the feed.
func (c *Cache) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clearLocked()
	if c.alive {
		c.alive = false
		c.budget.caches.Add(-1)
	}
}

// Position is what the feed is to be asked for.
func (c *Cache) Position() (number uint64, since sigma.Version) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if !c.alive {
		return 0, 0
	}
	return c.number, c.applied
}

// usableLocked says whether anything may be answered.
func (c *Cache) usableLocked(now time.Time) bool {
	return c.alive && (c.applied >= c.need || c.asked.After(c.needAt)) && c.asked.After(c.doubtAt) &&
		now.Sub(c.asked) < c.cfg.Lease
}

// Want says what a Look is for besides the attributes of the last file.
type Want uint8

// What can be wanted.
const (
	WantExact     Want = 1 << iota // the attributes of the files on the way
	WantData                       // the content of the last, if it is not too long to be remembered
	WantUncounted                  // no miss, because another Look follows it
	WantOld                        // what is remembered, also when it may not be answered any more (Silent)
)

// Look finds the files that names lead to from the file with id from, which is the first of nodes.
// If they are not all, why says why, as NamesFound does. ok is false if named must be asked. nodes
// is appended to.
func (c *Cache) Look(now time.Time, from uint64, names []string, want Want, nodes []*Node) (_ []*Node, why sigma.Kind,
	ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	nodes, why, ok = c.lookLocked(now, from, names, want, nodes)
	if n := len(nodes) - 1; ok && want&WantData != 0 && why != sigma.KindNotFound && !nodes[n].HasData {
		ok = nodes[n].Stat.ID.Kind == sigma.KindDir || nodes[n].Stat.Size > uint64(c.cfg.DataMax)
	}
	if ok {
		c.budget.hits.Add(1)
	} else if want&WantUncounted == 0 {
		c.budget.misses.Add(1)
	}
	return nodes, why, ok
}

func (c *Cache) lookLocked(now time.Time, from uint64, names []string, want Want, nodes []*Node) (_ []*Node,
	why sigma.Kind, ok bool) {
	at := c.nodes[from]
	if at == nil || !c.usableLocked(now) && (want&WantOld == 0 || !c.alive) {
		return nodes, 0, false
	}
	at.touch()
	nodes = append(nodes, at.node)
	for _, name := range names {
		if at.node.Stat.ID.Kind != sigma.KindDir {
			return nodes, sigma.KindNotDir, !at.node.doubt
		}
		if want&WantExact != 0 && at.node.doubt {
			return nodes, 0, false
		}
		next := c.places[Place{at.node.Stat.ID.Path, name}]
		if next == nil {
			return nodes, 0, false
		}
		next.touch()
		if next.node == nil {
			return nodes, sigma.KindNotFound, true
		}
		at = next
		nodes = append(nodes, at.node)
	}
	return nodes, sigma.KindOther, !at.node.doubt
}

func (it *item) touch() {
	if !it.used.Load() {
		it.used.Store(true)
	}
}

// Staleness returns the age of the cache's last confirmed read from the feed, and whether it
// exceeds the lease. A stale cache answers only reads that accept old data.
func (c *Cache) Staleness(now time.Time) (age time.Duration, stale bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	age = now.Sub(c.asked)
	return age, c.alive && age >= c.cfg.Lease
}

// List returns the listing of a directory, whose entries must not be changed.
func (c *Cache) List(now time.Time, dir uint64, want Want) (*Listing, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if it := c.nodes[dir]; it != nil && it.list != nil && (c.usableLocked(now) || want&WantOld != 0 && c.alive) {
		it.touch()
		c.budget.hits.Add(1)
		return it.list, true
	}
	c.budget.misses.Add(1)
	return nil, false
}

// Fetch is a question to named that is under way.
type Fetch struct {
	c    *Cache
	tick uint64
	over bool
}

// Begin is called before named is asked; End of what it returns when all was entered.
func (c *Cache) Begin() *Fetch {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetches++
	return &Fetch{c: c, tick: c.ticks}
}

// End forgets the question.
func (f *Fetch) End() {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.over {
		return
	}
	f.over = true
	if c.fetches--; c.fetches == 0 {
		c.recent, c.lost = nil, changed{}
	}
}

// Enter takes an answer to a look. That of names which were asked for beyond what was found is
// nothing, if it is so. now is when the answer came.
func (f *Fetch) Enter(now time.Time, names []string, found *sigmap.NamesFound) {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range found.Nodes {
		c.seenLocked(now, found.Nodes[i].Stat.ID.Version)
	}
	if f.over || !c.alive || found.Number != c.number || found.At < c.began {
		return
	}
	for i := range found.Nodes {
		node := &Node{NamesNode: found.Nodes[i]}
		if i == len(found.Nodes)-1 && found.HasData && len(found.Data) <= c.cfg.DataMax {
			node.HasData, node.Data = true, bytes.Clone(found.Data) // which is a part of a message
		}
		f.enterNodeLocked(found.At, node, i == 0)
	}
	if last := len(found.Nodes) - 1; found.Why == sigma.KindNotFound && last >= 0 && last < len(names) {
		if place := (Place{found.Nodes[last].Stat.ID.Path, names[last]}); f.freshLocked(found.At, place) {
			c.putLocked(&item{place: place, at: found.At})
		}
	}
	c.boundLocked()
}

// enterNodeLocked takes a file as it was at a version. Of a file that was not found by its name
// nothing tells since when it has its place, as the directory's version does of others.
func (f *Fetch) enterNodeLocked(at sigma.Version, n *Node, byID bool) {
	c := f.c
	id, place := n.Stat.ID.Path, Place{n.Parent, n.Stat.Name}
	if byID && n.Parent != 0 && at > c.applied {
		if old := c.nodes[id]; old == nil || old.place != place {
			return
		}
	}
	if f.freshLocked(at, idPlace(id)) && f.freshLocked(at, place) {
		c.putLocked(&item{place: place, node: n, at: at})
	}
}

// EnterList takes a whole listing, in pieces.
func (f *Fetch) EnterList(now time.Time, pieces []sigmap.NamesListing) {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	count, same := 0, true
	for i := range pieces {
		p := &pieces[i]
		c.seenLocked(now, p.Dir.Stat.ID.Version)
		for j := range p.Entries {
			c.seenLocked(now, p.Entries[j].ID.Version)
		}
		count += len(p.Entries)
		same = same && p.Number == c.number
	}
	if len(pieces) == 0 || f.over || !c.alive || !same || pieces[0].At < c.began || count > c.cfg.ListMax {
		return
	}
	first := &pieces[0] // what changed after it will be told by the feed
	dir := first.Dir.Stat.ID.Path
	defer c.boundLocked()
	f.enterNodeLocked(first.At, &Node{NamesNode: first.Dir}, true)
	it := c.nodes[dir]
	if it == nil || !f.freshLocked(first.At, listPlace(dir)) || !f.freshLocked(first.At, allLists) || it.list != nil &&
		it.list.at >= first.At {
		return
	}
	l := &Listing{Entries: make([]sigma.DirEntry, 0, count), at: first.At}
	for i := range pieces {
		l.Entries = append(l.Entries, pieces[i].Entries...)
	}
	it.list = l
	c.lists[dir] = it
	c.weighLocked(it)
}

// freshLocked says whether nothing is known of a place that is newer than an answer at a version.
func (f *Fetch) freshLocked(at sigma.Version, p Place) bool {
	r := f.c.recent[p]
	return max(r.at, f.c.lost.at) <= at && max(r.tick, f.c.lost.tick) <= f.tick
}

// noteLocked tells the fetches under way that a place changed.
func (c *Cache) noteLocked(p Place, x changed) {
	if c.fetches == 0 {
		return
	}
	if len(c.recent) >= recentMax {
		for _, r := range c.recent {
			c.lost.at, c.lost.tick = max(c.lost.at, r.at), max(c.lost.tick, r.tick)
		}
		c.recent = nil
	}
	if c.recent == nil {
		c.recent = map[Place]changed{}
	}
	r := c.recent[p]
	c.recent[p] = changed{max(r.at, x.at), max(r.tick, x.tick)}
}

// seenLocked keeps older answers back when somebody here sees a file of a version.
func (c *Cache) seenLocked(now time.Time, v sigma.Version) {
	if v <= c.applied {
		return
	}
	if c.applied >= c.need || c.asked.After(c.needAt) { // that is over
		c.need = 0
	}
	c.need, c.needAt = max(c.need, v), now
}

// Require is called before an answer of named's is passed on that tells the version of a file and
// was not entered.
func (c *Cache) Require(now time.Time, v sigma.Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seenLocked(now, v)
}

// Doubt lets nothing be answered until the feed has told everything until now.
func (c *Cache) Doubt(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.After(c.doubtAt) {
		c.doubtAt = now
	}
}

// Forget is called before the answer to a change made from here is passed on, whatever it was. ids
// are of files that changed, which are in places if there are any; places are those where something
// else may be now, so that their directories changed too.
func (c *Cache) Forget(ids []uint64, places []Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticks++
	by := changed{tick: c.ticks}
	for _, id := range ids {
		c.noteLocked(idPlace(id), by)
		it := c.nodes[id]
		if it == nil {
			if len(places) == 0 { // nobody knows in which directory it is
				c.dropAllListsLocked(by)
			}
			continue
		}
		c.dropListLocked(it.place.Dir)
		c.noteLocked(listPlace(it.place.Dir), by)
		c.noteLocked(it.place, by)
		c.dropLocked(it)
	}
	for _, p := range places {
		c.dropListLocked(p.Dir)
		c.noteLocked(listPlace(p.Dir), by)
		c.noteLocked(idPlace(p.Dir), by)
		c.noteLocked(p, by)
		if dir := c.nodes[p.Dir]; dir != nil {
			c.dropListLocked(dir.place.Dir)
			c.noteLocked(listPlace(dir.place.Dir), by)
			doubtful := *dir.node
			doubtful.doubt = true
			dir.node = &doubtful
		} else {
			c.dropAllListsLocked(by)
		}
		if it := c.places[p]; it != nil {
			if it.node != nil {
				c.noteLocked(idPlace(it.node.Stat.ID.Path), by)
			}
			c.dropLocked(it)
		}
	}
}

func (c *Cache) dropAllListsLocked(by changed) {
	for dir := range c.lists {
		c.dropListLocked(dir)
	}
	c.noteLocked(allLists, by)
}

// Dir says which directory names lead to as far as is remembered, however old that is; ok is false
// if it is not.
func (c *Cache) Dir(from uint64, names []string) (id uint64, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	at := c.nodes[from]
	for _, name := range names {
		if at == nil || at.node == nil {
			return 0, false
		}
		at = c.places[Place{at.id(), name}]
	}
	if at == nil || at.node == nil || at.node.Stat.ID.Kind != sigma.KindDir {
		return 0, false
	}
	return at.id(), true
}

// Fresh reports whether the feed was answered within the lease.
func (c *Cache) Fresh(now time.Time) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.alive && now.Sub(c.asked) < c.cfg.Lease
}
