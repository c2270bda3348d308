package dirtree

import (
	"context"
	"crypto/sha256"
	"os"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// Call implements sigma.Caller for objects, whose one method is hash: the SHA-256 of a range of the object as it is here, with the object's version and size. Who fetches the
// range compares it with what came (binfs). It is computed when it is asked for, from the bytes on disk, so it finds what goes wrong after them, not before.
func (f *file) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	const op = "dirtree.Call"
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
		return nil, nil, sigma.Errorf(op, sigma.KindTooBig, "the hash of at most %d bytes can be asked for", sigmap.HashMax)
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
	data := make([]byte, min(uint64(count), size-min(size, offset)))
	got, err := b.readAt(data, offset)
	if err != nil {
		return nil, nil, wrap(op, "", err)
	}
	sum := sha256.Sum256(data[:got])
	hash := sum[:]
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.FileID(&id); c.U64(&size); c.Data(&hash) })
	return reply, nil, err
}
