package decision

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// Bounds of noting.
const (
	second     = 32                    // records of a realm, for one reason, that are noted in one second
	pendingMax = 1024                  // records that wait to be sent, or kept; more are left out
	sendDelay  = 20 * time.Millisecond // in which more come that are sent with the first
	sendMax    = 2 * time.Second       // for a call
)

// Limit says whether more is to be noted in this second. Not safe for concurrent use.
type Limit struct {
	second int64
	of     map[string]int
}

// Allows counts one more of somebody's.
func (l *Limit) Allows(whose string, now time.Time) bool {
	if s := now.Unix(); s != l.second || l.of == nil {
		l.second, l.of = s, map[string]int{}
	}
	l.of[whose]++
	return l.of[whose] <= second
}

// inbox has records on their way. Who notes never waits.
type inbox struct {
	mu      sync.Mutex
	pending []Record      // mu
	news    chan struct{} // takes one
}

func newInbox() inbox { return inbox{news: make(chan struct{}, 1)} }

// Note adds a record, which gets the time if it has none. It never blocks; what is too much is left
// out.
func (b *inbox) Note(r Record) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	b.mu.Lock()
	if len(b.pending) < pendingMax {
		b.pending = append(b.pending, r)
	}
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

func (b *inbox) take() []Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	rs := b.pending
	b.pending = nil
	return rs
}

// each calls f with what was noted, some at a time, until ctx ends.
func (b *inbox) each(ctx context.Context, delay time.Duration, f func()) {
	for {
		select {
		case <-b.news:
		case <-ctx.Done():
			return
		}
		if !retry.Pause(ctx, delay) {
			return
		}
		f()
	}
}

// Tree is where a daemon calls its machine.
type Tree interface {
	Call(ctx context.Context, path, method string, payload []byte) ([]byte, error)
}

// Sender tells the machine of a daemon what the daemon decides. Safe for concurrent use.
type Sender struct{ inbox }

// NewSender makes one; Run sends.
func NewSender() *Sender { return &Sender{newInbox()} }

// Run sends what is noted until ctx ends. What cannot be sent is lost.
func (s *Sender) Run(ctx context.Context, t Tree) {
	s.each(ctx, sendDelay, func() {
		for rs := s.take(); len(rs) > 0; {
			some := rs[:sigmap.Fit(rs, Code)]
			rs = rs[len(some):]
			within, cancel := context.WithTimeout(ctx, sendMax)
			_ = CallNote.Tell(within, sigmap.At(t, "/sys/"+sigmap.FileDecisions), some)
			cancel()
		}
	})
}
