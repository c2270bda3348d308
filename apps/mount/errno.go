package mount

import (
	"errors"
	"syscall"

	"sigmaos.dev/sigma"
)

// errnos are the kinds of which Linux programs expect another errno than 9P2000.L clients are told
// (sigma.Kind.Errno). docs/reference/mount.md has the whole table.
var errnos = map[sigma.Kind]syscall.Errno{
	sigma.KindCanceled: syscall.EINTR, // the caller had a signal
	sigma.KindLost:     syscall.EIO,   // ECONNRESET is of sockets
	sigma.KindVersion:  syscall.ESTALE,
}

// errnoOf is what a program is told.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var no syscall.Errno
	var e *sigma.Error
	if !errors.As(err, &e) && errors.As(err, &no) {
		return no
	}
	kind := sigma.KindOf(err)
	if no, ok := errnos[kind]; ok {
		return no
	}
	return kind.Errno()
}
