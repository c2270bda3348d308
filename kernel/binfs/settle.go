package binfs

import (
	"cmp"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// The kernel asks by FLUSH whenever a file is closed, until the first answer ENOSYS. Whoever closes
// a file before that cannot be killed until it is answered. A killed sigmad that has such a file
// open would wait for itself, and all of its machine with it.

// The file that is opened and closed so that there is a first answer. Programs have longer names,
// and nodes that begin with the time.
const (
	settleName = "settle"
	settleNode = 2
)

// settle has the kernel send no FLUSH from now on. It returns when that is so, and before the
// server has shown a program.
func settle(m *Mount) error {
	device, err := m.Device.SyscallConn()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go onOwnThread(func() { done <- closeOnce(device, m.Root) })
	return <-done
}

// closeOnce opens and closes a file on a thread whose descriptors are its own and the device not
// among them: if this process is killed meanwhile, the other threads close the device, and with it
// ends what this one waits for.
func closeOnce(device interface{ Control(func(uintptr)) error }, root *os.File) error {
	var closing error
	if err := device.Control(func(fd uintptr) {
		closing = unix.CloseRange(uint(fd), uint(fd), unix.CLOSE_RANGE_UNSHARE)
	}); err != nil || closing != nil {
		return cmp.Or(err, os.NewSyscallError("close_range", closing))
	}
	fd, err := unix.Openat(int(root.Fd()), settleName, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// onOwnThread calls f on a thread that ends with the calling goroutine. The first thread of a
// process does not end, so that is not it.
func onOwnThread(f func()) {
	runtime.LockOSThread() // for good
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	over := make(chan struct{})
	go func() { defer close(over); onOwnThread(f) }()
	<-over
	runtime.UnlockOSThread()
}
