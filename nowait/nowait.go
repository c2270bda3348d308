// Package nowait makes system calls that never wait, on file descriptors that do not block, without telling the Go scheduler. The ordinary way tells it before and after each
// call, so that another thread can go on if the call waits; in a program that is mostly idle that wakes the thread that watches over this, which then looks around
// every 20 µs. For a daemon that makes a dozen short calls for a request this is more work than the calls.
//
// It assumes that the caller passes descriptors that do not block and stay open during the call. Nothing here may be used for files on a disk. Users: session, launch,
// readiness, output, kernel.
package nowait

import (
	"syscall"
	"unsafe"
)

// Read reads from a pipe or socket; EAGAIN if there is nothing.
func Read(fd int, p []byte) (int, error) { return transfer(syscall.SYS_READ, fd, p) }

// Write writes to a socket; EAGAIN if there is no room.
func Write(fd int, p []byte) (int, error) { return transfer(syscall.SYS_WRITE, fd, p) }

func transfer(call uintptr, fd int, p []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		if e == 0 {
			return int(n), nil
		}
		if e != syscall.EINTR {
			return 0, e
		}
	}
}

// Recvmsg receives a record and control messages; descriptors that come are closed on exec.
func Recvmsg(fd int, p, oob []byte) (n, oobn, flags int, err error) {
	h := header(p, oob)
	n, err = message(syscall.SYS_RECVMSG, fd, h, syscall.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, 0, 0, err
	}
	return n, int(h.Controllen), int(h.Flags), nil
}

// Sendmsg sends a record and control messages; EAGAIN if there is no room.
func Sendmsg(fd int, p, oob []byte) error {
	_, err := message(syscall.SYS_SENDMSG, fd, header(p, oob), syscall.MSG_NOSIGNAL)
	return err
}

func header(p, oob []byte) *syscall.Msghdr {
	v := &syscall.Iovec{Base: unsafe.SliceData(p)}
	v.SetLen(len(p))
	h := &syscall.Msghdr{Iov: v, Iovlen: 1}
	if len(oob) > 0 {
		h.Control = unsafe.SliceData(oob)
		h.SetControllen(len(oob))
	}
	return h
}

func message(call uintptr, fd int, h *syscall.Msghdr, flags int) (int, error) {
	for {
		n, _, e := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(h)), uintptr(flags))
		if e == 0 {
			return int(n), nil
		}
		if e != syscall.EINTR {
			return 0, e
		}
	}
}

// Close closes a pipe or socket.
func Close(fd int) { syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0) }

// SetNonblock has calls on a descriptor that was opened for reading or writing only answer EAGAIN instead of waiting.
func SetNonblock(fd int) error {
	if _, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFL, syscall.O_NONBLOCK); e != 0 {
		return e
	}
	return nil
}

// EpollWait takes events that are there.
func EpollWait(fd int, events []syscall.EpollEvent) int {
	n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// Gone says that a socket has ended: its peer has closed it, or it was shut down, and there is nothing left to read.
func Gone(fd int) bool {
	var b [1]byte
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
		if e != syscall.EINTR {
			return e != syscall.EAGAIN && (e != 0 || n == 0)
		}
	}
}
