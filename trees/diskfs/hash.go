package diskfs

import (
	"context"
	"crypto/sha256"
	"os"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// hashBuffers are what is hashed passes through.
var hashBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// Call implements sigma.Caller for objects, whose one method is hash: the SHA-256 of a range of the
// object as it is here, with the object's version and size. Who fetches the range compares it with
// what came (binfs). It is computed when it is asked for, from the bytes on disk, so it finds what
// goes wrong after them, not before.
func (f *file) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	const op = "diskfs.Call"
	session.CloseFiles(files)
	if !f.sp.t.cfg.Policy.Objects || method != sigmap.CallHash {
		return nil, nil, sigma.Errorf(op, sigma.KindUnsupported, "the file has no method %.50q", method)
	}
	var offset uint64
	var count uint32
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64(&offset); c.U32(&count) }); err != nil {
		return nil, nil, err
	}
	if count > sigmap.HashMax {
		return nil, nil, sigma.Errorf(op, sigma.KindTooBig, "the hash of at most %d bytes can be asked for",
			sigmap.HashMax)
	}
	n, err := f.checkNode(ctx, op)
	if err != nil {
		return nil, nil, err
	}
	b := f.b
	if b == nil {
		f.sp.names.RLock()
		b, err = f.sp.openBody(op, n)
		f.sp.names.RUnlock()
		if err != nil {
			return nil, nil, wrap(op, "", err)
		}
		defer b.close()
	}
	id := b.fileID()
	f.sp.mu.Lock()
	size := b.size
	f.sp.mu.Unlock()
	end := offset + min(uint64(count), size-min(size, offset))
	room := hashBuffers.Get().(*[64 << 10]byte)
	defer hashBuffers.Put(room)
	sum := sha256.New()
	for at := offset; at < end; {
		got, err := b.readAt(room[:min(uint64(len(room)), end-at)], at)
		if err != nil {
			return nil, nil, wrap(op, "", err)
		}
		if got == 0 {
			break
		}
		sum.Write(room[:got])
		at += uint64(got)
	}
	hash := sum.Sum(nil)
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.FileID(&id); c.U64(&size); c.Data(&hash) })
	return reply, nil, err
}
