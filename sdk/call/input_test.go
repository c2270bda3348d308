package call

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: an argument, answer or message of 1 GiB is refused by its length: it is memory that nobody
// may read, and nothing of it is sent.
func TestGigabyte(t *testing.T) {
	const size = 1 << 30
	huge, err := syscall.Mmap(-1, 0, size, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(huge)
	s := echoServer(t, Config{MessageMax: size})
	handle(t, s, again, func(context.Context, []byte, []byte) ([]byte, error) { return huge, nil })
	handleStream(t, s, mirror, func(_ context.Context, s *Stream) error { return s.Send(huge) })
	c := client(t, serve(t, s), Config{MessageMax: size})
	ctx := testContext(t)
	if _, err := c.Call(ctx, echo, huge, nil); sigma.KindOf(err) != sigma.KindTooBig || sigma.HintOf(err) == "" {
		t.Errorf("argument: %v", err)
	}
	for range 20 { // in a goroutine of its own, and by the reader
		if _, err := c.Call(ctx, again, nil, nil); sigma.KindOf(err) != sigma.KindTooBig {
			t.Errorf("answer: %v", err)
		}
	}
	st, err := c.Stream(ctx, mirror)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(huge); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("message: %v", err)
	}
	if _, err := st.Recv(nil); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("message of the server: %v", err)
	}
	if all := c.Stats(); all[0].Failed[sigma.KindTooBig.String()] == 0 {
		t.Errorf("got %+v", all)
	}
	if got, err := c.Call(ctx, echo, []byte("x"), nil); err != nil || string(got) != "x" {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

// Goal: of a server that dies in the middle of a stream, at any byte, the client gets the whole
// messages that it sent, in order, and then that it is lost; who sends is told that the call has
// ended, and the next call goes elsewhere.
func TestServerDiesInStream(t *testing.T) {
	said := appendFrame(nil, frame{kind: frameHello, body: []byte(magic)})
	var ends []int // of messages
	for i := range 3 {
		said = appendFrame(said, frame{kind: frameData, flags: flagFirst, call: 1 << slotBits,
			body: bytes.Repeat([]byte{byte(i)}, 10*i)})
		ends = append(ends, len(said))
	}
	well := serve(t, echoServer(t, Config{}))
	for cut := range len(said) + 1 {
		want := 0
		for _, end := range ends {
			if end <= cut {
				want++
			}
		}
		dials := 0
		c := NewClient(func(ctx context.Context) (net.Conn, error) {
			if dials++; dials > 1 {
				return well(ctx)
			}
			ours, theirs := net.Pipe()
			go func() {
				theirs.Read(make([]byte, 4096)) // hello, name and the call
				theirs.Write(said[:cut])
				theirs.Close()
			}()
			return ours, nil
		}, Config{})
		ctx := testContext(t)
		st, err := c.Stream(ctx, mirror)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for {
			var msg []byte
			if msg, err = st.Recv(nil); err != nil {
				break
			}
			if !bytes.Equal(msg, bytes.Repeat([]byte{byte(got)}, 10*got)) {
				t.Errorf("cut at %d: message %d is %x", cut, got, msg)
			}
			got++
		}
		if got != want || sigma.KindOf(err) != sigma.KindLost {
			t.Errorf("cut at %d: %d messages and %v, want %d and lost", cut, got, err, want)
		}
		if err := st.Send(nil); err != io.EOF {
			t.Errorf("cut at %d: Send says %v", cut, err)
		}
		if answer, err := c.Call(ctx, echo, []byte("x"), nil); err != nil || string(answer) != "x" {
			t.Errorf("cut at %d: afterwards %q, %v", cut, answer, err)
		}
		c.Close()
	}
}

// Goal: bulk data goes over a stream both ways, whole, while calls of the same connection are
// answered.
func TestBulk(t *testing.T) {
	s := echoServer(t, Config{})
	handleStream(t, s, mirror, func(_ context.Context, s *Stream) error {
		_, err := io.Copy(s, s)
		return err
	})
	c := client(t, serve(t, s), Config{})
	ctx := testContext(t)
	const size = 24<<20 + 7
	st, err := c.Stream(ctx, mirror)
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	sent, back := sha256.New(), sha256.New()
	both.Go(func() {
		from := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sent)
		if n, err := io.CopyBuffer(st, from, make([]byte, 300_000)); n != size || err != nil {
			t.Errorf("sent %d, %v", n, err)
		}
		st.CloseSend()
	})
	both.Go(func() {
		if n, err := io.Copy(back, st); n != size || err != nil {
			t.Errorf("received %d, %v", n, err)
		}
	})
	for range 200 {
		if _, err := c.Call(ctx, echo, []byte("x"), nil); err != nil {
			t.Error(err)
		}
	}
	both.Wait()
	if !bytes.Equal(sent.Sum(nil), back.Sum(nil)) {
		t.Error("what came back is not what was sent")
	}
}

// Goal: the trace of a call goes on to the calls of its handler, and those of another one have
// theirs.
func TestTraceGoesOn(t *testing.T) {
	inner := NewServer(Config{})
	handle(t, inner, echo, func(ctx context.Context, _, reply []byte) ([]byte, error) {
		tr, ok := TraceOf(ctx)
		if !ok {
			return append(reply, "none"...), nil
		}
		return append(reply, tr.String()...), nil
	})
	within := client(t, serve(t, inner), Config{})
	outer := NewServer(Config{})
	handle(t, outer, echo, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		return within.Call(ctx, echo, nil, reply)
	})
	handleStream(t, outer, mirror, func(ctx context.Context, s *Stream) error {
		got, err := within.Call(ctx, echo, nil, nil)
		if err != nil {
			return err
		}
		return s.Send(got)
	})
	c := client(t, serve(t, outer), Config{})
	ctx := testContext(t)
	for _, end := range []string{"1", "2"} {
		want := "00-0af7651916cd43dd8448eb211c80319" + end + "-b7ad6b7169203331-01"
		tr, err := ParseTrace(want)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Call(WithTrace(ctx, tr), echo, nil, nil); err != nil || string(got) != want {
			t.Errorf("got %q, %v", got, err)
		}
		st, err := c.Stream(WithTrace(ctx, tr), mirror)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := st.Recv(nil); err != nil || string(got) != want {
			t.Errorf("stream: got %q, %v", got, err)
		}
	}
	if got, err := c.Call(ctx, echo, nil, nil); err != nil || !strings.HasPrefix(string(got), "none") {
		t.Errorf("got %q, %v", got, err)
	}
}
