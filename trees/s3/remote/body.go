package remote

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"

	"sigmaos.dev/sigma"
)

// passMax is how large an object may be that is fetched as a whole so that its descriptor can be
// passed; larger ones are passed when all of them happens to be in the cache.
const passMax = 64 << 20

// openTries is how often an object that is replaced just while it is opened is looked at again.
const openTries = 64

// body is one object as somebody reads it: one ETag.
type body struct {
	sp  *space
	key string
	a   attr
	e   *entry // nil if it is empty

	mu    sync.Mutex
	sound map[int]int // mu; chunks that were compared with their checksum, at the turn they had then
	last  int         // mu; the chunk that was read last
}

// openBody pins the bytes of an object: a small one is fetched now, so that it can be read whatever
// becomes of it.
func (sp *space) openBody(ctx context.Context, op, key string) (*body, error) {
	for try := 0; ; try++ {
		a, err := sp.have(ctx, op, key, sigma.KindFile)
		if err != nil {
			return nil, err
		}
		b := &body{sp: sp, key: key, a: a, sound: map[int]int{}, last: -1}
		if a.size == 0 {
			return b, nil
		}
		if b.e, err = sp.t.cache.use(sp, sp.pathOf(b.key), b.key, b.a); err != nil {
			return nil, err
		}
		if b.a.size <= chunkSize {
			err = b.e.want(ctx, 0, b.fetch)
		}
		if err == nil {
			return b, nil
		}
		b.close()
		kind := sigma.KindOf(err)
		if kind != sigma.KindVersion && kind != sigma.KindNotFound || try == openTries {
			return nil, err
		}
		sp.doubt(b.key)
	}
}

func (b *body) close() {
	if b.e != nil {
		b.sp.t.cache.leave(b.e)
	}
}

func (b *body) fetch(ctx context.Context, offset, length int64, w func([]byte, int64) error) error {
	return b.sp.c.fetch(ctx, b.sp.pathOf(b.key), b.key, b.a, offset, length, w)
}

// changed turns the store's word that there are other bytes now into an error for who reads.
func (b *body) changed(err error) error {
	what := ""
	switch sigma.KindOf(err) {
	case sigma.KindVersion:
		what = "replaced"
	case sigma.KindNotFound:
		what = "removed"
	default:
		return err
	}
	b.sp.doubt(b.key)
	return &sigma.Error{Op: "remote.ReadAt", Path: b.sp.pathOf(b.key), Kind: sigma.KindStale,
		Msg: fmt.Sprintf("the object was %s while it was read", what), Hint: "open it again"}
}

// readAt fills p, or as much of it as the object has.
func (b *body) readAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	if b.e == nil || offset >= b.a.size || offset > math.MaxInt64-uint64(len(p)) {
		return 0, nil
	}
	p = p[:min(uint64(len(p)), b.a.size-offset)]
	done := 0
	for done < len(p) {
		at := offset + uint64(done)
		i := int(at / chunkSize)
		part := p[done:min(len(p), done+int((uint64(i)+1)*chunkSize-at))]
		if err := b.readChunk(ctx, part, at, i); err != nil {
			return done, err
		}
		done += len(part)
	}
	return done, nil
}

// readTries bounds how often a chunk is fetched again because it was evicted, or damaged, before it
// could be read.
const readTries = 8

func (b *body) readChunk(ctx context.Context, p []byte, at uint64, i int) (err error) {
	b.ahead(i)
	for range readTries {
		if err = b.e.want(ctx, i, b.fetch); err != nil {
			return b.changed(err)
		}
		turn, _ := b.e.turn(i)
		b.mu.Lock()
		seen, ok := b.sound[i]
		b.mu.Unlock()
		if !ok || seen != turn {
			if err = b.e.verify(i); err != nil {
				continue
			}
			b.mu.Lock()
			b.sound[i] = turn
			b.mu.Unlock()
		}
		ok, err = b.e.readAt(p, int64(at), i)
		if err != nil || ok {
			return err
		}
	}
	if err == nil {
		err = sigma.Errorf("remote.ReadAt", sigma.KindBusy, "the cache is too small for what is read at once")
	}
	return err
}

// ahead fetches the next chunks of an object that is read in order.
func (b *body) ahead(i int) {
	b.mu.Lock()
	inOrder := i == b.last+1
	if inOrder || i != b.last {
		b.last = i
	}
	b.mu.Unlock()
	if !inOrder {
		return
	}
	for next := i + 1; next < min(i+1+aheadMax, len(b.e.chunks)); next++ {
		if !b.e.missing(next) {
			continue
		}
		b.sp.t.background(func(ctx context.Context) {
			b.sp.t.cache.hold(b.e)
			defer b.sp.t.cache.leave(b.e)
			_ = b.e.want(ctx, next, b.fetch) // who wants to read it hears what is wrong
		})
	}
}

// pass gives a descriptor of the whole object.
func (b *body) pass(ctx context.Context) (*os.File, error) {
	if b.e == nil {
		return b.sp.t.cache.emptyFile()
	}
	if !b.sp.t.cache.fits(b.a.size) {
		return nil, sigma.Errorf("remote.PassFile", sigma.KindUnsupported, "the object is too large for the cache")
	}
	for i := range b.e.chunks {
		if _, here := b.e.turn(i); !here && b.a.size > passMax {
			return nil, sigma.Errorf("remote.PassFile", sigma.KindUnsupported, "not all of the object is in the cache")
		}
	}
	for i := range b.e.chunks {
		b.ahead(i)
		err := b.e.want(ctx, i, b.fetch)
		if err == nil {
			if err = b.e.verify(i); err != nil {
				err = b.e.want(ctx, i, b.fetch)
			}
		}
		if err != nil {
			return nil, b.changed(err)
		}
	}
	return b.e.pass()
}
