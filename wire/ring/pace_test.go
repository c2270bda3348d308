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
		if now = now.Add(paceMost + 1); p.warrants(now, paceMessages) {
			t.Fatal("slow messages warrant memory")
		}
	}
	now = now.Add(paceMost + 1)
	for i := 1; i <= paceMessages; i++ {
		if got, want := p.warrants(now, paceMessages), i == paceMessages; got != want {
			t.Errorf("message %d: got %v, want %v", i, got, want)
		}
	}
}
