package resolve

import (
	"context"
	"sync"

	"sigmaos.dev/sigma"
)

// Servers are the trees behind endpoints that somebody has gone through: each by one session, which
// all share as long as it lives. T is what a session gives. Safe for concurrent use; a zero one is
// empty.
type Servers[T any] struct {
	Most int     // sessions at a time; 0 = as many as there are endpoints
	Drop func(T) // ends a session when Close is called; nil = nothing is to be done

	mu   sync.Mutex
	all  map[string]*server[T] // mu; by the endpoint's text
	over bool                  // mu
}

// server is a session, or one that is being made.
type server[T any] struct {
	ready chan struct{} // closed when what follows is set
	root  T
	done  <-chan struct{} // closed when the session has ended
	err   error
}

// state says whether the session was made, and whether it has ended.
func (x *server[T]) state() (created, ended bool) {
	select {
	case <-x.ready:
	default:
		return false, false
	}
	select {
	case <-x.done:
		return x.err == nil, true
	default:
		return x.err == nil, false
	}
}

// Get returns what the session with the server behind an endpoint gave. Concurrent first uses dial
// once; a session that ended is dialled again. KindBusy if there are Most others.
func (s *Servers[T]) Get(ctx context.Context, text string,
	dial func(ctx context.Context) (root T, done <-chan struct{}, err error)) (root T, err error) {
	const op = "resolve.Servers"
	for {
		s.mu.Lock()
		x := s.all[text]
		if x == nil {
			break
		} else if _, ended := x.state(); ended {
			break
		}
		s.mu.Unlock()
		select {
		case <-x.ready:
		case <-ctx.Done():
			return root, sigma.Wrap(op, "", ctx.Err())
		}
		if k := sigma.KindOf(x.err); x.err == nil || k != sigma.KindCanceled && k != sigma.KindTimeout {
			return x.root, x.err
		} // else somebody else gave up dialling; that is no reason to
	}
	for text, x := range s.all {
		if _, ended := x.state(); ended {
			delete(s.all, text)
		}
	}
	switch {
	case s.over:
		err = sigma.Errorf(op, sigma.KindLost, "the session has ended")
	case s.Most > 0 && len(s.all) >= s.Most:
		err = sigma.Errorf(op, sigma.KindBusy, "trees behind %d endpoints are in use at a time, and no more may be",
			s.Most)
	}
	if err != nil {
		s.mu.Unlock()
		return root, err
	}
	x := &server[T]{ready: make(chan struct{})}
	if s.all == nil {
		s.all = map[string]*server[T]{}
	}
	s.all[text] = x
	s.mu.Unlock()
	x.root, x.done, x.err = dial(ctx)
	s.mu.Lock()
	if x.err != nil {
		delete(s.all, text)
	}
	drop := s.over && x.err == nil && s.Drop != nil
	s.mu.Unlock()
	close(x.ready)
	if drop {
		s.Drop(x.root)
	}
	return x.root, x.err
}

// Known returns what Get would, if the session is there and lives.
func (s *Servers[T]) Known(text string) (root T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.all[text]
	if x == nil {
		return root, false
	}
	created, ended := x.state()
	if !created || ended {
		return root, false
	}
	return x.root, true
}

// Len is how many sessions there are, or are being made.
func (s *Servers[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Close drops all sessions, also those that are being made; there will be no more.
func (s *Servers[T]) Close() {
	s.mu.Lock()
	s.over = true
	all := s.all
	s.all = nil
	s.mu.Unlock()
	for _, x := range all {
		if created, _ := x.state(); created && s.Drop != nil { // else Get sees that it is over
			s.Drop(x.root)
		}
	}
}
