// Package digest is what programs are compared by on their way from a store to a machine: the
// BLAKE3 digest of a range of an object. Answer is the store's end, the call hash of an object; Of
// is the machine's. SHA-256 takes 1.2 ms for a chunk of 256 KiB on processors without instructions
// for it, which is longer than the chunk takes to come (docs/adr/0069). Users: trees/diskfs,
// trees/s3/remote, kernel/binfs.
package digest

import (
	"sync"

	"lukechampine.com/blake3"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Size is how many bytes a digest has.
const Size = 32

// Sum is the digest of some bytes.
type Sum = [Size]byte

// Of gives the digest of p.
func Of(p []byte) Sum { return blake3.Sum256(p) }

// buffers are what is read passes through.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// Answer answers the call hash of an object: the digest of a range of its bytes as read gives them
// now, with the object's id, version and size. read is as io.ReaderAt's ReadAt, but tells the end
// by 0 bytes.
func Answer(payload []byte, id sigma.FileID, size uint64, read func(p []byte, at uint64) (int, error)) ([]byte,
	error) {
	ask, err := sigmap.CallHash.Parse(payload)
	if err != nil {
		return nil, err
	}
	if ask.Count > sigmap.HashMax {
		return nil, sigma.Errorf("digest.Answer", sigma.KindTooBig, "the hash of at most %d bytes can be asked for",
			sigmap.HashMax)
	}
	end := ask.Offset + min(uint64(ask.Count), size-min(size, ask.Offset))
	room := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(room)
	all := blake3.New(Size, nil)
	for at := ask.Offset; at < end; {
		got, err := read(room[:min(uint64(len(room)), end-at)], at)
		if err != nil {
			return nil, err
		}
		if got == 0 {
			break
		}
		all.Write(room[:got])
		at += uint64(got)
	}
	return sigmap.CallHash.Answer(sigmap.Hashed{ID: id, Size: size, Sum: all.Sum(nil)})
}
