package remote

import (
	"bytes"
	"container/list"
	"context"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/dirtree"
	"sigmaos.dev/diskspace"
	"sigmaos.dev/fence"
	"sigmaos.dev/sigma"
)

// fencesKey is where the fences of a realm are kept in its store: beside its buckets, as no bucket
// can be called.
const fencesKey = ".sigma-fences"

// space is one realm's part of the tree.
type space struct {
	t      *Tree
	realm  sigma.RealmID
	c      *client
	prefix string // of all keys; "" or ends with a slash
	store  Store
	whole  bool
	locks  locks

	loading chan struct{} // holds a token; who loads has it
	fences  *fence.Table  // set by load
	loaded  bool          // guarded by the token

	opened  atomic.Int64 // objects that are read or written
	spooled atomic.Int64 // bytes of uploads that are on the disk here

	mu     sync.Mutex
	root   *node
	nodes  map[string]*node         // mu; files that handles refer to, by key
	known  map[string]*list.Element // mu; of memory
	memory list.List                // mu; what was found lately, the last in front
	last   sigma.Version            // mu; the newest that was given
	floor  sigma.Version            // mu; the newest of a directory that was forgotten
	wrote  uint64                   // mu; changes made by us
	dead   bool                     // mu
}

// Bounds of what one realm has open, and of what it makes of the disk here while it writes. What a
// store says of sizes is believed up to the largest object that S3 has.
const (
	openMax = dirtree.OpenMaxDefault
	sizeMax = 5 << 40
)

// begin counts an object that is opened.
func (sp *space) begin(path string) error {
	if sp.opened.Add(1) <= openMax {
		return nil
	}
	sp.opened.Add(-1)
	return &sigma.Error{Op: "remote.Open", Path: path, Realm: sp.realm, Kind: sigma.KindBusy,
		Msg: "the realm has too many objects open", Hint: "close some, or open fewer at once"}
}

// spool counts bytes of what is being written, which are on the disk here until their part is sent.
// A realm has its share of the disk (diskspace.Share): parts that come before their turn wait
// there.
func (sp *space) spool(more uint64) error {
	held := sigma.Bytes(sp.spooled.Load())
	if disk, err := diskspace.Of(sp.t.spool); err == nil && held+sigma.Bytes(more) > diskspace.Share(held,
		diskspace.Left(disk)) {
		return spoolError(unix.ENOSPC)
	}
	sp.spooled.Add(int64(more))
	return nil
}

// found is what is remembered of a key.
type found struct {
	key    string
	a      attr
	absent bool
	at     time.Time // when it was found; zero = it must be looked at again
	wrote  uint64    // space.wrote after our last change of it
}

// node is a file or directory that handles refer to, by whatever name. The key of a directory ends
// with a slash.
type node struct {
	key     string // space.mu, and the lock of the key
	name    string // space.mu
	a       attr   // space.mu
	refs    int    // space.mu
	removed bool   // space.mu
	wake    chan struct{}
}

func newSpace(t *Tree, realm sigma.RealmID, c *client, prefix string) *space {
	sp := &space{t: t, realm: realm, c: c, prefix: prefix, locks: locks{held: map[string]*held{}},
		loading: make(chan struct{}, 1), nodes: map[string]*node{}, known: map[string]*list.Element{}}
	sp.floor = sp.afterLocked(0) // so that a directory's version is newer than before a restart
	sp.root = &node{key: prefix, a: attr{kind: sigma.KindDir, id: hashOf(prefix), version: sp.floor}, refs: 1}
	sp.nodes[prefix] = sp.root
	return sp
}

func hashOf(s string) uint64 {
	h := fnv.New64a()
	io.WriteString(h, s)
	return h.Sum64()
}

// afterLocked gives a version that is newer than v and all that were given.
func (sp *space) afterLocked(v sigma.Version) sigma.Version {
	sp.last = max(sp.last+1, v+1, sigma.Version(time.Now().UnixNano()))
	return sp.last
}

func (sp *space) after(v sigma.Version) sigma.Version {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.afterLocked(v)
}

// load reads the realm's fences, once.
func (sp *space) load(ctx context.Context) error {
	const op = "remote.Attach"
	select {
	case sp.loading <- struct{}{}:
		defer func() { <-sp.loading }()
	case <-ctx.Done():
		return sigma.Wrap(op, "", ctx.Err())
	}
	if sp.loaded {
		return nil
	}
	var data bytes.Buffer
	a, err := sp.c.head(ctx, "/"+sigma.NameS3, sp.prefix+fencesKey)
	if err == nil && a.size > 4*fence.NamesMax+32*fence.FencesMax {
		err = sigma.Errorf(op, sigma.KindTooBig, "the list of fences in the object store is too long")
	}
	if err == nil && a.size > 0 {
		err = sp.c.fetch(ctx, "/"+sigma.NameS3, sp.prefix+fencesKey, a, 0, int64(a.size),
			func(p []byte, at int64) error {
				data.Truncate(int(at))
				data.Write(p)
				return nil
			})
	}
	if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return sigma.Wrap(op, "", err)
	}
	var known []sigma.Fence
	if err == nil {
		if known, err = fence.Decode(data.Bytes()); err != nil {
			return sigma.Wrap(op, "", err)
		}
	}
	sp.fences = fence.NewTable(fence.Config{Known: known, Save: func(ctx context.Context, _ sigma.Fence,
		all []sigma.Fence) error {
		text := fence.Encode(all)
		_, err := sp.c.put(ctx, "/"+sigma.NameS3, sp.prefix+fencesKey, attr{id: 1, version: sp.after(0),
			size: uint64(len(text))}, bytes.NewReader(text), condition{})
		return err
	}})
	sp.loaded = true
	return nil
}

// end makes all handles stale and wakes who watches.
func (sp *space) end() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.dead = true
	for _, n := range sp.nodes {
		sp.wakeLocked(n)
	}
	sp.c.close()
}

func (sp *space) aliveLocked(op string) error {
	if sp.dead {
		return sigma.Errorf(op, sigma.KindStale, "the realm's objects are gone or no longer served")
	}
	return nil
}

func (sp *space) wakeLocked(n *node) {
	sp.t.cfg.Board.Changed(n.a.id)
	if n.wake != nil {
		close(n.wake)
		n.wake = nil
	}
}

// take adds a reference.
func (sp *space) take(n *node) *node {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	n.refs++
	return n
}

func (sp *space) release(n *node) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if n.refs--; n.refs == 0 && sp.nodes[n.key] == n {
		delete(sp.nodes, n.key)
	}
}

// nodeOf returns the node of what was found, with a reference.
func (sp *space) nodeOf(key, name string, a attr) *node {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	n := sp.nodes[key]
	if n == nil {
		n = &node{key: key, name: name, a: a}
		sp.nodes[key] = n
	}
	n.refs++
	return n
}

// pathOf is a key as the realm's users see it.
func (sp *space) pathOf(key string) string {
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(key, sp.prefix), "/"), "/")
	for i, part := range parts {
		if name, ok := decodeName(part); ok {
			parts[i] = name
		}
	}
	return "/" + sigma.NameS3 + "/" + strings.Join(parts, "/")
}

// recall gives what is remembered of a key, if that is fresh; and the number of our changes, for
// learn.
func (sp *space) recall(key string) (f found, fresh bool, wrote uint64) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if at := sp.known[key]; at != nil {
		f = *at.Value.(*found)
		fresh = time.Since(f.at) < freshMax
	}
	return f, fresh, sp.wrote
}

func (sp *space) rememberLocked(f found) {
	if at := sp.known[f.key]; at != nil {
		*at.Value.(*found) = f
		sp.memory.MoveToFront(at)
		return
	}
	sp.known[f.key] = sp.memory.PushFront(&f)
	if sp.memory.Len() > knownMax {
		old := sp.memory.Remove(sp.memory.Back()).(*found)
		delete(sp.known, old.key)
		if old.a.kind == sigma.KindDir {
			sp.floor = max(sp.floor, old.a.version)
		}
	}
}

// learn takes what the store said of a key, when it was asked after so many changes of ours. It
// returns what is to be believed; ok is false if we changed the key meanwhile, and the store must
// be asked again.
func (sp *space) learn(key string, a attr, absent bool, wrote uint64) (f found, ok bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	f = found{key: key, a: a, absent: absent, at: time.Now()}
	n := sp.nodes[key]
	var before *attr
	if at := sp.known[key]; at != nil {
		old := at.Value.(*found)
		if old.wrote > wrote {
			return f, false
		}
		f.wrote = old.wrote
		before = &old.a
		if old.absent {
			before = nil
		}
	} else if n != nil && !n.removed {
		before = &n.a
	}
	if before != nil && !absent {
		if before.kind == sigma.KindDir || before.etag == a.etag && before.size == a.size {
			f.a.id, f.a.version = before.id, before.version
		} else if f.a.version <= before.version {
			f.a.version = before.version + 1
		}
	}
	sp.rememberLocked(f)
	switch {
	case n == nil || n.removed:
	case absent:
		sp.goneLocked(n)
	case n.a != f.a:
		changed := n.a.version != f.a.version
		n.a = f.a
		if changed {
			sp.wakeLocked(n)
		}
	}
	return f, true
}

// changed notes a change of ours.
func (sp *space) changed(key string, a attr, absent bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.wrote++
	sp.rememberLocked(found{key: key, a: a, absent: absent, at: time.Now(), wrote: sp.wrote})
	n := sp.nodes[key]
	switch {
	case n == nil:
		sp.t.cfg.Board.Changed(a.id)
	case absent:
		sp.goneLocked(n)
	default:
		n.a = a
		sp.wakeLocked(n)
	}
}

// doubt forgets when a key was looked at: what we tried to do to it may have happened or not.
func (sp *space) doubt(key string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if at := sp.known[key]; at != nil {
		at.Value.(*found).at = time.Time{}
	}
}

func (sp *space) goneLocked(n *node) {
	n.removed = true
	if sp.nodes[n.key] == n {
		delete(sp.nodes, n.key)
	}
	sp.wakeLocked(n)
}

// touch gives a directory a new version, after its entries changed.
func (sp *space) touch(key string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	n := sp.nodes[key]
	if at := sp.known[key]; at != nil {
		f := at.Value.(*found)
		f.a.version = sp.afterLocked(f.a.version)
		if n != nil {
			n.a.version = f.a.version
		}
	} else if n != nil {
		n.a.version = sp.afterLocked(n.a.version)
	}
	if n != nil {
		sp.wakeLocked(n)
	}
}

// dirAttr is a directory of which nothing is known but that it is there.
func (sp *space) dirAttr(key string) attr {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return attr{kind: sigma.KindDir, id: hashOf(key), version: sp.floor}
}

// look finds what is at a name of a directory: key is that of the object, or with a slash that of
// the directory. An object hides a directory of the same name, which only others can make.
func (sp *space) look(ctx context.Context, dirKey, name string) (key string, a attr, err error) {
	key, err = join(dirKey, name)
	if err != nil {
		return "", attr{}, err
	}
	top := dirKey == sp.prefix
	if top && sp.t.cfg.Check != nil && sp.t.cfg.Check(true, name, sigma.KindDir) != nil {
		return "", attr{}, sigma.PathError("remote.Walk", sigma.KindNotFound, name)
	}
	if !top {
		f, err := sp.ask(ctx, key)
		if err != nil || !f.absent {
			return key, f.a, err
		}
	}
	f, err := sp.ask(ctx, key+"/")
	if err == nil && f.absent {
		err = sigma.PathError("remote.Walk", sigma.KindNotFound, sp.pathOf(key))
	}
	return key + "/", f.a, err
}

// ask says what is at a key, by memory or the store's word.
func (sp *space) ask(ctx context.Context, key string) (found, error) {
	for {
		f, fresh, wrote := sp.recall(key)
		if fresh {
			return f, nil
		}
		a, absent, err := sp.askStore(ctx, key)
		if err != nil {
			return found{}, err
		}
		if f, ok := sp.learn(key, a, absent, wrote); ok {
			return f, nil
		}
	}
}

func (sp *space) askStore(ctx context.Context, key string) (a attr, absent bool, err error) {
	a, err = sp.c.head(ctx, sp.pathOf(key), key)
	if sigma.KindOf(err) != sigma.KindNotFound || err == nil {
		return a, false, err
	}
	if !strings.HasSuffix(key, "/") {
		return attr{}, true, nil
	}
	p, err := sp.c.list(ctx, sp.pathOf(key), key, "", "", "", 1) // a directory that has no object of its own
	if err != nil || len(p.objects) == 0 {
		return attr{}, err == nil, err
	}
	return sp.dirAttr(key), false, nil
}

// refresh asks for a node's file again, if it was not looked at lately.
func (sp *space) refresh(ctx context.Context, n *node) error {
	if n == sp.root {
		return nil
	}
	sp.mu.Lock()
	key := n.key
	sp.mu.Unlock()
	_, err := sp.ask(ctx, key)
	return err
}

func newID() uint64 { return rand.Uint64() | 1 }
