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
	"sigmaos.dev/wire/session"
)

// socket tries what a socket that sigmaOS passed must not allow: both ends are this proc's own, so
// what is given away at one comes out at the other.
func socket(ctx context.Context, c *sdk.Client) error {
	here, there, err := ends(ctx, c)
	if err != nil {
		return err
	}
	fd := int(here.Fd())
	for _, x := range []struct {
		name, attempt, asset string
		try                  func() error
	}{
		{"give descriptor 3 away", "give descriptor 3 away", "identity", func() error { return give(here, there, 3) }},
		{"give a standard stream away", "pass a descriptor on", "descriptors of other procs", func() error {
			return give(here, there, 1)
		}},
		{"give descriptor 3 to sigmad", "give descriptor 3 away", "identity", func() error {
			return reached(unix.Sendmsg(3, []byte{0}, unix.UnixRights(3), nil, unix.MSG_OOB), unix.EOPNOTSUPP)
		}},
		{"disconnect a dialled socket", "disconnect a passed socket to use it again", "services of the host",
			func() error {
				_, _, errno := syscall.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unspecified()), 16)
				return reached(errnoOf(errno), unix.EINVAL, unix.EISCONN, unix.ECONNREFUSED)
			}},
		{"connect a dialled socket", "connect a passed socket elsewhere", "services of the host", func() error {
			return reached(unix.Connect(fd, &unix.SockaddrUnix{Name: "@sigma-attack"}), unix.EISCONN, unix.ECONNREFUSED)
		}},
		{"bind a dialled socket", "bind a passed socket", "services of the host", func() error {
			return reached(unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@sigma-attack-%d", os.Getpid())}),
				unix.EINVAL)
		}},
		{"listen on a dialled socket", "listen on a passed socket", "services of the host", func() error {
			return reached(unix.Listen(fd, 1), unix.EINVAL)
		}},
		{"accept at a dialled socket", "listen on a passed socket", "services of the host", func() error {
			_, _, err := unix.Accept(fd)
			return reached(err, unix.EINVAL)
		}},
		{"send to an address by a dialled socket", "send to another address", "services of the host", func() error {
			return reached(unix.Sendto(fd, []byte{0}, 0, &unix.SockaddrUnix{Name: "@sigma-attack"}), unix.EISCONN,
				unix.EOPNOTSUPP)
		}},
		{"TCP_ULP of a dialled socket", "give a socket an upper layer", "the kernel's attack surface", func() error {
			return reached(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "tls"), unix.EOPNOTSUPP,
				unix.ENOPROTOOPT)
		}},
		{"SO_PRIORITY of a dialled socket", "set the priority of packets", "networks", func() error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 5)
		}},
		{"SO_PASSCRED of a dialled socket", "ask for the credentials of senders", "the process behind a socket",
			func() error {
				return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
			}},
		{"SO_PEERCRED of a dialled socket", "ask who is behind", "the process behind a socket", func() error {
			_, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
			return err
		}},
		{"TIOCSTI to a dialled socket", "type into a terminal", "terminals", func() error {
			return reached(unix.IoctlSetPointerInt(fd, unix.TIOCSTI, 'x'), unix.ENOTTY, unix.EIO)
		}},
		{"TIOCOUTQ of a dialled socket", "learn what the other end has read", "the process behind a socket",
			func() error {
				_, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
				return err
			}},
	} {
		tell(os.Stdout, act{x.name, x.attempt, x.asset}, x.try(), "blocked")
	}
	return nil
}

func errnoOf(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// ends dials itself.
func ends(ctx context.Context, c *sdk.Client) (here, there *os.File, err error) {
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return nil, nil, err
	}
	a, err := c.Dial(ctx, l.Endpoint())
	if err != nil {
		return nil, nil, err
	}
	b, err := l.Accept()
	if err != nil {
		return nil, nil, err
	}
	here, herr := fileOf(a)
	there, terr := fileOf(b)
	return here, there, errors.Join(herr, terr)
}

func fileOf(c any) (*os.File, error) {
	u, ok := c.(interface{ File() (*os.File, error) })
	if s, is := c.(interface{ NetConn() net.Conn }); !ok && is {
		u, ok = s.NetConn().(interface{ File() (*os.File, error) })
	}
	if s, is := c.(syscall.Conn); !ok && is { // a connection that may be in a ring gives its socket, not a copy
		raw, err := s.SyscallConn()
		if err != nil {
			return nil, err
		}
		fd, dupErr := -1, error(nil)
		if err := raw.Control(func(own uintptr) {
			fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
		}); err != nil || dupErr != nil {
			return nil, errors.Join(err, dupErr)
		}
		return os.NewFile(uintptr(fd), "connection"), nil
	}
	if !ok {
		return nil, fmt.Errorf("%T has no descriptor", c)
	}
	return u.File()
}

// give sends a descriptor and takes it out again at the other end.
func give(here, there *os.File, fd int) error {
	if err := unix.Sendmsg(int(here.Fd()), []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(there.Fd()), make([]byte, 1), oob, 0)
	if err == nil && n == 0 {
		err = errors.New("it did not arrive")
	}
	return err
}

// mapped takes memory by a file: each page that is written becomes the proc's own.
func mapped(ctx context.Context, c *sdk.Client, args []string) error {
	times := 1 << 30
	if len(args) > 0 {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		times = n
	}
	h, err := c.Open(ctx, "/bin/forger", sigma.OpenRead)
	if err != nil {
		return err
	}
	f, err := h.File()
	if err != nil {
		return err
	}
	return mapPrivately(f, times)
}

func mapPrivately(f *os.File, times int) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for range times {
		b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		for at := 0; at < len(b); at += 4096 {
			b[at]++
		}
	}
	fmt.Println("all of it")
	return nil
}

// store sends spoilt messages to the object store, to which a proc may connect again and again.
func store(ctx context.Context, c *sdk.Client, args []string) error {
	text, err := c.ReadLink(ctx, "/s3")
	if err != nil {
		return err
	}
	e, err := sigma.ParseEndpoint(text)
	if err != nil {
		return err
	}
	for n := range sessions {
		conn, err := c.Dial(ctx, e)
		if err != nil {
			return err
		}
		packets, ok := conn.(*net.UnixConn)
		if !ok {
			return fmt.Errorf("the store is a %T", conn)
		}
		r := &rawSession{conn: session.NewPacketConn(packets, true)}
		if err := r.fuzz(fmt.Sprintf("%s-%d", args[0], n), []string{"held", "secret"}); err != nil {
			return err
		}
		conn.Close()
	}
	return nil
}

// sessions is how many the object store gets, one after the other.
const sessions = 50

// unspecified is the address that ends a socket's connection.
func unspecified() unsafe.Pointer {
	return unsafe.Pointer(&unix.RawSockaddrUnix{Family: unix.AF_UNSPEC})
}
