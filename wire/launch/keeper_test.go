package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
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
		fd, err := unix.Socket(int(binary.LittleEndian.Uint32(b[4:])),
			unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
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

// Several at once are connections of their own, each of which carries bytes both ways, all that are
// possible too; one more and none are refused without a word to the keeper.
func TestConnectAll(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	k, conn := fakeKeeper(t)
	for _, n := range []int{-1, 0, ConnectMost + 1} {
		if fs, err := k.ConnectAll(t.Context(), ln.Addr().String(), n); sigma.KindOf(err) != sigma.KindInvalid ||
			fs != nil {
			t.Errorf("%d at once: %v, %v", n, fs, err)
		}
	}
	for _, n := range []int{2, 5, ConnectMost} {
		go makeSockets(t, conn, n)
		fs, err := k.ConnectAll(t.Context(), ln.Addr().String(), n)
		if err != nil || len(fs) != n {
			t.Fatalf("%d at once: %d, %v", n, len(fs), err)
		}
		from := map[string]bool{}
		for i, f := range fs {
			raw, err := f.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			raw.Control(func(fd uintptr) {
				if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
					t.Errorf("%d of %d blocks: %#x, %v", i, n, flags, err)
				}
			})
			c, err := net.FileConn(f)
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			from[c.LocalAddr().String()] = true
			word := fmt.Sprintf("hello from %d of %d", i, n)
			io.WriteString(c, word)
			c.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(c); string(got) != word || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, word)
			}
		}
		if len(from) != n {
			t.Errorf("%d at once are %d connections", n, len(from))
		}
	}
}

// sockets are those that this process has open.
func sockets(t *testing.T) map[string]bool {
	t.Helper()
	const dir = "/proc/self/fd"
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, e := range es {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			out[to] = true
		}
	}
	return out
}

// If one of several fails none is given, all descriptors are closed, and who comes after gets
// answers of its own.
func TestConnectAllFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	k, conn := fakeKeeper(t)
	const n = 4
	refuse := func(at int) { // the keeper makes all but one
		makeSockets(t, conn, at)
		conn.Read(make([]byte, 64))
		conn.Write([]byte{recordSocket, 0, 1, 0, byte(syscall.EMFILE), 0, 0, 0})
		makeSockets(t, conn, n-at-1)
	}
	for at := range n {
		before := sockets(t)
		var keeper sync.WaitGroup
		keeper.Go(func() { refuse(at) })
		if fs, err := k.ConnectAll(t.Context(), ln.Addr().String(), n); !errors.Is(err, syscall.EMFILE) || fs != nil {
			t.Errorf("number %d of %d is refused: %v, %v", at, n, fs, err)
		}
		keeper.Wait()
		for socket := range sockets(t) {
			if !before[socket] {
				t.Errorf("number %d of %d is refused: %s is left", at, n, socket)
			}
		}
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	go makeSockets(t, conn, n)
	if fs, err := k.ConnectAll(t.Context(), nobody.Addr().String(), n); !errors.Is(err, syscall.ECONNREFUSED) ||
		fs != nil {
		t.Errorf("nobody listens: %v, %v", fs, err)
	}
	go makeSockets(t, conn, n)
	fs, err := k.ConnectAll(t.Context(), ln.Addr().String(), n)
	if err != nil || len(fs) != n {
		t.Errorf("after those that failed: %d, %v", len(fs), err)
	}
	session.CloseFiles(fs)
}

func TestConnectFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := ln.Addr().String()
	ln.Close()
	k, conn := fakeKeeper(t)
	for _, address := range []string{"", "localhost:80", "10.0.0.1", "10.0.0.1:0", "[fe80::1%eth0]:80",
		strings.Repeat("1", 1000)} {
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
