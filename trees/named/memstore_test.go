package named

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
)

// memStore is a Store in memory. Closing it loses nothing: open returns the same content again, as
// after a kill. fail is asked before each commit and decides what happens to it.
type memStore struct {
	mu   sync.Mutex
	rev  Revision
	keys map[string]memValue
	fail func(b Batch) failure // guarded by mu; nil: never
	late []Batch               // given up on, and not yet decided
	gate chan struct{}         // if not nil, commits wait for a token each
	in   chan struct{}         // if not nil, gets a token when a commit waits
}

type memValue struct {
	value []byte
	at    Revision
}

type failure int

const (
	succeeds failure = iota
	isLost           // error, no effect
	isStored         // error, but it has its effect
	isLate           // error; its effect comes later, if its guard lets it
	isFull           // refused for lack of space
)

func newMemStore() *memStore { return &memStore{keys: map[string]memValue{}} }

func (m *memStore) Get(_ context.Context, key string) ([]byte, Revision, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.keys[key]
	return slices.Clone(v.value), v.at, ok, nil
}

func (m *memStore) sorted(prefix string) []string {
	var keys []string
	for k := range m.keys {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (m *memStore) Scan(_ context.Context, prefix string, f func(string, []byte) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.sorted(prefix) {
		if err := f(k, slices.Clone(m.keys[k].value)); err != nil {
			return err
		}
	}
	return nil
}

func (m *memStore) Commit(ctx context.Context, b Batch) (Revision, error) {
	if m.gate != nil {
		if m.in != nil {
			m.in <- struct{}{}
		}
		select {
		case <-m.gate:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	what := succeeds
	if m.fail != nil {
		what = m.fail(b)
	}
	switch what {
	case isFull:
		return 0, ErrFull
	case isLost:
		return 0, errors.New("test: lost")
	case isLate:
		m.late = append(m.late, b)
		return 0, errors.New("test: late")
	}
	rev, err := m.applyLocked(b)
	if err == nil && what == isStored {
		return 0, errors.New("test: stored, but nobody knows")
	}
	return rev, err
}

func (m *memStore) applyLocked(b Batch) (Revision, error) {
	if m.keys[b.Guard].at != b.GuardAt {
		return 0, ErrConflict
	}
	m.rev++
	seen := map[string]bool{}
	once := func(key string) {
		if seen[key] {
			panic("a batch has the key " + key + " twice")
		}
		seen[key] = true
	}
	for _, kv := range b.Puts {
		once(kv.Key)
		m.keys[kv.Key] = memValue{slices.Clone(kv.Value), m.rev}
	}
	for _, k := range b.Deletes {
		once(k)
		delete(m.keys, k)
	}
	return m.rev, nil
}

// finishLate gives the commits that were given up on their chance, and returns how many took
// effect.
func (m *memStore) finishLate() (stored int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.late {
		if _, err := m.applyLocked(b); err == nil {
			stored++
		}
	}
	m.late = nil
	return stored
}

func (m *memStore) DeletePrefix(_ context.Context, prefix string, most int) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := m.sorted(prefix)
	for _, k := range keys[:min(most, len(keys))] {
		delete(m.keys, k)
	}
	return len(keys) > most, nil
}

func (m *memStore) Lost() <-chan struct{} { return nil }

func (m *memStore) Close() {}
