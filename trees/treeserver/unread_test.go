package treeserver

import (
	"context"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// heldConn takes no answer before it is opened, as a client that does not read. It implements
// session.Conn.
type heldConn struct {
	opened chan struct{}

	mu   sync.Mutex
	sent [][]byte // mu
}

func (c *heldConn) Passing() *inflight.Queue { return nil }

func (c *heldConn) Send(msg []byte, _ *inflight.Parcel) error {
	<-c.opened
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, msg)
	return nil
}

func (c *heldConn) Recv() ([]byte, []*os.File, error) { return nil, nil, net.ErrClosed }
func (c *heldConn) Close() error                      { return nil }

var _ session.Conn = (*heldConn)(nil)

// TestUnreadBytes: calls that end together with large answers, none of which is read, hold no more
// than unreadMax; those beyond it are told so, and each call is answered.
func TestUnreadBytes(t *testing.T) {
	const size = 60 << 10
	c := &heldConn{opened: make(chan struct{})}
	call := &Callable{Handle: func(context.Context, string, []byte) ([]byte, []*os.File, error) {
		return make([]byte, size), nil, nil
	}}
	s := &server{conn: c, out: session.NewSender(c), requests: map[uint16]*request{},
		fids: map[uint32]*fid{1: {file: call, uses: 1}}}
	for tag := range uint16(RequestsMax) {
		s.handlers.Go(func() { s.handle(t.Context(), tag, &sigmap.Tcall{Fid: 1, Method: "x"}, nil, &request{}, 0) })
	}
	waiting := func() int {
		messages, _ := s.out.Waiting()
		return int(s.unsent.Load()) + messages
	}
	for waiting() < RequestsMax {
		runtime.Gosched()
	}
	const small = RequestsMax * 200 // the errors
	if n := s.unread.Load(); n > unreadMax+small {
		t.Errorf("%d bytes wait to be read, want at most %d and errors", n, unreadMax)
	}
	close(c.opened)
	s.handlers.Wait()
	if n := s.unread.Load(); n != 0 {
		t.Errorf("%d bytes wait when all are read", n)
	}
	whole, lost := 0, 0
	for _, b := range c.sent {
		switch _, m, err := sigmap.Decode(b); m := m.(type) {
		case *sigmap.Rcall:
			whole++
		case *sigmap.Rfail:
			if sigma.Kind(m.Kind) != sigma.KindLost {
				t.Fatalf("got %+v, want lost", m)
			}
			lost++
		default:
			t.Fatalf("got %T, %v", m, err)
		}
	}
	if whole+lost != RequestsMax || whole > unreadMax/size || whole < unreadMax/size/2 {
		t.Errorf("got %d answers and %d losses of %d calls", whole, lost, RequestsMax)
	}
}
