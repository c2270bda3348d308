package binfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/digest"
)

const (
	// chunkSize is what is fetched, hashed and remembered as one: large enough that a round trip to
	// the store is not most of its time, small enough that a page that is needed does not wait for
	// much else.
	chunkSize = 256 << 10
	// aheadMax bounds the chunks of one program that are fetched at once without anybody waiting
	// for them.
	aheadMax = 4
	// hotMax bounds the chunks that are fetched with the first because the headers say that a start
	// reads them.
	hotMax = 8

	tryMax   = 5 * time.Second // for one chunk to come, before it is asked for again
	retryMin = 20 * time.Millisecond
	retryMax = 2 * time.Second
	// failedFor is how long a chunk that could not be had is not asked for again: the kernel tries
	// each page twice.
	failedFor = time.Second
	fillPause = 5 * time.Second // after a fill that did not get to the end
)

type chunkState uint8

const (
	chunkAbsent  chunkState = iota
	chunkDoubted            // in the file since before a restart; its hash is known and has to be compared
	chunkGood
)

// program is one version of a program and as much of its bytes as is here. The bytes lie in one
// file of the cache; a chunk is used only after its hash was found right.
//
// Lock: mu, under which nothing else is taken.
type program struct {
	c    *Cache
	name Name // under which it is fetched; others may have the same bytes
	node uint64
	ctx  context.Context // of fetches; ended when the program is dropped
	stop context.CancelFunc

	mu      sync.Mutex
	state   []chunkState     // mu
	hashes  []Hash           // mu; of chunks that are not absent
	left    int              // mu; chunks that are not good
	getting map[int]*getting // mu
	object  Object           // mu; nil when everything is here
	r,
	w *os.File // mu; w is nil when everything is here, since a file that is open for writing cannot be executed
	log      *os.File      // mu; beside w
	stored   string        // mu; path of the bytes
	failed   error         // mu; why the last chunk could not be had
	until    time.Time     // mu; no chunk is tried again before
	filling  bool          // mu
	fillNext time.Time     // mu; fill does nothing before
	plain    bool          // mu; the source knows no hashes
	asked    asked         // mu; other machines
	ended    error         // mu; why it is no program although everything is here
	done     chan struct{} // closed when everything is here

	// Cache.mu guards the rest.
	keys    []key
	users   int      // starts and procs that have it
	live    int      // nodes of it that the kernel knows
	paged   *os.File // the file of the mount, while pagers
	pagers  int      // starts and procs that have paged
	bytes   int64    // on disk
	ok      bool     // it was good enough to start once
	adopted bool     // it was here before a restart
	merged  bool     // another has its names
	content *Hash    // of all of it, when it is stored under that
	nodes   []uint64 // it had in former lives
	dropped bool
	used    time.Time // when the file system was last told of a use
}

// getting is the fetch of one chunk; all who need it wait for the same.
type getting struct {
	done chan struct{}
	data []byte // only when it could not be stored
	err  error
	last error // of a try, while it goes on; program.mu
}

func chunks(size int64) int { return int((size + chunkSize - 1) / chunkSize) }

// span gives a chunk's place.
func (p *program) span(i int) (offset int64, size int) {
	offset = int64(i) * chunkSize
	return offset, int(min(chunkSize, p.name.Size-offset))
}

// want begins to fetch a chunk unless it is here; nil means that it is.
func (p *program) want(i int) (*getting, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state[i] == chunkGood {
		return nil, nil
	}
	if g := p.getting[i]; g != nil {
		return g, nil
	}
	if err := p.ctx.Err(); err != nil {
		return nil, sigma.Errorf("binfs.want", sigma.KindCanceled, "the program is not wanted any more")
	}
	if p.failed != nil && time.Now().Before(p.until) {
		return nil, p.failed
	}
	g := &getting{done: make(chan struct{})}
	p.getting[i] = g
	p.c.work.Go(func() { p.get(i, g) })
	return g, nil
}

// need waits until a chunk is in the file, or returns it if it could not be stored.
func (p *program) need(ctx context.Context, i int) ([]byte, error) {
	g, err := p.want(i)
	if g == nil {
		return nil, err
	}
	select {
	case <-g.done:
		return g.data, g.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	last := g.last
	p.mu.Unlock()
	if last != nil { // what went wrong says more than that it took too long
		return nil, &sigma.Error{Op: "binfs.need", Path: p.name.Path, Kind: sigma.KindOf(last),
			Msg: "the program's bytes do not come", Hint: sigma.HintOf(last), Err: last}
	}
	return nil, sigma.Wrap("binfs.need", p.name.Path, ctx.Err())
}

// get has one chunk come, trying again with growing pauses.
func (p *program) get(i int, g *getting) {
	ctx, cancel := context.WithTimeout(p.ctx, p.c.cfg.FaultMax)
	defer cancel()
	began := time.Now()
	data, sum, err := p.recall(i)
	for wait := retryMin; data == nil; wait = min(2*wait, retryMax) {
		if data, sum, err = p.fetch(ctx, i); err == nil || final(err) {
			break
		}
		p.mu.Lock()
		g.last = err
		p.mu.Unlock()
		if errors.Is(err, errCorrupt) {
			p.c.count.corruptFetched.Add(1)
			p.c.cfg.Log.Warn("a chunk of a program came damaged and is fetched again", "realm", p.name.Realm, "path",
				p.name.Path, "chunk", i, "err", err)
		}
		select {
		case <-time.After(wait):
			continue
		case <-ctx.Done():
		}
		err = &sigma.Error{Op: "binfs.get", Path: p.name.Path, Kind: sigma.KindOf(err),
			Msg: fmt.Sprintf("given up after %v", time.Since(began).Round(time.Second)), Err: err}
		break
	}
	stored := false
	if err == nil {
		stored = p.store(i, data, sum)
	}
	p.settle(i, g, data, sum, stored, err)
	if stored {
		p.c.recycle(data)
	}
}

// buffer gives room for a chunk, recycle takes it back: the memory of the last few chunks is used
// again, since new memory takes longer to come than a chunk.
func (c *Cache) buffer(size int) []byte {
	select {
	case b := <-c.buffers:
		return b[:size]
	default:
		return make([]byte, size, chunkSize)
	}
}

func (c *Cache) recycle(b []byte) {
	select {
	case c.buffers <- b:
	default:
	}
}

// settle tells those who wait what became of a chunk.
func (p *program) settle(i int, g *getting, data []byte, sum Hash, stored bool, err error) {
	p.mu.Lock()
	delete(p.getting, i)
	complete := false
	switch {
	case err != nil:
		g.err, p.failed, p.until = err, err, time.Now().Add(failedFor)
		if p.ctx.Err() == nil {
			p.c.cfg.Log.Error("a chunk of a program cannot be had", "realm", p.name.Realm, "path", p.name.Path, "chunk",
				i, "err", err)
		}
	case stored:
		p.failed = nil
		p.state[i], p.hashes[i] = chunkGood, sum
		p.left--
		complete = p.left == 0
	default:
		g.data = data
	}
	close(g.done)
	p.mu.Unlock()
	if complete {
		p.c.finish(p)
	}
}

// recall takes a chunk that was here before a restart, if it is what it was, with its hash.
func (p *program) recall(i int) ([]byte, Hash, error) {
	p.mu.Lock()
	state, want, r := p.state[i], p.hashes[i], p.r
	p.mu.Unlock()
	if state != chunkDoubted {
		return nil, Hash{}, nil
	}
	offset, size := p.span(i)
	data := p.c.buffer(size)
	n, err := r.ReadAt(data, offset)
	if n == size && digest.Of(data) == want {
		return data, want, nil
	}
	p.c.count.corruptStored.Add(1)
	p.c.cfg.Log.Warn("a chunk of a program was damaged in the cache and is fetched again", "realm", p.name.Realm,
		"path", p.name.Path, "chunk", i, "err", err)
	return nil, Hash{}, err
}

// fetch asks once: another machine, if one may have the bytes, then the source. Bytes and hash come
// at the same time, by different ways. It returns the bytes with their hash, which is computed
// once.
func (p *program) fetch(ctx context.Context, i int) (data []byte, sum Hash, err error) {
	o, err := p.source()
	if err != nil {
		return nil, sum, err
	}
	ctx, cancel := context.WithTimeout(ctx, tryMax)
	defer cancel()
	offset, size := p.span(i)
	p.mu.Lock()
	want, known := p.hashes[i], p.state[i] == chunkDoubted
	p.mu.Unlock()
	hash := func() (Hash, error) { return want, nil }
	if !known {
		hash = hashOf(ctx, o, offset, size)
	}
	data = p.c.buffer(size)
	sum, ok := p.tryPeer(ctx, data, offset, hash)
	if !ok {
		if sum, err = p.fromStore(ctx, o, data, offset, hash); err != nil {
			return nil, sum, err
		}
	}
	p.c.count.fetchedBytes.Add(uint64(size))
	p.c.count.fetchedChunks.Add(1)
	return data, sum, nil
}

// hashOf begins to ask for a chunk's hash. The answer may be waited for several times.
func hashOf(ctx context.Context, o Object, offset int64, size int) func() (Hash, error) {
	var h Hash
	var err error
	there := make(chan struct{})
	go func() {
		defer close(there)
		h, err = o.Hash(ctx, offset, size)
	}()
	return func() (Hash, error) {
		<-there
		return h, err
	}
}

// fromStore fills data with a chunk from the source, and returns its hash. While the store computes
// the hash that it should have, so does this process.
func (p *program) fromStore(ctx context.Context, o Object, data []byte, offset int64,
	hash func() (Hash, error)) (sum Hash, err error) {
	if err = o.ReadAt(ctx, data, offset); err == nil {
		sum = digest.Of(data)
	}
	want, herr := hash()
	switch {
	case herr != nil && final(herr): // of which what the reader met is a consequence at most
		return sum, herr
	case err != nil:
		return sum, err
	case sigma.KindOf(herr) == sigma.KindUnsupported && herr != nil: // finish asks once more for the version
		p.mu.Lock()
		p.plain = true
		p.mu.Unlock()
	case herr != nil:
		return sum, herr
	case sum != want:
		return sum, &sigma.Error{Op: "binfs.fetch", Path: p.name.Path, Kind: sigma.KindOther,
			Msg: "the bytes that came are not those that the store has", Err: errCorrupt}
	}
	return sum, nil
}

// source returns the object to fetch from.
func (p *program) source() (Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.object == nil {
		o, err := p.c.cfg.Source.Object(p.name)
		if err != nil {
			return nil, err
		}
		p.object = o
	}
	return p.object, nil
}

// store writes a chunk to the cache. Where that fails those who wait get it all the same, and the
// next who needs it fetches it again: a full disk stops no proc that runs.
func (p *program) store(i int, data []byte, sum Hash) bool {
	p.mu.Lock()
	log, known := p.log, p.state[i] == chunkDoubted
	p.mu.Unlock()
	offset, size := p.span(i)
	if known {
		held := make([]byte, size)
		if n, _ := p.r.ReadAt(held, offset); n == size && bytes.Equal(held, data) {
			return true
		}
	}
	w, err := p.writable()
	if err != nil {
		p.c.cfg.Log.Warn("a program of the cache cannot be repaired", "path", p.name.Path, "err", err)
		p.c.discard(p)
		return false
	}
	if !known {
		p.c.room(int64(size))
	}
	if _, err = w.WriteAt(data, offset); err != nil && sigma.KindOf(err) == sigma.KindNoSpace && p.c.evictUnused() {
		_, err = w.WriteAt(data, offset)
	}
	if err == nil && log != nil {
		_, err = log.Write(logRecord(i, sum))
	}
	if err != nil {
		p.c.count.unstored.Add(1)
		p.c.cfg.Log.Warn("a chunk of a program cannot be kept", "path", p.name.Path, "chunk", i, "err", err)
		return false
	}
	if !known {
		p.c.grew(p, int64(size))
	}
	return true
}

// readAt fills b, fetching what is not here. Fewer bytes only at the end.
func (p *program) readAt(ctx context.Context, b []byte, offset int64) (int, error) {
	if offset >= p.name.Size {
		return 0, nil
	}
	b = b[:min(int64(len(b)), p.name.Size-offset)]
	first, last := int(offset/chunkSize), int((offset+int64(len(b))-1)/chunkSize)
	for i := first; i <= min(last+1, len(p.state)-1); i++ {
		p.want(i) // all at once, and what will most likely be needed next
	}
	for i := first; i <= last; i++ {
		data, err := p.need(ctx, i)
		if err != nil {
			return 0, err
		}
		at, size := p.span(i)
		from, to := max(offset, at), min(offset+int64(len(b)), at+int64(size))
		into := b[from-offset : to-offset]
		if data != nil {
			copy(into, data[from-at:])
			continue
		}
		p.mu.Lock()
		r := p.r
		p.mu.Unlock()
		if n, err := r.ReadAt(into, from); n < len(into) {
			return 0, sigma.Errorf("binfs.readAt", sigma.KindOther, "the cache lost bytes: %v", err)
		}
	}
	return len(b), nil
}

// reader makes an io.ReaderAt of a program, for as long as ctx.
type reader struct {
	ctx context.Context
	p   *program
}

func (r reader) ReadAt(b []byte, offset int64) (int, error) {
	n, err := r.p.readAt(r.ctx, b, offset)
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return n, err
}

// needAll waits until everything is here.
func (p *program) needAll(ctx context.Context) error {
	all, failed := errgroup.WithContext(context.Background()) // what is under way when one fails goes on
	all.SetLimit(aheadMax)
	for i := 0; i < len(p.state) && failed.Err() == nil; i++ {
		all.Go(func() error {
			data, err := p.need(ctx, i)
			if err == nil && data != nil {
				err = &sigma.Error{Op: "binfs.Open", Path: p.name.Path, Kind: sigma.KindNoSpace,
					Msg:  "no room for the program in the machine's cache",
					Hint: "free some space on the disk of the data directory"}
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.why()
	case <-ctx.Done():
		return sigma.Wrap("binfs.Open", p.name.Path, ctx.Err())
	}
}

// fill fetches what nobody has asked for, in the background, until everything is here or a chunk
// cannot be had.
func (p *program) fill() {
	p.mu.Lock()
	not := p.filling || p.left == 0 || time.Now().Before(p.fillNext)
	p.filling = p.filling || !not
	p.mu.Unlock()
	if not {
		return
	}
	p.c.work.Go(func() {
		for i := range p.state {
			if data, err := p.need(p.ctx, i); err != nil || data != nil {
				break
			}
		}
		p.mu.Lock()
		p.filling, p.fillNext = false, time.Now().Add(fillPause)
		p.mu.Unlock()
	})
}

// why tells what is wrong with a program although everything is here.
func (p *program) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// complete reports whether everything is here.
func (p *program) complete() bool {
	select {
	case <-p.done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.ended == nil
	default:
		return false
	}
}

// writable returns the file for writing. One that was complete before a restart is opened only when
// a chunk of it turns out to be damaged, which fails while a proc runs it.
func (p *program) writable() (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w == nil {
		w, err := os.OpenFile(p.stored, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		p.w = w
	}
	return p.w, nil
}

// closeWriting closes what only a program that is not complete needs.
func (p *program) closeWriting() {
	p.mu.Lock()
	w, log, o := p.w, p.log, p.object
	p.w, p.log, p.object = nil, nil, nil
	p.mu.Unlock()
	for _, f := range []*os.File{w, log} {
		if f != nil {
			f.Close()
		}
	}
	if o != nil {
		p.c.work.Go(o.Close) // may wait for the store
	}
}

func (p *program) closeFiles() {
	p.stop()
	p.closeWriting()
	p.r.Close()
}
