package poller

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSet: one call for each time asked, at data that was there before too, at the end of the other
// side, and none after Remove.
func TestSet(t *testing.T) {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(s.Run)
	pipe := func() (r, w int) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		return p[0], p[1]
	}
	r, w := pipe()
	defer unix.Close(r)
	unix.Write(w, []byte("x"))
	calls := make(chan string, 10)
	watch, err := s.Add(r, func() { calls <- "first" })
	if err != nil {
		t.Fatal(err)
	}
	if got := <-calls; got != "first" {
		t.Errorf("got %s", got)
	}
	unix.Write(w, []byte("x"))
	if len(calls) > 0 {
		t.Error("called twice for being asked once")
	}
	var b [10]byte
	unix.Read(r, b[:])
	if err := watch.Again(); err != nil {
		t.Fatal(err)
	}
	unix.Close(w)
	<-calls
	watch.Remove()

	r2, w2 := pipe()
	removed, err := s.Add(r2, func() { calls <- "removed" })
	if err != nil {
		t.Fatal(err)
	}
	removed.Remove()
	unix.Write(w2, []byte("x"))
	r3, w3 := pipe()
	if _, err := s.Add(r3, func() { calls <- "third" }); err != nil {
		t.Fatal(err)
	}
	unix.Write(w3, []byte("x"))
	if got := <-calls; got != "third" {
		t.Errorf("got %s", got)
	}
	s.Close()
	running.Wait()
	for _, fd := range []int{r2, w2, r3, w3} {
		unix.Close(fd)
	}
}
