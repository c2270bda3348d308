package ring

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/wire/session"
)

// pair makes both ends of a connection, with the Sets of two programs that have t as transport;
// memory answers what the machine does.
func pair(t testing.TB, dialled, accepted Transport) (a, b *Conn) {
	t.Helper()
	f, err := NewFile()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	x, y, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	end := func(s *os.File, side Side, want Transport) *Conn {
		set := NewSet(Config{Claim: func(context.Context, []byte) (*os.File, error) { return dup(t, f), nil }})
		set.Use(want)
		var u Stream = FileStream(s)
		if side == Accepted { // both kinds are good
			if u, err = session.UnixConn(s); err != nil {
				t.Fatal(err)
			}
		}
		c, err := set.New(u, side, []byte("ticket"), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); set.Close() })
		return c
	}
	return end(x, Dialled, dialled), end(y, Accepted, accepted)
}

func dup(t testing.TB, f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "ring")
}

func echo(c net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	for _, want := range []Transport{Socket, Shared, Automatic} {
		b.Run(want.String(), func(b *testing.B) {
			x, y := pair(b, want, want)
			go echo(y)
			msg := make([]byte, 64)
			for b.Loop() {
				x.Write(msg)
				if _, err := io.ReadFull(x, msg); err != nil {
					b.Fatal(err)
				}
			}
			st := x.Stats()
			b.ReportMetric(float64(st.Spun.Nanoseconds())/float64(b.N), "spun-ns/op")
			b.ReportMetric(float64(st.Promotions), "promotions")
		})
	}
	b.Run("plain", func(b *testing.B) {
		p, q, _ := session.FilePair(syscall.SOCK_STREAM)
		x, _ := session.UnixConn(p)
		y, _ := session.UnixConn(q)
		go echo(y)
		msg := make([]byte, 64)
		for b.Loop() {
			x.Write(msg)
			if _, err := io.ReadFull(x, msg); err != nil {
				b.Fatal(err)
			}
		}
		x.Close()
	})
}

func BenchmarkStream(b *testing.B) {
	for _, size := range []int{64, 4096, 64 << 10} {
		for _, want := range []Transport{Socket, Shared, Automatic} {
			b.Run(want.String(), func(b *testing.B) {
				x, y := pair(b, want, want)
				go io.Copy(io.Discard, y)
				msg := make([]byte, size)
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := x.Write(msg); err != nil {
						b.Fatal(err)
					}
				}
				st := x.Stats()
				b.ReportMetric(float64(st.Spun.Nanoseconds())/float64(b.N), "spun-ns/op")
				b.ReportMetric(float64(st.Promotions)/float64(b.N), "promotions/op")
			})
		}
	}
}

// Memory that came with a connection is used from the first message on, without a question; it is
// given back if it is not needed for a while, and when the connection ends.
func TestGiven(t *testing.T) {
	released := make(chan []byte, 4)
	asked := make(chan bool, 4)
	given := func() (*Set, *Conn, *os.File) {
		f, err := NewFile()
		if err != nil {
			t.Fatal(err)
		}
		x, y, err := session.FilePair(syscall.SOCK_STREAM)
		if err != nil {
			t.Fatal(err)
		}
		u, err := session.UnixConn(x)
		if err != nil {
			t.Fatal(err)
		}
		set := NewSet(Config{Claim: func(context.Context, []byte) (*os.File, error) {
			asked <- true
			return nil, os.ErrNotExist
		}, Release: func(ticket []byte) { released <- ticket }})
		c, err := set.New(u, Dialled, []byte("ticket"), f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); y.Close(); set.Close() })
		return set, c, f
	}
	_, c, _ := given()
	if c.mem.Load() != nil {
		t.Error("it is mapped before the first message")
	}
	if _, err := c.Write([]byte("message")); err != nil {
		t.Fatal(err)
	}
	if c.mem.Load() == nil {
		t.Error("after the first message it is not mapped")
	}
	if c.Close(); string(<-released) != "ticket" {
		t.Error("it is not given back")
	}
	_, c, f := given()
	if c.rest(); f.Close() != nil {
		t.Error("it is gone after one round")
	}
	set, c, f := given()
	c.rest()
	c.rest()
	if string(<-released) != "ticket" || f.Close() == nil || set.holds != 0 {
		t.Error("it is not given back although nobody needs it")
	}
	for range paceMessages {
		c.Write([]byte("message"))
	}
	<-asked // later it is asked for
	set, c, f = given()
	if c.Close(); string(<-released) != "ticket" || f.Close() == nil || set.holds != 0 {
		t.Error("it is not given back with the connection")
	}
}
