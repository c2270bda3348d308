package store

import "encoding/binary"

// ghost remembers keys that the small queue has evicted: their tags, in buckets, each of which is a
// FIFO queue. A tag stands for its key, so that one in some millions is taken for another.
type ghost struct {
	slots []byte // mapped
}

const (
	ghostWays   = 8 // tags of a bucket
	ghostBucket = 4 * ghostWays
)

// ghostBytes is the size of a ghost beside an index with that many entries: it remembers about as
// many keys as there are items.
func ghostBytes(entries int) int { return max(entries*5/8/ghostWays, 1) * ghostBucket }

func (g *ghost) bucket(tag uint32) []byte {
	n := uint64(len(g.slots) / ghostBucket)
	at := int(uint64(tag)*n>>32) * ghostBucket
	return g.slots[at : at+ghostBucket]
}

// add remembers a tag.
func (g *ghost) add(tag uint32) {
	b := g.bucket(tag)
	copy(b[4:], b[:ghostBucket-4])
	binary.LittleEndian.PutUint32(b, tag)
}

// take forgets a tag, and says whether it was remembered.
func (g *ghost) take(tag uint32) bool {
	b := g.bucket(tag)
	for i := 0; i < ghostBucket; i += 4 {
		if binary.LittleEndian.Uint32(b[i:]) == tag {
			copy(b[i:], b[i+4:])
			binary.LittleEndian.PutUint32(b[ghostBucket-4:], 0)
			return true
		}
	}
	return false
}

// moveTo has another ghost remember the same.
func (g *ghost) moveTo(to *ghost) {
	for at := 0; at < len(g.slots); at += ghostBucket {
		for i := ghostBucket - 4; i >= 0; i -= 4 { // the oldest first
			if tag := binary.LittleEndian.Uint32(g.slots[at+i:]); tag != 0 {
				to.add(tag)
			}
		}
	}
}
