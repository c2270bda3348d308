package sigmap

import (
	"strings"
	"syscall"
)

// errnoOf is a number from the wire as an errno.
func errnoOf(n uint32) syscall.Errno { return syscall.Errno(n) }

// clip bounds the words of an error, so that an error reply always fits.
func clip(s string) string {
	if len(s) > 1000 {
		s = strings.ToValidUTF8(s[:1000], "") // not half a character at the end
	}
	return s
}
