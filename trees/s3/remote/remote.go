// Package remote is the object store of s3 in a store of S3's kind on the network: /BUCKET/KEY of a
// realm is the object PREFIX/BUCKET/KEY there, which other clients of that store see under this
// key.
//
// It promises
//   - that an object is seen whole or not at all, also if its writer, this process or the
//     connection dies: small ones are put in one request, large ones in parts that are aborted
//     unless all are there;
//   - that bytes are what the store has: of the length and ETag that were asked for, and of the
//     checksum where the ETag is one; a reader sees one object or gets KindStale, never a mixture
//     of two;
//   - that every request is bounded: in time, in repetitions (with growing pauses), and in number
//     under way; what fails says which object and why;
//   - that listings are read page by page, whatever their length;
//   - that credentials are in no error, log or listing, and that no path leads out of the realm's
//     prefix: names become parts of keys by encodeName, and a key is a prefix of ours with such
//     parts.
//
// It assumes that one process serves a realm's prefix, so that it alone orders changes; changes by
// others are noticed when an object is looked at, within freshMax, and never overwritten by a
// conditional write. Links, appending, moving directories and setting times are not there.
//
// There are objects and their keys, and no files behind them: a handle is of a key, and has what is
// there when it is used, but for the bytes of one that it has open. It does not follow a rename. A
// directory is the beginning of keys.
//
// What is read is kept in a cache on disk, bounded, by object and ETag. A whole object in it is
// passed as a descriptor.
//
// Locks: the keys of a change (locks.go), in their order; then space.mu or cache.mu, which are held
// for moments, and under neither is the store asked.
package remote

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/trees/diskfs"
	"sigmaos.dev/trees/treeserver"
)

const (
	// freshMax is how long what was found is believed: how late a change behind our back may be
	// noticed.
	freshMax = time.Second
	// knownMax bounds what is remembered of objects that nobody has open, in all realms: about 30
	// MiB.
	knownMax = 1 << 17
	// The size of the cache, if none is given: a quarter of the room that its disk has, within
	// these.
	cacheMost  = 4 * sigma.GiB
	cacheLeast = 256 * sigma.MiB
)

// Config says what is served.
type Config struct {
	Dir string // for the cache, and for what is being written
	// 0 means a quarter of the room on the disk, from 256 MiB to 4 GiB
	Cache sigma.Bytes
	// OpenMax bounds the objects that one realm may have open; 0 means diskfs.OpenMaxDefault
	OpenMax int
	Check   func(top bool, name string, kind sigma.FileKind) error // whether an entry may be made; see diskfs.Policy
	Dial    Dial
	// Patience bounds one operation with all its repetitions, if nobody gives it less; 0 means 30
	// s.
	Patience time.Duration
	Board    *changeboard.Board // nil = nobody remembers what they found
	Log      *slog.Logger
}

// Tree serves the stores of realms. Safe for concurrent use.
type Tree struct {
	cfg   Config
	cache *cache
	spool string

	work   sync.WaitGroup
	ctx    context.Context // of what is done in the background
	cancel context.CancelFunc

	mu      sync.Mutex
	spaces  map[sigma.RealmID]*space  // mu
	left    map[sigma.RealmID][]begun // mu; uploads of an earlier process
	closed  bool                      // mu
	ticking bool                      // mu
}

// New makes a Tree, and removes what an earlier one left in Dir.
func New(cfg Config) (*Tree, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Cache == 0 {
		cfg.Cache = cacheSize(cfg.Dir)
	}
	if cfg.OpenMax == 0 {
		cfg.OpenMax = diskfs.OpenMaxDefault
	}
	c, err := newCache(filepath.Join(cfg.Dir, "cache"), cfg.Cache)
	if err != nil {
		return nil, err
	}
	t := &Tree{cfg: cfg, cache: c, spool: filepath.Join(cfg.Dir, "uploads"), spaces: map[sigma.RealmID]*space{},
		left: map[sigma.RealmID][]begun{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	err = os.RemoveAll(t.spool)
	if err == nil {
		err = os.MkdirAll(t.spool, 0o700)
	}
	if err == nil {
		err = t.openJournal()
	}
	if err != nil {
		t.Close()
		return nil, sigma.Wrap("remote.New", cfg.Dir, err)
	}
	return t, nil
}

// cacheSize is how large a cache in a directory should be.
func cacheSize(dir string) sigma.Bytes {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return cacheLeast
	}
	return min(cacheMost, max(cacheLeast, sigma.Bytes(st.Bavail*uint64(st.Bsize)/4)))
}

// Attach returns the directory of buckets of a realm whose objects are in a store; whole says that
// all below its URL are the realm's, else those below the realm's name.
func (t *Tree) Attach(ctx context.Context, realm sigma.RealmID, s Store, whole bool) (sigma.File, error) {
	sp, err := t.space(realm, s, whole)
	if err != nil {
		return nil, err
	}
	if err := sp.load(ctx); err != nil {
		return nil, err
	}
	return treeserver.Fenced(sp.fences, &file{sp: sp, key: sp.prefix}), nil
}

// space returns the realm's part, which is made anew when its store is another.
func (t *Tree) space(realm sigma.RealmID, s Store, whole bool) (*space, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, sigma.Errorf("remote.Attach", sigma.KindUnavailable, "the tree is closed")
	}
	if sp := t.spaces[realm]; sp != nil && sp.store == s && sp.whole == whole {
		return sp, nil
	} else if sp != nil {
		t.endLocked(realm, sp)
	}
	owner := sigma.SystemRealm
	if whole {
		owner = realm
	}
	c, err := newClient(s, t.cfg.Dial, owner)
	if err != nil {
		return nil, err
	}
	if t.cfg.Patience != 0 {
		c.patience = t.cfg.Patience
	}
	prefix := c.prefix
	if !whole {
		prefix += string(realm) + "/"
	}
	sp := newSpace(t, realm, c, prefix)
	sp.store, sp.whole = s, whole
	t.spaces[realm] = sp
	t.abortLeftLocked(realm, c)
	if t.cfg.Board != nil && !t.ticking {
		t.ticking = true
		t.work.Go(t.tick)
	}
	return sp, nil
}

// background runs what is good to have but nobody waits for, unless the tree is being closed.
func (t *Tree) background(do func(ctx context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.work.Go(func() { do(t.ctx) })
	}
}

// async runs what must be done and nobody waits for: beside the others, or before it returns if the
// tree is being closed.
func (t *Tree) async(do func()) {
	t.mu.Lock()
	closed := t.closed
	if !closed {
		t.work.Go(do)
	}
	t.mu.Unlock()
	if closed {
		do()
	}
}

// tick says once a second that anything may have changed: nobody tells us of changes behind our
// back.
func (t *Tree) tick() {
	ticker := time.NewTicker(freshMax)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			t.cfg.Board.AllChanged()
		case <-t.ctx.Done():
			return
		}
	}
}

func (t *Tree) endLocked(realm sigma.RealmID, sp *space) {
	delete(t.spaces, realm)
	sp.end()
	t.cache.dropRealm(sp)
}

// Forget ends the service of a realm here; its handles become stale. Its objects stay.
func (t *Tree) Forget(realm sigma.RealmID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sp := t.spaces[realm]; sp != nil {
		t.endLocked(realm, sp)
	}
}

// RemoveRealm removes all objects of a realm below its name.
func (t *Tree) RemoveRealm(ctx context.Context, realm sigma.RealmID, s Store) error {
	sp, err := t.space(realm, s, false)
	if err != nil {
		return err
	}
	t.Forget(realm)
	defer sp.c.close()
	for {
		p, err := sp.c.list(ctx, "", sp.prefix, "", "", "", listPage)
		if err != nil {
			return sigma.Wrap("remote.RemoveRealm", string(realm), err)
		}
		if len(p.objects) == 0 {
			return nil
		}
		for _, o := range p.objects {
			if err := sp.c.remove(ctx, "", o.Key); err != nil {
				return sigma.Wrap("remote.RemoveRealm", string(realm), err)
			}
		}
	}
}

// Probe asks a store for one page, once, and says what is wrong with it. owner is whose store it
// is, for dial.
func Probe(ctx context.Context, s Store, dial Dial, owner sigma.RealmID) error {
	c, err := newClient(s, dial, owner)
	if err != nil {
		return err
	}
	defer c.close()
	c.once = true
	_, err = c.list(ctx, "", c.prefix, "/", "", "", 1)
	return err
}

// Close ends the service. Open handles answer KindStale, and uploads are aborted.
func (t *Tree) Close() {
	t.mu.Lock()
	t.closed = true
	for realm, sp := range t.spaces {
		t.endLocked(realm, sp)
	}
	t.mu.Unlock()
	if t.cancel != nil {
		t.cancel()
	}
	t.work.Wait()
	t.cache.close()
}
