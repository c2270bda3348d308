package sdk

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// Goal: where more programs connect than are accepted, a program waits for its turn, and is told
// that there are too many if none comes; what it is told where nobody listens stays. Method: a
// socket of which the queue is full.
func TestConnectWaitsForItsTurn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { unix.Close(l) }()
	if err := errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: path}), unix.Listen(l, 1)); err != nil {
		t.Fatal(err)
	}
	full := false
	for range 10 {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			full = true
			break
		}
		defer c.Close()
	}
	if !full {
		t.Fatal("the queue does not fill")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = dialSocket(ctx, path)
	if sigma.KindOf(err) != sigma.KindBusy || !strings.Contains(err.Error(), "too many connect at once") ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with no turn: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		c, err := dialSocket(t.Context(), path)
		if err == nil {
			c.Close()
		}
		got <- err
	}()
	fd, _, err := unix.Accept(l)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if err := <-got; err != nil {
		t.Errorf("when a turn came: %v", err)
	}
	unix.Close(l)
	l = -1
	if _, err := dialSocket(t.Context(), path); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("nobody listens: %v", err)
	}
}
