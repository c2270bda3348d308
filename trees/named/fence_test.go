package named

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// fencedAt is the context of a leader of an epoch.
func fencedAt(t testing.TB, name string, epoch sigma.Epoch) context.Context {
	return sigma.WithFence(t.Context(), sigma.Fence{Name: name, Epoch: epoch})
}

// TestFencesStored: an epoch of which named learned only by a request, which was a read or failed,
// is known to the next named; the realm's end is theirs.
func TestFencesStored(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	root := attach(t, s)
	if _, err := root.Stat(fencedAt(t, "/leader", 3)); err != nil {
		t.Fatal(err)
	}
	wantKind(t, root.Remove(fencedAt(t, "/with/slashes\x00\xff", 7), "missing"), sigma.KindNotFound)
	wantKind(t, root.Mkdir(fencedAt(t, "/leader", 2), "d", 0o777), sigma.KindStale)
	stop()
	s, stop = serve(t, Config{Store: store})
	defer stop()
	root = attach(t, s)
	for _, ctx := range []context.Context{fencedAt(t, "/leader", 2), fencedAt(t, "/with/slashes\x00\xff", 6)} {
		wantKind(t, root.Mkdir(ctx, "d", 0o777), sigma.KindStale)
		_, err := root.Stat(ctx)
		wantKind(t, err, sigma.KindStale)
	}
	for _, ctx := range []context.Context{fencedAt(t, "/leader", 3), fencedAt(t, "/with/slashes\x00\xff", 8),
		t.Context()} {
		if err := errors.Join(root.Mkdir(ctx, "d", 0o777), root.Remove(ctx, "d")); err != nil {
			t.Error(err)
		}
	}
	if err := s.Remove(t.Context(), testRealm); err != nil {
		t.Fatal(err)
	}
	if left := store.sorted("f/"); len(left) > 0 {
		t.Errorf("of a realm that was removed there is left %q", left)
	}
}

// TestFenceNotStored: a read of a newer epoch is not answered before that is stored, and an older
// one not after.
func TestFenceNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		put(t, root, "f", "")
		store.gate = make(chan struct{})
		read := make(chan error, 1)
		go func() { _, err := root.Stat(fencedAt(t, "/leader", 2)); read <- err }()
		synctest.Wait()
		if len(read) > 0 {
			t.Error("answered before it was stored")
		}
		write := make(chan error, 1)
		go func() { write <- root.Mkdir(fencedAt(t, "/leader", 1), "d", 0o777) }()
		synctest.Wait()
		close(store.gate)
		if err := <-read; err != nil {
			t.Error(err)
		}
		wantKind(t, <-write, sigma.KindStale)
	})
}

// candidate waits for a name and then says who it is.
func candidate(ctx context.Context, root *file, who string, o sigma.PutOptions, elected chan<- string) {
	o.MustMake, o.Wait = true, true
	_, _, err := root.Put(ctx, []string{"leader"}, []byte(who), o)
	if err != nil {
		who += ": " + sigma.KindOf(err).String()
	}
	elected <- who
}

// next is who was elected just now, or "" if nobody was.
func next(elected <-chan string) string {
	synctest.Wait()
	select {
	case who := <-elected:
		return who
	default:
		return ""
	}
}

// TestWaitInOrder: who waits for a name gets it in the order of coming; those who gave up or lost
// their lease are passed over, those who do not wait may come in between, and a removal in the same
// transaction as the coming of another gives that one no advantage.
func TestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		put(t, root, "leader", "first")
		lease, err := root.Lease(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		elected := make(chan string, 20)
		impatient, giveUp := context.WithCancel(t.Context())
		come := func(who string) {
			ctx, o := t.Context(), sigma.PutOptions{}
			switch who {
			case "impatient":
				ctx = impatient
			case "unleased":
				o.Lease = lease
			}
			go candidate(ctx, root, who, o, elected)
			synctest.Wait()
		}
		for _, who := range []string{"a", "impatient", "unleased", "b", "c"} {
			come(who)
		}
		giveUp()
		if err := root.Revoke(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
		if who := next(elected); who != "impatient: canceled" {
			t.Errorf("%q was elected", who)
		}
		remove := func(want ...string) {
			t.Helper()
			if err := root.Remove(t.Context(), "leader"); err != nil {
				t.Error(err)
			}
			var got []string
			for who := next(elected); who != ""; who = next(elected) {
				got = append(got, who)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		remove("a", "unleased: not found")
		// While a step is being stored a removal, a newcomer and one who does not wait gather to
		// one step.
		store.gate = make(chan struct{})
		go root.Mkdir(t.Context(), "d", 0o777)
		synctest.Wait()
		removed := make(chan error, 1)
		go func() { removed <- root.Remove(t.Context(), "leader") }()
		come("d")
		close(store.gate)
		if err := <-removed; err != nil {
			t.Error(err)
		}
		for _, want := range []string{"b", ""} {
			if who := next(elected); who != want {
				t.Errorf("got %q, want %q", who, want)
			}
		}
		// Somebody who does not wait makes the name in the step that frees it: c and d go on
		// waiting.
		store.gate = make(chan struct{})
		go root.Mkdir(t.Context(), "e", 0o777)
		synctest.Wait()
		go func() { removed <- root.Remove(t.Context(), "leader") }()
		synctest.Wait()
		created := make(chan error, 1)
		go func() {
			_, _, err := root.Put(t.Context(), []string{"leader"}, []byte("somebody"), sigma.PutOptions{MustMake: true})
			created <- err
		}()
		synctest.Wait()
		close(store.gate)
		if err := errors.Join(<-removed, <-created); err != nil || get(t, root, "leader") != "somebody" {
			t.Errorf("%v, and the leader is %q", err, get(t, root, "leader"))
		}
		remove("c")
		if err := root.Rename(t.Context(), "leader", walk(t, root, "d"), "away"); err != nil {
			t.Error(err)
		}
		if who := next(elected); who != "d" {
			t.Errorf("got %q, want d", who)
		}
		remove()
	})
}

// TestWaitOverRestart: who waits while the leader of the realm ends goes on waiting with the next.
func TestWaitOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		put(t, root, "leader", "first")
		elected := make(chan string, 20)
		const candidates = 3
		for i := range candidates {
			go candidate(t.Context(), root, fmt.Sprint(i), sigma.PutOptions{}, elected)
		}
		for range 2 * leaderTries { // more often than other requests try
			synctest.Wait()
			failed := false
			store.setFail(func(Batch) failure { // once: to be loaded again is another transaction
				if failed {
					return succeeds
				}
				failed = true
				return isLost
			})
			wantKind(t, root.Mkdir(t.Context(), "d", 0o777), sigma.KindLost)
			store.setFail(nil)
		}
		var got []string
		for range candidates {
			if err := root.Remove(t.Context(), "leader"); err != nil {
				t.Fatal(err)
			}
			got = append(got, next(elected))
		}
		slices.Sort(got)
		if !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("elected were %q", got)
		}
	})
}

// TestWaitDeposed: who waits as a leader of an older epoch is told as soon as there is a newer one;
// the others keep their places.
func TestWaitDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, Config{Store: newMemStore()})
		defer stop()
		root := attach(t, s)
		put(t, root, "leader", "first")
		elected := make(chan string, 20)
		go candidate(fencedAt(t, "x", 1), root, "old", sigma.PutOptions{}, elected)
		synctest.Wait()
		go candidate(t.Context(), root, "other", sigma.PutOptions{}, elected)
		synctest.Wait()
		go candidate(fencedAt(t, "x", 2), root, "new", sigma.PutOptions{}, elected)
		if who := next(elected); who != "old: stale" {
			t.Errorf("got %q", who)
		}
		for _, want := range []string{"other", "new"} {
			if err := root.Remove(t.Context(), "leader"); err != nil {
				t.Fatal(err)
			}
			if who := next(elected); who != want {
				t.Errorf("got %q, want %q", who, want)
			}
		}
	})
}

// TestWaitBounded: a realm whose candidates are without number is told to try again.
func TestWaitBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, Config{Store: newMemStore()})
		defer stop()
		root := attach(t, s)
		put(t, root, "leader", "first")
		ctx, cancel := context.WithCancel(t.Context())
		elected := make(chan string, parkedMax+1)
		for range parkedMax {
			go candidate(ctx, root, "x", sigma.PutOptions{}, elected)
			if len(elected) > 0 {
				t.Fatal(<-elected)
			}
		}
		synctest.Wait()
		go candidate(ctx, root, "x", sigma.PutOptions{}, elected)
		if who := next(elected); who != "x: busy" {
			t.Errorf("got %q", who)
		}
		cancel()
		synctest.Wait()
		var l *leader
		if err := root.read(t.Context(), func(*tree) error { l = root.slot.current.Load(); return nil }); err != nil {
			t.Fatal(err)
		}
		if l.parking.count != 0 || l.parking.bytes != 0 || len(l.parking.at) != 0 {
			t.Errorf("%d requests of nobody wait", l.parking.count)
		}
	})
}
