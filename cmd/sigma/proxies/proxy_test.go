package proxies

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// start runs a relay to a service that serve is.
func start(t *testing.T, most int, serve func(net.Conn)) (address string, failed chan error, end func()) {
	t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	service, l := listen(), listen()
	go func() {
		for {
			c, err := service.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	failed = make(chan error, 100)
	r := relay{max: most, failed: func(err error) { failed <- err },
		dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", service.Addr().String())
		}}
	done := make(chan error, 1)
	go func() { done <- r.serve(ctx, l) }()
	end = func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	return l.Addr().String(), failed, end
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// Goal: a client that has said all still gets the whole answer, and the end of each side reaches
// the other.
func TestHalfClose(t *testing.T) {
	address, _, end := start(t, 10, func(c net.Conn) {
		defer c.Close()
		b, _ := io.ReadAll(c)
		c.Write([]byte(strings.ToUpper(string(b))))
	})
	defer end()
	text := strings.Repeat("abc", 1<<20)
	c := dial(t, address)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != strings.ToUpper(text) {
		t.Errorf("%d bytes, %v; want %d", len(b), err, len(text))
	}
}

// Goal: there are no more connections than allowed, the end of one makes room, and the relay's end
// ends all.
func TestBounds(t *testing.T) {
	address, failed, end := start(t, 1, func(c net.Conn) {
		defer c.Close()
		io.Copy(c, c)
	})
	first := dial(t, address)
	io.WriteString(first, "x")
	if _, err := io.ReadFull(first, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	second := dial(t, address)
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("a connection too many is served")
	}
	if err := <-failed; !strings.Contains(err.Error(), "1 connections already") {
		t.Error(err)
	}
	first.CloseWrite()
	io.ReadAll(first)
	for served := false; !served; {
		c := dial(t, address)
		io.WriteString(c, "y")
		_, err := io.ReadFull(c, make([]byte, 1))
		served = err == nil
		first = c
	}
	end()
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("a connection lives on after the end")
	}
}

// Goal: many failures at a time are a line a second, which says how many it stands for.
func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		r := relay{failed: func(err error) { lines = append(lines, err.Error()) }}
		for range 25 {
			r.tell(io.EOF)
			time.Sleep(tellEvery / 10) // in the bubble's time
		}
		if len(lines) != 3 || lines[0] != "EOF" || lines[2] != "EOF (and 9 more before)" {
			t.Errorf("%q", lines)
		}
	})
}
