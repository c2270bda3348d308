package ring

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"
)

// A side that closes, or is killed, at any point of the hand-over from socket to ring and back
// leaves the other with all that was written before, in order, and then an end or an error, at
// once.
func TestHandover(t *testing.T) {
	type ends struct {
		a, b *Conn
		said string // by a
	}
	say := func(word string) func(*ends) error {
		return func(e *ends) error {
			_, err := e.a.Write([]byte(word))
			e.said += word
			return err
		}
	}
	hear := func(n int) func(*ends) error {
		return func(e *ends) error {
			buf := make([]byte, n)
			if _, err := io.ReadFull(e.b, buf); err != nil || string(buf) != e.said[:n] {
				return fmt.Errorf("got %q, %v", buf, err)
			}
			e.said = e.said[n:]
			return nil
		}
	}
	steps := []func(*ends) error{
		say("one "),
		func(e *ends) error { e.a.claimNow(); return nil }, // a has memory, b does not
		say("two "),
		func(e *ends) error { e.b.claimNow(); return nil }, // b is ready
		hear(2),
		say("three "), // begins a ring, with words left on the socket
		hear(4),       // b is still on the socket
		hear(8),       // and in the ring
		say("four "),
		func(e *ends) error { e.a.Use(Socket); return nil }, // words are left in the ring
		say("five "), // on the socket again
		hear(3),
		hear(7), // b is on the socket, too
		func(e *ends) error { e.a.Use(Shared); return nil },
		say("six "), // a second ring
		func(e *ends) error { e.a.rest(); return nil }, // and what time does
		func(e *ends) error { e.a.Batch(long, 0); return nil },
		say("seven "), // which is held back
		func(e *ends) error { return e.a.Flush() },
	}
	for k := range steps {
		for _, how := range []string{"a closes", "a is killed", "b closes", "b is killed"} {
			var e ends
			e.a, e.b = pair(t, Automatic, Automatic)
			for i, step := range steps[:k+1] {
				if err := step(&e); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
			}
			left, held := e.b, e.a.out.batch.count.Load()
			switch how {
			case "a closes":
				e.a.Close()
			case "a is killed":
				e.a.sock.Close()
				e.said = e.said[:len(e.said)-int(held)] // that died with it
			case "b closes":
				left = e.a
				e.b.Close()
			case "b is killed":
				left = e.a
				e.b.sock.Close()
			}
			left.SetDeadline(time.Now().Add(time.Minute)) // generous: it must not come to that
			began := time.Now()
			text, err := io.ReadAll(left)
			if left == e.b && (string(text) != e.said || err != nil) {
				t.Errorf("step %d, %s: got %q, %v, want %q and the end", k, how, text, err, e.said)
			}
			if left == e.a && len(text) > 0 {
				t.Errorf("step %d, %s: got %q", k, how, text)
			}
			for err = nil; err == nil && time.Since(began) < 30*time.Second; { // soon nobody takes it any more
				if _, err = left.Write([]byte("more")); err == nil {
					err = left.Flush()
				}
			}
			if err == nil || time.Since(began) > 30*time.Second {
				t.Errorf("step %d, %s: nothing ends", k, how)
			}
			e.a.Close()
			e.b.Close()
		}
	}
}

// A writer can be late to ring for what its peer has read by then, and answered, and ended after.
// That write has not failed, as it would not have on a socket; the next one does. What was not read
// is lost, and the write says so.
func TestAnswered(t *testing.T) {
	for _, asleep := range []bool{false, true} { // false: it rings as the ring begins
		for _, killed := range []bool{false, true} {
			for _, read := range []bool{true, false} {
				what := fmt.Sprintf("asleep %v, killed %v, read %v", asleep, killed, read)
				x, y := pair(t, Shared, Shared)
				if asleep {
					say(t, x, y, "begin")
					y.raw.Control(func(fd uintptr) { // takes the doorbell, and says that it sleeps
						if y.awaitRing(int(fd)) {
							t.Errorf("%s: there is something to read", what)
						}
					})
				}
				bell, rung := x.bell, 0
				x.bell = func(fd uintptr) {
					if rung++; rung == 1 {
						if read {
							if _, err := io.ReadFull(y, make([]byte, 8)); err != nil {
								t.Errorf("%s: %v", what, err)
							}
						}
						if _, err := y.Write([]byte("answer")); err != nil {
							t.Errorf("%s: %v", what, err)
						}
						if killed {
							y.sock.Close()
						} else {
							y.Close()
						}
					}
					bell(fd)
				}
				n, err := x.Write([]byte("question"))
				if rung != 1 || n != 8 || read != (err == nil) || !read && !errors.Is(err, syscall.EPIPE) &&
					!errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%s: %d, %v, rung %d times", what, n, err, rung)
				}
				if _, err := x.Write([]byte("more")); err == nil {
					t.Errorf("%s: a write to nobody", what)
				}
				if text, err := io.ReadAll(x); string(text) != "answer" {
					t.Errorf("%s: got %q, %v", what, text, err)
				}
				x.Close()
				y.Close()
			}
		}
	}
}
