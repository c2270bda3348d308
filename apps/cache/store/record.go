package store

import "encoding/binary"

// A record is a head, a key and a value, in a segment:
//
//	0  u64  expiry in ms << 16 | bits
//	8  u64  version
//	16 u32  flags of the client
//	20 u32  length of the key << 20 | length of the value
//	24      key, value; padded to 8 bytes
//
// Of a large record the value is the number of a mapping of its own, in 4 bytes.
type record []byte

const (
	headBytes = 24
	unit      = 8 // of addresses

	freqMax   = 3      // as in the paper
	bitsFreq  = 0b11   // how often it was asked for
	bitDead   = 1 << 2 // nothing finds it any more
	bitLarge  = 1 << 3
	bitMain   = 1 << 4 // it is in the main queue
	bitsAll   = 1<<16 - 1
	valueBits = 20
)

func sizeOf(key, value int) int { return (headBytes + key + value + unit - 1) &^ (unit - 1) }

func (r record) head() uint64        { return binary.LittleEndian.Uint64(r) }
func (r record) setHead(v uint64)    { binary.LittleEndian.PutUint64(r, v) }
func (r record) is(bit uint64) bool  { return r.head()&bit != 0 }
func (r record) set(bit uint64)      { r.setHead(r.head() | bit) }
func (r record) expiry() int64       { return int64(r.head() >> 16) }
func (r record) setExpiry(ms int64)  { r.setHead(uint64(ms)<<16 | r.head()&bitsAll) }
func (r record) version() uint64     { return binary.LittleEndian.Uint64(r[8:]) }
func (r record) setVersion(v uint64) { binary.LittleEndian.PutUint64(r[8:], v) }
func (r record) flags() uint32       { return binary.LittleEndian.Uint32(r[16:]) }
func (r record) setFlags(v uint32)   { binary.LittleEndian.PutUint32(r[16:], v) }
func (r record) setLengths(k, v int) {
	binary.LittleEndian.PutUint32(r[20:], uint32(k)<<valueBits|uint32(v))
}
func (r record) freq() uint64         { return r.head() & bitsFreq }
func (r record) setFreq(f uint64)     { r.setHead(r.head()&^bitsFreq | f) }
func (r record) expired(n int64) bool { e := r.expiry(); return e != 0 && e <= n }

// write fills a record.
func (r record) write(bits uint64, key, value []byte, it Item) {
	r.setHead(bits)
	r.setExpiry(it.Expiry)
	r.setVersion(it.Version)
	r.setFlags(it.Flags)
	r.setLengths(len(key), len(value))
	copy(r.key(), key)
	copy(r.inline(), value)
}

// touch counts a use.
func (r record) touch() {
	if h := r.head(); h&bitsFreq < freqMax {
		r.setHead(h + 1)
	}
}

func (r record) size() int {
	k, v := r.lengths()
	return sizeOf(k, v)
}

func (r record) key() []byte {
	k, _ := r.lengths()
	return r[headBytes : headBytes+k]
}

// inline is the value, or what stands for it.
func (r record) inline() []byte {
	k, v := r.lengths()
	return r[headBytes+k : headBytes+k+v]
}

func (r record) lengths() (key, value int) {
	l := binary.LittleEndian.Uint32(r[20:])
	return int(l >> valueBits), int(l & (1<<valueBits - 1))
}
