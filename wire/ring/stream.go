package ring

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// FileStream is one end of a UNIX socket pair, or of a TCP connection, as a Stream, by the
// descriptor that was passed: net.FileConn would make another, ask for addresses that such a pair
// has not, and wait for both, ten system calls in all. f does not block; it belongs to the Stream.
func FileStream(f *os.File) Stream { return fileStream{f} }

type fileStream struct{ *os.File }

var _ Stream = fileStream{}

func (fileStream) LocalAddr() net.Addr  { return &net.UnixAddr{Net: "unix"} }
func (fileStream) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func (s fileStream) CloseRead() error  { return s.shutdown(unix.SHUT_RD) }
func (s fileStream) CloseWrite() error { return s.shutdown(unix.SHUT_WR) }

func (s fileStream) shutdown(how int) (err error) {
	raw, err := s.File.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("shutdown", syscall.Shutdown(int(fd), how))
	}); e != nil {
		return e
	}
	return err
}
