package call

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: messages that arrive after their stream has ended do not change the connection's credit,
// on either side.
func TestMessagesAfterTheEnd(t *testing.T) {
	s := echoServer(t, Config{})
	flood := &Method{Name: "test.Test/Flood"}
	handleStream(t, s, flood, func(_ context.Context, s *Stream) error {
		for {
			if err := s.Send(make([]byte, 1024)); err != nil {
				return err
			}
		}
	})
	refuse := &Method{Name: "test.Test/Refuse"}
	handleStream(t, s, refuse, func(_ context.Context, s *Stream) error {
		s.Recv(nil)
		return errors.New("enough")
	})
	ctx := testContext(t)
	for _, m := range []*Method{flood, refuse} {
		c := client(t, serve(t, s), Config{})
		for i := range 60 {
			stream, err := c.Stream(ctx, m)
			for err == nil && m == refuse {
				err = stream.Send(make([]byte, 1000))
			}
			if m == flood && err == nil {
				_, err = stream.Recv(nil)
			}
			if err != nil && !errors.Is(err, io.EOF) {
				t.Fatalf("%s, round %d: %v", m.Name, i, err)
			}
			stream.Close()
			if _, err := c.Call(ctx, echo, make([]byte, 60_000), nil); err != nil {
				t.Fatalf("%s, round %d: %v", m.Name, i, err)
			}
		}
	}
}

// Goal: of a client that makes calls and gives no credit for answers, a bounded number of answers
// is held, whether they go in pieces or not; no further handler begins meanwhile, and all calls are
// answered when credit comes.
func TestAnswersThatNobodyReads(t *testing.T) {
	for name, x := range map[string]struct{ size, calls, ran int }{
		"1 MiB":   {1 << 20, 300, answersMax>>20 + bulkWindow>>20},
		"100 KiB": {100 << 10, 1000, (smallWindow+answersMax)/(100<<10) + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { withoutCredit(t, x.size, x.calls, x.ran) })
		})
	}
}

func withoutCredit(t *testing.T, size, calls, most int) {
	s := NewServer(Config{})
	var ran atomic.Int64
	handle(t, s, echo, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		ran.Add(1)
		return append(reply, make([]byte, size)...), nil
	})
	s.methods[echo.Name].learnLength(size) // one was made before
	nc, theirs := net.Pipe()
	var served sync.WaitGroup
	served.Go(func() { s.ServeConn(t.Context(), theirs, sigma.Principal{}) })
	go func() {
		b := appendFrame(nil, frame{kind: frameHello, body: []byte(magic)})
		b = appendFrame(b, frame{kind: frameName, body: []byte(echo.Name)})
		for i := range calls {
			b = appendFrame(b, frame{kind: frameCall, flags: flagFirst, call: uint32(i + 1)})
		}
		nc.Write(b)
	}()
	credit, answered := make(chan bool), make(chan int)
	replies := make(chan int, calls)
	go func() { // reads all
		in, n := &input{}, 0
		for n < calls {
			f, ok, err := in.next()
			if !ok && err == nil {
				err = in.fill(nc)
			}
			if err != nil || f.kind == frameFail && ok {
				t.Error(f.kind, err)
				break
			}
			if ok && f.kind == frameReply {
				n++
				replies <- cost(size)
			}
		}
		close(replies)
		answered <- n
	}()
	go func() { // gives credit
		<-credit
		for n := range replies {
			nc.Write(appendFrame(nil, frame{kind: frameCredit, flags: uint8(lane(size)) * flagBulk,
				body: binary.LittleEndian.AppendUint32(nil, uint32(n))}))
		}
	}()
	<-time.After(time.Second) // in the bubble's time
	if n := int(ran.Load()); n > most {
		t.Errorf("%d handlers ran, want at most %d", n, most)
	}
	close(credit)
	if n := <-answered; n != calls {
		t.Errorf("%d answers, want %d", n, calls)
	}
	nc.Close()
	served.Wait()
}
