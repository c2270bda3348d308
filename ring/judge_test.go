package ring

import (
	"testing"
	"time"
)

// A connection asks for memory when messages follow each other closely, once.
func TestPace(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	for range 100 {
		if now = now.Add(paceMost + 1); p.warrants(now) {
			t.Fatal("slow messages warrant memory")
		}
	}
	now = now.Add(paceMost + 1)
	for i := 1; i <= paceMessages; i++ {
		if got, want := p.warrants(now), i == paceMessages; got != want {
			t.Errorf("message %d: got %v, want %v", i, got, want)
		}
	}
}

// A ring whose reader sleeps before each write is left, for longer each time up to a bound; one good window forgets that.
func TestJudge(t *testing.T) {
	var j judge
	window := func(woken bool) (left bool) {
		for range judgeWindow {
			left = j.wrote(woken)
		}
		return left
	}
	held := func() (n int) {
		for !j.wants() {
			n++
		}
		return n
	}
	if window(false) || held() != 0 {
		t.Error("a ring whose reader is awake was left")
	}
	for _, want := range []int{128, 256, 512, 1024, 2048, 2048} {
		if !window(true) {
			t.Fatal("a ring whose reader sleeps was kept")
		}
		if got := held(); got != want {
			t.Errorf("got %d writes on the socket, want %d", got, want)
		}
	}
	if window(false) || !window(true) || held() != holdLeast {
		t.Error("a good window was not remembered")
	}
}
