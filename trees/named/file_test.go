package named

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A walk stops at links and missing names and says how far it came.
func TestWalk(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	if err := root.Mkdir(t.Context(), "d", 0o755); err != nil {
		t.Fatal(err)
	}
	d := walk(t, root, "d")
	put(t, d, "f", "text")
	if err := d.Symlink(t.Context(), "l", "/target"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path    string
		reached int
		file    bool
		kind    sigma.Kind // of the error; 0 is none
	}{
		{"", 0, true, 0},
		{"d f", 2, true, 0},
		{"d l", 2, true, 0},
		{"d l more", 2, false, 0},
		{"d f more", 2, false, 0},
		{"d missing", 1, false, 0},
		{"missing", 0, false, sigma.KindNotFound},
		{"..", 0, false, sigma.KindInvalid},
		{"d ..", 1, false, 0},
		{strings.Repeat("x ", 3000), 0, false, sigma.KindInvalid},
	} {
		f, ids, err := root.Walk(t.Context(), strings.Fields(c.path))
		if len(ids) != c.reached || (f != nil) != c.file || (err != nil) != (c.kind != 0) {
			t.Errorf("%.20q: %v, %v, %v", c.path, f, ids, err)
		}
		if c.kind != 0 {
			wantKind(t, err, c.kind)
		}
	}
	f := walk(t, d, "f")
	_, _, err := f.Walk(t.Context(), []string{"x"})
	wantKind(t, err, sigma.KindNotDir)

	r, stopped, err := root.Get(t.Context(), []string{"d", "l", "a"}, 0, 9)
	if err != nil || stopped == nil || *stopped != (sigma.Stopped{Walked: 2, Kind: sigma.KindSymlink,
		Target: "/target"}) {
		t.Errorf("Get through a link: %v, %v, %v", r, stopped, err)
	}
	_, stopped, err = walk(t, d, "l").Get(t.Context(), nil, 0, 9)
	if err != nil || stopped == nil || stopped.Walked != 0 {
		t.Errorf("Get of a link: %v, %v", stopped, err)
	}
	for _, c := range []struct {
		offset uint64
		count  int
		want   string
	}{{0, 2, "te"}, {2, 100, "xt"}, {4, 1, ""}, {1 << 63, 1 << 62, ""}, {0, 0, ""}} {
		r, _, err := root.Get(t.Context(), []string{"d", "f"}, c.offset, c.count)
		if err != nil || string(r.Data) != c.want || r.Size != 4 {
			t.Errorf("Get %+v: %q of %d, %v", c, r.Data, r.Size, err)
		}
	}
	_, _, err = root.Get(t.Context(), []string{"d"}, 0, 1)
	wantKind(t, err, sigma.KindIsDir)
	_, _, err = root.Get(t.Context(), []string{"d", "f"}, 0, -1)
	wantKind(t, err, sigma.KindInvalid)
}

// What a handle may do depends on how it was opened.
func TestOpenModes(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	for _, c := range []struct {
		flags       sigma.OpenFlags
		read, write sigma.Kind // 999: it works
		after       string
	}{
		{sigma.OpenRead, 999, sigma.KindPermission, "abc"},
		{sigma.OpenWrite, sigma.KindPermission, 999, "Xbc"},
		{sigma.OpenReadWrite, 999, 999, "Xbc"},
		{sigma.OpenReadWrite | sigma.OpenTruncate, 999, 999, "X"},
		{sigma.OpenWrite | sigma.OpenAppend, sigma.KindPermission, 999, "abcX"},
	} {
		put(t, root, "f", "abc")
		f := walk(t, root, "f")
		_, err := f.ReadAt(t.Context(), make([]byte, 1), 0)
		wantKind(t, err, sigma.KindInvalid)
		opened(t, f, c.flags)
		check := func(what string, err error, want sigma.Kind) {
			if want == 999 && err != nil || want != 999 && sigma.KindOf(err) != want {
				t.Errorf("%s with %d: %v", what, c.flags, err)
			}
		}
		_, err = f.ReadAt(t.Context(), make([]byte, 1), 0)
		check("read", err, c.read)
		_, err = f.WriteAt(t.Context(), []byte("X"), 0)
		check("write", err, c.write)
		if got := get(t, root, "f"); got != c.after {
			t.Errorf("opened with %d: %q", c.flags, got)
		}
		wantKind(t, f.Open(t.Context(), sigma.OpenRead), sigma.KindInvalid)
		f.Close()
	}
	wantKind(t, walk(t, root).Open(t.Context(), sigma.OpenWrite), sigma.KindIsDir)
	wantKind(t, walk(t, root).Open(t.Context(), 1<<20), sigma.KindInvalid)
	_, _, _, err := walk(t, root).ReadDir(t.Context(), 0, 1)
	wantKind(t, err, sigma.KindInvalid)

	f, err := root.Create(t.Context(), "ro", sigma.OpenWrite, 0o400)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(t.Context(), []byte("by its maker"), 0); err != nil {
		t.Error(err)
	}
	wantKind(t, walk(t, root, "ro").Open(t.Context(), sigma.OpenWrite), sigma.KindPermission)
	if err := walk(t, root, "ro").Open(t.Context(), sigma.OpenRead); err != nil {
		t.Error(err)
	}
}

// Slices given are not kept and slices returned belong to the caller.
func TestMemoryIsNotShared(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	data := []byte("abc")
	if _, _, err := root.Put(t.Context(), []string{"f"}, data, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	data[0] = 'X'
	f := opened(t, walk(t, root, "f"), sigma.OpenWrite)
	if _, err := f.WriteAt(t.Context(), data, 3); err != nil {
		t.Fatal(err)
	}
	data[0] = 'Y'
	r, _, err := root.Get(t.Context(), []string{"f"}, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.Data, []byte("abcXbc")) {
		t.Errorf("got %q", r.Data)
	}
	r.Data[0] = 'Z'
	if got := get(t, root, "f"); got != "abcXbc" {
		t.Errorf("got %q", got)
	}
}

func TestSetStat(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	id := put(t, root, "f", "abcdef")
	f := walk(t, root, "f")
	perm, size, when := uint32(0o7600), uint64(3), time.Unix(1234, 5678)
	if err := f.SetStat(t.Context(), sigma.StatChange{Perm: &perm, Size: &size, Modified: &when}); err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat(t.Context())
	if err != nil || st.Perm != 0o600 || st.Size != 3 || !st.Modified.Equal(when) || st.Name != "f" ||
		st.ID.Path != id.Path || st.ID.Version <= id.Version {
		t.Errorf("%+v, %v", st, err)
	}
	far := time.Date(5000, 1, 1, 0, 0, 0, 0, time.UTC)
	wantKind(t, f.SetStat(t.Context(), sigma.StatChange{Size: new(uint64), Modified: &far}), sigma.KindInvalid)
	wantKind(t, root.SetStat(t.Context(), sigma.StatChange{Size: &size}), sigma.KindIsDir)
	if got := get(t, root, "f"); got != "abc" {
		t.Errorf("a refused change left %q", got)
	}
}

// Goal: a tenant gets no other realm's names by naming it, with or without asking as its owner.
func TestAttachOtherRealm(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	if err := s.Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"other", "other" + sigmap.AsOwner, string(sigma.SystemRealm)} {
		_, err := s.Attach(t.Context(), sigma.Principal{Realm: testRealm}, name)
		wantKind(t, err, sigma.KindPermission)
	}
}

// A directory is not moved into another realm, nor by a handle that is not ours.
func TestRenameAcrossRealms(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	root := attach(t, s)
	put(t, root, "f", "")
	if err := s.Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	other, err := s.Attach(t.Context(), sigma.Principal{Realm: "other"}, "")
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, root.Rename(t.Context(), "f", other, "f"), sigma.KindInvalid)
	wantKind(t, root.Rename(t.Context(), "f", nil, "f"), sigma.KindInvalid)
	// A lease of one realm is nothing in another.
	l, err := root.Lease(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, other.(*file).Revoke(t.Context(), l), sigma.KindNotFound)
	if names := list(t, root, 1); !slices.Equal(names, []string{"f"}) {
		t.Errorf("got %q", names)
	}
}
