package mount

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// Every kind has an errno that the page explains, and programs are never told of sockets or wire
// errors.
func TestErrnos(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/mount.md")
	if err != nil {
		t.Fatal(err)
	}
	for k := sigma.KindOther; k.String() != fmt.Sprintf("kind %d", k); k++ {
		no := errnoOf(fmt.Errorf("around it: %w", &sigma.Error{Kind: k}))
		name := unix.ErrnoName(no)
		if no == syscall.EOPNOTSUPP {
			name = "EOPNOTSUPP" // as the page, and the man pages of file systems, call it
		}
		if k != sigma.KindNoExec && !strings.Contains(string(page), name) {
			t.Errorf("%v is %s, which the page does not have", k, name)
		}
	}
	for err, want := range map[error]syscall.Errno{nil: 0, syscall.EXDEV: syscall.EXDEV,
		&sigma.Error{Kind: sigma.KindNoSpace}: syscall.ENOSPC, &sigma.Error{Kind: sigma.KindLost}: syscall.EIO,
		&sigma.Error{Kind: sigma.KindUnavailable}: syscall.EHOSTUNREACH, fmt.Errorf("anything"): syscall.EIO} {
		if got := errnoOf(err); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}
