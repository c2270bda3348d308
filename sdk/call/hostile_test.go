package call

import (
	"context"
	"errors"
	"io"
	"testing"
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
