package s3

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/s3/store"
)

func TestMain(m *testing.M) { os.Exit(s3server.Main(m)) }

// at is a store at a prefix of the tests' server, as JSON.
func at(srv *s3server.Server, prefix string) string {
	text, _ := json.Marshal(store.Store{URL: srv.URL() + prefix, AccessKey: s3server.AccessKey,
		SecretKey: s3server.SecretKey})
	return string(text)
}

// lives are the Trees of one service, one after the other.
type lives struct {
	*testing.T
	dir  string
	tree *Tree
}

func newLives(t *testing.T) *lives {
	l := &lives{T: t, dir: t.TempDir()}
	l.next()
	t.Cleanup(func() { l.tree.Close() })
	return l
}

// next ends a Tree and makes the next.
func (l *lives) next() {
	l.Helper()
	if l.tree != nil {
		l.tree.Close()
	}
	tree, err := New(Config{Dir: filepath.Join(l.dir, "buckets"), Elsewhere: filepath.Join(l.dir, "elsewhere"),
		Buckets: []string{"bin"}})
	if err != nil {
		l.Fatal(err)
	}
	l.tree = tree
}

func (l *lives) root(realm sigma.RealmID) sigma.File {
	l.Helper()
	f, err := l.tree.Attach(l.Context(), sigma.Principal{Realm: realm}, "")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(f.Close)
	return f
}

func (l *lives) put(realm sigma.RealmID, bucket, name, data string) {
	l.Helper()
	root := l.root(realm)
	if err := root.Mkdir(l.Context(), bucket, 0o700); err != nil && sigma.KindOf(err) != sigma.KindExists {
		l.Fatal(err)
	}
	if _, _, err := root.(sigma.Putter).Put(l.Context(), []string{bucket, name}, []byte(data),
		sigma.PutOptions{}); err != nil {
		l.Fatal(err)
	}
}

// reads is what a realm has at an object; the kind of the error in brackets.
func (l *lives) reads(realm sigma.RealmID, names ...string) string {
	l.Helper()
	r, _, err := l.root(realm).(sigma.Getter).Get(l.Context(), names, 0, 1<<16)
	if err != nil {
		return fmt.Sprintf("(%v)", sigma.KindOf(err))
	}
	return string(r.Data)
}

func (l *lives) set(realm sigma.RealmID, text string) {
	l.Helper()
	if err := l.tree.SetStore(l.Context(), realm, text); err != nil {
		l.Fatal(err)
	}
}

// Goal: objects are where they were said to be, each realm's apart. Method: realms with a store of
// their own, with the system's, and with objects on the local disk, over lives of the service.
func TestStores(t *testing.T) {
	srv := s3server.Start(t)
	l := newLives(t)
	l.put("old", "b", "k", "local")
	l.root("fresh").Mkdir(t.Context(), "bin", 0o700) // an empty bucket does not count
	l.set(sigma.SystemRealm, at(srv, "/shared"))
	l.set("own", at(srv, "/its/own"))
	l.put("late", "b", "k", "local") // between what is said and the next life
	if err := l.tree.SetStore(t.Context(), "old", at(srv, "/else")); sigma.KindOf(err) != sigma.KindNotEmpty {
		t.Errorf("a realm with objects here was given a store: %v", err)
	}
	l.next()
	for _, realm := range []sigma.RealmID{"own", "fresh", "other"} {
		l.put(realm, "b", "k", "of "+string(realm))
	}
	for life := range 2 {
		for _, x := range []struct {
			realm     sigma.RealmID
			key, want string // in the server
		}{
			{"own", "its/own/b/k", "of own"}, {"fresh", "shared/fresh/b/k", "of fresh"},
			{"other", "shared/other/b/k", "of other"}, {"old", "", "local"}, {"late", "", "local"},
		} {
			if got := l.reads(x.realm, "b", "k"); got != x.want {
				t.Errorf("life %d: realm %s reads %q, want %q", life, x.realm, got, x.want)
			}
			if got := srv.Object(t, x.key); x.key != "" && got != x.want {
				t.Errorf("the server has %q at %s, want %q", got, x.key, x.want)
			}
			if _, _, err := l.root(x.realm).Walk(t.Context(), []string{"bin"}); x.key != "" && err != nil {
				t.Errorf("realm %s has no bucket bin: %v", x.realm, err)
			}
		}
		l.next()
	}
	// A realm is removed: what it had in the system's store goes, what is in its own stays, and
	// another realm of its name has neither.
	for _, realm := range []sigma.RealmID{"own", "fresh"} {
		if err := l.tree.RemoveRealm(t.Context(), realm); err != nil {
			t.Fatal(err)
		}
	}
	for life := range 2 {
		for _, realm := range []sigma.RealmID{"own", "fresh"} {
			if got := l.reads(realm, "b", "k"); got != "(not found)" {
				t.Errorf("life %d: realm %s was removed, and the next reads %q", life, realm, got)
			}
		}
		l.next()
	}
	if srv.Object(t, "its/own/b/k") != "of own" || srv.Object(t, "shared/fresh/b/k") != "" ||
		srv.Object(t, "shared/other/b/k") != "of other" {
		t.Error("the removal of a realm left its objects in the system's store, or removed others")
	}
	l.set(sigma.SystemRealm, "")
	l.next()
	if got := l.reads("other", "b", "k"); got != "(not found)" {
		t.Errorf("without a store: %q", got)
	}
	if err := l.tree.SetStore(t.Context(), "other", ""); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a store that is not set was removed: %v", err)
	}
}

// A store that cannot be what is said is refused when it is said, without its keys; so is one that
// cannot be reached.
func TestStoresRefused(t *testing.T) {
	srv := s3server.Start(t)
	l := newLives(t)
	const secret = "a-secret-that-is-nowhere"
	for _, x := range []struct {
		name string
		st   store.Store
		want sigma.Kind
	}{
		{"no URL", store.Store{URL: "objects", AccessKey: "a", SecretKey: secret}, sigma.KindInvalid},
		{"keys in the URL", store.Store{URL: "http://a:" + secret + "@127.0.0.1/b", AccessKey: "a", SecretKey: secret},
			sigma.KindInvalid},
		{"no bucket", store.Store{URL: "http://" + srv.Address, AccessKey: "a", SecretKey: secret}, sigma.KindInvalid},
		{"a prefix that leads up", store.Store{URL: srv.URL() + "/a/../b", AccessKey: "a", SecretKey: secret},
			sigma.KindInvalid},
		{"no secret", store.Store{URL: srv.URL(), AccessKey: secret}, sigma.KindInvalid},
		{"bad certificates", store.Store{URL: srv.URL(), AccessKey: "a", SecretKey: secret, CA: secret},
			sigma.KindInvalid},
		{"another bucket", store.Store{URL: "http://" + srv.Address + "/none", AccessKey: "a", SecretKey: secret},
			sigma.KindUnavailable},
		{"nobody there", store.Store{URL: "http://127.0.0.1:1/b", AccessKey: "a", SecretKey: secret},
			sigma.KindUnavailable},
	} {
		text, _ := json.Marshal(x.st)
		err := l.tree.SetStore(t.Context(), "r", string(text))
		if sigma.KindOf(err) != x.want || strings.Contains(fmt.Sprintf("%+v", err), secret) {
			t.Errorf("%s: %v, want %v", x.name, err, x.want)
		}
	}
	for _, text := range []string{"{", `{"url": 1}`, strings.Repeat(" ", storeMax) + "{}",
		`{"url":"http://h/b` + strings.Repeat("x", urlMax) + `"}`} {
		if err := l.tree.SetStore(t.Context(), "r", text); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	if err := l.tree.SetStore(t.Context(), "../r", at(srv, "")); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a bad realm: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(l.dir, "elsewhere", "stores")); err != nil || len(left) > 0 {
		t.Errorf("what was refused left %v, %v", left, err)
	}
}

// The list tells no keys, page by page, and says of each store how it is; the file of a store is
// its owner's alone.
func TestStoresListed(t *testing.T) {
	srv := s3server.Start(t)
	l := newLives(t)
	const n = storesPage + 5
	for i := range n {
		l.set(sigma.RealmID(fmt.Sprintf("r%02d", i)), at(srv, fmt.Sprintf("/p%d", i)))
	}
	if st, err := os.Stat(filepath.Join(l.dir, "elsewhere", "stores", "r00")); err != nil || st.Mode() != 0o600 {
		t.Errorf("the file of a store: %v, %v", st.Mode(), err)
	}
	list := func(ask bool) (all []store.Info) {
		for {
			after := sigma.RealmID("")
			if len(all) > 0 {
				after = all[len(all)-1].Realm
			}
			page, err := l.tree.Stores(t.Context(), after, ask)
			if err != nil || len(page) > storesPage {
				t.Fatal(len(page), err)
			}
			if len(page) == 0 {
				return all
			}
			all = append(all, page...)
		}
	}
	all := list(true)
	text, _ := json.Marshal(all)
	if len(all) != n || strings.Contains(string(text), s3server.SecretKey) || strings.Contains(string(text),
		s3server.AccessKey) {
		t.Errorf("%d stores are listed: %s", len(all), text)
	}
	for _, s := range all {
		if s.State != "ok" {
			t.Errorf("%s: %s", s.Realm, s.State)
		}
	}
	srv.Stop()
	for _, s := range list(true) {
		if s.State == "ok" || s.State == "" || strings.Contains(s.State, s3server.SecretKey) {
			t.Errorf("%s, whose server is gone: %q", s.Realm, s.State)
		}
	}
	if got := fmt.Sprintf("%v %+v %#v %s", l.tree.stores.noted["r00"], l.tree.stores.noted["r00"], l.tree.stores.noted,
		l.tree.stores.noted); strings.Contains(got, s3server.SecretKey) {
		t.Errorf("a store prints as %s", got)
	}
}

// A file that says nothing sensible stops the service with its name, and without its bytes.
func TestStoresDamaged(t *testing.T) {
	dir := t.TempDir()
	os.MkdirAll(filepath.Join(dir, "stores"), 0o700)
	os.WriteFile(filepath.Join(dir, "stores", "r"), []byte(`{"secret_key": "half a sec`), 0o600)
	_, err := New(Config{Dir: filepath.Join(dir, "b"), Elsewhere: dir})
	if err == nil || !strings.Contains(err.Error(), "realm r") || strings.Contains(fmt.Sprintf("%+v", err), "half") {
		t.Errorf("got %v", err)
	}
}
