// Package ring makes connections between procs of one machine fast: a Conn is a UNIX socket pair
// that both sides, once their traffic warrants it, replace by rings in shared memory, one for each
// direction, and go back from when it does not. The layout of the memory, and what each side does
// with it, is docs/reference/ring.md, for other languages.
//
// It promises what a stream socket does: bytes arrive in order, once, whatever is switched when; an
// end or death of the peer is known at once; deadlines hold. It never waits longer for a wake-up
// than a socket would: the socket stays the doorbell. A peer may write anything into the memory at
// any time; that costs it the connection (KindInvalid), and the other side nothing else: no read or
// write out of bounds, no fault, no wait or spin without end. That rests on memory that cannot
// shrink, which Map checks.
//
// A direction is a sequence of phases, even ones on the socket and odd ones in the ring. Who writes
// decides when the next one begins, and says in shared memory at which byte of the socket: so
// nothing is put between the bytes of a socket, and a peer that has no memory never notices. In an
// odd phase the bytes on the socket mean nothing but "look".
//
// Each Conn has two locks, of its reader and of its writer; Close takes the writer's, then the
// reader's. Set.mu comes after both. Users: sdk; dialproxy, which makes the memory.
package ring

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// The memory: a page for indices, then the bytes of both directions.
const (
	headerBytes = 4096
	// Bytes is the size of one direction. Both fit a processor's second cache, and a reader that is
	// behind by less than this never has the writer wait.
	Bytes = 128 << 10
	// FileBytes is the size of the whole.
	FileBytes = headerBytes + 2*Bytes
)

// Side says who dialled. The direction of the same number is the one it writes.
type Side uint8

const (
	Dialled Side = iota
	Accepted
)

// header is the first page. Each block of 128 bytes, which processors fetch together, is written by
// one side: what changes with every message apart from what seldom does.
type header struct {
	revoked    atomic.Uint32 // by the machine: the connection is over
	_          [508]byte
	directions [2]direction
}

// direction is one direction's part of the header. Positions count bytes from the connection's
// begin and never go back.
type direction struct {
	// By who writes.
	tail     atomic.Uint64 // bytes put into the ring
	messages atomic.Uint64 // writes
	toRing   atomic.Uint64 // position on the socket where the last odd phase began
	toSocket atomic.Uint64 // position on the socket where the last even phase began
	phase    atomic.Uint32
	left     atomic.Uint32 // 1: the writer has closed
	_        [88]byte
	// By who reads, with every message.
	head atomic.Uint64 // bytes taken out of the ring
	spun atomic.Uint64 // nanoseconds in which it asked for more, over and over
	_    [112]byte
	// By who reads, seldom.
	ready     atomic.Uint32 // 1: it follows phases
	reached   atomic.Uint32 // the phase it is in
	waits     atomic.Uint32 // 1: it sleeps until a byte comes on the socket; who writes that byte sets it to 0 before
	gone      atomic.Uint32 // 1: it reads no more
	processor atomic.Uint32 // where it ran last, from 1; 0 = unknown
	_         [236]byte
}

// memory is a mapped file.
type memory struct {
	mapped []byte
	*header
}

// NewFile makes the memory of a connection: sealed in size, and nothing that can be executed.
// Nobody pays for a page until it is written.
func NewFile() (*os.File, error) { return newMemory("ring", FileBytes) }

func newMemory(name string, size int64) (*os.File, error) {
	const op = "ring.NewFile"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // Linux before 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, sigma.Wrap(op, "", os.NewSyscallError("memfd_create", err))
	}
	f := os.NewFile(uintptr(fd), name)
	if err = f.Truncate(size); err == nil {
		err = f.Chmod(0o600)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, sigma.Wrap(op, "", err)
	}
	return f, nil
}

// Revoke has both sides of a memory find that the connection was taken back, as soon as they look.
// Who sleeps is to be woken by the end of the socket.
func Revoke(f *os.File) error {
	one := binary.NativeEndian.AppendUint32(nil, 1)
	_, err := f.WriteAt(one, int64(unsafe.Offsetof(header{}.revoked)))
	return sigma.Wrap("ring.Revoke", "", err)
}

// Tally is what the two procs of a memory say that they did with it, by Side of who wrote. It is
// their own word.
type Tally struct {
	Bytes, Messages [2]uint64
	Spun            uint64 // nanoseconds
}

// TallyOf reads it.
func TallyOf(f *os.File) (t Tally, err error) {
	var b [unsafe.Sizeof(header{})]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return t, sigma.Wrap("ring.TallyOf", "", err)
	}
	for side := range 2 {
		at := unsafe.Offsetof(header{}.directions) + uintptr(side)*unsafe.Sizeof(direction{})
		word := func(offset uintptr) uint64 { return binary.NativeEndian.Uint64(b[at+offset:]) }
		t.Bytes[side], t.Messages[side] = word(unsafe.Offsetof(direction{}.tail)),
			word(unsafe.Offsetof(direction{}.messages))
		t.Spun += word(unsafe.Offsetof(direction{}.spun))
	}
	return t, nil
}

// mapFile maps a file of NewFile, which stays the caller's. KindInvalid if it is none, or could be
// cut short under who reads it.
func mapFile(f *os.File) (*memory, error) {
	b, err := mapSealed(f, FileBytes)
	if err != nil {
		return nil, err
	}
	// SAFETY: b begins at a page, is longer than a header, and a header is made of integers only;
	// the compiler cannot know that mapped memory has this shape.
	return &memory{b, (*header)(unsafe.Pointer(unsafe.SliceData(b)))}, nil
}

func mapSealed(f *os.File, size int) ([]byte, error) {
	const op = "ring.Map"
	st, err := f.Stat()
	if err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size() != int64(size) {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "the file is no memory of a connection")
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, sigma.Wrap(op, "", os.NewSyscallError("mmap", err))
	}
	return b, nil
}

func (m *memory) unmap() { unix.Munmap(m.mapped) }

// bytes are those of a direction.
func (m *memory) bytes(d Side) []byte {
	at := headerBytes + int(d)*Bytes
	return m.mapped[at : at+Bytes : at+Bytes]
}

// release gives the pages of a direction back. Only who writes it may, when all that it wrote has
// been read.
func (m *memory) release(d Side) { unix.Madvise(m.bytes(d), unix.MADV_REMOVE) }

// errCorrupt is what a peer gets that breaks the rules of the memory.
func errCorrupt(what string) error {
	return &sigma.Error{Op: "ring.Conn", Kind: sigma.KindInvalid,
		Msg: "the peer broke the connection's memory: " + what}
}

// producer writes one direction. What it wrote last it knows itself; of the shared memory it
// believes nothing but where the reader is, within bounds.
type producer struct {
	*direction
	data   []byte
	tail   uint64
	head   uint64 // as last seen
	writes uint64 // while it had the memory
}

// pieceBytes are copied before the other side is told, so that both sides copy a large message at
// the same time, and neither spins for as long as the other one copies all of it.
const pieceBytes = 16 << 10

// put copies as much of p as there is room for.
func (w *producer) put(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		if k, err = w.piece(p[n:min(len(p), n+pieceBytes)]); k == 0 {
			break
		}
		n += k
	}
	return n, err
}

// piece is put of a piece. What the reader looks at all the time is written at once, and last: each
// time that it changes, its processor has to fetch it.
func (w *producer) piece(p []byte) (int, error) {
	free := Bytes - (w.tail - w.head)
	if free < uint64(len(p)) {
		head := w.direction.head.Load()
		if w.tail-head > Bytes {
			return 0, errCorrupt("more was read than written")
		}
		w.head = head
		free = Bytes - (w.tail - head)
	}
	n := int(min(free, uint64(len(p))))
	at := int(w.tail % Bytes)
	copy(w.data, p[copy(w.data[at:], p[:n]):n])
	w.tail += uint64(n)
	w.messages.Store(w.writes)
	w.direction.tail.Store(w.tail)
	return n, nil
}

// consumer reads one direction.
type consumer struct {
	*direction
	data []byte
	head uint64
	tail uint64 // as last seen
}

// get copies what there is, p at most. It copies before anybody looks at the bytes, so that they
// cannot change afterwards.
func (r *consumer) get(p []byte) (int, error) {
	if r.tail == r.head {
		tail := r.direction.tail.Load()
		if tail-r.head > Bytes {
			return 0, errCorrupt("more was written than there is room for")
		}
		r.tail = tail
	}
	n := int(min(r.tail-r.head, uint64(len(p))))
	if n == 0 {
		return 0, nil
	}
	for at := 0; at < n; {
		k := copy(p[at:min(n, at+pieceBytes)], r.data[r.head%Bytes:])
		at += k
		r.head += uint64(k)
		r.direction.head.Store(r.head)
	}
	return n, nil
}

// empty reports whether nothing can be read.
func (r *consumer) empty() bool { return r.direction.tail.Load() == r.head }
