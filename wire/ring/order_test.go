package ring

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// A Conn is a net.Conn by the rules of the Go project's own suite, whatever carries its bytes.
func TestConn(t *testing.T) {
	for _, want := range []Transport{Automatic, Socket, Shared} {
		t.Run(want.String(), func(t *testing.T) {
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b := pair(t, want, want)
				return a, b, func() { a.Close(); b.Close() }, nil
			})
		})
	}
}

// messages is how many go each way: 10^5 both ways together, or what SIGMA_RING_MESSAGES says.
func messages(t testing.TB) int {
	if n, err := strconv.Atoi(os.Getenv("SIGMA_RING_MESSAGES")); err == nil {
		return n / 2
	}
	return 50_000
}

// write sends n messages of random size that carry their number, and counts those that were written
// as a whole.
func write(c *Conn, r *rand.Rand, n int) (sent int, err error) { return writeFrom(c, r, 0, n) }

// writeFrom sends the messages from number from to before to.
func writeFrom(c *Conn, r *rand.Rand, from, to int) (sent int, err error) {
	buf := make([]byte, 32<<10)
	for i := from; i < to; i++ {
		size := 12 + r.IntN(200)
		if r.IntN(100) == 0 {
			size = 12 + r.IntN(len(buf)-12)
		}
		binary.LittleEndian.PutUint64(buf, uint64(i))
		binary.LittleEndian.PutUint32(buf[8:], uint32(size))
		for j := 12; j < size; j++ {
			buf[j] = byte(i + j)
		}
		if _, err := c.Write(buf[:size]); err != nil {
			return i, err
		}
	}
	return to, nil
}

// read checks what write sends, until the end.
func read(t *testing.T, c *Conn, r *rand.Rand) (got int, err error) {
	return readAll(t, c, r, func(int) {})
}

// readAll tells how many have come whenever one has.
func readAll(t *testing.T, c *Conn, r *rand.Rand, come func(n int)) (got int, err error) {
	stream := &jerky{c, r}
	buf := make([]byte, 32<<10)
	for ; ; got++ {
		come(got)
		if _, err := io.ReadFull(stream, buf[:12]); err != nil {
			return got, err
		}
		i, size := binary.LittleEndian.Uint64(buf), binary.LittleEndian.Uint32(buf[8:])
		if i != uint64(got) || size < 12 || size > uint32(len(buf)) {
			t.Errorf("message %d says that it is %d and has %d bytes", got, i, size)
			return got, errors.New("out of order")
		}
		if _, err := io.ReadFull(stream, buf[12:size]); err != nil {
			return got, err
		}
		for j := 12; j < int(size); j++ {
			if buf[j] != byte(got+j) {
				t.Errorf("message %d differs at byte %d", got, j)
				return got, errors.New("changed")
			}
		}
	}
}

// jerky reads pieces of any size, now and then with a deadline that passes.
type jerky struct {
	*Conn
	*rand.Rand
}

func (j *jerky) Read(p []byte) (int, error) {
	for {
		if j.IntN(64) == 0 {
			j.SetReadDeadline(time.Now().Add(time.Duration(j.IntN(100)) * time.Microsecond))
		}
		n, err := j.Conn.Read(p[:1+j.IntN(len(p))])
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		j.SetReadDeadline(time.Time{})
		if n > 0 {
			return n, nil
		}
	}
}

// meddle switches transports, and what is held back, at random until stop is closed.
func meddle(r *rand.Rand, stop <-chan struct{}, conns ...*Conn) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(r.IntN(300)) * time.Microsecond):
		}
		c := conns[r.IntN(len(conns))]
		switch r.IntN(6) {
		case 0:
			c.Use(Socket)
		case 1:
			c.Use(Shared)
		case 2:
			c.Use(Automatic)
		case 4:
			c.Batch(0, 0)
		case 5:
			c.Batch(time.Duration(r.IntN(500))*time.Microsecond, time.Duration(r.IntN(300))*time.Microsecond)
		case 3: // as if it had been silent
			c.rest()
			c.rest()
		}
	}
}

// Messages keep their order, and none is lost or doubled, while both sides switch transports at
// random and read in pieces.
func TestSwitching(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := func(i uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, i)) }
	a, b := pair(t, Automatic, Automatic)
	n := messages(t)
	stop := make(chan struct{})
	var meddlers, ends sync.WaitGroup
	meddlers.Go(func() { meddle(random(1), stop, a, b) })
	for i, c := range []*Conn{a, b} {
		ends.Go(func() {
			if sent, err := write(c, random(uint64(2+i)), n); err != nil {
				t.Errorf("%d messages written, then %v", sent, err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		ends.Go(func() {
			if got, err := read(t, c, random(uint64(4+i))); got != n || err != io.EOF {
				t.Errorf("got %d messages and %v, want %d and the end", got, err, n)
			}
		})
	}
	ends.Wait()
	close(stop)
	meddlers.Wait()
	st := a.Stats()
	if st.Promotions == 0 || st.Demotions == 0 || b.Stats().Promotions == 0 {
		t.Errorf("nothing was switched: %+v, %+v", st, b.Stats())
	}
	t.Logf("%+v", st)
}

// After CloseWrite nothing can be written, the peer reads what was and then the end, again and
// again, and can still answer.
func TestHalfClosed(t *testing.T) {
	for _, want := range []Transport{Socket, Shared} {
		a, b := pair(t, want, want)
		if _, err := a.Write([]byte("last")); err != nil {
			t.Fatal(err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if n, err := a.Write([]byte("more")); n != 0 || !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%v: wrote %d bytes after the end, %v", want, n, err)
		}
		if text, err := io.ReadAll(b); err != nil || string(text) != "last" {
			t.Errorf("%v: got %q, %v", want, text, err)
		}
		if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%v: got %d, %v after the end", want, n, err)
		}
		if _, err := b.Write([]byte("answer")); err != nil {
			t.Errorf("%v: %v", want, err)
		}
		buf := make([]byte, 16)
		if n, err := a.Read(buf); err != nil || string(buf[:n]) != "answer" {
			t.Errorf("%v: got %q, %v", want, buf[:n], err)
		}
	}
}

// A side that goes away at any moment leaves the other with a beginning of what it wrote, as a
// socket does, and with an end or an error.
func TestGone(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range uint64(300) {
		random := func(j uint64) *rand.Rand { return rand.New(rand.NewPCG(seed+i, j)) }
		a, b := pair(t, Automatic, Automatic)
		var ends sync.WaitGroup
		stop := make(chan struct{})
		var sent, got int
		ends.Go(func() { meddle(random(1), stop, a, b) })
		ends.Go(func() { sent, _ = write(a, random(2), 1<<20) })
		ends.Go(func() { write(b, random(3), 1<<20) })
		ends.Go(func() { got, _ = read(t, b, random(4)); close(stop) })
		ends.Go(func() {
			r := random(5)
			end := r.IntN(300)
			buf := make([]byte, 4<<10)
			for range end {
				if _, err := a.Read(buf); err != nil {
					break
				}
			}
			if i%2 == 0 {
				a.Close()
			} else {
				a.sock.Close() // as the kernel does for a proc that was killed
			}
		})
		ends.Wait()
		if got > sent+1 {
			t.Fatalf("%d messages were read, %d written", got, sent)
		}
		a.Close()
		b.Close()
	}
}
