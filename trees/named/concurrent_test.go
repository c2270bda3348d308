package named

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// No reader sees a change before the store has it, and nobody is told that it happened.
func TestUncommittedIsUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		put(t, root, "a", "old")
		a := opened(t, walk(t, root, "a"), sigma.OpenRead)
		store.gate = make(chan struct{})
		var done atomic.Int32
		for _, m := range []func() error{
			func() error {
				_, _, err := root.Put(t.Context(), []string{"a"}, []byte("new"), sigma.PutOptions{})
				return err
			},
			func() error { return root.Mkdir(t.Context(), "d", 0o755) },
			func() error { return root.Rename(t.Context(), "a", root, "b") },
		} {
			go func() {
				if err := m(); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}()
			synctest.Wait()
		}
		if done.Load() != 0 {
			t.Error("somebody was told of what is not committed")
		}
		if got := get(t, root, "a"); got != "old" {
			t.Errorf("a reader sees %q", got)
		}
		if names := list(t, root, 10); !slices.Equal(names, []string{"a"}) {
			t.Errorf("a reader sees %q", names)
		}
		close(store.gate)
		synctest.Wait()
		if done.Load() != 3 {
			t.Errorf("%d of 3 done", done.Load())
		}
		if got := get(t, root, "b"); got != "new" {
			t.Errorf("got %q", got)
		}
		// The handle follows the rename; when the file is removed it reads what was there last, and
		// nothing else works.
		buf := make([]byte, 10)
		if n, err := a.ReadAt(t.Context(), buf, 1); err != nil || string(buf[:n]) != "ew" {
			t.Errorf("read %q, %v", buf[:n], err)
		}
		if err := root.Remove(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		if n, err := a.ReadAt(t.Context(), buf, 0); err != nil || string(buf[:n]) != "new" {
			t.Errorf("read %q, %v after the removal", buf[:n], err)
		}
		_, err := a.Stat(t.Context())
		wantKind(t, err, sigma.KindStale)
		_, _, err = a.Walk(t.Context(), nil)
		wantKind(t, err, sigma.KindStale)
		_, err = a.Watch(t.Context(), 0)
		wantKind(t, err, sigma.KindNotFound)
	})
}

// Changes that wait for a commit are committed together. Who gives up before that leaves no change
// behind.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		put(t, root, "a", "x")
		before := store.rev
		store.gate = make(chan struct{})
		for i := range 50 {
			go put(t, root, fmt.Sprint(i), "x")
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() {
			_, _, err := root.Put(ctx, []string{"given up"}, nil, sigma.PutOptions{})
			gaveUp <- err
		}()
		synctest.Wait()
		cancel()
		wantKind(t, <-gaveUp, sigma.KindCanceled)
		close(store.gate)
		synctest.Wait()
		if n := store.rev - before; n > 3 {
			t.Errorf("%d commits for 50 changes", n)
		}
		if names := list(t, root, 7); len(names) != 51 {
			t.Errorf("%d names: %q", len(names), names)
		}
	})
}

// A queue that the store does not drain is bounded.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		store.gate = make(chan struct{})
		big := make([]byte, FileMax)
		var busy, ok atomic.Int32
		for i := range 50 {
			go func() {
				switch _, _, err := root.Put(t.Context(), []string{fmt.Sprint(i)}, big, sigma.PutOptions{}); {
				case err == nil:
					ok.Add(1)
				case sigma.KindOf(err) == sigma.KindBusy:
					busy.Add(1)
				default:
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		if busy.Load() < 10 {
			t.Errorf("%d were refused", busy.Load())
		}
		close(store.gate)
		synctest.Wait()
		if busy.Load()+ok.Load() != 50 {
			t.Errorf("%d refused and %d done of 50", busy.Load(), ok.Load())
		}
	})
}

// Of many who rename one file, or make one file exclusively, or put it at one version, exactly one
// wins.
func TestOneWinner(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	if err := root.Mkdir(t.Context(), "to", 0o755); err != nil {
		t.Fatal(err)
	}
	to := walk(t, root, "to")
	for round := range 50 {
		source := fmt.Sprint("source", round)
		v := put(t, root, source, "x").Version
		put(t, root, "counter", "x")
		counter := put(t, root, "counter", "x").Version
		var moved, created, set atomic.Int32
		var group sync.WaitGroup
		for w := range 16 {
			group.Go(func() {
				if err := root.Rename(t.Context(), source, to, fmt.Sprint(round, "-", w)); err == nil {
					moved.Add(1)
				} else {
					wantKind(t, err, sigma.KindNotFound)
				}
				if _, err := root.Create(t.Context(), fmt.Sprint("new", round), sigma.OpenExclusive|sigma.OpenWrite,
					0o600); err == nil {
					created.Add(1)
				} else {
					wantKind(t, err, sigma.KindExists)
				}
				if _, _, err := root.Put(t.Context(), []string{"counter"}, nil,
					sigma.PutOptions{IfVersion: counter}); err == nil {
					set.Add(1)
				} else {
					wantKind(t, err, sigma.KindVersion)
				}
			})
		}
		group.Wait()
		if moved.Load() != 1 || created.Load() != 1 || set.Load() != 1 {
			t.Fatalf("%d moved, %d made, %d set", moved.Load(), created.Load(), set.Load())
		}
		if names := list(t, to, 100); len(names) != round+1 {
			t.Fatalf("%d names", len(names))
		}
		_ = v
	}
}

// A file that is replaced all the time is read in full and in order, and is never missing, also
// from listings.
func TestAtomicReplace(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	put(t, root, "config", "0")
	for i := range 20 {
		put(t, root, fmt.Sprint("other", i), "")
	}
	const rounds = 500
	var group sync.WaitGroup
	group.Go(func() {
		for i := range rounds {
			put(t, root, "tmp", fmt.Sprint(i+1))
			if err := root.Rename(t.Context(), "tmp", root, "config"); err != nil {
				t.Error(err)
			}
		}
	})
	for range 2 {
		group.Go(func() {
			for last := 0; last < rounds; {
				now, err := strconv.Atoi(get(t, root, "config"))
				if err != nil || now < last {
					t.Errorf("read %d after %d, %v", now, last, err)
					return
				}
				last = now
				seen := map[string]int{}
				for _, n := range list(t, root, 3) {
					seen[n]++
				}
				if seen["config"] != 1 || seen["tmp"] > 1 || len(seen) < 21 {
					t.Errorf("a listing has %v", seen)
					return
				}
			}
		})
	}
	group.Wait()
}

// Goal: no watcher misses a change, and those who give up leave nothing. Method: watchers follow a
// counter that many increment, and a directory in which as many files are made; each must see the
// last version, in rising order.
func TestWatchUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := serve(t, Config{Store: newMemStore()})
		defer stop()
		root := attach(t, s)
		put(t, root, "counter", "")
		const writers, each = 8, 40
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() {
				f := walk(t, root, "counter")
				var v sigma.Version
				for {
					next, err := f.Watch(t.Context(), v)
					if err != nil || next <= v {
						t.Errorf("Watch: %d after %d, %v", next, v, err)
						return
					}
					v = next
					if len(get(t, root, "counter")) == writers*each {
						return
					}
				}
			})
			group.Go(func() {
				dir := walk(t, root)
				for v := sigma.Version(0); len(list(t, dir, 1000)) < 1+writers*each; {
					var err error
					if v, err = dir.Watch(t.Context(), v); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for w := range writers {
			group.Go(func() {
				for i := range each {
					if _, _, err := root.Put(t.Context(), []string{"counter"}, []byte("x"),
						sigma.PutOptions{Append: true}); err != nil {
						t.Error(err)
					}
					put(t, root, fmt.Sprintf("%d-%d", w, i), "")
				}
			})
		}
		group.Wait()
		before := runtime.NumGoroutine()
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			group.Go(func() {
				_, err := root.Watch(ctx, 1<<60)
				wantKind(t, err, sigma.KindCanceled)
			})
		}
		synctest.Wait()
		cancel()
		group.Wait()
		synctest.Wait()
		// Those of the runtime and of other tests come and go; one for each watch would be 100.
		if after := runtime.NumGoroutine(); after > before+50 {
			t.Errorf("%d goroutines, %d before", after, before)
		}
		l, _ := root.slot.leader(t.Context())
		if len(l.watches) != 0 {
			t.Errorf("%d watches are left", len(l.watches))
		}
		removed := make(chan error, 1)
		c := walk(t, root, "counter")
		go func() {
			_, err := c.Watch(t.Context(), 1<<60)
			removed <- err
		}()
		synctest.Wait()
		if err := root.Remove(t.Context(), "counter"); err != nil {
			t.Fatal(err)
		}
		wantKind(t, <-removed, sigma.KindNotFound)
	})
}

// A watch survives a store that fails a commit: it goes on with the realm as it is loaded again.
func TestWatchAcrossLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		id := put(t, root, "a", "1")
		got := make(chan sigma.Version, 1)
		f := walk(t, root, "a")
		go func() {
			v, err := f.Watch(t.Context(), id.Version)
			if err != nil {
				t.Error(err)
			}
			got <- v
		}()
		synctest.Wait()
		failed := false
		store.setFail(func(Batch) failure {
			if failed {
				return succeeds
			}
			failed = true
			return isStored
		})
		_, _, err := root.Put(t.Context(), []string{"a"}, []byte("2"), sigma.PutOptions{})
		wantKind(t, err, sigma.KindLost)
		if v := <-got; v <= id.Version {
			t.Errorf("version %d", v)
		}
		if got := get(t, f); got != "2" {
			t.Errorf("got %q", got)
		}
	})
}

// Leases expire on time, unless they are renewed, and begin anew when the service restarts.
func TestLeaseExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		short, err := root.Lease(t.Context(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		long, err := root.Lease(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for name, l := range map[string]sigma.LeaseID{"short": short, "long": long} {
			if _, _, err := root.Put(t.Context(), []string{name}, nil, sigma.PutOptions{Lease: l}); err != nil {
				t.Fatal(err)
			}
		}
		st, err := walk(t, root, "long").Stat(t.Context())
		if err != nil || !st.Ephemeral {
			t.Errorf("%+v, %v", st, err)
		}
		wait := func(d time.Duration, want ...string) {
			t.Helper()
			<-time.After(d)
			synctest.Wait()
			if names := list(t, root, 10); !slices.Equal(slices.Sorted(slices.Values(names)), want) {
				t.Errorf("got %q, want %q", names, want)
			}
		}
		wait(4*time.Second, "long", "short")
		if err := root.Renew(t.Context(), short); err != nil {
			t.Fatal(err)
		}
		wait(4*time.Second, "long", "short")
		wait(1100*time.Millisecond, "long")
		wantKind(t, root.Renew(t.Context(), short), sigma.KindNotFound)
		if left := store.sorted(leasePrefix(testRealm)); len(left) != 1 {
			t.Errorf("lease records: %q", left)
		}
		// 50 s are left of a minute.
		stop()
		s, stop = serve(t, Config{Store: store})
		defer stop()
		root = attach(t, s)
		wait(59*time.Second, "long")
		// The store does not take the end at first.
		store.setFail(func(Batch) failure { return isFull })
		wait(2*time.Second, "long")
		store.setFail(nil)
		wait(time.Second)
		if err := root.Revoke(t.Context(), long); err == nil {
			t.Error("an expired lease was revoked")
		}
		_, err = walk(t, root).Lease(t.Context(), time.Minute)
		if err != nil {
			t.Errorf("another handle of the root: %v", err)
		}
	})
}

// A lease whose renewal waits for the store, or for a host that stood still, does not expire
// meanwhile; it does after the time it has, when nobody renews it any more.
func TestLeaseOverStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		s, stop := serve(t, Config{Store: store})
		defer stop()
		root := attach(t, s)
		for _, renewal := range []time.Duration{time.Second,
			7 * time.Second} { // while the store stands still, or only after that
			l, err := root.Lease(t.Context(), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := root.Put(t.Context(), []string{"held"}, nil, sigma.PutOptions{Lease: l}); err != nil {
				t.Fatal(err)
			}
			store.gate = make(chan struct{})
			go put(t, root, "other", "x")
			renewed := make(chan error)
			go func() {
				<-time.After(renewal)
				renewed <- root.Renew(t.Context(), l)
			}()
			<-time.After(6500 * time.Millisecond)
			close(store.gate)
			if err := <-renewed; err != nil {
				t.Errorf("renewed after %v: %v", renewal, err)
			}
			<-time.After(4 * time.Second)
			synctest.Wait()
			if names := list(t, root, 10); len(names) != 2 {
				t.Errorf("renewed after %v: got %q", renewal, names)
			}
			<-time.After(1100 * time.Millisecond)
			synctest.Wait()
			if names := list(t, root, 10); len(names) != 1 {
				t.Errorf("nobody renews it any more: got %q", names)
			}
		}
	})
}

// A lease with the most files it may have ends in one transaction.
func TestLeaseOfManyFiles(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	l, err := root.Lease(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i := range LeaseFilesMax {
		if _, _, err := root.Put(t.Context(), []string{fmt.Sprint(i)}, nil, sigma.PutOptions{Lease: l}); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err = root.Put(t.Context(), []string{"too many"}, nil, sigma.PutOptions{Lease: l})
	wantKind(t, err, sigma.KindNoSpace)
	if err := root.Revoke(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if names := list(t, root, 1000); len(names) != 0 {
		t.Errorf("%d names left", len(names))
	}
}
