package named

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// atLimit checks that an error says which limit it is, its value, and how to raise it.
func atLimit(t *testing.T, err error, what string, most int) {
	t.Helper()
	wantKind(t, err, sigma.KindNoSpace)
	if err == nil || !strings.Contains(err.Error(), "limit of "+what) || !strings.Contains(err.Error(),
		fmt.Sprint(most)) || !strings.Contains(sigma.HintOf(err), "--limit-"+what) {
		t.Errorf("limit of %s: %v (%s)", what, err, sigma.HintOf(err))
	}
}

// A realm at all its limits is refused more, by name of the limit; another realm has all it wants
// meanwhile; raised limits hold at once and are kept.
func TestRealmLimits(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	root := attach(t, s)
	if err := s.Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	f, err := s.Attach(t.Context(), sigma.Principal{Realm: "other"}, "")
	if err != nil {
		t.Fatal(err)
	}
	other := f.(*file)
	if err := s.SetLimits(t.Context(), testRealm, sigma.RealmLimits{Names: 4, Bytes: 100, Watches: 2,
		Leases: 3}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		put(t, root, fmt.Sprint(i), "x")
	}
	_, _, err = root.Put(t.Context(), []string{"more"}, nil, sigma.PutOptions{})
	atLimit(t, err, "names", 4)
	_, _, err = root.Put(t.Context(), []string{"0"}, make([]byte, 99), sigma.PutOptions{})
	atLimit(t, err, "bytes", 100)
	var leases []sigma.LeaseID
	for range 3 {
		id, err := root.Lease(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, id)
	}
	_, err = root.Lease(t.Context(), time.Hour)
	atLimit(t, err, "leases", 3)
	var watches sync.WaitGroup
	defer watches.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := root.slot.current.Load()
	watchAll := func(n int, most int64) {
		for range n {
			watches.Go(func() { root.Watch(ctx, 1<<60) })
		}
		eventually(t, "all watches wait", func() bool { return l.watching.Load() >= most })
	}
	watchAll(2, 2)
	_, err = root.Watch(ctx, 1<<60)
	atLimit(t, err, "watches", 2)

	// Those of others are not touched.
	for i := range 10 {
		put(t, other, fmt.Sprint(i), "0123456789 0123456789")
		if _, err := other.Lease(t.Context(), time.Hour); err != nil {
			t.Error(err)
		}
	}

	// What goes makes room, and a limit that is raised holds at once.
	if err := root.Revoke(t.Context(), leases[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := root.Lease(t.Context(), time.Hour); err != nil {
		t.Error(err)
	}
	if err := s.SetLimits(t.Context(), testRealm, sigma.RealmLimits{Names: 5, Watches: sigma.LimitDefault, Handles: 7,
		Scratch: 9}); err != nil {
		t.Fatal(err)
	}
	put(t, root, "more", "x")
	watchAll(100, 102)
	cancel()
	watches.Wait()
	if n, files := l.watching.Load(), len(l.watches); n != 0 || files != 0 {
		t.Errorf("%d watches of %d files are left", n, files)
	}
	want := sigma.RealmLimits{Names: 5, Bytes: 100, Leases: 3, Handles: 7, Scratch: 9}.Or(s.cfg.limits())
	check := func() {
		t.Helper()
		if infos, err := s.List(t.Context()); err != nil || len(infos) != 2 || infos[0].Limits != want ||
			infos[1].Limits != s.cfg.limits() {
			t.Errorf("got %+v, %v, want %+v", infos, err, want)
		}
	}
	check()
	wantKind(t, s.SetLimits(t.Context(), testRealm, sigma.RealmLimits{Names: sigma.LimitNamesMax + 1}),
		sigma.KindInvalid)
	wantKind(t, s.SetLimits(t.Context(), "ghost", sigma.RealmLimits{Names: 1}), sigma.KindNotFound)
	stop()
	s, _ = serve(t, Config{Store: store})
	check()
	_, _, err = attach(t, s).Put(t.Context(), []string{"yet more"}, nil, sigma.PutOptions{})
	atLimit(t, err, "names", 5)
}

// A realm that nobody uses leaves memory, all that was in it, and is there again when it is used;
// handles go on. One with a watch or a lease stays, and a lease ends also if nobody uses the realm
// after a restart.
func TestIdleRealms(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store, Idle: time.Hour})
	const realms = 1000
	roots := make([]*file, realms)
	for i := range roots {
		id := sigma.RealmID(fmt.Sprintf("r%d", i))
		if err := s.Create(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		f, err := s.Attach(t.Context(), sigma.Principal{Realm: id}, "")
		if err != nil {
			t.Fatal(err)
		}
		roots[i] = f.(*file)
		put(t, roots[i], "a", "1")
	}
	lease, err := roots[0].Lease(t.Context(), LeaseLeast)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := roots[0].Put(t.Context(), []string{"e"}, nil, sigma.PutOptions{Lease: lease}); err != nil {
		t.Fatal(err)
	}
	loaded := func() (n int) {
		for _, f := range roots {
			if f.slot.current.Load() != nil {
				n++
			}
		}
		return n
	}
	if n := s.UnloadIdle(); n != 0 {
		t.Errorf("%d realms were unloaded that had just been used", n)
	}
	if n := s.UnloadIdle(); n < realms-1 || loaded() > 1 {
		t.Errorf("%d of %d realms were unloaded, %d are loaded", n, realms, loaded())
	}
	if got := get(t, roots[7], "a"); got != "1" {
		t.Errorf("after it was unloaded a realm has %q", got)
	}
	put(t, roots[7], "b", "2")
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() { defer close(watched); roots[7].Watch(ctx, 1<<60) }()
	l := roots[7].slot.current.Load()
	eventually(t, "the watch waits", func() bool { return l.watching.Load() > 0 })
	s.UnloadIdle()
	s.UnloadIdle()
	if roots[7].slot.current.Load() == nil {
		t.Error("a realm was unloaded under a watch")
	}
	cancel()
	<-watched
	stop()

	// The lease, if it lives still, goes by itself although nobody asks for the realm.
	s, _ = serve(t, Config{Store: store, Idle: time.Hour})
	eventually(t, "the lease and its file are gone", func() bool {
		return len(store.all("l/")) == 0 && len(store.all("t/r0/")) == 2
	})
}

// all is sorted for who does not hold the lock.
func (m *memStore) all(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sorted(prefix)
}

// Goal: a realm that asks for a million watches has so many as its limit says, and an error that
// says so for each of the others; they cost nothing that lasts, and another realm is served
// meanwhile.
func TestMillionWatches(t *testing.T) {
	const askers, each = 2 * watchesDefault, 1_000_000 / (2 * watchesDefault)
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	put(t, root, "a", "1")
	if err := s.Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	f, err := s.Attach(t.Context(), sigma.Principal{Realm: "other"}, "")
	if err != nil {
		t.Fatal(err)
	}
	other := f.(*file)
	l := root.slot.current.Load()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := heap()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var refused atomic.Int64
	for range askers {
		all.Go(func() {
			for range each {
				_, err := root.Watch(ctx, 1<<60)
				if ctx.Err() != nil {
					break
				}
				if sigma.KindOf(err) != sigma.KindNoSpace || !strings.Contains(err.Error(), "limit of watches") {
					t.Errorf("one of a million: %v", err)
					break
				}
				refused.Add(1)
			}
		})
	}
	for i := range 100 {
		put(t, other, fmt.Sprint(i), "x")
		if got := get(t, other, fmt.Sprint(i)); got != "x" {
			t.Errorf("meanwhile another realm has %q", got)
		}
	}
	eventually(t, "all but those that wait were refused", func() bool {
		return l.watching.Load() == watchesDefault && refused.Load() == int64(askers-watchesDefault)*each
	})
	if after := heap(); after > before+(64<<20) {
		t.Errorf("%d watches that wait cost %d bytes", watchesDefault, after-before)
	}
	cancel()
	all.Wait()
	if n := l.watching.Load(); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}
