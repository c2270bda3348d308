// Package rawio makes system calls that never wait, on file descriptors that do not block, without
// telling the Go scheduler. The ordinary way tells it before and after each call, so that another
// thread can go on if the call waits; in a program that is mostly idle that wakes the thread that
// watches over this, which then looks around every 20 µs. For a daemon that makes a dozen short
// calls for a request this is more work than the calls.
//
// It assumes that the caller passes descriptors that do not block and stay open during the call.
// Nothing here may be used for files on a disk. Users: connections and rings in wire,
// sdk, and of the kernel proclog, runner and dialproxy.
package rawio

import (
	"os"
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

// SetNonblock has calls on a descriptor that was opened for reading or writing only answer EAGAIN
// instead of waiting.
func SetNonblock(fd int) error { return setFlags(fd, syscall.O_NONBLOCK) }

func setFlags(fd int, flags uintptr) error {
	if _, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFL, flags); e != 0 {
		return e
	}
	return nil
}

// Unpolled makes an os.File of a socket's descriptor that is not in Go's poller, where a thread is
// woken for every socket whose peer has read something, whether anybody waits or not, and which
// costs a call when it begins and one when it ends. What waits cannot be used, so only Fd,
// SyscallConn's Control and Close are. Nobody else uses the socket meanwhile: for a moment it
// blocks. fd belongs to the file, and is closed if there is an error.
func Unpolled(fd int, name string) (*os.File, error) {
	err := setFlags(fd, 0) // os adds to the poller what does not block
	f := os.NewFile(uintptr(fd), name)
	if e := SetNonblock(fd); err == nil {
		err = e
	}
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}

// Inode is that of a file; 0 if it cannot be told.
func Inode(fd int) uint64 {
	var st syscall.Stat_t
	if _, _, e := syscall.RawSyscall(syscall.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(&st)), 0); e != 0 {
		return 0
	}
	return st.Ino
}

// Unread tells how much memory the records take that were sent on a UNIX socket and whose reader
// has not received them; 0 if the reader is gone. SIOCOUTQ says the same, but no filter of ours
// lets it pass.
func Unread(fd int) (int, error) {
	var info [9]uint32 // SK_MEMINFO_*
	size := uint32(unsafe.Sizeof(info))
	// SAFETY: the kernel writes size bytes at most, which is what info has, and keeps neither
	// address.
	_, _, e := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, soMeminfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return 0, e
	}
	return int(info[memWritten]), nil
}

const (
	soMeminfo  = 55 // SO_MEMINFO
	memWritten = 2  // SK_MEMINFO_WMEM_ALLOC
)

// EpollWait takes events that are there.
func EpollWait(fd int, events []syscall.EpollEvent) int {
	n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// Gone says that a socket has ended: its peer has closed it, or it was shut down, and there is
// nothing left to read.
func Gone(fd int) bool {
	var b [1]byte
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), 1,
			syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
		if e != syscall.EINTR {
			return e != syscall.EAGAIN && (e != 0 || n == 0)
		}
	}
}
