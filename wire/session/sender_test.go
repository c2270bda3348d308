package session

import (
	"errors"
	"os"
	"sync"
	"testing"

	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/sigmap"
)

// slowConn tells of each record and sends the next when it may.
type slowConn struct {
	Conn
	began chan []byte
	may   chan error
}

func (c *slowConn) Close() error { return nil }

func (c *slowConn) Send(record []byte, _ *inflight.Parcel) error {
	c.began <- append([]byte(nil), record...)
	return <-c.may
}

func message(t *testing.T, tag uint16, size int) []byte {
	t.Helper()
	m, err := sigmap.Encode(nil, tag, &sigmap.Rread{Data: make([]byte, size)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tags are those of the messages of a record.
func tags(t *testing.T, record []byte) (out []uint16) {
	t.Helper()
	for len(record) > 0 {
		msg, rest, err := sigmap.Cut(record)
		if err != nil {
			t.Fatal(err)
		}
		tag, _, err := sigmap.Decode(msg)
		if err != nil {
			t.Fatal(err)
		}
		out, record = append(out, tag), rest
	}
	return out
}

// TestSender: what is put in line while a record is being sent goes next and in order, in one
// record if the peer takes several, and none is longer than a record may be. Nobody but who is
// sending waits.
func TestSender(t *testing.T) {
	for _, several := range []bool{false, true} {
		c := &slowConn{began: make(chan []byte), may: make(chan error)}
		s := NewSender(c)
		s.Several(several)
		var first sync.WaitGroup
		s.Put(message(t, 0, 1))
		first.Go(func() {
			if err := s.Flush(); err != nil {
				t.Error(err)
			}
		})
		if got := tags(t, <-c.began); len(got) != 1 {
			t.Fatalf("alone it goes with %d", len(got)-1)
		}
		const more = 40
		for i := range more {
			s.Put(message(t, uint16(i+1), SmallMax-100))
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if n, bytes := s.Waiting(); n != more+1 || bytes < more*(SmallMax-100) {
			t.Errorf("%d messages of %d bytes wait, want %d", n, bytes, more+1)
		}
		records, next := 0, uint16(1)
		for next <= more {
			c.may <- nil
			record := <-c.began
			for _, tag := range tags(t, record) {
				if tag != next {
					t.Fatalf("message %d comes when %d is next", tag, next)
				}
				next++
			}
			if records++; len(record) > sigmap.MessageMax {
				t.Errorf("a record of %d bytes", len(record))
			}
		}
		c.may <- nil
		first.Wait()
		if want := more * SmallMax / sigmap.MessageMax; several != (records <= want+1) {
			t.Errorf("several %v: %d records of %d messages", several, records, more)
		}
		if n, bytes := s.Waiting(); n != 0 || bytes != 0 {
			t.Errorf("%d messages of %d bytes wait at the end", n, bytes)
		}
	}
}

// TestSenderBroken: after an error nothing is sent or kept, and everybody is told.
func TestSenderBroken(t *testing.T) {
	c := &slowConn{began: make(chan []byte, 1), may: make(chan error, 1)}
	c.may <- os.ErrClosed
	s := NewSender(c)
	s.Put(message(t, 1, 1))
	for range 2 {
		if err := s.Flush(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("got %v", err)
		}
		s.Put(message(t, 2, 1))
	}
	if err := s.Alone(func() error { t.Error("sent"); return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if n, bytes := s.Waiting(); n != 0 || bytes != 0 {
		t.Errorf("%d messages of %d bytes wait", n, bytes)
	}
}

// busyConn has another message put in line whenever one is sent, until there were enough.
type busyConn struct {
	Conn
	s        *Sender
	next     []byte
	left     int
	returned chan struct{} // closed when the first Flush has returned
	over     chan struct{} // closed when none is left
}

func (c *busyConn) Send([]byte, *inflight.Parcel) error {
	c.left--
	switch {
	case c.left == 0:
		close(c.over)
	case c.left%(2*roundsMax) == 0:
		<-c.returned
		fallthrough
	default:
		c.s.Put(c.next)
	}
	return nil
}

// TestSenderHandsOver: who sends does not go on for as long as others have something to send.
func TestSenderHandsOver(t *testing.T) {
	c := &busyConn{next: message(t, 1, 1), left: 10 * roundsMax, returned: make(chan struct{}),
		over: make(chan struct{})}
	c.s = NewSender(c)
	c.s.Put(c.next)
	if err := c.s.Flush(); err != nil {
		t.Fatal(err)
	}
	close(c.returned)
	<-c.over
}
