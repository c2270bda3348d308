package launch

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// Connect makes a TCP connection to address, an IP address with a port. sigmad can make no socket that reaches a network, so the keeper makes it, in its own network; sigmad connects it.
// The error is the kernel's (ECONNREFUSED and so on), or ctx's.
func (k *Keeper) Connect(ctx context.Context, address string) (net.Conn, error) {
	const op = "launch.Connect"
	to, err := netip.ParseAddrPort(address)
	if err != nil || to.Addr().Zone() != "" || to.Port() == 0 {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: "not an IP address with a port: " + quote(address), Err: err}
	}
	ip := to.Addr().Unmap()
	family, where := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: ip.As16()})
	if ip.Is4() {
		family, where = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: ip.As4()}
	}
	f, err := k.socket(ctx, family)
	if err != nil {
		return nil, err
	}
	defer f.Close() // FileConn takes a copy
	if err := connect(ctx, f, where); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	return net.FileConn(f)
}

func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return `"` + s + `"`
}

// connect connects a socket that does not block.
func connect(ctx context.Context, f *os.File, to unix.Sockaddr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if t, ok := ctx.Deadline(); ok {
		f.SetWriteDeadline(t)
	}
	defer context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })()
	var result error
	begun := false
	err = raw.Write(func(fd uintptr) bool {
		if !begun {
			begun = true
			result = unix.Connect(int(fd), to)
		} else {
			result = progress(int(fd))
		}
		switch result {
		case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
			return false
		}
		return true
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil { // the deadline of ctx, which has not noticed yet
		return context.DeadlineExceeded
	}
	if result == unix.EISCONN {
		result = nil
	}
	if result != nil {
		return os.NewSyscallError("connect", result)
	}
	return nil
}

// progress is what became of a connect that was begun. Being woken says nothing yet, since an unconnected socket can be written to, which is an error.
func progress(fd int) error {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return err
	case n != 0:
		return syscall.Errno(n)
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return unix.EINPROGRESS
	}
	return nil
}
