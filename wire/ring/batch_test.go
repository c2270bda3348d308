package ring

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// long is a time that no test waits for.
const long = batchMost

// What is held back is written by what ends the holding: size, a flush, another time, a Read that
// waits, CloseWrite, Close; each in time, and in order.
func TestBatch(t *testing.T) {
	big := bytes.Repeat([]byte("b"), batchBytes)
	for _, want := range []Transport{Socket, Shared} {
		for _, x := range []struct {
			name string
			end  func(c *Conn) error
			more []byte // that comes with it
		}{
			{"size", func(c *Conn) error {
				_, err := c.Write(big[:batchBytes-len("held")])
				return err
			}, big[:batchBytes-len("held")]},
			{"a large write", func(c *Conn) error { _, err := c.Write(big); return err }, big},
			{"Flush", (*Conn).Flush, nil},
			{"another time", func(c *Conn) error { c.Batch(0, 0); return nil }, nil},
			{"a shorter time", func(c *Conn) error { c.Batch(time.Microsecond, 0); return nil }, nil},
			{"a Read", func(c *Conn) error { go c.Read(make([]byte, 1)); return nil }, nil},
			{"CloseWrite", (*Conn).CloseWrite, nil},
			{"Close", (*Conn).Close, nil},
		} {
			a, b := pair(t, want, want)
			a.Batch(long, 0)
			for _, word := range []string{"he", "ld"} {
				if n, err := a.Write([]byte(word)); n != 2 || err != nil {
					t.Fatalf("%s: %d, %v", x.name, n, err)
				}
			}
			if a.out.batch.count.Load() != 4 || a.out.sent+a.out.to.tail != 0 {
				t.Errorf("%v, %s: it is not held", want, x.name)
			}
			if err := x.end(a); err != nil {
				t.Errorf("%v, %s: %v", want, x.name, err)
			}
			if x.name != "a Read" && a.out.batch.count.Load() != 0 {
				t.Errorf("%v, %s: it is still held", want, x.name)
			}
			got := make([]byte, 4+len(x.more))
			if _, err := io.ReadFull(b, got); err != nil || string(got) != "held"+string(x.more) {
				t.Errorf("%v, %s: got %.20q, %v", want, x.name, got, err)
			}
			a.Close()
			b.Close()
		}
	}
}

// A producer that stalls after a few bytes, or writes so seldom that no size is reached, keeps
// nobody waiting for more than the time it said: the time runs from the first byte, and no later
// write makes it longer.
func TestBatchStalls(t *testing.T) {
	for _, want := range []Transport{Socket, Shared} {
		a, b := pair(t, want, want)
		a.Batch(2*time.Millisecond, 0)
		b.SetReadDeadline(time.Now().Add(time.Minute)) // generous: the producer would stall for ever
		for range 20 {
			if _, err := a.Write([]byte("stalled")); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 7)
			if _, err := io.ReadFull(b, got); err != nil || string(got) != "stalled" {
				t.Fatalf("%v: got %q, %v", want, got, err)
			}
		}
		a.Batch(long, 0)
		a.Write([]byte("x"))
		a.out.mu.Lock()
		first := a.out.batch.timer
		a.arm(time.Millisecond) // as if the rest of its time were that
		a.out.mu.Unlock()
		for a.out.batch.count.Load() > 0 {
			if _, err := a.Write([]byte("y")); err != nil { // each would begin the time anew, if it could
				t.Fatal(err)
			}
			a.out.mu.Lock()
			now, told := a.out.batch.timer, a.out.sent+a.out.to.tail
			a.out.mu.Unlock()
			if now != first {
				t.Fatal("there is another time")
			}
			if told > 7*20+1 {
				break
			}
		}
	}
}

// A Read keeps what has come until its time is over, it has enough or nothing more can come; a
// deadline of its own comes first, and takes nothing away.
func TestDelay(t *testing.T) {
	for _, want := range []Transport{Socket, Shared} {
		a, b := pair(t, want, want)
		b.Batch(0, long)
		a.Write([]byte("one"))
		go a.Write([]byte("two"))
		got := make([]byte, 6)
		if n, err := b.Read(got); err != nil || string(got[:n]) != "onetwo" {
			t.Errorf("%v: got %q, %v, as much as was asked for", want, got[:n], err)
		}
		b.Batch(0, time.Millisecond)
		a.Write([]byte("alone"))
		if n, err := b.Read(make([]byte, 100)); n != 5 || err != nil {
			t.Errorf("%v: got %d, %v when the time was over", want, n, err)
		}
		b.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, err := b.Read(make([]byte, 100)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v: got %d, %v after a deadline", want, n, err)
		}
		b.SetReadDeadline(time.Time{})
		b.Batch(0, long)
		a.Write([]byte("last"))
		a.CloseWrite()
		if n, err := b.Read(make([]byte, 100)); n != 4 || err != nil {
			t.Errorf("%v: got %d, %v before the end", want, n, err)
		}
		if n, err := b.Read(make([]byte, 100)); n != 0 || err != io.EOF {
			t.Errorf("%v: got %d, %v at the end", want, n, err)
		}
	}
}

// An error of bytes that were held comes with the next call, and a deadline keeps them.
func TestBatchErrors(t *testing.T) {
	a, b := pair(t, Socket, Socket)
	a.Batch(long, 0)
	a.Write([]byte("kept"))
	a.SetWriteDeadline(time.Unix(1, 0))
	if err := a.Flush(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	a.SetWriteDeadline(time.Time{})
	if err := a.Flush(); err != nil {
		t.Error(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(b, got); err != nil || string(got) != "kept" {
		t.Errorf("got %q, %v", got, err)
	}
	b.Close()
	a.Write([]byte("lost"))
	if a.Flush() == nil {
		t.Error("a flush to nobody succeeds")
	}
	if _, err := a.Write([]byte("more")); err == nil {
		t.Error("a write after it succeeds")
	}
}
