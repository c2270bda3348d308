package session

import (
	"math/rand/v2"
	"sync"

	"sigmaos.dev/sigma"
)

// Lane numbers changes that are made one after another, so that with the next it is clear that the
// reply to the one before was received: a server has to remember one reply for each lane.
type Lane struct{ last sigma.Once }

// Next numbers another change.
func (l *Lane) Next() sigma.Once {
	l.last.Seq, l.last.Done = l.last.Seq+1, l.last.Seq
	return l.last
}

// Last is the number of the change before.
func (l *Lane) Last() sigma.Once { return l.last }

// Lanes has the lanes that are not in use. There are as many lanes as there ever were changes at
// the same time. Safe for concurrent use; the zero value is empty.
type Lanes struct {
	mu   sync.Mutex
	free []*Lane // mu
}

// Take gives a lane for one change: the last that was used, so that servers can forget those that
// are not needed any more.
func (l *Lanes) Take() *Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		x := l.free[n-1]
		l.free = l.free[:n-1]
		return x
	}
	return &Lane{last: sigma.Once{Client: rand.Uint64()>>1 + 1}}
}

// Return ends the use of a lane.
func (l *Lanes) Return(x *Lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, x)
}
