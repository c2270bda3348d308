package client

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// TestManyWatchOne: any number of programs of a machine that watch a file are one watch at named;
// all of them hear of each change, one who claims a version that is not there keeps nobody waiting,
// and restarts of named end no watch.
func TestManyWatchOne(t *testing.T) {
	w := newWorld(t)
	r, root := w.realm()
	id := w.put(root, "one", "file")
	w.must(w.srv.SetLimits(t.Context(), testRealm, sigma.RealmLimits{Watches: 2})) // the liar's below, and the others'
	f, _, err := root.Walk(t.Context(), []string{"file"})
	w.must(err)
	watcher := f.(sigma.Watcher)
	var liar sync.WaitGroup
	claimed := id.Version + 1
	liar.Go(func() {
		if v, err := watcher.Watch(t.Context(), claimed); err != nil || v <= claimed {
			t.Errorf("claimed a version too many: %d, %v", v, err)
		}
	})
	for changes := range 2 {
		var all sync.WaitGroup
		before := id.Version
		for range 100 {
			all.Go(func() {
				if v, err := watcher.Watch(t.Context(), before); err != nil || v <= before {
					t.Errorf("change %d after %d: version %d, %v", changes, before, v, err)
				}
			})
		}
		if changes == 1 {
			w.restart()
		}
		id = w.put(root, "another", "file")
		all.Wait()
	}
	liar.Wait()
	removed := make(chan error, 1)
	go func() {
		_, err := watcher.Watch(t.Context(), id.Version)
		removed <- err
	}()
	w.must(root.Remove(t.Context(), "file"))
	if err := <-removed; sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("removed: %v", err)
	}
	r.watches.mu.Lock()
	defer r.watches.mu.Unlock()
	if len(r.watches.files) != 0 {
		t.Errorf("%d watches are left", len(r.watches.files))
	}
}

// TestWatchersBounded: so many may wait and no more; one that does not come any more makes room.
func TestWatchersBounded(t *testing.T) {
	w := newWorld(t)
	r, root := w.realm()
	r.watches.most = 100
	id := w.put(root, "one", "file")
	f, _, err := root.Walk(t.Context(), []string{"file"})
	w.must(err)
	watcher := f.(sigma.Watcher)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if _, err := watcher.Watch(ctx, id.Version); sigma.KindOf(err) != sigma.KindCanceled {
				t.Errorf("one that waited: %v", err)
			}
		})
	}
	w.waitFor("all wait", func() error {
		r.watches.mu.Lock()
		defer r.watches.mu.Unlock()
		if r.watches.waiters < 100 {
			return fmt.Errorf("%d do", r.watches.waiters)
		}
		return nil
	})
	for range 1000 {
		if _, err := watcher.Watch(t.Context(), id.Version); sigma.KindOf(err) != sigma.KindNoSpace ||
			sigma.HintOf(err) == "" {
			t.Fatalf("one too many: %v", err)
		}
	}
	cancel()
	all.Wait()
	if v, err := watcher.Watch(t.Context(), id.Version-1); err != nil || v != id.Version {
		t.Errorf("one that comes later: %d, %v", v, err)
	}
}

// Goal: a machine's session to named has as many watches of a realm as the realm may have, and
// other requests of it, renewals of leases among them, are answered all the same.
func TestWatchesLeaveRoom(t *testing.T) {
	const watches = 3000 // by default
	w := newWorld(t)
	s, err := w.dial(t.Context())
	w.must(err)
	defer s.Close()
	lease, err := s.Root.Lease(t.Context(), time.Hour)
	w.must(err)
	_, _, err = s.Root.Put(t.Context(), []string{"file"}, []byte("one"), sigma.PutOptions{})
	w.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	refused := make(chan error, watches+1)
	for range watches + 1 {
		all.Go(func() {
			if _, err := s.Root.Watch(ctx, 1<<60); ctx.Err() == nil {
				refused <- err
			}
		})
	}
	if err := <-refused; sigma.KindOf(err) != sigma.KindNoSpace { // by named: the others wait
		t.Fatalf("one watch too many: %v", err)
	}
	asked, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	w.must(s.Root.Renew(asked, lease))
	if g, _, err := s.Root.Get(asked, []string{"file"}, 0, 100); err != nil || string(g.Data) != "one" {
		t.Errorf("got %q, %v", g.Data, err)
	}
	_, _, err = s.Root.Put(asked, []string{"file"}, []byte("two"), sigma.PutOptions{})
	w.must(err)
	select {
	case err := <-refused:
		t.Errorf("a watch that waited: %v", err)
	default:
	}
}
