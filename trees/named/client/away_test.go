package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// waitFor waits until a condition holds.
func (w *world) waitFor(what string, is func() error) {
	w.Helper()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			w.Fatalf("not so: %s: %v", what, err)
		}
	}
}

// read is a Get of a path with one name.
func read(ctx context.Context, f *File, name string) (string, error) {
	g, _, err := f.Get(ctx, []string{name}, 0, 100)
	return string(g.Data), err
}

// Goal: while named is away, what was read lately is told to those who take what is old, with its
// age, and to nobody else; changes fail by their deadline, and say why; when named is back, all is
// as before.
func TestAway(t *testing.T) {
	w := newWorld(t)
	_, root := w.realm()
	ctx := t.Context()
	for _, name := range []string{"kept", "changed"} {
		_, _, err := root.Put(ctx, []string{name}, []byte("1"), sigma.PutOptions{})
		w.must(err)
	}
	dir, _, err := root.Walk(ctx, nil)
	w.must(err)
	w.must(dir.Open(ctx, sigma.OpenRead))
	list := func(ctx context.Context) (int, error) {
		entries, _, _, err := dir.ReadDir(ctx, 0, 100)
		return len(entries), err
	}
	current := func() error { // and remembered
		if s, err := read(ctx, root, "kept"); s != "1" || err != nil {
			return fmt.Errorf("%q, %v", s, err)
		}
		if _, err := read(ctx, root, "nothing"); sigma.KindOf(err) != sigma.KindNotFound || err == nil {
			return fmt.Errorf("of nothing: %v", err)
		}
		if n, err := list(ctx); n != 2 || err != nil {
			return fmt.Errorf("%d names, %v", n, err)
		}
		if _, ok := root.realm.front.cache.List(time.Now(), root.id, 0); !ok ||
			!root.realm.front.cache.Fresh(time.Now()) {
			return errors.New("it is not remembered")
		}
		return nil
	}
	w.waitFor("what is read is remembered", current)
	began := time.Now()
	w.kill()
	w.waitFor("the feed is silent", func() error {
		if _, stale := root.realm.front.cache.Staleness(time.Now()); !stale {
			return errors.New("it is not")
		}
		return nil
	})
	stale := func(what string, do func(ctx context.Context) error) {
		t.Helper()
		old, age := sigma.WithStale(ctx)
		if err := do(old); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if a := age.Most(); a < feedLease || a > time.Since(began)+feedLease {
			t.Errorf("%s is said to be %v old after %v", what, a, time.Since(began))
		}
	}
	stale("a file", func(ctx context.Context) error {
		if s, err := read(ctx, root, "kept"); s != "1" || err != nil {
			return fmt.Errorf("%q, %v", s, err)
		}
		return nil
	})
	stale("what is not there", func(ctx context.Context) error {
		if _, err := read(ctx, root, "nothing"); sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		return nil
	})
	stale("a listing", func(ctx context.Context) error {
		if n, err := list(ctx); n != 2 || err != nil {
			return fmt.Errorf("%d names, %v", n, err)
		}
		return nil
	})

	// Nobody else is told, and a change fails when its caller's patience ends. A file whose change
	// came to nothing known is not told of any more.
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if s, err := read(soon, root, "kept"); sigma.KindOf(err) != sigma.KindTimeout || err == nil ||
		sigma.HintOf(err) == "" {
		t.Errorf("a read that is not to be old: %q, %v (%s)", s, err, sigma.HintOf(err))
	}
	old, _ := sigma.WithStale(sigma.WithSync(soon))
	if s, err := read(old, root, "kept"); err == nil {
		t.Errorf("a read that is to be current: %q", s)
	}
	_, _, err = root.Put(soon, []string{"changed"}, []byte("2"), sigma.PutOptions{})
	if kind := sigma.KindOf(err); kind != sigma.KindTimeout || !strings.Contains(sigma.HintOf(err), "named") {
		t.Errorf("a change: %v (%s)", err, sigma.HintOf(err))
	}
	later, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	later, age := sigma.WithStale(later)
	if s, err := read(later, root, "changed"); err == nil || age.Most() != 0 {
		t.Errorf("what may have been changed from here is told as %q, %v old", s, age.Most())
	}
	w.start()
	w.waitFor("all is as it was", current)
	old, age = sigma.WithStale(ctx)
	if s, err := read(old, root, "kept"); s != "1" || err != nil || age.Most() != 0 {
		t.Errorf("with named back: %q, %v old, %v", s, age.Most(), err)
	}
	_, _, err = root.Put(ctx, []string{"changed"}, []byte("3"), sigma.PutOptions{})
	w.must(err)
}
