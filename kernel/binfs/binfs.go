// Package binfs turns the realm path of a program into an open file that the launcher can execute.
// A program that was never on this machine is started before all its bytes are: the file is then
// one of a FUSE mount, whose pages are fetched in chunks when they are touched and in the
// background. Once all chunks are here the file is a plain one of the cache, and a start touches no
// FUSE.
//
// It promises that a proc runs wholly one version of its program or is told that it cannot; that
// concurrent starts fetch once; that no byte is executed whose chunk did not have the right hash,
// neither when it was fetched nor when it was found on disk after a restart; that the cache stays
// within its size without taking away what runs; and that a store which is down makes starts fail
// and procs wait, both within a bound. docs/reference/binfs.md has the details.
//
// It assumes that the store keeps a version for who has it open, as s3 does. Users: kernel.
//
// Locks: Cache.mu guards the tables and what programs say it guards; program.mu the chunks of one
// program; server.mu the READs under way. program.mu may be taken under Cache.mu; no file is read
// or written under either, but the cache's small ones under Cache.mu.
package binfs

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// Limits.
const (
	ProgramMax  = 1 * sigma.GiB // one program
	programsMax = 4096          // programs in the cache; each holds a file descriptor
	// bytes; smaller programs are fetched whole before their start, which costs no more round trips
	// than paging
	wholeMax    = 1 << 20
	replacedMax = 8             // tries of a start whose program is replaced while it is fetched
	diskShare   = 10            // the cache takes at most 1/diskShare of its disk, by default
	bytesMax    = 8 * sigma.GiB // and no more than this
	bytesMin    = 64 * sigma.MiB
)

// Mount is a FUSE mount that the launcher made (launcher-protocol.md).
type Mount struct {
	Device *os.File // on which the kernel asks
	Root   *os.File // beneath which programs are opened
}

// Config says where programs come from and where they are kept.
type Config struct {
	Dir string // the cache's own
	// Max bounds the bytes of programs in Dir; 0 = a tenth of the disk, 8 GiB at most. What runs is
	// kept beyond it.
	Max sigma.Bytes
	// Tree gives a realm's tree, for programs that are fetched on after a restart. Source, if not
	// nil, replaces it.
	Tree   func(sigma.RealmID) (Tree, error)
	Source Source
	Peers  Peers  // nil = no other machine is asked
	Mount  *Mount // nil = none: programs are fetched whole before their first start
	// OpenMax bounds how long Open waits for the bytes that a start needs; 0 = 20 s.
	OpenMax time.Duration
	// FaultMax bounds how long a running proc waits for a page; then it gets SIGBUS. 0 = 2 minutes.
	FaultMax time.Duration
	// FillDelay is how long after a start the rest begins to be fetched, so that it does not take
	// the start's time; 0 = 10 ms, negative = never.
	FillDelay time.Duration
	Log       *slog.Logger // nil = none
}

func (cfg *Config) setDefaults() error {
	if cfg.Source == nil {
		if cfg.Tree == nil {
			return sigma.Errorf("binfs.New", sigma.KindInvalid, "no source of programs was given")
		}
		cfg.Source = treeSource{cfg.Tree}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&cfg.OpenMax, 20 * time.Second}, {&cfg.FaultMax, 2 * time.Minute}, {&cfg.FillDelay, 10 * time.Millisecond}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if cfg.Max == 0 {
		var st unix.Statfs_t
		if err := unix.Statfs(cfg.Dir, &st); err != nil {
			return sigma.Wrap("binfs.New", cfg.Dir, os.NewSyscallError("statfs", err))
		}
		cfg.Max = max(min(sigma.Bytes(st.Blocks)*sigma.Bytes(st.Bsize)/diskShare, bytesMax), bytesMin)
	}
	return nil
}

// Cache is one machine's programs. Safe for concurrent use.
type Cache struct {
	cfg    Config
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup // fetches
	served sync.WaitGroup // the server
	count  counters

	buffers chan []byte // of chunkSize, to be used again

	fromTree  bool        // the source is the realm's tree
	unmounted atomic.Bool // nobody answers for the mount

	mu       sync.Mutex
	known    map[key]*program           // mu
	nodes    map[uint64]*node           // mu; those that the kernel may know
	contents map[Hash]*program          // mu; complete ones
	order    *list.List                 // mu; of *program, least recently used first; those that run are passed over
	at       map[*program]*list.Element // mu
	paths    map[place]int              // mu; how many versions of a path are known
	lastNode uint64                     // mu
	bytes    int64                      // mu; on disk
}

// key is one version of one file of a realm.
type key struct {
	realm sigma.RealmID
	path  string
	id    sigma.FileID
}

type place struct {
	realm sigma.RealmID
	path  string
}

type counters struct {
	fetchedBytes, fetchedChunks, corruptFetched, corruptStored, unstored, evicted, paged, plain atomic.Uint64
	peerBytes, peerChunks, peerFailed, corruptPeer, givenBytes                                  atomic.Uint64
}

// Stats are figures of a cache since it was made.
type Stats struct {
	FetchedBytes, FetchedChunks uint64
	PeerBytes, PeerChunks       uint64 // of them, those that came from other machines
	PeerFailed, CorruptPeer     uint64 // chunks that another machine did not have, or sent damaged
	GivenBytes                  uint64 // to other machines
	CorruptFetched              uint64 // chunks that came damaged
	CorruptStored               uint64 // chunks that were found damaged on disk
	Unstored                    uint64 // chunks that the disk did not take
	Evicted                     uint64 // programs
	Paged, Plain                uint64 // starts through FUSE, and by a plain file
	Bytes                       uint64 // on disk now
	Programs                    uint64 // now
}

// Stats tells what the cache did.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	bytes, programs := c.bytes, c.order.Len()
	c.mu.Unlock()
	n := &c.count
	return Stats{FetchedBytes: n.fetchedBytes.Load(), FetchedChunks: n.fetchedChunks.Load(),
		CorruptFetched: n.corruptFetched.Load(), CorruptStored: n.corruptStored.Load(),
		PeerBytes: n.peerBytes.Load(), PeerChunks: n.peerChunks.Load(), PeerFailed: n.peerFailed.Load(),
		CorruptPeer: n.corruptPeer.Load(), GivenBytes: n.givenBytes.Load(),
		Unstored: n.unstored.Load(), Evicted: n.evicted.Load(), Paged: n.paged.Load(), Plain: n.plain.Load(),
		Bytes: uint64(max(bytes, 0)), Programs: uint64(programs)}
}

// New makes a cache in dir with what a former one left there, and begins to answer the kernel.
// Close ends it.
func New(cfg Config) (*Cache, error) {
	for _, dir := range []string{cfg.Dir, partsDir(cfg.Dir), contentsDir(cfg.Dir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, sigma.Wrap("binfs.New", dir, err)
		}
	}
	fromTree := cfg.Source == nil
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c := &Cache{cfg: cfg, fromTree: fromTree, buffers: make(chan []byte, 2*aheadMax), known: map[key]*program{},
		nodes: map[uint64]*node{}, contents: map[Hash]*program{}, order: list.New(), at: map[*program]*list.Element{},
		paths:    map[place]int{},
		lastNode: uint64(time.Now().UnixMicro())} // so that no number comes again in the next life
	c.ctx, c.stop = context.WithCancel(context.Background())
	if err := c.load(); err != nil {
		return nil, err
	}
	if cfg.Mount != nil {
		s := newServer(cfg.Mount.Device, c)
		c.served.Go(func() {
			err := s.run()
			c.unmounted.Store(true)
			if c.ctx.Err() == nil {
				cfg.Log.Error("programs are fetched whole from now on, since the mount is gone", "err", err)
			}
		})
		context.AfterFunc(c.ctx, s.stop)
		if err := settle(cfg.Mount); err != nil {
			cfg.Log.Warn("if sigmad is killed now, it may not end until its FUSE connection is aborted", "err", err)
		}
	}
	return c, nil
}

// Close ends fetches and stops answering the kernel; procs that still page wait until another cache
// takes over the mount. The files stay.
func (c *Cache) Close() {
	c.stop()
	if c.cfg.Mount != nil {
		c.cfg.Mount.Device.SetReadDeadline(time.Unix(1, 0))
	}
	c.mu.Lock()
	all := make([]*program, 0, len(c.at))
	for p := range c.at {
		all = append(all, p)
	}
	c.mu.Unlock()
	c.served.Wait()
	c.work.Wait()
	for _, p := range all {
		p.closeFiles()
	}
}

// Open returns the program at path of a realm's tree, open for reading. release must be called once
// when no proc runs it any more; the file must not be closed.
func (c *Cache) Open(ctx context.Context, realm sigma.RealmID, tree Tree, path string) (f *os.File, release func(),
	err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.OpenMax)
	defer cancel()
	for try := 1; ; try++ {
		find := c.find
		if try > 1 && c.fromTree {
			find = c.hold
		}
		var p *program
		if p, err = find(ctx, realm, tree, path); err == nil {
			if f, release, err = c.open(ctx, p); err == nil {
				return f, release, nil
			}
			c.release(p, false)
		}
		if sigma.KindOf(err) != sigma.KindStale || try >= replacedMax {
			return nil, nil, err
		}
	}
}

// find looks a path up and returns the program of the version that it has now, with the caller
// counted as a user.
func (c *Cache) find(ctx context.Context, realm sigma.RealmID, tree Tree, path string) (*program, error) {
	c.mu.Lock()
	known := c.paths[place{realm, path}] > 0
	c.mu.Unlock()
	n := Name{Realm: realm, Path: path}
	var r sigma.GetResult
	var err error
	var o *treeObject
	if !known { // one round trip; Stat takes three, but a realm's tree answers it by heart when it was asked before
		if c.fromTree { // meanwhile the file is opened
			o = newTreeObject(tree, n)
			defer func() {
				if o != nil {
					c.work.Go(o.Close)
				}
			}()
		}
		r, err = tree.GetAt(ctx, path, 0, 1)
		n.ID, n.Size = r.ID, int64(min(r.Size, 1<<62))
	}
	if kind := sigma.KindOf(err); known || err != nil &&
		(kind == sigma.KindIsDir || kind == sigma.KindUnsupported) { // what it is, it says when asked
		st, err := tree.Stat(ctx, path)
		if err != nil {
			return nil, err
		}
		n.ID, n.Size = st.ID, int64(min(st.Size, 1<<62))
	} else if err != nil {
		return nil, err
	}
	if err := n.startable(); err != nil {
		return nil, err
	}
	p, err := c.enter(n)
	if err == nil && o != nil && p.offer(o, n) {
		o = nil
	}
	return p, err
}

// hold is find for a program that was replaced while it was fetched. It opens the file before it
// asks which version that is, so whatever is done to the name from now on, the version can be had:
// a start is not lost to somebody who replaces its program faster than that can be fetched.
func (c *Cache) hold(ctx context.Context, realm sigma.RealmID, tree Tree, path string) (*program, error) {
	n := Name{Realm: realm, Path: path}
	o := newTreeObject(tree, n)
	defer func() {
		if o != nil {
			c.work.Go(o.Close)
		}
	}()
	st, err := o.stat(ctx)
	if err != nil {
		return nil, err
	}
	n.ID, n.Size = st.ID, int64(min(st.Size, 1<<62))
	if err := n.startable(); err != nil {
		return nil, err
	}
	p, err := c.enter(n)
	if err != nil {
		return nil, err
	}
	if old, taken := p.replaceLost(o, n); taken {
		o = old
	}
	return p, nil
}

// startable fails for what the answer about a path says is no program.
func (n Name) startable() error {
	switch {
	case n.ID.Kind == sigma.KindDir:
		return notProgram(n.Path, "is a directory, not a program")
	case n.ID.Kind != sigma.KindFile:
		return notProgram(n.Path, "is a "+n.ID.Kind.String()+", not a program")
	case n.Size > int64(ProgramMax):
		return notProgram(n.Path, fmt.Sprintf("program is larger than %v", ProgramMax))
	case n.Size == 0:
		return notProgram(n.Path, "not a program: it has only 0 bytes")
	}
	return nil
}

// replaceLost gives a program an object that has its version, if it has none or one that said that
// the version is gone, which is returned to be closed.
func (p *program) replaceLost(o *treeObject, n Name) (old *treeObject, taken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 || p.name.ID != n.ID || p.object != nil &&
		(p.failed == nil || sigma.KindOf(p.failed) != sigma.KindStale) {
		return nil, false
	}
	old, _ = p.object.(*treeObject)
	o.name = p.name
	p.object, p.failed = o, nil
	return old, true
}

// offer gives a program its object, unless it has one.
func (p *program) offer(o *treeObject, n Name) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.object != nil || p.left == 0 || p.name.ID != n.ID {
		return false
	}
	o.name = p.name
	p.object = o
	return true
}

func notProgram(path, msg string) error {
	return &sigma.Error{Op: "binfs.Open", Path: path, Kind: sigma.KindNoExec, Msg: msg}
}

// enter finds or makes the program of a name and counts a user.
func (c *Cache) enter(n Name) (*program, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := key{n.Realm, n.Path, n.ID}
	p := c.known[k]
	if p == nil {
		var err error
		if p, err = c.newProgramLocked(n); err != nil {
			return nil, err
		}
		c.addKeyLocked(p, k)
	}
	p.users++
	c.touchLocked(p)
	return p, nil
}

// open makes a program ready to be started: at least what the headers say that a start reads is on
// its way.
func (c *Cache) open(ctx context.Context, p *program) (*os.File, func(), error) {
	if !p.complete() {
		if err := p.why(); err != nil {
			return nil, nil, err
		}
		whole := c.cfg.Mount == nil || c.unmounted.Load() || p.name.Size <= wholeMax
		if whole {
			for i := range min(aheadMax, len(p.state)) {
				p.want(i)
			}
		}
		data, err := p.need(ctx, 0)
		if err == nil && data != nil {
			err = errNoRoom(p.name.Path)
		}
		var hot []int64
		if err == nil {
			hot, err = check(reader{ctx, p}, p.name.Size)
		}
		if err != nil {
			return nil, nil, sigma.Wrap("binfs.Open", p.name.Path, err)
		}
		if whole {
			if err := p.needAll(ctx); err != nil {
				return nil, nil, sigma.Wrap("binfs.Open", p.name.Path, err)
			}
		} else {
			p.heat(hot)
		}
	}
	var once sync.Once
	c.mu.Lock()
	p.ok = true
	c.mu.Unlock()
	if p.complete() {
		c.count.plain.Add(1)
		return p.r, func() { once.Do(func() { c.release(p, false) }) }, nil
	}
	f, err := c.openPaged(p)
	if err != nil {
		return nil, nil, err
	}
	c.count.paged.Add(1)
	if c.cfg.FillDelay > 0 {
		time.AfterFunc(c.cfg.FillDelay, p.fill)
	}
	return f, func() { once.Do(func() { c.release(p, true) }) }, nil
}

func errNoRoom(path string) error {
	return &sigma.Error{Op: "binfs.Open", Path: path, Kind: sigma.KindNoSpace,
		Msg:  "no room for the program in the machine's cache",
		Hint: "free some space on the disk of the data directory"}
}

// heat begins to fetch the chunks of a few places.
func (p *program) heat(offsets []int64) {
	asked := map[int]bool{}
	for _, at := range offsets {
		if i := int(at / chunkSize); at >= 0 && at < p.name.Size && !asked[i] && len(asked) < hotMax {
			asked[i] = true
			p.want(i)
		}
	}
}

// openPaged opens the program's file of the mount, which all starts share. This very process
// answers the kernel's question for it.
func (c *Cache) openPaged(p *program) (*os.File, error) {
	c.mu.Lock()
	p.pagers++
	f := p.paged
	c.showLocked(p)
	c.mu.Unlock()
	if f != nil {
		return f, nil
	}
	name := strconv.FormatUint(p.node, 10)
	fd, err := unix.Openat(int(c.cfg.Mount.Root.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		p.pagers--
		return nil, sigma.Wrap("binfs.Open", p.name.Path, os.NewSyscallError("openat", err))
	case p.paged != nil: // another start was faster
		unix.Close(fd)
	default:
		p.paged = os.NewFile(uintptr(fd), name)
	}
	return p.paged, nil
}

// release takes back a user.
func (c *Cache) release(p *program, paged bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.users--
	if paged {
		p.pagers--
	}
	if p.pagers == 0 && p.paged != nil {
		p.paged.Close()
		p.paged = nil
		name := strconv.FormatUint(p.node, 10)
		go c.cfg.Mount.Device.Write(invalEntry(
			// waits for LOOKUPs of the directory, so not here; the kernel forgets the node when
			// nobody uses it any more
			name))
	}
	c.unusedLocked(p)
}
