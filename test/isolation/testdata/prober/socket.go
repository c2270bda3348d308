package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// socket tries to get from a connection to what the host has. Outside, as a control, it does the
// same as an ordinary process with a pair of sockets. What it goes for is in the environment:
// ADMIN, LAUNCHER, the path of a socket; PORT, of a listener on the host's loopback; FILE, a file
// of the names'.
func socket(ctx context.Context) error {
	here, there, err := sockets(ctx)
	if err != nil {
		return err
	}
	admin, file := os.Getenv("ADMIN"), os.Getenv("FILE")
	port, err := strconv.Atoi(os.Getenv("PORT"))
	if err != nil {
		return err
	}
	loopback := &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	fresh := func(domain, typ int, to unix.Sockaddr) error {
		fd, err := unix.Socket(domain, typ, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if to == nil {
			return nil
		}
		return unix.Connect(fd, to)
	}
	for _, x := range []struct {
		what string
		try  func() error
	}{
		{"connect a passed socket to the admin socket", func() error {
			return through(unix.Connect(here, &unix.SockaddrUnix{Name: admin}))
		}},
		{"connect a passed socket to the host's loopback", func() error {
			return through(unix.Connect(here, loopback))
		}},
		{"disconnect a passed socket", func() error {
			var unspecified [16]byte
			_, _, errno := syscall.RawSyscall(unix.SYS_CONNECT, uintptr(here), uintptr(unsafe.Pointer(&unspecified)),
				16) // SAFETY: it is read during the call only
			return through(errnoOf(errno))
		}},
		{"bind a passed socket", func() error {
			return through(unix.Bind(here, &unix.SockaddrUnix{Name: "@sigma-isolation"}))
		}},
		{"listen on a passed socket", func() error { return through(unix.Listen(here, 1)) }},
		{"send from a passed socket to the admin socket", func() error {
			return through(unix.Sendto(here, []byte{0}, 0, &unix.SockaddrUnix{Name: admin}))
		}},
		{"pass a descriptor on by a connection", func() error { return give(here, there, unix.UnixRights(1)) }},
		{"pass descriptor 3, which is its identity, on", func() error { return give(here, there, unix.UnixRights(3)) }},
		{"say by a connection to be root", func() error {
			return give(here, there, unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid())}))
		}},
		{"learn which process is behind a connection", func() error {
			_, err := unix.GetsockoptUcred(here, unix.SOL_SOCKET, unix.SO_PEERCRED)
			return err
		}},
		{"a handle of the process behind a connection", func() error {
			_, err := unix.GetsockoptInt(here, unix.SOL_SOCKET, soPeerPidfd)
			return through(err)
		}},
		{"the interfaces of the host by a connection", func() error {
			_, err := unix.IoctlGetInt(here, siocGSKNS) // a descriptor of the socket's network namespace
			return through(err)
		}},
		{"a socket of its own to the admin socket", func() error {
			return fresh(unix.AF_UNIX, unix.SOCK_SEQPACKET, &unix.SockaddrUnix{Name: admin})
		}},
		{"a socket of its own to the host's loopback", func() error {
			return fresh(unix.AF_INET, unix.SOCK_STREAM, loopback)
		}},
		{"a socket of its own to the host's loopback, by IPv6", func() error {
			return through(fresh(unix.AF_INET6, unix.SOCK_STREAM, &unix.SockaddrInet6{Port: port,
				Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}}))
		}},
		{"datagrams to the host's loopback", func() error { return fresh(unix.AF_INET, unix.SOCK_DGRAM, loopback) }},
		{"the kernel's interfaces by netlink", func() error { return fresh(unix.AF_NETLINK, unix.SOCK_RAW, nil) }},
		{"packets of the host", func() error { return fresh(unix.AF_PACKET, unix.SOCK_RAW, nil) }},
		{"open the file of a socket", func() error {
			_, err := unix.Open(admin, unix.O_PATH, 0)
			return err
		}},
		{"open the names' files", func() error {
			fd, err := unix.Open(file, unix.O_RDONLY, 0)
			unix.Close(fd)
			return err
		}},
		{"open them beneath a connection", func() error {
			fd, err := unix.Openat(here, file, unix.O_RDONLY, 0)
			unix.Close(fd)
			return err
		}},
		{"a handle of the first process", func() error {
			fd, err := unix.PidfdOpen(1, 0)
			unix.Close(fd)
			return err
		}},
	} {
		if err := say(Words{What: x.what, Err: text(x.try())}); err != nil {
			return err
		}
	}
	return nil
}

const (
	soPeerPidfd = 77     // since Linux 6.5
	siocGSKNS   = 0x894C // since Linux 4.10
)

// through takes for success what the kernel says of a socket when the call was let through: it is
// connected, of another family, nobody is there.
func through(err error) error {
	for _, proof := range []syscall.Errno{unix.EISCONN, unix.EINVAL, unix.ECONNREFUSED, unix.EPROTOTYPE,
		unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENOPROTOOPT, unix.ENOTCONN} {
		if errors.Is(err, proof) {
			return nil
		}
	}
	return err
}

func errnoOf(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// give sends a control message and takes it out again at the other end.
func give(here, there int, control []byte) error {
	unix.SetsockoptInt(there, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	if err := unix.Sendmsg(here, []byte{0}, control, nil, 0); err != nil {
		return err
	}
	oob := make([]byte, 128)
	_, n, _, _, err := unix.Recvmsg(there, make([]byte, 1), oob, 0)
	if err == nil && n == 0 {
		err = errors.New("it did not arrive")
	}
	return err
}

// sockets are the two ends of a connection of this proc with itself.
func sockets(ctx context.Context) (here, there int, err error) {
	if len(os.Args) > 2 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Dup3(1, 3, 0) // what takes the place of its identity
		}
		return pair[0], pair[1], err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return 0, 0, err
	}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return 0, 0, err
	}
	a, err := c.Dial(ctx, l.Endpoint())
	if err != nil {
		return 0, 0, err
	}
	b, err := l.Accept()
	if err != nil {
		return 0, 0, err
	}
	return descriptor(a, &here), descriptor(b, &there), nil
}

// descriptor gives a connection's own, which stays open as long as the program runs.
func descriptor(c net.Conn, fd *int) int {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err == nil {
		err = raw.Control(func(own uintptr) { *fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 10) })
	}
	if err != nil {
		panic(fmt.Sprint("no descriptor: ", err))
	}
	return *fd
}
