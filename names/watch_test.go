package names

import (
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

// TestManyWatchOne: any number of programs of a machine that watch a file are one watch at named; all of them hear of each change, one who claims a version that is not there keeps nobody waiting, and restarts of named end no watch.
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
