package named

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// serve runs a server on the store until the test ends or stop is called.
func serve(t testing.TB, cfg Config) (s *Server, stop func()) {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(logWriter{t}, nil))
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- s.Run(context.Background()) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		s.Close()
		if err := <-ran; err != nil && sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

const testRealm = sigma.RealmID("acme")

// attach makes the realm if there is none and returns its root.
func attach(t testing.TB, s *Server) *file {
	t.Helper()
	if err := s.Create(t.Context(), testRealm); err != nil && sigma.KindOf(err) != sigma.KindExists {
		t.Fatal(err)
	}
	f, err := s.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	return f.(*file)
}

func put(t testing.TB, f *file, name, data string) sigma.FileID {
	t.Helper()
	id, stopped, err := f.Put(t.Context(), []string{name}, []byte(data), sigma.PutOptions{})
	if err != nil || stopped != nil {
		t.Errorf("put %s: %v, %v", name, stopped, err)
	}
	return id
}

func get(t testing.TB, f *file, names ...string) string {
	t.Helper()
	r, stopped, err := f.Get(t.Context(), names, 0, FileMax)
	if err != nil || stopped != nil {
		t.Errorf("get %q: %v, %v", names, stopped, err)
	}
	return string(r.Data)
}

func walk(t testing.TB, f *file, names ...string) *file {
	t.Helper()
	w, _, err := f.Walk(t.Context(), names)
	if err != nil || w == nil {
		t.Fatalf("walk %q: %v, %v", names, w, err)
	}
	return w.(*file)
}

func opened(t testing.TB, f *file, flags sigma.OpenFlags) *file {
	t.Helper()
	if err := f.Open(t.Context(), flags); err != nil {
		t.Fatal(err)
	}
	return f
}

// list returns all names of a directory, in order of its listing.
func list(t testing.TB, f *file, page int) (names []string) {
	t.Helper()
	d := opened(t, walk(t, f), sigma.OpenRead)
	defer d.Close()
	for cookie, more := uint64(0), true; more; {
		var entries []sigma.DirEntry
		var err error
		if entries, cookie, more, err = d.ReadDir(t.Context(), cookie, page); err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name)
		}
	}
	return names
}

func wantKind(t testing.TB, err error, want sigma.Kind) {
	t.Helper()
	if err == nil || sigma.KindOf(err) != want {
		t.Errorf("got error %v, want kind %v", err, want)
	}
	var e *sigma.Error
	if err != nil && !errors.As(err, &e) {
		t.Errorf("%T is no *sigma.Error", err)
	}
}

// What attaches where.
func TestAttach(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	attach(t, s)
	if err := s.Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	ok := sigma.Kind(999)
	for _, c := range []struct {
		what string
		p    sigma.Principal
		name string
		want sigma.Kind
	}{
		{"own realm", sigma.Principal{Realm: testRealm}, "", ok},
		{"own realm by name", sigma.Principal{Realm: testRealm}, "acme", ok},
		{"another's realm", sigma.Principal{Realm: testRealm}, "other", sigma.KindPermission},
		{"a tenant does not learn which realms exist", sigma.Principal{Realm: testRealm}, "nobody",
			sigma.KindPermission},
		{"system names a realm", sigma.Principal{Realm: sigma.SystemRealm, System: true}, "other", ok},
		{"system names no realm of ours", sigma.Principal{System: true}, "nobody", sigma.KindNotFound},
		{"system names nonsense", sigma.Principal{System: true}, "../x", sigma.KindInvalid},
		{"realm that was never made", sigma.Principal{Realm: "ghost"}, "", sigma.KindNotFound},
		{"no realm at all", sigma.Principal{}, "", sigma.KindInvalid},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, err := s.Attach(t.Context(), c.p, c.name)
			if c.want != ok {
				wantKind(t, err, c.want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRealms(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	root := attach(t, s)
	put(t, root, "a", "1")
	opened(t, root, sigma.OpenRead)
	wantKind(t, s.Create(t.Context(), testRealm), sigma.KindExists)
	wantKind(t, s.Create(t.Context(), "No Realm"), sigma.KindInvalid)
	wantKind(t, s.Remove(t.Context(), "ghost"), sigma.KindNotFound)
	if err := s.Create(t.Context(), "acme-2"); err != nil {
		t.Fatal(err)
	}
	second, err := s.Attach(t.Context(), sigma.Principal{Realm: "acme-2"}, "")
	if err != nil {
		t.Fatal(err)
	}
	put(t, second.(*file), "kept", "x")

	watched := make(chan error, 1)
	w := walk(t, root, "a")
	go func() {
		_, err := w.Watch(context.Background(), sigma.Version(1<<60))
		watched <- err
	}()
	if err := s.Remove(t.Context(), testRealm); err != nil {
		t.Fatal(err)
	}
	wantKind(t, <-watched, sigma.KindNotFound)
	_, err = root.Stat(t.Context())
	wantKind(t, err, sigma.KindStale)
	_, _, err = root.Put(t.Context(), []string{"b"}, nil, sigma.PutOptions{})
	wantKind(t, err, sigma.KindStale)
	if left := store.sorted("t/acme/"); len(left) != 0 {
		t.Errorf("keys left: %q", left)
	}
	if got := get(t, second.(*file), "kept"); got != "x" {
		t.Errorf("the realm with a longer name has %q", got)
	}

	// A new realm of the same name has nothing of the old, and other ids.
	again := attach(t, s)
	if names := list(t, again, 10); len(names) != 0 {
		t.Errorf("new realm has %q", names)
	}
	if again.id == root.id {
		t.Error("the new realm's root has the id of the old one's")
	}
	_, err = root.Stat(t.Context())
	wantKind(t, err, sigma.KindStale)

	stop()
	s, _ = serve(t, Config{Store: store})
	infos, err := s.List(t.Context())
	if err != nil || len(infos) != 2 || infos[0].ID != testRealm || infos[1].ID != "acme-2" ||
		infos[0].Created.IsZero() {
		t.Errorf("List after restart: %v, %v", infos, err)
	}
}

// A removal that was cut short is finished by the next Open.
func TestRemovalIsFinished(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	put(t, attach(t, s), "a", "1")
	stop()
	value, at, _, _ := store.Get(t.Context(), realmKey(testRealm))
	rec, err := decodeRealm(value)
	if err != nil {
		t.Fatal(err)
	}
	rec.removing = true
	if _, err := store.Commit(t.Context(), Batch{Guard: realmKey(testRealm), GuardAt: at,
		Puts: []KV{{realmKey(testRealm), rec.encode()}}}); err != nil {
		t.Fatal(err)
	}
	s, _ = serve(t, Config{Store: store})
	if infos, _ := s.List(t.Context()); len(infos) != 0 {
		t.Errorf("realms: %v", infos)
	}
	if keys := store.sorted(""); !slices.Equal(keys, []string{counterKey}) {
		t.Errorf("keys left: %q", keys)
	}
}

// Calls before Run wait for it; calls after Close do not hang.
func TestBeforeRunAndAfterClose(t *testing.T) {
	s, err := Open(t.Context(), Config{Store: newMemStore()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantKind(t, s.Create(ctx, testRealm), sigma.KindCanceled)
	ran := make(chan error, 1)
	go func() { ran <- s.Run(t.Context()) }()
	root := attach(t, s)
	s.Close()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	_, _, err = root.Put(t.Context(), []string{"b"}, nil, sigma.PutOptions{})
	wantKind(t, err, sigma.KindUnavailable)
	_, err = root.Watch(t.Context(), 1<<60)
	wantKind(t, err, sigma.KindUnavailable)
	_, err = s.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
	wantKind(t, err, sigma.KindUnavailable)
	wantKind(t, s.Create(t.Context(), "b"), sigma.KindUnavailable)
	s.Close()
	wantKind(t, s.Run(t.Context()), sigma.KindInvalid)
}

func TestLimits(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore(), EntriesMax: 4, BytesMax: 2 * sigma.MiB})
	root := attach(t, s)
	for i := range 3 {
		put(t, root, fmt.Sprint(i), "x")
	}
	_, _, err := root.Put(t.Context(), []string{"one more"}, nil, sigma.PutOptions{})
	wantKind(t, err, sigma.KindNoSpace)
	wantKind(t, root.Mkdir(t.Context(), "d", 0o755), sigma.KindNoSpace)
	if err := root.Remove(t.Context(), "0"); err != nil {
		t.Fatal(err)
	}
	put(t, root, "one more", "")
	big := make([]byte, FileMax)
	put(t, root, "1", string(big))
	put(t, root, "2", string(big))
	_, _, err = root.Put(t.Context(), []string{"one more"}, big[:9000], sigma.PutOptions{})
	wantKind(t, err, sigma.KindNoSpace)
	put(t, root, "1", "small again")
	put(t, root, "one more", string(big[:9000]))
	_, _, err = root.Put(t.Context(), []string{"1"}, append(big, 0), sigma.PutOptions{})
	wantKind(t, err, sigma.KindTooBig)
	if sigma.HintOf(err) == "" {
		t.Error("no hint where to keep big files")
	}
}

// Goal: a realm's shares outlast the server, changes of its names and its being loaded again; a
// number out of bounds and a realm that is not there are refused.
func TestShares(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	root := attach(t, s)
	for _, n := range []uint32{0, sigma.SharesMax + 1} {
		if err := s.SetShares(t.Context(), testRealm, n); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%d shares: got %v, want invalid", n, err)
		}
	}
	if err := s.SetShares(t.Context(), "none", 2); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a realm that is not there: %v", err)
	}
	want := func(n uint32) {
		t.Helper()
		if l, err := s.List(t.Context()); err != nil || len(l) != 1 || l[0].Shares != n {
			t.Errorf("got %+v, %v, want %d shares", l, err, n)
		}
	}
	want(1)
	if err := s.SetShares(t.Context(), testRealm, 4); err != nil {
		t.Fatal(err)
	}
	want(4)
	if err := root.Mkdir(t.Context(), "d", 0o755); err != nil {
		t.Fatal(err)
	}
	stop()
	s, _ = serve(t, Config{Store: store})
	want(4)
	attach(t, s)
	want(4)
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not so: %s", what)
		}
	}
}
