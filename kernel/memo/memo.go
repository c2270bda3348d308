// Package memo remembers answers to questions about the system for a second. Users: kernel.
package memo

import (
	"context"
	"sync"
	"time"
)

// Memo remembers answers for a while, so that those who read the state of the system all the time
// cost what one question a second costs, and those who come while it is asked wait for the same
// answer.
type Memo struct {
	ctx context.Context // set by Begin; nil = none

	mu  sync.Mutex
	was map[string]*remembered // mu
	at  time.Time              // mu; when it was last looked for what is too old
}

// Begin sets the context of questions: not that of who asks, because one who gives up would have
// the others told less. It is called before the rest.
func (m *Memo) Begin(ctx context.Context) { m.ctx = ctx }

type remembered struct {
	mu    sync.Mutex // held while it is asked
	value any        // mu
	err   error      // mu
	at    time.Time  // memo.mu; when it came; zero before
}

// memoFor is how long an answer is good.
const memoFor = time.Second

// askMax is how long an answer may take: longer than the loss of a machine takes to be known.
const askMax = 3 * time.Second

func (r *remembered) old(now time.Time) bool { return !r.at.IsZero() && now.Sub(r.at) >= memoFor }

// Forget has the answer asked for anew that is remembered by a key.
func (m *Memo) Forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.was, key)
}

// Prolong has an answer that is remembered be good for longer, counted from now. It is false if
// there is none.
func (m *Memo) Prolong(key string, d time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.was[key]
	if r == nil || r.at.IsZero() {
		return false
	}
	r.at = time.Now().Add(d)
	return true
}

// Recall gives the answer that is remembered by that key, or makes it.
func Recall[T any](m *Memo, key string, ask func(ctx context.Context) (T, error)) (T, error) {
	m.mu.Lock()
	now := time.Now()
	if now.Sub(m.at) >= memoFor { // all that is older goes: nothing is kept for those who do not come again
		for key, r := range m.was {
			if r.old(now) {
				delete(m.was, key)
			}
		}
		m.at = now
	}
	r := m.was[key]
	if r == nil || r.old(now) {
		r = &remembered{}
		if m.was == nil {
			m.was = map[string]*remembered{}
		}
		m.was[key] = r
		r.mu.Lock()
		m.mu.Unlock()
		defer r.mu.Unlock()
		defer func() {
			m.mu.Lock()
			r.at = time.Now()
			m.mu.Unlock()
		}()
		ctx := context.Background()
		if m.ctx != nil {
			ctx = m.ctx
		}
		ctx, cancel := context.WithTimeout(ctx, askMax)
		defer cancel()
		v, err := ask(ctx)
		r.value, r.err = v, err
		return v, err
	}
	m.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	v, _ := r.value.(T)
	return v, r.err
}
