// Package poller waits for many file descriptors that are silent most of the time, with one
// goroutine and no memory but a table's entry for each: a machine has thousands of procs that
// sleep, and a proc that never says anything should cost nothing for being listened to.
//
// It promises to call back once for each time that it was asked, when the descriptor can be read or
// its other end is closed. Users: kernel/runner,
// kernel/proclog.
package poller

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
)

// Set is the descriptors waited for. Safe for concurrent use.
type Set struct {
	file *os.File // an epoll instance, which the runtime waits for as for any other file
	raw  syscall.RawConn

	mu    sync.Mutex
	next  uint64            // mu
	watch map[uint64]*Watch // mu; by the number that epoll tells
}

// Watch is one descriptor.
type Watch struct {
	set    *Set
	fd     int
	number uint64
	ready  func()
}

// eventsMax events are taken at a time.
const eventsMax = 64

// New makes an empty set.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // else the runtime would block a thread in it
	}
	if err != nil {
		return nil, sigma.Wrap("poller.New", "", os.NewSyscallError("epoll_create1", err))
	}
	s := &Set{file: os.NewFile(uintptr(fd), "readiness"), watch: map[uint64]*Watch{}}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return nil, sigma.Wrap("poller.New", "", err)
	}
	return s, nil
}

// Close ends Run.
func (s *Set) Close() { s.file.Close() }

// Run calls back until the set is closed.
func (s *Set) Run() {
	events := make([]syscall.EpollEvent, eventsMax)
	for {
		n := 0
		if err := s.raw.Read(func(fd uintptr) bool {
			n = rawio.EpollWait(int(fd), events)
			return n > 0
		}); err != nil {
			return
		}
		for _, e := range events[:n] {
			s.mu.Lock()
			w := s.watch[uint64(uint32(e.Fd))|uint64(uint32(e.Pad))<<32]
			s.mu.Unlock()
			if w != nil {
				w.ready()
			}
		}
	}
}

// Add waits for fd, which must stay open until Remove. ready is called once, and again after each
// Again; it must not block. It may still be called while Remove returns.
func (s *Set) Add(fd int, ready func()) (*Watch, error) {
	w := &Watch{set: s, fd: fd, ready: ready}
	s.mu.Lock()
	s.next++
	w.number = s.next
	s.watch[w.number] = w
	s.mu.Unlock()
	if err := w.control(unix.EPOLL_CTL_ADD); err != nil {
		w.Remove()
		return nil, err
	}
	return w, nil
}

// Again waits once more.
func (w *Watch) Again() error { return w.control(unix.EPOLL_CTL_MOD) }

func (w *Watch) control(op int) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(uint32(w.number)),
		Pad: int32(w.number >> 32)}
	var failed error
	err := w.set.raw.Control(func(fd uintptr) { failed = unix.EpollCtl(int(fd), op, w.fd, &e) })
	if err == nil && failed != nil {
		err = os.NewSyscallError("epoll_ctl", failed)
	}
	return sigma.Wrap("poller.Watch", "", err)
}

// Remove ends the waiting. The caller closes the descriptor, with which the kernel forgets it.
func (w *Watch) Remove() {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	delete(w.set.watch, w.number)
}
