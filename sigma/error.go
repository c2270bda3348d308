package sigma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Kind says what went wrong in a way that programs decide by. Kinds travel on the wire, so the list
// only grows.
type Kind uint16

// The kinds.
const (
	KindOther       Kind = iota // see the message
	KindInvalid                 // the request makes no sense: fix it, do not retry
	KindNotFound                // no such name, proc, realm, endpoint
	KindExists                  // the name is taken
	KindPermission              // the caller may not
	KindNotDir                  // a component is not a directory
	KindIsDir                   // the file is a directory
	KindNotEmpty                // the directory has entries
	KindTooBig                  // a limit on a size was exceeded
	KindVersion                 // the file is not at the expected version
	KindStale                   // fenced: the request's epoch is old, or the file is gone
	KindUnavailable             // the server cannot be reached now; retry may help
	KindTimeout                 // a deadline passed
	KindCanceled                // the caller gave up
	KindNoSpace                 // quota or disk is full
	KindUnsupported             // this server does not do that
	// a machine, daemon or proc died with the request's outcome; unknown whether it took effect
	KindLost
	KindNoExec // the program cannot be executed
	KindBusy   // a limit on concurrency was reached; retry may help
	KindLoop   // too many symbolic links
	kindEnd
)

var kindNames = [...]string{"error", "invalid", "not found", "exists", "permission denied", "not a directory",
	"is a directory",
	"directory not empty", "too big", "version mismatch", "stale", "unavailable", "timeout", "canceled", "no space",
	"not supported",
	"lost", "not executable", "busy", "too many links"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint16(k))
}

// Retryable reports whether the same request may succeed later and was certainly not applied.
func (k Kind) Retryable() bool { return k == KindUnavailable || k == KindBusy }

// Error is the error of every exported operation of sigmaOS. Kind decides, Msg and Hint are for
// people.
type Error struct {
	Op    string  // "package.Function" that noticed it; stays local
	Path  string  // the path, if one is concerned
	Realm RealmID // the realm, if one is concerned; stays local
	Kind  Kind
	Msg   string // a sentence part without capital or full stop; optional
	Hint  string // what to do next; optional
	Err   error  // cause; stays local
}

// Error prints path, message (or kind) and cause, not the hint.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Path != "" {
		fmt.Fprintf(&b, "%.200s: ", e.Path)
	}
	if e.Msg != "" {
		b.WriteString(e.Msg)
	} else {
		b.WriteString(e.Kind.String())
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, os.ErrNotExist) and the like work on remote errors too.
func (e *Error) Is(target error) bool {
	switch target {
	case os.ErrNotExist:
		return e.Kind == KindNotFound
	case os.ErrExist:
		return e.Kind == KindExists
	case os.ErrPermission:
		return e.Kind == KindPermission
	case context.DeadlineExceeded, os.ErrDeadlineExceeded:
		return e.Kind == KindTimeout
	case context.Canceled:
		return e.Kind == KindCanceled
	}
	return false
}

// Errorf makes an Error of a kind with a formatted message.
func Errorf(op string, kind Kind, format string, args ...any) *Error {
	return &Error{Op: op, Kind: kind, Msg: fmt.Sprintf(format, args...)}
}

// PathError makes an Error of a kind about a path.
func PathError(op string, kind Kind, path string) *Error {
	return &Error{Op: op, Kind: kind, Path: path}
}

// KindOf returns the kind of err: the outermost Error's, else by errno or context error, else
// KindOther. KindOf(nil) is KindOther.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	var no syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return KindTimeout
	case errors.Is(err, context.Canceled):
		return KindCanceled
	case errors.As(err, &no):
		for _, p := range errnos {
			if p.errno == no {
				return p.kind
			}
		}
	}
	return KindOther
}

// HintOf returns the hint of the outermost Error in err that has one, or "".
func HintOf(err error) string {
	for err != nil {
		if e, ok := err.(*Error); ok && e.Hint != "" {
			return e.Hint
		}
		err = errors.Unwrap(err)
	}
	return ""
}

// Errno gives the errno that a plain 9P2000.L client sees for k.
func (k Kind) Errno() syscall.Errno {
	for _, p := range errnos {
		if p.kind == k {
			return p.errno
		}
	}
	return syscall.EIO
}

// errnos pairs kinds with errnos; the first pair of a kind is what is sent, the first of an errno
// what is understood.
var errnos = []struct {
	kind  Kind
	errno syscall.Errno
}{
	{KindInvalid, syscall.EINVAL}, {KindNotFound, syscall.ENOENT}, {KindExists, syscall.EEXIST},
	{KindPermission, syscall.EACCES},
	{KindPermission, syscall.EPERM}, {KindNotDir, syscall.ENOTDIR}, {KindIsDir, syscall.EISDIR},
	{KindNotEmpty, syscall.ENOTEMPTY},
	{KindTooBig, syscall.EFBIG}, {KindInvalid, syscall.ENAMETOOLONG}, {KindVersion, syscall.EBADE},
	{KindStale, syscall.ESTALE},
	{KindUnavailable, syscall.EHOSTUNREACH}, {KindUnavailable, syscall.ECONNREFUSED}, {KindTimeout, syscall.ETIMEDOUT},
	{KindCanceled, syscall.ECANCELED},
	{KindNoSpace, syscall.ENOSPC}, {KindNoSpace, syscall.EDQUOT}, {KindUnsupported, syscall.EOPNOTSUPP},
	{KindUnsupported, syscall.ENOSYS},
	{KindLost, syscall.ECONNRESET}, {KindLost, syscall.EPIPE}, {KindNoExec, syscall.ENOEXEC}, {KindBusy, syscall.EBUSY},
	{KindBusy, syscall.EAGAIN}, {KindBusy, syscall.ETOOMANYREFS}, {KindBusy, syscall.EMFILE},
	{KindBusy, syscall.ENFILE}, {KindBusy, syscall.ENOBUFS},
	{KindBusy, syscall.ENOMEM}, {KindTooBig, syscall.EMSGSIZE}, {KindLost, syscall.ENOTCONN}, {KindLoop, syscall.ELOOP},
	{KindOther, syscall.EIO},
}

// Wrap gives err an operation and path; it keeps the kind, message and hint of a sigma error and
// classifies others by KindOf. Wrap(nil) is nil.
func Wrap(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok {
		c := *e
		c.Op = op
		if c.Path == "" {
			c.Path = path
		}
		return &c
	}
	return &Error{Op: op, Path: path, Kind: KindOf(err), Err: err}
}
