package balancer

import "testing"

// Goal: two moves that began with one configuration go on at the same time, each of them once.
func TestMovesOfOneEpoch(t *testing.T) {
	b := &balancer{busy: map[task]bool{}}
	began, end := make(chan uint16, 3), make(chan struct{})
	for _, shard := range []uint16{1, 2, 1} {
		b.once(task{shard, 5}, func() {
			began <- shard
			<-end
		})
	}
	<-began
	<-began
	close(end)
	if b.tasks.Wait(); len(began) != 0 {
		t.Error("a move was begun twice")
	}
}
