package remote

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"sync"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

const (
	// partSize is what one request of a large object carries. S3 takes 10,000 parts, so an object
	// has at most objectMax bytes.
	partSize  = 16 << 20
	objectMax = 10_000 * partSize
	// lagParts is how far behind the end of what is written parts are sent: what was written in
	// order may still be changed so far back.
	lagParts = 1
	// sendingMax is how many parts of one object are sent at once; who writes faster waits.
	sendingMax = 3
	// piecesMax bounds what is remembered of pieces that came before their turn: a client has some
	// tens under way.
	piecesMax = 4096
)

// upload is an object that is being written: bytes in a file without a name, of which what is
// complete goes to the store as parts while more is written. Nobody sees it until finish.
type upload struct {
	sp   *space
	file *os.File

	mu      sync.Mutex
	key     string               // mu; for which parts are sent; fixed when the first is
	id      string               // mu; of the store's; "" = none is sent yet
	size    uint64               // mu
	spooled uint64               // mu; of size: less the parts that were sent
	next    uint64               // mu; all before it is written
	pieces  map[uint64]uint64    // mu; what is written after next: beginning and end
	sealed  int                  // mu; parts that were given away, and cannot be written any more
	parts   []minio.CompletePart // mu; of those that are sent
	strays  bool                 // mu; it may have been begun more than once at the store
	bad     error                // mu; why it must not be published
	closed  bool                 // mu

	sending sync.WaitGroup
	slots   chan struct{}
	a       attr // as what it will be published; the note goes with its first request
}

func (sp *space) newUpload() (*upload, error) {
	if err := sp.begin(""); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(sp.t.spool, "")
	if err != nil {
		sp.opened.Add(-1)
		return nil, spoolError(err)
	}
	os.Remove(f.Name())
	return &upload{sp: sp, file: f, pieces: map[uint64]uint64{}, slots: make(chan struct{}, sendingMax),
		a: attr{kind: sigma.KindFile}}, nil
}

func spoolError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &sigma.Error{Op: "remote.Write", Kind: sigma.KindNoSpace,
			Msg:  "the disk on which the machine of the object store keeps what is being written is full",
			Hint: "make room in its data directory"}
	}
	return sigma.Wrap("remote.Write", "", err)
}

// writeAt writes all of p.
func (u *upload) writeAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "remote.WriteAt"
	if len(p) == 0 {
		return 0, nil
	}
	if offset > objectMax-uint64(len(p)) {
		return 0, sigma.Errorf(op, sigma.KindTooBig, "an object of this store has at most %d bytes", uint64(objectMax))
	}
	u.mu.Lock()
	sealed := uint64(u.sealed) * partSize
	bad, closed := u.bad, u.closed
	u.mu.Unlock()
	switch {
	case closed:
		return 0, sigma.Errorf(op, sigma.KindUnsupported, "a published object cannot be changed")
	case bad != nil:
		return 0, bad
	case offset < sealed:
		return 0, &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
			Msg: "this part of the object is on its way to the store already", Hint: "write large objects in order"}
	}
	u.mu.Lock()
	err := u.growLocked(offset + uint64(len(p)))
	u.mu.Unlock()
	if err != nil {
		u.spoil(err)
		return 0, err
	}
	if _, err := u.file.WriteAt(p, int64(offset)); err != nil {
		err = spoolError(err)
		u.spoil(err)
		return 0, err
	}
	u.note(offset, offset+uint64(len(p)))
	return len(p), u.send(ctx)
}

// growLocked makes the object as large as that, if it is not, which takes room on the disk here.
func (u *upload) growLocked(size uint64) error {
	if size <= u.size {
		return nil
	}
	more := size - u.size
	if err := u.sp.spool(more); err != nil {
		return err
	}
	u.size = size
	u.spooled += more
	return nil
}

// shrinkLocked gives room back.
func (u *upload) shrinkLocked(less uint64) {
	less = min(less, u.spooled)
	u.spooled -= less
	u.sp.spooled.Add(-int64(less))
}

// note says that bytes are written.
func (u *upload) note(from, to uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case from <= u.next:
		u.next = max(u.next, to)
	case len(u.pieces) < piecesMax:
		u.pieces[from] = max(to, u.pieces[from])
	}
	for {
		end, ok := u.pieces[u.next]
		if !ok {
			return
		}
		delete(u.pieces, u.next)
		u.next = max(u.next, end)
	}
}

// send sends parts that are complete, waiting while enough are under way.
func (u *upload) send(ctx context.Context) error {
	for {
		u.mu.Lock()
		ready := u.key != "" && u.bad == nil && u.next >= uint64(u.sealed+1+lagParts)*partSize
		u.mu.Unlock()
		if !ready {
			return nil
		}
		select {
		case u.slots <- struct{}{}:
		case <-ctx.Done():
			return sigma.Wrap("remote.WriteAt", "", ctx.Err())
		}
		u.mu.Lock()
		part := u.sealed
		if u.closed || u.next < uint64(part+1+lagParts)*partSize {
			u.mu.Unlock()
			<-u.slots
			return nil
		}
		u.sealed++
		u.sending.Add(1)
		u.mu.Unlock()
		u.sp.t.async(func() {
			defer u.sending.Done()
			defer func() { <-u.slots }()
			if err := u.sendPart(u.sp.t.ctx, part, partSize); err != nil {
				u.spoil(err)
			}
		})
	}
}

// begin opens the store's side, once.
func (u *upload) begin(ctx context.Context) (id string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.id != "" {
		return u.id, nil
	}
	c, path := u.sp.c, u.sp.pathOf(u.key)
	u.a.version = u.sp.after(0)
	err = c.try(ctx, "remote.Write", path, attemptMax, func(ctx context.Context, _ int) error {
		u.id, err = c.core.NewMultipartUpload(ctx, c.bucket, u.key, minio.PutObjectOptions{UserMetadata: u.a.tag()})
		if err == nil && u.id == "" {
			err = errGarbage{"no id of an upload"}
		}
		u.strays = u.strays || err != nil
		return err
	})
	if err == nil {
		err = u.sp.t.journal(u.sp.realm, c.bucket, u.key, u.id)
	}
	return u.id, err
}

// sendPart sends one part, and gives the room it has on the disk back.
func (u *upload) sendPart(ctx context.Context, part int, size int64) error {
	id, err := u.begin(ctx)
	if err != nil {
		return err
	}
	c := u.sp.c
	data := func() io.Reader { return io.NewSectionReader(u.file, int64(part)*partSize, size) }
	sum, hash, err := c.digests(data(), size)
	if err != nil {
		return spoolError(err)
	}
	o := minio.PutObjectPartOptions{Md5Base64: sum, Sha256Hex: hash, DisableContentSha256: true}
	return c.try(ctx, "remote.Write", u.sp.pathOf(u.key), bodyMax, func(ctx context.Context, _ int) error {
		p, err := c.core.PutObjectPart(ctx, c.bucket, u.key, id, part+1, data(), size, o)
		if err != nil {
			return err
		}
		if p.ETag == "" {
			return errGarbage{"no ETag to a part"}
		}
		unix.Fallocate(int(u.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(part)*partSize, size)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.shrinkLocked(uint64(size))
		for len(u.parts) <= part {
			u.parts = append(u.parts, minio.CompletePart{PartNumber: len(u.parts) + 1})
		}
		u.parts[part].ETag = p.ETag
		return nil
	})
}

func (u *upload) spoil(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.bad == nil {
		u.bad = err
	}
}

// readAt reads what was written and is still here.
func (u *upload) readAt(p []byte, offset uint64) (int, error) {
	u.mu.Lock()
	size, sealed := u.size, uint64(u.sealed)*partSize
	u.mu.Unlock()
	if offset >= size || offset > math.MaxInt64-uint64(len(p)) {
		return 0, nil
	}
	if offset < sealed {
		return 0, sigma.Errorf("remote.ReadAt", sigma.KindUnsupported,
			"this part of the object is on its way to the store already")
	}
	p = p[:min(uint64(len(p)), size-offset)]
	n, err := u.file.ReadAt(p, int64(offset))
	if err != nil {
		return n, spoolError(err)
	}
	return n, nil
}

// resize cuts the object or extends it by zeroes.
func (u *upload) resize(size uint64) error {
	const op = "remote.SetStat"
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return sigma.Errorf(op, sigma.KindUnsupported, "a published object cannot be changed")
	case size > objectMax:
		return sigma.Errorf(op, sigma.KindTooBig, "an object of this store has at most %d bytes", uint64(objectMax))
	case size < uint64(u.sealed)*partSize:
		return sigma.Errorf(op, sigma.KindUnsupported, "this part of the object is on its way to the store already")
	}
	old := u.size
	if err := u.growLocked(size); err != nil {
		return err
	}
	if err := u.file.Truncate(int64(size)); err != nil {
		return spoolError(err)
	}
	if size < old {
		u.shrinkLocked(old - size)
		u.next = min(u.next, size)
		clear(u.pieces)
	} else if u.next == old {
		u.next = size
	}
	u.size = size
	return nil
}

// finish makes the object visible at key, as a, if cond holds. The bytes stay until close.
func (u *upload) finish(ctx context.Context, key string, a attr, cond condition) (attr, error) {
	u.mu.Lock()
	u.closed = true // nothing is written meanwhile
	u.mu.Unlock()
	published := false
	defer func() {
		u.mu.Lock()
		u.closed = published
		u.mu.Unlock()
	}()
	u.sending.Wait()
	u.mu.Lock()
	bad, size, id := u.bad, u.size, u.id
	moved := u.id != "" && u.key != key
	u.mu.Unlock()
	switch {
	case bad != nil:
		return attr{}, bad
	case moved:
		return attr{}, sigma.Errorf("remote.Publish", sigma.KindUnsupported,
			"the object was moved while it was written")
	}
	a.size = size
	if id == "" && size <= partSize {
		a, err := u.sp.c.put(ctx, u.sp.pathOf(key), key, a, u.file, cond)
		published = err == nil
		return a, err
	}
	u.mu.Lock()
	u.key = key
	from := u.sealed
	u.mu.Unlock()
	for part := from; uint64(part)*partSize < size; part++ {
		if err := u.sendPart(ctx, part, int64(min(partSize, size-uint64(part)*partSize))); err != nil {
			return attr{}, err
		}
		u.mu.Lock()
		u.sealed = part + 1
		u.mu.Unlock()
	}
	c := u.sp.c
	a.version = u.a.version // as its first request said
	a, err := c.write(ctx, u.sp.pathOf(key), key, a, cond,
		func(ctx context.Context, o minio.PutObjectOptions) (minio.UploadInfo, error) {
			o.UserMetadata = nil
			return c.core.CompleteMultipartUpload(ctx, c.bucket, key, u.id, u.parts, o)
		})
	if err == nil {
		if got, herr := c.head(ctx, u.sp.pathOf(key), key); herr == nil && got.version == a.version {
			a.etag, a.modified = got.etag, got.modified // stores do not agree on the ETag that this request answers
		}
		published = true
		u.mu.Lock()
		u.sp.t.forget(u.id)
		u.id = ""
		u.mu.Unlock()
	}
	return a, err
}

// close gives everything back. What was sent of an object that was not published is removed from
// the store, in the background.
func (u *upload) close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.sp.t.async(func() {
		u.sending.Wait()
		u.file.Close()
		u.sp.opened.Add(-1)
		u.mu.Lock()
		u.shrinkLocked(u.spooled)
		id, strays := u.id, u.strays
		u.mu.Unlock()
		if id != "" {
			u.sp.t.abort(u.sp.c, u.key, id)
		}
		if strays {
			u.sp.t.abortStrays(u.sp.c, u.key)
		}
	})
}

// published says that nothing is left to be done.
func (u *upload) published() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closed
}
