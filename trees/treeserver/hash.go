package treeserver

import (
	"crypto/sha256"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// hashBuffers are what is hashed passes through.
var hashBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// HashRange answers the call hash of an object: the SHA-256 of a range of its bytes as they are
// read now, with its id, version and size.
func HashRange(payload []byte, id sigma.FileID, size uint64, read func(p []byte, at uint64) (int, error)) ([]byte,
	error) {
	var offset uint64
	var count uint32
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64(&offset); c.U32(&count) }); err != nil {
		return nil, err
	}
	if count > sigmap.HashMax {
		return nil, sigma.Errorf("treeserver.HashRange", sigma.KindTooBig,
			"the hash of at most %d bytes can be asked for", sigmap.HashMax)
	}
	end := offset + min(uint64(count), size-min(size, offset))
	room := hashBuffers.Get().(*[64 << 10]byte)
	defer hashBuffers.Put(room)
	sum := sha256.New()
	for at := offset; at < end; {
		got, err := read(room[:min(uint64(len(room)), end-at)], at)
		if err != nil {
			return nil, err
		}
		if got == 0 {
			break
		}
		sum.Write(room[:got])
		at += uint64(got)
	}
	hash := sum.Sum(nil)
	return sigmap.Payload(func(c *sigmap.Coder) { c.FileID(&id); c.U64(&size); c.Data(&hash) })
}
