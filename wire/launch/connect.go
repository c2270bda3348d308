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
	"sigmaos.dev/wire/session"
)

// Connect makes a TCP connection to address, an IP address with a port. sigmad can make no socket
// that reaches a network, so the keeper makes it, in its own network; sigmad connects it. The error
// is the kernel's (ECONNREFUSED and so on), or ctx's.
func (k *Keeper) Connect(ctx context.Context, address string) (net.Conn, error) {
	fs, err := k.ConnectAll(ctx, address, 1)
	if err != nil {
		return nil, err
	}
	defer fs[0].Close() // FileConn takes a copy
	return net.FileConn(fs[0])
}

// ConnectAll is Connect for n connections, at most ConnectMost, in the time of one: the keeper and
// the other side are asked for all at once. The files do not block, and are the caller's.
func (k *Keeper) ConnectAll(ctx context.Context, address string, n int) (fs []*os.File, err error) {
	const op = "launch.Connect"
	to, err := netip.ParseAddrPort(address)
	if err != nil || to.Addr().Zone() != "" || to.Port() == 0 {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindInvalid,
			Msg: "not an IP address with a port: " + quote(address), Err: err}
	}
	if n < 1 || n > ConnectMost {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "%d connections at once, %d are possible", n, ConnectMost)
	}
	ip := to.Addr().Unmap()
	family, where := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: ip.As16()})
	if ip.Is4() {
		family, where = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: ip.As4()}
	}
	defer func() {
		if err != nil {
			session.CloseFiles(fs)
			fs = nil
		}
	}()
	var asked []*asking
	for len(asked) < n && err == nil {
		var q *asking
		if q, err = k.ask(ctx, family); err == nil {
			asked = append(asked, q)
		}
	}
	for _, q := range asked {
		f, e := k.await(ctx, q)
		if e == nil {
			fs = append(fs, f)
			e = sigma.Wrap(op, "", begin(f, where))
		}
		if err == nil {
			err = e
		}
	}
	for i := 0; i < len(fs) && err == nil; i++ {
		err = sigma.Wrap(op, "", connected(ctx, fs[i]))
	}
	return fs, err
}

// ConnectMost is how many connections ConnectAll makes at most.
const ConnectMost = 16

func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return `"` + s + `"`
}

// begin has a socket that does not block connect.
func begin(f *os.File, to unix.Sockaddr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = unix.Connect(int(fd), to) }); e != nil {
		return e
	}
	if err == unix.EINPROGRESS || err == unix.EINTR {
		return nil
	}
	return os.NewSyscallError("connect", err)
}

// connected waits until a socket that began to connect has.
func connected(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if t, ok := ctx.Deadline(); ok {
		f.SetWriteDeadline(t)
	}
	defer context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })()
	var result error
	err = raw.Write(func(fd uintptr) bool {
		result = progress(int(fd))
		return result != unix.EINPROGRESS
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil { // the deadline of ctx, which has not noticed yet
		return context.DeadlineExceeded
	}
	return os.NewSyscallError("connect", result)
}

// progress is what became of a connect that was begun. Being woken says nothing yet, since an
// unconnected socket can be written to, which is an error.
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
