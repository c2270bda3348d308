package diskfs

import (
	"context"
	"os"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/digest"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Call implements sigma.Caller for objects, whose one method is hash: the digest of a range of the
// object as it is here, with the object's version and size. Who fetches the range compares it with
// what came (binfs). It is computed when it is asked for, from the bytes on disk, so it finds what
// goes wrong after them, not before.
func (f *file) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	const op = "diskfs.Call"
	session.CloseFiles(files)
	if !f.sp.t.cfg.Policy.Objects || method != sigmap.CallHash.Name {
		return nil, nil, sigma.Errorf(op, sigma.KindUnsupported, "the file has no method %.50q", method)
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
	reply, err := digest.Answer(payload, id, size, b.readAt)
	return reply, nil, wrap(op, "", err)
}
