package remote

import (
	"bytes"
	"context"
	"hash/fnv"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/diskspace"
	"sigmaos.dev/trees/fence"
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

	mu    sync.Mutex
	waits map[string]*wait               // mu; who watches, by key
	known *simplelru.LRU[string, *found] // mu; what was found lately, by key
	last  sigma.Version                  // mu; the newest that was given
	floor sigma.Version                  // mu; the newest of a directory that was forgotten
	wrote uint64                         // mu; changes made by us
	dead  bool                           // mu
}

// sizeMax is the largest object that S3 has. No store is believed that says more.
const sizeMax = 5 << 40

// begin counts an object that is opened.
func (sp *space) begin(path string) error {
	if sp.opened.Add(1) <= int64(sp.t.cfg.OpenMax) {
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

// wait is what those who watch a key wait for.
type wait struct {
	wake chan struct{} // closed when it may have changed
	by   int           // so many
}

func newSpace(t *Tree, realm sigma.RealmID, c *client, prefix string) *space {
	sp := &space{t: t, realm: realm, c: c, prefix: prefix, locks: locks{held: map[string]*held{}},
		loading: make(chan struct{}, 1), waits: map[string]*wait{}}
	sp.known, _ = simplelru.NewLRU(knownMax, sp.forgotLocked) // it fails for a size of 0 only

	sp.floor = sp.afterLocked(0) // so that a directory's version is newer than before a restart
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
		_, err := sp.c.put(ctx, "/"+sigma.NameS3, sp.prefix+fencesKey, attr{version: sp.after(0),
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
	for key := range sp.waits {
		sp.wakeLocked(key)
	}
	sp.c.close()
}

func (sp *space) aliveLocked(op string) error {
	if sp.dead {
		return sigma.Errorf(op, sigma.KindStale, "the realm's objects are gone or no longer served")
	}
	return nil
}

// alive is an error once the realm's objects are served no more.
func (sp *space) alive(op string) error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.aliveLocked(op)
}

// wakeLocked tells who watches a key, and who remembers it, that it may have changed.
func (sp *space) wakeLocked(key string) {
	sp.t.cfg.Board.Changed(hashOf(key))
	if w := sp.waits[key]; w != nil {
		close(w.wake)
		w.wake = make(chan struct{})
	}
}

// watch gives what is closed when a key may have changed, until the function is called.
func (sp *space) watch(key string) (*wait, func()) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	w := sp.waits[key]
	if w == nil {
		w = &wait{wake: make(chan struct{})}
		sp.waits[key] = w
	}
	w.by++
	return w, func() {
		sp.mu.Lock()
		defer sp.mu.Unlock()
		if w.by--; w.by == 0 {
			delete(sp.waits, key)
		}
	}
}

// woken is the channel of now.
func (sp *space) woken(w *wait) <-chan struct{} {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return w.wake
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

// nameOf is the last name of a key.
func (sp *space) nameOf(key string) string {
	part := strings.TrimSuffix(strings.TrimPrefix(key, sp.prefix), "/")
	name, _ := decodeName(part[strings.LastIndexByte(part, '/')+1:])
	return name
}

// recall gives what is remembered of a key, if that is fresh; and the number of our changes, for
// learn.
func (sp *space) recall(key string) (f found, fresh bool, wrote uint64) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if at, ok := sp.known.Peek(key); ok {
		f = *at
		fresh = time.Since(f.at) < freshMax
	}
	return f, fresh, sp.wrote
}

func (sp *space) rememberLocked(f found) { sp.known.Add(f.key, &f) }

// forgotLocked notes that a key is remembered no more.
func (sp *space) forgotLocked(_ string, old *found) {
	if old.a.kind == sigma.KindDir {
		sp.floor = max(sp.floor, old.a.version)
	}
}

// learn takes what the store said of a key, when it was asked after so many changes of ours. It
// returns what is to be believed; ok is false if we changed the key meanwhile, and the store must
// be asked again.
func (sp *space) learn(key string, a attr, absent bool, wrote uint64) (f found, ok bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	f = found{key: key, a: a, absent: absent, at: time.Now()}
	old, ok := sp.known.Peek(key)
	if !ok {
		sp.rememberLocked(f)
		return f, true
	}
	if old.wrote > wrote {
		return f, false
	}
	f.wrote = old.wrote
	if !old.absent && !absent {
		if old.a.kind == sigma.KindDir || old.a.etag == a.etag && old.a.size == a.size {
			f.a.version = old.a.version
		} else if f.a.version <= old.a.version {
			f.a.version = old.a.version + 1
		}
	}
	sp.rememberLocked(f)
	if f.a.version != old.a.version || absent != old.absent {
		sp.wakeLocked(key)
	}
	return f, true
}

// changed notes a change of ours.
func (sp *space) changed(key string, a attr, absent bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.wrote++
	sp.rememberLocked(found{key: key, a: a, absent: absent, at: time.Now(), wrote: sp.wrote})
	sp.wakeLocked(key)
}

// doubt forgets when a key was looked at: what we tried to do to it may have happened or not.
func (sp *space) doubt(key string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if f, ok := sp.known.Peek(key); ok {
		f.at = time.Time{}
	}
}

// touch gives a directory a new version, after its entries changed.
func (sp *space) touch(key string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if f, ok := sp.known.Peek(key); ok {
		f.a.version = sp.afterLocked(f.a.version)
	} else {
		sp.floor = sp.afterLocked(sp.floor)
	}
	sp.wakeLocked(key)
}

// dirAttr is a directory of which nothing is known but that it is there.
func (sp *space) dirAttr(key string) attr {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return attr{kind: sigma.KindDir, version: sp.floor}
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
	if key == sp.prefix { // it is there whatever is in it
		f, _, _ := sp.recall(key)
		if f.key == "" {
			f = found{key: key, a: sp.dirAttr(key)}
		}
		return f, nil
	}
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

// have is ask for what must be there, and be of that kind.
func (sp *space) have(ctx context.Context, op, key string, kind sigma.FileKind) (attr, error) {
	f, err := sp.ask(ctx, key)
	switch {
	case err != nil:
		return attr{}, err
	case f.absent:
		return attr{}, sigma.PathError(op, sigma.KindNotFound, sp.pathOf(key))
	case f.a.kind != kind && kind == sigma.KindDir:
		return attr{}, sigma.PathError(op, sigma.KindNotDir, sp.pathOf(key))
	case f.a.kind != kind:
		return attr{}, sigma.PathError(op, sigma.KindIsDir, sp.pathOf(key))
	}
	return f.a, nil
}

// missed is an error if a directory is known to be gone. It need not be asked after: a key makes
// the directories that it is in.
func (sp *space) missed(ctx context.Context, op, dirKey string) error {
	if f, _, _ := sp.recall(dirKey); !f.absent {
		return nil
	}
	_, err := sp.have(ctx, op, dirKey, sigma.KindDir)
	return err
}
