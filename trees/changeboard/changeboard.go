// Package changeboard lets a server tell everybody on its machine, without a message, that
// something which they remember of it may have changed: a page of counters in shared memory. The
// server counts a change of a file up before it answers the request that made it. Who remembers
// what was found along a path remembers the counters of all files on the way too, as they were
// before it asked; as long as they are the same, asking again would give the same answer.
//
// A Watch cannot promise that: its word may reach the one who remembers after the writer has its
// answer, and after what the writer did next.
//
// It promises that no change is missed. A counter stands for many files, so that a difference only
// means that something may have changed. Readers cannot write, and the page cannot shrink under
// them. What it tells ends with the server: who remembers must forget with the session.
//
// Users: named, diskfs; treeserver hands it out; kernel.
package changeboard

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// counters on a board: enough that the few files that a program's path leads through seldom share
// theirs with one that changes all the time. The first one counts changes of everything.
const counters = 2048

type page = [counters]atomic.Uint64

const pageSize = int(unsafe.Sizeof(page{}))

// Board is the server's side. Safe for concurrent use; a nil one tells nobody.
type Board struct {
	file *os.File
	page *page
}

// New makes a board in memory that can be passed on.
func New() (*Board, error) {
	fd, err := unix.MemfdCreate("changes", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, sigma.Wrap("changeboard.New", "", os.NewSyscallError("memfd_create", err))
	}
	b := &Board{file: os.NewFile(uintptr(fd), "changes")}
	err = b.file.Truncate(int64(pageSize))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err == nil {
		b.page, err = mapped(b.file, unix.PROT_READ|unix.PROT_WRITE)
	}
	if err == nil { // from now on nobody can map it for writing
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		b.file.Close()
		return nil, sigma.Wrap("changeboard.New", "", err)
	}
	return b, nil
}

// mapped maps the page.
func mapped(f *os.File, access int) (*page, error) {
	mem, err := unix.MmapPtr(int(f.Fd()), 0, nil, uintptr(pageSize), access, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return (*page)(mem), nil
}

// counterOf says which counter a file has.
func counterOf(file uint64) int {
	file ^= file >> 32
	return 1 + int(file*0x9e3779b97f4a7c15>>32%(counters-1))
}

// Changed says that a file changed: its content, or of a directory an entry. It is called when the
// change can be seen and before it is answered.
func (b *Board) Changed(file uint64) {
	if b != nil {
		b.page[counterOf(file)].Add(1)
	}
}

// AllChanged says that anything may have changed.
func (b *Board) AllChanged() {
	if b != nil {
		b.page[0].Add(1)
	}
}

// File returns a file descriptor for View, which is the caller's.
func (b *Board) File() (*os.File, error) {
	if b == nil {
		return nil, sigma.Errorf("changeboard.File", sigma.KindUnsupported, "the server tells no changes")
	}
	fd, err := unix.FcntlInt(b.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, sigma.Wrap("changeboard.File", "", os.NewSyscallError("fcntl", err))
	}
	return os.NewFile(uintptr(fd), "changes"), nil
}

// View is the side of who remembers. Safe for concurrent use.
type View struct{ page *page }

// Open maps a board that a server passed. The file stays the caller's. KindInvalid if it is none,
// or could be cut short.
func Open(f *os.File) (*View, error) {
	const op = "changeboard.Open"
	st, err := f.Stat()
	if err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size() != int64(pageSize) {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "the server passed no board of changes")
	}
	p, err := mapped(f, unix.PROT_READ)
	if err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	v := &View{p}
	runtime.AddCleanup(v, func(p *page) { unix.MunmapPtr(unsafe.Pointer(p), uintptr(pageSize)) }, p)
	return v, nil
}

// Snapshot is what the counters were at one time.
type Snapshot [counters]uint64

// Snapshot reads all counters. It is taken before the server is asked for what is to be remembered.
func (v *View) Snapshot() *Snapshot {
	s := new(Snapshot)
	for i := range s {
		s[i] = v.page[i].Load()
	}
	return s
}

// Mark is a file and what its counter was.
type Mark struct{ file, count, all uint64 }

// Mark picks a file's counter.
func (s *Snapshot) Mark(file uint64) Mark { return Mark{file, s[counterOf(file)], s[0]} }

// Same reports whether the file has not changed since the snapshot of the mark.
func (v *View) Same(m Mark) bool {
	same := v.page[counterOf(m.file)].Load() == m.count && v.page[0].Load() == m.all
	runtime.KeepAlive(v)
	return same
}
