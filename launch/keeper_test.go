package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// fakeKeeper makes a Keeper and the other end of its connection.
func fakeKeeper(t *testing.T) (*Keeper, *net.UnixConn) {
	t.Helper()
	ours, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	a, err := session.UnixConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	b, err := session.UnixConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return NewKeeper(a), b
}

// makeSockets answers requests as the keeper does, n of them.
func makeSockets(t *testing.T, conn *net.UnixConn, n int) {
	for range n {
		b := make([]byte, 64)
		k, err := conn.Read(b)
		if err != nil || k != 8 || binary.LittleEndian.Uint16(b) != recordSocket {
			t.Errorf("the request is %x, %v", b[:k], err)
			return
		}
		fd, err := unix.Socket(int(binary.LittleEndian.Uint32(b[4:])), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		conn.WriteMsgUnix([]byte{recordSocket, 0, 1, 0, 0, 0, 0, 0}, unix.UnixRights(fd), nil)
		unix.Close(fd)
	}
}

func TestConnect(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	k, conn := fakeKeeper(t)
	const n = 8
	go makeSockets(t, conn, n)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			io.Copy(c, c)
			c.Close()
		}
	}()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			c, err := k.Connect(t.Context(), ln.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			io.WriteString(c, "hello")
			c.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	all.Wait()
}

func TestConnectFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := ln.Addr().String()
	ln.Close()
	k, conn := fakeKeeper(t)
	for _, address := range []string{"", "localhost:80", "10.0.0.1", "10.0.0.1:0", "[fe80::1%eth0]:80", strings.Repeat("1", 1000)} {
		if _, err := k.Connect(t.Context(), address); sigma.KindOf(err) != sigma.KindInvalid || len(err.Error()) > 300 {
			t.Errorf("%.20q: got %v", address, err)
		}
	}
	go makeSockets(t, conn, 1)
	if _, err := k.Connect(t.Context(), nobody); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: got %v", err)
	}
	// Who gives up takes no answer from who comes after.
	ctx, cancel := context.WithCancel(t.Context())
	go func() { conn.Read(make([]byte, 64)); cancel() }()
	if _, err := k.Connect(ctx, nobody); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: got %v", err)
	}
	go func() {
		conn.Write([]byte{recordSocket, 0, 1, 0, byte(syscall.EMFILE), 0, 0, 0}) // the answer that nobody waits for
		makeSockets(t, conn, 1)
	}()
	if _, err := k.Connect(t.Context(), nobody); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after who gave up: got %v", err)
	}
	// What the keeper cannot do it says.
	go func() {
		conn.Read(make([]byte, 64))
		conn.Write([]byte{recordSocket, 0, 1, 0, byte(syscall.EMFILE), 0, 0, 0})
	}()
	if _, err := k.Connect(t.Context(), nobody); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("no descriptors: got %v", err)
	}
	// The keeper's end ends who waits.
	go func() { conn.Read(make([]byte, 64)); conn.Close() }()
	if _, err := k.Connect(t.Context(), nobody); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("the keeper is gone: got %v", err)
	}
	if _, err := k.Next(); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("next after the keeper is gone: got %v", err)
	}
}
