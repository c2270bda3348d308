package lite

import (
	"context"
	"unicode/utf8"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// Error is what SQLite says.
type Error struct {
	Code     int32 // SQLite's extended result code
	Message  string
	Position int // in the statement, in characters from 1; 0 = it is not known
}

func (e *Error) Error() string { return e.Message }

// Primary is the result code without what extends it.
func (e *Error) Primary() int32 { return e.Code & 0xff }

// failed tells what went wrong with the last call.
func (c *Conn) failed(rc int32) error {
	e := &Error{Code: rc, Message: "SQLite cannot open the database"}
	if c.db != 0 {
		e.Message = libc.GoString(sqlite3.Xsqlite3_errmsg(c.tls, c.db))
	}
	if rc == sqlite3.SQLITE_TOOBIG {
		e.Message = "string or blob too big"
	}
	return e
}

// ended is failed for what a context may have ended. text is the statement, if it was being
// compiled.
func (c *Conn) ended(ctx context.Context, rc int32, text string) error {
	if rc&0xff == sqlite3.SQLITE_INTERRUPT || rc&0xff == sqlite3.SQLITE_BUSY {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	err := c.failed(rc)
	if text != "" {
		if at := int(sqlite3.Xsqlite3_error_offset(c.tls, c.db)); at >= 0 && at <= len(text) {
			err.(*Error).Position = utf8.RuneCountInString(text[:at]) + 1
		}
	}
	return err
}

// address makes a pointer of what SQLite gives as a number. Its memory is not the garbage
// collector's: libc has it from the kernel.
func address(p uintptr) unsafe.Pointer {
	// SAFETY: the number is an address that a call of SQLite's just gave, of memory that lives
	// until the next one.
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}

// pointerAt reads a pointer.
func pointerAt(place uintptr) uintptr {
	// SAFETY: callers allocated eight bytes there.
	return *(*uintptr)(address(place))
}

// bytesAt copies n bytes.
func bytesAt(p uintptr, n int32) []byte {
	out := make([]byte, n)
	if p != 0 && n > 0 {
		// SAFETY: SQLite says that it has n bytes there.
		copy(out, unsafe.Slice((*byte)(address(p)), n))
	}
	return out
}

// callback makes of a function what SQLite calls, as the module's own driver does.
func callback[F any](f F) uintptr {
	// SAFETY: a function value is a pointer to the function, which is static; the same conversion
	// is taken back by the translated code.
	return *(*uintptr)(unsafe.Pointer(&struct{ f F }{f}))
}
