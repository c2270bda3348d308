package lite

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// # Memory
//
// SQLite counts the memory of the whole process, so that a limit of its own lets one tenant take all of it. Here each piece of memory has a head that says to whom it was given: whoever's connection asked, which is known by the thread that SQLite is
// told to run on. What is beyond its limit fails as if there were no memory, for it alone.

// Memory is how much memory connections that share it may have. Safe for concurrent use.
type Memory struct {
	id   uint64 // 0 is nobody's
	most int64  // bytes
	used atomic.Int64
}

// memories finds a Memory by its id, and by the thread of a connection. It is written when they are made and connections open.
var memories struct {
	byID   sync.Map // uint64 -> *Memory
	byTLS  sync.Map // *libc.TLS -> *Memory
	lastID atomic.Uint64
}

// NewMemory makes a Memory of most bytes. Close it when no connection uses it any more.
func NewMemory(most int64) *Memory {
	m := &Memory{id: memories.lastID.Add(1), most: most}
	memories.byID.Store(m.id, m)
	return m
}

// Used tells how many bytes its connections have.
func (m *Memory) Used() int64 { return m.used.Load() }

// Close forgets it.
func (m *Memory) Close() { memories.byID.Delete(m.id) }

// take charges n bytes, or gives false; of nobody there is no limit.
func (m *Memory) take(n int64) bool {
	if m == nil {
		return true
	}
	if m.used.Add(n) > m.most && n > 0 {
		m.used.Add(-n)
		return false
	}
	return true
}

// head is before each piece of memory. Its size keeps what follows on an address that suits every type.
type head struct {
	size  int64
	owner uint64 // id of a Memory
}

const headSize = 16

// headOf is the head of a piece of memory.
func headOf(p uintptr) *head {
	// SAFETY: p was given by malloc or realloc, which put a head before it.
	return (*head)(address(p - headSize))
}

func (h *head) memory() *Memory {
	m, _ := memories.byID.Load(h.owner)
	found, _ := m.(*Memory)
	return found
}

func malloc(tls *libc.TLS, n int32) uintptr {
	found, _ := memories.byTLS.Load(tls)
	m, _ := found.(*Memory)
	if !m.take(int64(n) + headSize) {
		return 0
	}
	p := libc.Xmalloc(tls, libc.Tsize_t(n)+headSize)
	if p == 0 {
		m.take(-int64(n) - headSize)
		return 0
	}
	h := headOf(p + headSize)
	h.size, h.owner = int64(n), 0
	if m != nil {
		h.owner = m.id
	}
	return p + headSize
}

func realloc(tls *libc.TLS, p uintptr, n int32) uintptr {
	h := headOf(p)
	m, more := h.memory(), int64(n)-h.size
	if !m.take(more) {
		return 0
	}
	q := libc.Xrealloc(tls, p-headSize, libc.Tsize_t(n)+headSize)
	if q == 0 {
		m.take(-more)
		return 0
	}
	headOf(q + headSize).size = int64(n)
	return q + headSize
}

func free(tls *libc.TLS, p uintptr) {
	h := headOf(p)
	h.memory().take(-h.size - headSize)
	libc.Xfree(tls, p-headSize)
}

func sizeOf(_ *libc.TLS, p uintptr) int32 {
	if p == 0 {
		return 0
	}
	return int32(headOf(p).size)
}

func roundUp(_ *libc.TLS, n int32) int32 { return (n + 7) &^ 7 }

func begin(*libc.TLS, uintptr) int32 { return sqlite3.SQLITE_OK }

func end(*libc.TLS, uintptr) {}

// countMemory makes SQLite count what it has, without which no limit of memory holds, and take it from here. It must be said before the first connection.
var countMemory = sync.OnceFunc(func() {
	tls := libc.NewTLS() // nobody's: what SQLite makes for all is charged to none
	defer tls.Close()
	list := tls.Alloc(8)
	defer tls.Free(8)
	sqlite3.Xsqlite3_config(tls, sqlite3.SQLITE_CONFIG_MEMSTATUS, libc.VaList(list, int32(1)))
	const size = int(unsafe.Sizeof(sqlite3.Tsqlite3_mem_methods{}))
	methods := tls.Alloc(size)
	defer tls.Free(size)
	// SAFETY: size bytes were allocated there; SQLite copies them.
	*(*sqlite3.Tsqlite3_mem_methods)(address(methods)) = sqlite3.Tsqlite3_mem_methods{FxMalloc: callback(malloc), FxFree: callback(free), FxRealloc: callback(realloc), FxSize: callback(sizeOf),
		FxRoundup: callback(roundUp), FxInit: callback(begin), FxShutdown: callback(end)}
	sqlite3.Xsqlite3_config(tls, sqlite3.SQLITE_CONFIG_MALLOC, libc.VaList(list, methods))
	sqlite3.Xsqlite3_initialize(tls)
})
