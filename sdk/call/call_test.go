package call

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

var echo = &Method{Name: "test.Test/Echo"}

// serve starts a server on a UNIX socket and gives a way to it.
func serve(tb testing.TB, s *Server) func(context.Context) (net.Conn, error) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "call")
	if err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var over sync.WaitGroup
	over.Go(func() { s.ServeNet(ctx, l) })
	tb.Cleanup(func() {
		cancel()
		over.Wait()
		os.RemoveAll(dir)
	})
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
	}
}

func echoServer(tb testing.TB, cfg Config) *Server {
	s := NewServer(cfg)
	err := s.Handle(echo, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		if string(arg) == "fail" {
			return nil, &sigma.Error{Op: "x", Path: "/p", Kind: sigma.KindVersion, Msg: "no", Hint: "try"}
		}
		return append(reply, arg...), nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestUnary(t *testing.T) {
	dial := serve(t, echoServer(t, Config{}))
	c := NewClient(dial, Config{})
	defer c.Close()
	ctx := t.Context()
	for _, n := range []int{0, 1, 64, 5000, 65536, pieceMax, pieceMax + 1, 1 << 20, 4 << 20} {
		for range 4 {
			arg := bytes.Repeat([]byte{byte(n)}, n)
			got, err := c.Call(ctx, echo, arg, []byte("x"))
			if err != nil || got[0] != 'x' || !bytes.Equal(got[1:], arg) {
				t.Fatalf("%d bytes: got %d, %v", n, len(got), err)
			}
		}
	}
}

func BenchmarkCall(b *testing.B) {
	for _, size := range []int{64, 65536} {
		for _, flight := range []int{1, 64} {
			b.Run(fmt.Sprintf("%d/%d", size, flight), func(b *testing.B) {
				dial := serve(b, echoServer(b, Config{}))
				c := NewClient(dial, Config{})
				defer c.Close()
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for range flight {
					wg.Go(func() {
						arg := make([]byte, size)
						var reply []byte
						var err error
						for range b.N/flight + 1 {
							if reply, err = c.Call(context.Background(), echo, arg, reply[:0]); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
