package remote

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// The cache holds objects, or chunks of them, in files: one sparse file for each object and ETag.
// It is for one process: a new one begins with an empty directory, so that nothing has to be
// believed that lay on a disk while nobody looked. What is in it was compared with the store's
// checksum, where there is one, when it came, and is compared with a checksum in memory whenever a
// handle first touches it.

// chunkSize is what is fetched at once: a small object is one request, and of a large one a
// request's latency is small beside its bytes.
const chunkSize = 4 << 20

// aheadMax is how many chunks are fetched before they are asked for while an object is read in
// order.
const aheadMax = 3

var crcs = crc32.MakeTable(crc32.Castagnoli)

// entriesMax bounds the entries, each of which is an open file: the objects may be small.
const entriesMax = 4096

// cache is safe for concurrent use. Its order is its own: a cache of a library evicts also what
// somebody uses.
type cache struct {
	dir  string
	most uint64 // bytes

	mu      sync.Mutex
	entries map[cacheKey]*entry // mu
	recent  list.List           // mu; entries, the one used last in front
	used    uint64              // mu; bytes of chunks that are here or come
	names   uint64              // mu; file names given
}

// cacheKey is an object at an ETag, of a store of a realm.
type cacheKey struct {
	sp        *space
	key, etag string
}

// entry is what is here of an object.
type entry struct {
	c    *cache
	key  cacheKey
	path string // of the object, for people
	a    attr
	file *os.File
	name string

	at     *list.Element // cache.mu
	users  int           // cache.mu; bodies
	gone   bool          // cache.mu; not in the table any more
	passed bool          // cache.mu; somebody may have a descriptor of the file, from which nothing may vanish
	chunks []chunk       // cache.mu
}

type chunk struct {
	here  bool
	turn  int           // how often it was evicted
	comes chan struct{} // closed when the fetch that is under way is over; nil if none is
	sum   uint32
}

func newCache(dir string, most sigma.Bytes) (*cache, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, sigma.Wrap("remote.cache", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, sigma.Wrap("remote.cache", dir, err)
	}
	return &cache{dir: dir, most: uint64(most), entries: map[cacheKey]*entry{}}, nil
}

// use returns the entry of an object, for one more user.
func (c *cache) use(sp *space, path, key string, a attr) (*entry, error) {
	if err := sp.begin(path); err != nil {
		return nil, err
	}
	e, err := c.find(sp, path, key, a)
	if err != nil {
		sp.opened.Add(-1)
	}
	return e, err
}

// find returns the entry of an object, which it makes if there is none.
func (c *cache) find(sp *space, path, key string, a attr) (*entry, error) {
	if a.size > sizeMax {
		return nil, &sigma.Error{Op: "remote.cache", Path: path, Kind: sigma.KindTooBig,
			Msg: fmt.Sprintf("the store says that the object has %d bytes", a.size)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := cacheKey{sp, key, a.etag}
	if e := c.entries[k]; e != nil && e.a.size == a.size {
		e.users++
		c.recent.MoveToFront(e.at)
		return e, nil
	}
	for at := c.recent.Back(); at != nil && len(c.entries) >= entriesMax; {
		old, before := at.Value.(*entry), at.Prev()
		if old.users == 0 {
			c.dropLocked(old)
		}
		at = before
	}
	c.names++
	name := strconv.FormatUint(c.names, 10)
	f, err := os.OpenFile(filepath.Join(c.dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Truncate(int64(a.size))
	}
	if err != nil {
		return nil, cacheError(path, err)
	}
	e := &entry{c: c, key: k, path: path, a: a, file: f, name: name, users: 1,
		chunks: make([]chunk, (a.size+chunkSize-1)/chunkSize)}
	e.at = c.recent.PushFront(e)
	c.entries[k] = e
	return e, nil
}

func cacheError(path string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &sigma.Error{Op: "remote.cache", Path: path, Kind: sigma.KindNoSpace,
			Msg:  "the disk of the machine that keeps the cache of the object store is full",
			Hint: "make room in its data directory, or remove something else there"}
	}
	return sigma.Wrap("remote.cache", path, err)
}

// leave gives an entry back. The last user of one that was evicted meanwhile closes it.
func (c *cache) leave(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.key.sp.opened.Add(-1)
	e.users--
	if e.gone && e.users == 0 {
		e.file.Close()
	}
}

// dropLocked takes an entry out of the cache. Who uses it goes on, and descriptors that were passed
// stay good.
func (c *cache) dropLocked(e *entry) {
	if e.gone {
		return
	}
	e.gone = true
	delete(c.entries, e.key)
	c.recent.Remove(e.at)
	for i := range e.chunks {
		if e.chunks[i].here || e.chunks[i].comes != nil {
			c.used -= e.length(i)
		}
	}
	os.Remove(filepath.Join(c.dir, e.name))
	if e.users == 0 {
		e.file.Close()
	}
}

// makeRoomLocked evicts what was used longest ago, first what nobody has open.
func (c *cache) makeRoomLocked(more uint64, but *entry) {
	for _, alsoUsed := range []bool{false, true} {
		for at := c.recent.Back(); at != nil && c.used+more > c.most; {
			e, before := at.Value.(*entry), at.Prev()
			if e != but && (alsoUsed || e.users == 0) {
				c.dropLocked(e)
			}
			at = before
		}
	}
	if c.used+more > c.most && !but.gone && !but.passed { // an object that is larger than the cache goes through it
		for i := range but.chunks {
			if ch := &but.chunks[i]; ch.here && c.used+more > c.most {
				ch.here = false
				ch.turn++
				c.used -= but.length(i)
				unix.Fallocate(int(but.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
					int64(i)*chunkSize, int64(but.length(i)))
			}
		}
	}
}

// emptyLocked evicts everything that nobody has open; false if there was nothing.
func (c *cache) emptyLocked() (any bool) {
	for _, e := range c.entries {
		if e.users == 0 {
			c.dropLocked(e)
			any = true
		}
	}
	return any
}

// dropRealm forgets everything of a realm.
func (c *cache) dropRealm(sp *space) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, e := range c.entries {
		if k.sp == sp {
			c.dropLocked(e)
		}
	}
}

func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		c.dropLocked(e)
	}
}

// length is how many bytes chunk i has.
func (e *entry) length(i int) uint64 { return min(chunkSize, e.a.size-uint64(i)*chunkSize) }

// want makes sure that chunk i is here, fetching it or waiting for who does.
func (e *entry) want(ctx context.Context, i int, fetch func(ctx context.Context, offset, length int64,
	w func([]byte, int64) error) error) error {
	c := e.c
	for {
		c.mu.Lock()
		ch := &e.chunks[i]
		if ch.here {
			c.mu.Unlock()
			return nil
		}
		if comes := ch.comes; comes != nil {
			c.mu.Unlock()
			select {
			case <-comes:
				continue // if it failed, the next tries
			case <-ctx.Done():
				return sigma.Wrap("remote.Read", e.path, ctx.Err())
			}
		}
		ch.comes = make(chan struct{})
		n := e.length(i)
		c.makeRoomLocked(n, e)
		counted := !e.gone
		if counted {
			c.used += n
		}
		c.mu.Unlock()
		sum := uint32(0)
		err := fetch(ctx, int64(i)*chunkSize, int64(n), func(p []byte, at int64) error {
			if at == int64(i)*chunkSize {
				sum = 0 // a new attempt
			}
			sum = crc32.Update(sum, crcs, p)
			if _, err := e.file.WriteAt(p, at); err != nil {
				return cacheError(e.path, err)
			}
			return nil
		})
		c.mu.Lock()
		close(ch.comes)
		ch.comes = nil
		ch.here, ch.sum = err == nil, sum
		if err != nil && counted && !e.gone {
			c.used -= n
		}
		full := sigma.KindOf(err) == sigma.KindNoSpace && c.emptyLocked()
		c.mu.Unlock()
		if !full {
			return err
		}
	}
}

// missing says whether nothing is known to be on its way to chunk i.
func (e *entry) missing(i int) bool {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	return !e.chunks[i].here && e.chunks[i].comes == nil
}

// verify compares chunk i with its checksum. One that is wrong is forgotten; KindUnavailable then.
func (e *entry) verify(i int) error {
	sum := crc32.New(crcs)
	_, err := io.Copy(sum, io.NewSectionReader(e.file, int64(i)*chunkSize, int64(e.length(i))))
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	ch := &e.chunks[i]
	if err == nil && ch.here && ch.sum == sum.Sum32() {
		return nil
	}
	if ch.here {
		ch.here = false
		ch.turn++
		if !e.gone {
			e.c.used -= e.length(i)
		}
	}
	return sigma.Errorf("remote.cache", sigma.KindUnavailable, "the cache had wrong bytes")
}

// readAt reads bytes of chunk i that are here; ok is false if they were evicted meanwhile.
func (e *entry) readAt(p []byte, at int64, i int) (ok bool, err error) {
	turn, here := e.turn(i)
	if !here {
		return false, nil
	}
	if _, err := e.file.ReadAt(p, at); err != nil {
		return false, cacheError(e.path, err)
	}
	now, here := e.turn(i)
	return here && now == turn, nil
}

// turn tells how often chunk i was evicted, and whether it is here.
func (e *entry) turn(i int) (int, bool) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	return e.chunks[i].turn, e.chunks[i].here
}

// hold is for one more user of an entry that has one.
func (c *cache) hold(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.key.sp.opened.Add(1)
	e.users++
}

// emptyFile is the descriptor of an object without bytes.
func (c *cache) emptyFile() (*os.File, error) {
	name := filepath.Join(c.dir, "empty")
	f, err := os.OpenFile(name, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cacheError("", err)
	}
	return f, nil
}

// fits says whether an object can be in the cache as a whole beside others.
func (c *cache) fits(size uint64) bool { return size <= c.most/2 }

// pass opens the whole object for reading only. KindUnsupported if not all of it is here: some may
// have been evicted since it came.
func (e *entry) pass() (*os.File, error) {
	e.c.mu.Lock()
	whole := !e.gone
	for i := range e.chunks {
		whole = whole && e.chunks[i].here
	}
	e.passed = e.passed || whole
	e.c.mu.Unlock()
	if !whole {
		return nil, sigma.Errorf("remote.PassFile", sigma.KindUnsupported, "the object is not in the cache as a whole")
	}
	f, err := os.Open(filepath.Join(e.c.dir, e.name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, sigma.Errorf("remote.PassFile", sigma.KindUnsupported, "the object is not in the cache any more")
	}
	if err != nil {
		return nil, cacheError(e.path, err)
	}
	return f, nil
}
