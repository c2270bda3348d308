package call

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

var (
	block  = &Method{Name: "test.Test/Block"}
	count  = &Method{Name: "test.Test/Count"}
	again  = &Method{Name: "test.Test/Again", Idempotent: true}
	mirror = &Method{Name: "test.Test/Mirror"}
)

// handle registers methods or fails the test.
func handle(t *testing.T, s *Server, m *Method, h Unary) {
	t.Helper()
	if err := s.Handle(m, h); err != nil {
		t.Fatal(err)
	}
}

func handleStream(t *testing.T, s *Server, m *Method, h Streaming) {
	t.Helper()
	if err := s.HandleStream(m, h); err != nil {
		t.Fatal(err)
	}
}

func client(t *testing.T, dial func(context.Context) (net.Conn, error), cfg Config) *Client {
	t.Helper()
	c := NewClient(dial, cfg)
	t.Cleanup(func() { c.Close() })
	return c
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Goal: an error keeps its kind, message, path and hint; requests that make no sense are refused in
// words.
func TestErrors(t *testing.T) {
	s := echoServer(t, Config{MessageMax: 1 << 20})
	handleStream(t, s, mirror, func(_ context.Context, s *Stream) error { return io.ErrUnexpectedEOF })
	c := client(t, serve(t, s), Config{})
	ctx := testContext(t)
	for range 3 { // in a goroutine of its own, and by the reader
		_, err := c.Call(ctx, echo, []byte("fail"), nil)
		var e *sigma.Error
		if !errors.As(err, &e) || e.Kind != sigma.KindVersion || e.Path != "/p" || e.Hint != "try" || e.Msg != "no" {
			t.Errorf("got %#v", err)
		}
	}
	past, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, x := range []struct {
		name string
		ctx  context.Context
		m    *Method
		size int
		want sigma.Kind
	}{
		{"unknown method", ctx, &Method{Name: "test.Test/None"}, 0, sigma.KindUnsupported},
		{"a deadline in the past", past, echo, 0, sigma.KindTimeout},
		{"longer than the client allows", ctx, echo, 5 << 20, sigma.KindTooBig},
		{"longer than the server allows", ctx, echo, 2 << 20, sigma.KindTooBig},
		{"unary call of a stream", ctx, mirror, 0, sigma.KindInvalid},
		{"no name", ctx, &Method{}, 0, sigma.KindInvalid},
	} {
		if _, err := c.Call(x.ctx, x.m, make([]byte, x.size), nil); err == nil || sigma.KindOf(err) != x.want {
			t.Errorf("%s: %v, want %v", x.name, err, x.want)
		}
	}
	if got, err := c.Call(ctx, echo, []byte("well"), nil); err != nil || string(got) != "well" {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

// Goal: handlers that block hold nobody up, however many there are, and a caller's cancellation and
// deadline reach them.
func TestBlockedHandlers(t *testing.T) {
	s := echoServer(t, Config{})
	release, cancelled := make(chan struct{}), make(chan error, 100)
	var blocks atomic.Bool
	handle(t, s, block, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		if !blocks.Load() {
			return reply, nil
		}
		select {
		case <-release:
			return append(reply, arg...), nil
		case <-ctx.Done():
			cancelled <- ctx.Err()
			return nil, ctx.Err()
		}
	})
	c := client(t, serve(t, s), Config{})
	ctx := testContext(t)
	for range 20 { // it is known as quick now, so that the reader runs it itself
		if _, err := c.Call(ctx, block, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	blocks.Store(true)
	var waiting sync.WaitGroup
	for i := range 20 {
		waiting.Go(func() {
			arg := fmt.Append(nil, i)
			if got, err := c.Call(ctx, block, arg, nil); err != nil || !bytes.Equal(got, arg) {
				t.Errorf("%d: %q, %v", i, got, err)
			}
		})
	}
	for range 100 {
		if _, err := c.Call(ctx, echo, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithCancel(ctx)
	given := make(chan error, 1)
	go func() {
		_, err := c.Call(short, block, nil, nil)
		given <- err
	}()
	late, cancelLate := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancelLate()
	if _, err := c.Call(late, block, nil, nil); sigma.KindOf(err) != sigma.KindTimeout {
		t.Errorf("late: %v", err)
	}
	cancel()
	if err := <-given; sigma.KindOf(err) != sigma.KindCanceled {
		t.Errorf("canceled: %v", err)
	}
	<-cancelled
	<-cancelled
	close(release)
	waiting.Wait()
}

// Goal: a call whose connection breaks is made once, unless its method is idempotent.
func TestOnce(t *testing.T) {
	s := NewServer(Config{})
	var counted atomic.Int32
	handle(t, s, count, func(_ context.Context, _, _ []byte) ([]byte, error) {
		counted.Add(1)
		go s.Close()
		select {}
	})
	dial := serveLoose(t, s)
	c := client(t, dial, Config{})
	if _, err := c.Call(testContext(t), count, nil, nil); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("got %v", err)
	}
	if n := counted.Load(); n != 1 {
		t.Errorf("the call was made %d times", n)
	}

	var dials atomic.Int32
	second := echoServer(t, Config{})
	handle(t, second, again, func(_ context.Context, _, reply []byte) ([]byte, error) {
		return append(reply, "done"...), nil
	})
	well := serve(t, second)
	c = client(t, func(ctx context.Context) (net.Conn, error) {
		if dials.Add(1) == 1 {
			ours, theirs := net.Pipe()
			go func() { // it takes the call and dies
				theirs.Write(appendFrame(nil, frame{kind: frameHello, body: []byte(magic)}))
				theirs.Read(make([]byte, 4096))
				theirs.Close()
			}()
			return ours, nil
		}
		return well(ctx)
	}, Config{})
	if got, err := c.Call(testContext(t), again, nil, nil); err != nil || string(got) != "done" || dials.Load() != 2 {
		t.Errorf("got %q, %v after %d dials", got, err, dials.Load())
	}
}

// serveLoose is serve for a server whose handlers do not end.
func serveLoose(t *testing.T, s *Server) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go s.ServeConn(context.Background(), theirs, sigma.Principal{})
		return ours, nil
	}
}

// Goal: streams of all kinds: whole messages in order, long ones between short ones, the end of
// each side, errors, and a reader that is slow bounds the writer.
func TestStreams(t *testing.T) {
	s := NewServer(Config{})
	gone := make(chan error, 1)
	handleStream(t, s, mirror, func(ctx context.Context, s *Stream) error {
		for {
			msg, err := s.Recv(nil)
			if err == io.EOF {
				return s.Send([]byte("bye"))
			}
			if err != nil {
				gone <- err
				return err
			}
			if string(msg) == "fail" {
				return sigma.Errorf("x", sigma.KindNoSpace, "full")
			}
			if err := s.Send(msg); err != nil {
				gone <- err
				return err
			}
		}
	})
	c := client(t, serve(t, s), Config{})
	ctx := testContext(t)
	st, err := c.Stream(ctx, mirror)
	if err != nil {
		t.Fatal(err)
	}
	sizes := []int{1, 0, 3 << 20, 100, pieceMax, pieceMax + 1, 70_000, 70_000, 70_000, 70_000, 70_000, 1 << 20, 1 << 20,
		1 << 20, 4 << 20, 4 << 20, 4 << 20, 4 << 20, 4 << 20, 4 << 20, 5}
	var sent sync.WaitGroup
	sent.Go(func() {
		for i, n := range sizes {
			if err := st.Send(bytes.Repeat([]byte{byte(i)}, n)); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		st.CloseSend()
	})
	for i, n := range sizes {
		got, err := st.Recv(nil)
		if err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(i)}, n)) {
			t.Fatalf("message %d: %d bytes, %v, want %d", i, len(got), err, n)
		}
	}
	sent.Wait()
	if got, err := st.Recv(nil); string(got) != "bye" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := st.Recv(nil); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}

	st, _ = c.Stream(ctx, mirror)
	st.Send([]byte("fail"))
	if _, err := st.Recv(nil); sigma.KindOf(err) != sigma.KindNoSpace || !strings.Contains(err.Error(), "full") {
		t.Errorf("got %v", err)
	}

	st, _ = c.Stream(ctx, mirror) // one that nobody reads stops, and holds up nobody
	filled, cancel := context.WithCancel(ctx)
	slow, err := c.Stream(filled, mirror)
	if err != nil {
		t.Fatal(err)
	}
	full := make(chan error, 1)
	go func() {
		for {
			if err := slow.Send(make([]byte, 1000)); err != nil {
				full <- err
				return
			}
		}
	}()
	for i := range 1000 {
		if err := st.Send([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if got, err := st.Recv(nil); err != nil || len(got) != 1 {
			t.Fatalf("%d: %q, %v", i, got, err)
		}
	}
	cancel()
	if err := <-full; err == nil {
		t.Error("no error")
	}
	<-gone
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	if _, err := st.Recv(nil); sigma.KindOf(err) != sigma.KindCanceled {
		t.Errorf("after Close: %v", err)
	}
}

// callAlways has eight callers call again and again, and fail the test by an error, until stop.
func callAlways(ctx context.Context, t *testing.T, c *Client) (stop func()) {
	var callers sync.WaitGroup
	asking, cancel := context.WithCancel(ctx)
	for range 8 {
		callers.Go(func() {
			for asking.Err() == nil {
				if _, err := c.Call(ctx, echo, []byte("x"), nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() { cancel(); callers.Wait() }
}

// Goal: a server that leaves answers what it was asked, and clients go elsewhere without an error.
func TestShutdown(t *testing.T) {
	const servers = 3
	var at atomic.Int32
	var all []*Server
	var routes []func(context.Context) (net.Conn, error)
	for range servers {
		s := echoServer(t, Config{})
		all, routes = append(all, s), append(routes, serve(t, s))
	}
	c := client(t, func(ctx context.Context) (net.Conn, error) { return routes[at.Load()](ctx) }, Config{})
	ctx := testContext(t)
	stop := callAlways(ctx, t, c)
	for i := range servers - 1 {
		for all[i].Stats()[0].Calls < 1000 && ctx.Err() == nil {
			c.Call(ctx, echo, nil, nil)
		}
		at.Add(1)
		if err := all[i].Shutdown(ctx); err != nil {
			t.Error(err)
		}
	}
	stop()
}

// Goal: a server that has its connections made anew fails no call, and callers dial again.
func TestRenew(t *testing.T) {
	s := echoServer(t, Config{})
	route := serve(t, s)
	var dials atomic.Int32
	c := client(t, func(ctx context.Context) (net.Conn, error) { dials.Add(1); return route(ctx) }, Config{})
	ctx := testContext(t)
	stop := callAlways(ctx, t, c)
	for range 20 {
		for before := dials.Load(); dials.Load() == before && ctx.Err() == nil; {
			s.Renew() // again, for a connection that the server had not seen yet
			c.Call(ctx, echo, nil, nil)
		}
	}
	stop()
}

// Goal: what a handler is told: who called, how long there is time, to which trace the call
// belongs.
func TestContext(t *testing.T) {
	s := NewServer(Config{})
	who := sigma.Principal{Realm: "r", Proc: "p", Machine: "m"}
	handle(t, s, echo, func(ctx context.Context, _, reply []byte) ([]byte, error) {
		p, ok := Caller(ctx)
		tr, _ := TraceOf(ctx)
		at, limited := ctx.Deadline()
		if !ok || p != who || !limited || time.Until(at) > time.Minute || time.Until(at) < time.Second ||
			ctx.Err() != nil || ctx.Done() == nil {
			t.Errorf("caller %v %v, deadline %v", p, ok, at)
		}
		return append(reply, tr.String()...), nil
	})
	c := client(t, func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go s.ServeConn(context.Background(), theirs, who)
		return ours, nil
	}, Config{})
	const text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	tr, err := ParseTrace(text)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := c.Call(WithTrace(testContext(t), tr), echo, nil, nil); err != nil || string(got) != text {
			t.Errorf("got %q, %v", got, err)
		}
	}
	for _, bad := range []string{"", "00", strings.ToUpper(text), "01" + text[2:],
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", text + "0", strings.Replace(text, "-", "_", 1)} {
		if _, err := ParseTrace(bad); err == nil {
			t.Errorf("%q is a trace", bad)
		}
	}
}

// Goal: calls, failures, bytes and durations are counted on both sides and printed.
func TestStats(t *testing.T) {
	s := echoServer(t, Config{})
	c := client(t, serve(t, s), Config{})
	for _, arg := range []string{"abc", "fail", "de"} {
		c.Call(testContext(t), echo, []byte(arg), nil)
	}
	for _, all := range [][]MethodStats{c.Stats(), s.Stats()} {
		if len(all) != 1 || all[0].Calls != 3 || all[0].Failed["version mismatch"] != 1 || all[0].In != 9 ||
			all[0].Out != 5 || all[0].Quantile(1) == 0 {
			t.Errorf("got %+v", all)
		}
	}
	told, err := c.Call(testContext(t), StatsMethod, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseStats(told)
	if want := s.Stats(); err != nil || !reflect.DeepEqual(got, want) || got[0].FailedCalls() != 1 ||
		got[0].Mean() <= 0 {
		t.Errorf("it tells %+v, %v, want %+v", got, err, want)
	}
	for cut := range told {
		if _, err := ParseStats(told[:cut]); err == nil {
			t.Errorf("%d bytes of %d are read", cut, len(told))
		}
	}
	var text bytes.Buffer
	if err := WriteMetrics(&text, "server", s.Stats()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`sigma_call_duration_seconds_count{side="server",method="test.Test/Echo"} 3`,
		`sigma_call_failed_total{side="server",method="test.Test/Echo",kind="version mismatch"} 1`,
		`sigma_call_in_bytes_total{side="server",method="test.Test/Echo"} 9`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in\n%s", want, text.String())
		}
	}
}

// Goal: a peer that sends rubbish, half of something, or too much loses its connection, and others
// notice nothing.
func TestHostile(t *testing.T) {
	s := echoServer(t, Config{})
	handleStream(t, s, mirror, func(ctx context.Context, _ *Stream) error {
		<-ctx.Done()
		return ctx.Err()
	})
	dial := serve(t, s)
	hello := appendFrame(nil, frame{kind: frameHello, body: []byte(magic)})
	named := appendFrame(appendFrame(hello, frame{kind: frameName, body: []byte(echo.Name)}),
		frame{kind: frameName, method: 1, body: []byte(mirror.Name)})
	with := func(fs ...frame) []byte {
		b := bytes.Clone(named)
		for _, f := range fs {
			b = appendFrame(b, f)
		}
		return b
	}
	flood := with(frame{kind: frameCall, method: 1, call: 1, flags: flagFirst | flagStream})
	for range streamWindow/pieceMax + 1 {
		flood = appendFrame(flood, frame{kind: frameData, call: 1, flags: flagFirst, body: make([]byte, pieceMax)})
	}
	for name, b := range map[string][]byte{
		"no hello": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "another hello": appendFrame(nil,
			frame{kind: frameHello, body: []byte("sigma call/9")}), "call before hello": appendFrame(nil,
			frame{kind: frameCall, call: 1}),
		"two hellos": append(bytes.Clone(hello), hello...), "long frame": append(bytes.Clone(hello), 0xff, 0xff, 0xff,
			0x7f, 3, 0, 0, 0, 1, 0, 0, 0), "no kind": append(bytes.Clone(hello), make([]byte, headBytes)...),
		"no name":      with(frame{kind: frameCall, method: 7, call: 1, flags: flagFirst}),
		"no number":    with(frame{kind: frameCall, flags: flagFirst}),
		"cut deadline": with(frame{kind: frameCall, call: 1, flags: flagFirst | flagDeadline, body: []byte{1}}),
		"cut trace":    with(frame{kind: frameCall, call: 1, flags: flagFirst | flagTrace, body: []byte{1}}),
		"reply":        with(frame{kind: frameReply, call: 1}),
		"credit":       with(frame{kind: frameCredit, body: []byte{1, 0, 0, 0}}),
		"cut credit":   with(frame{kind: frameCredit}),
		"stream flood": flood, "1 GiB in pieces": with(frame{kind: frameCall, call: 1, flags: flagFirst | flagMore,
			body: []byte{0, 0, 0, 64, 1}}), "long name": with(frame{kind: frameName, body: make([]byte, nameMax+1)}),
		"number twice": with(frame{kind: frameCall, method: 1, call: 1, flags: flagFirst | flagStream},
			frame{kind: frameCall, method: 1, call: 1, flags: flagFirst | flagStream}),
	} {
		nc, err := dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(time.Minute))
		nc.Write(b) // it may be refused in the middle
		if _, err := io.Copy(io.Discard, nc); errors.Is(err, context.DeadlineExceeded) || err != nil &&
			strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: the connection lives", name)
		}
		nc.Close()
	}
	c := client(t, dial, Config{})
	if _, err := c.Call(testContext(t), echo, nil, nil); err != nil {
		t.Error(err)
	}
}

// Goal: a server that says rubbish or nothing ends its client's calls, not the client.
func TestHostileServer(t *testing.T) {
	hello := appendFrame(nil, frame{kind: frameHello, body: []byte(magic)})
	for name, x := range map[string]struct {
		says []byte
		want sigma.Kind
	}{
		"http":  {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), sigma.KindInvalid},
		"other": {appendFrame(nil, frame{kind: frameHello, body: []byte("x")}), sigma.KindUnsupported},
		"call":  {appendFrame(bytes.Clone(hello), frame{kind: frameCall, call: 1}), sigma.KindInvalid},
		"end":   {hello, sigma.KindLost},
		"long": {appendFrame(bytes.Clone(hello), frame{kind: frameReply, call: 1 << slotBits,
			flags: flagFirst | flagMore, body: []byte{0, 0, 0, 64, 1}}), sigma.KindInvalid},
		"piece": {appendFrame(bytes.Clone(hello), frame{kind: frameData, call: 1 << slotBits, body: []byte{1}}),
			sigma.KindInvalid},
	} {
		c := client(t, func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs)
			go func() {
				theirs.Write(x.says)
				theirs.Close()
			}()
			return ours, nil
		}, Config{})
		if _, err := c.Call(testContext(t), echo, []byte("x"), nil); err == nil || sigma.KindOf(err) != x.want &&
			sigma.KindOf(err) != sigma.KindLost {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
	}
}

// Goal: unary calls are observed, quick and slow ones, with their errors; streams and StatsMethod
// are not.
func TestObserve(t *testing.T) {
	s := echoServer(t, Config{})
	var begun, ended, failed atomic.Int64
	s.Observe = func() func(error) {
		begun.Add(1)
		return func(err error) {
			ended.Add(1)
			if err != nil {
				failed.Add(1)
			}
		}
	}
	c := NewClient(serve(t, s), Config{})
	defer c.Close()
	for _, arg := range []string{"a", "fail", "b", "fail", "c"} {
		c.Call(t.Context(), echo, []byte(arg), nil)
	}
	if _, err := c.Call(t.Context(), StatsMethod, nil, nil); err != nil {
		t.Error(err)
	}
	if begun.Load() != 5 || ended.Load() != 5 || failed.Load() != 2 {
		t.Errorf("of 5 calls, 2 of which failed, %d began, %d ended and %d failed", begun.Load(), ended.Load(), failed.Load())
	}
}

// Goal: a call that reaches a server whose context has ended is not said to have been given up by
// its caller, so that fleets' clients make it elsewhere; one that the caller gave up is.
func TestServerEndsBeforeCall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	of := func() *serverCall { return &serverCall{conn: &serverConn{ctx: ctx}} }
	if err := of().lack(); err != nil {
		t.Errorf("a call that goes on: %v", err)
	}
	given := of()
	given.finish(context.Canceled)
	late := of()
	late.at = time.Now().Add(-time.Second)
	cancel()
	for want, c := range map[sigma.Kind]*serverCall{sigma.KindUnavailable: of(), sigma.KindCanceled: given,
		sigma.KindTimeout: late} {
		if err := c.lack(); sigma.KindOf(err) != want {
			t.Errorf("%v, not of kind %v", err, want)
		}
	}
}
