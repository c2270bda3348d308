package remote

import (
	"context"
	"slices"
	"sync"

	"sigmaos.dev/sigma"
)

// locks orders changes of keys, by waiting that can be given up. Who changes an entry locks its
// key, and shares the lock of the directory it is in, so that a directory is not removed under it.
type locks struct {
	mu   sync.Mutex
	held map[string]*held // mu
}

// held is a key that somebody has, or waits for.
type held struct {
	shared int  // how many share it
	alone  bool // somebody has it alone
	wake   chan struct{}
}

// lock is a key that is wanted.
type lock struct {
	key   string
	alone bool
}

// take locks keys, in their order, and returns what unlocks them.
func (l *locks) take(ctx context.Context, want ...lock) (func(), error) {
	slices.SortFunc(want, func(a, b lock) int {
		if a.key != b.key && a.key < b.key {
			return -1
		} else if a.key != b.key {
			return 1
		}
		if a.alone && !b.alone { // the stronger one is taken
			return -1
		}
		return 1
	})
	want = slices.CompactFunc(want, func(a, b lock) bool { return a.key == b.key })
	for i, w := range want {
		if err := l.one(ctx, w); err != nil {
			l.give(want[:i])
			return nil, sigma.Wrap("remote.lock", "", err)
		}
	}
	return func() { l.give(want) }, nil
}

func (l *locks) one(ctx context.Context, w lock) error {
	for {
		l.mu.Lock()
		h := l.held[w.key]
		if h == nil {
			h = &held{}
			l.held[w.key] = h
		}
		if !h.alone && (h.shared == 0 || !w.alone) {
			h.alone = w.alone
			if !w.alone {
				h.shared++
			}
			l.mu.Unlock()
			return nil
		}
		if h.wake == nil {
			h.wake = make(chan struct{})
		}
		wake := h.wake
		l.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *locks) give(have []lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range have {
		h := l.held[w.key]
		if w.alone {
			h.alone = false
		} else {
			h.shared--
		}
		if h.wake != nil {
			close(h.wake)
			h.wake = nil
		}
		if h.shared == 0 && !h.alone {
			delete(l.held, w.key) // who waits for it makes it anew
		}
	}
}
