package call

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: many calls share a connection without waiting for each other, each has its own answer or
// error, in the order of the arguments, also if they are more than a connection takes at a time.
func TestCallMany(t *testing.T) {
	s := echoServer(t, Config{})
	var dials atomic.Int32
	dial := serve(t, s)
	c := NewClient(func(ctx context.Context) (net.Conn, error) { dials.Add(1); return dial(ctx) }, Config{CallsMax: 16})
	defer c.Close()
	var args [][]byte
	for i := range 3000 {
		args = append(args, fmt.Append(nil, i))
	}
	args[7] = []byte("fail")
	args[8] = make([]byte, 1<<20) // in pieces
	args[9] = make([]byte, messageMaxDefault+1)
	for i, a := range c.CallMany(testContext(t), echo, args) {
		switch want := map[int]sigma.Kind{7: sigma.KindVersion, 9: sigma.KindTooBig}[i]; {
		case want != 0 && sigma.KindOf(a.Err) != want:
			t.Errorf("%d: %v", i, a.Err)
		case want == 0 && (a.Err != nil || !bytes.Equal(a.Reply, args[i])):
			t.Errorf("%d: %d bytes, %v", i, len(a.Reply), a.Err)
		}
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if st := c.Stats()[0]; st.Calls != 3000 || st.FailedCalls() != 2 {
		t.Errorf("%+v", st)
	}
	if out := c.CallMany(testContext(t), echo, nil); len(out) != 0 {
		t.Error(out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if out := c.CallMany(ctx, echo, args[:2]); sigma.KindOf(out[1].Err) != sigma.KindCanceled {
		t.Error(out[1].Err)
	}
}

// Goal: of many calls whose server ends, those that may are made again elsewhere, and the others
// are told; whose caller gives up end, and leave the connection as it was.
func TestCallManyLost(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		m := &Method{Name: "test.Test/End", Idempotent: idempotent}
		var first *Server
		created := func(ends bool) *Server {
			s := NewServer(Config{})
			handle(t, s, m, func(_ context.Context, arg, reply []byte) ([]byte, error) {
				if ends {
					first.Close()
				}
				return append(reply, arg...), nil
			})
			return s
		}
		first = created(true)
		dial, other := serve(t, first), serve(t, created(false))
		var dials atomic.Int32
		c := NewClient(func(ctx context.Context) (net.Conn, error) {
			if dials.Add(1) == 1 {
				return dial(ctx)
			}
			return other(ctx)
		}, Config{})
		for i, a := range c.CallMany(testContext(t), m, [][]byte{[]byte("x"), []byte("y")}) {
			if lost := sigma.KindOf(a.Err) == sigma.KindLost; a.Err != nil && (idempotent || !lost) ||
				a.Err == nil && !idempotent {
				t.Errorf("idempotent %v: %d: %q, %v", idempotent, i, a.Reply, a.Err)
			}
		}
		c.Close()
	}
	s := NewServer(Config{})
	ctx, cancel := context.WithCancel(t.Context())
	handle(t, s, where, func(of context.Context, _, reply []byte) ([]byte, error) {
		cancel()
		<-of.Done()
		return reply, nil
	})
	handle(t, s, echo, func(_ context.Context, arg, reply []byte) ([]byte, error) { return append(reply, arg...), nil })
	c := NewClient(serve(t, s), Config{})
	defer c.Close()
	for i, a := range c.CallMany(ctx, where, make([][]byte, 5)) {
		if sigma.KindOf(a.Err) != sigma.KindCanceled {
			t.Errorf("%d: %v", i, a.Err)
		}
	}
	if got, err := c.Call(testContext(t), echo, []byte("x"), nil); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}
