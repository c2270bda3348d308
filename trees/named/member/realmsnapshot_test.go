package member

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/archive"
	"sigmaos.dev/wire/sigmap"
)

// A snapshot of one realm has its names as they were at one moment, also while it is written to:
// all that were acknowledged before, each directory before what is in it, nothing that is ephemeral
// or another realm's.
func TestRealmSnapshot(t *testing.T) {
	m, _ := alone(t, t.TempDir())
	root := memberRoot(t, m)
	if err := root.Mkdir(t.Context(), "z", 0o750); err != nil {
		t.Fatal(err)
	}
	dir := walk(t, root, "z")
	if err := dir.Mkdir(t.Context(), "deep", 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, walk(t, dir, "deep"), "f", "text")
	if err := root.Symlink(t.Context(), "link", "z/deep/f"); err != nil {
		t.Fatal(err)
	}
	if err := root.Rename(t.Context(), "z", root, "a"); err != nil {
		t.Fatal(err)
	}
	lease, err := root.Lease(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.Put(t.Context(), []string{"ephemeral"}, nil, sigma.PutOptions{Lease: lease}); err != nil {
		t.Fatal(err)
	}
	const before = 20
	ctx, cancel := context.WithCancel(t.Context())
	written := make(chan struct{})
	begun := make(chan struct{})
	go func() { // one name after the other
		defer close(written)
		for i := 0; ctx.Err() == nil; i++ {
			if i == before {
				close(begun)
			}
			root.Put(context.Background(), []string{fmt.Sprintf("n%d", i)}, []byte(fmt.Sprint(i)), sigma.PutOptions{})
		}
	}()
	<-begun
	text, err := realmSnapshotOf(t, m, testRealm)
	cancel()
	<-written
	if err != nil {
		t.Fatal(err)
	}
	got, series := map[string]archive.Entry{}, 0
	n, err := archive.Read(bytes.NewReader(text), func(e archive.Entry) error {
		if i := strings.LastIndex(e.Path, "/"); i >= 0 && got[e.Path[:i]].Kind != sigma.KindDir {
			t.Errorf("%s comes before its directory", e.Path)
		}
		got[e.Path] = e
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for ; got[fmt.Sprintf("n%d", series)].Path != ""; series++ {
	}
	if series < before || int(n) != series+4 {
		t.Errorf("%d names, of which %d are of the series: some are missing, or come from nowhere", n, series)
	}
	if got["a"].Perm != 0o750 || got["a/deep"].Kind != sigma.KindDir || string(got["a/deep/f"].Data) != "text" ||
		got["link"].Kind != sigma.KindSymlink || string(got["link"].Data) != "z/deep/f" {
		t.Errorf("got %+v", got)
	}
	if _, err := CheckSnapshot(bytes.NewReader(text)); sigma.KindOf(err) != sigma.KindInvalid || err == nil {
		t.Errorf("one realm's snapshot as the system's: %v", err)
	}
	_, err = realmSnapshotOf(t, m, "ghost")
	wantKind(t, err, sigma.KindNotFound)
}

func realmSnapshotOf(t *testing.T, m *Member, realm sigma.RealmID) ([]byte, error) {
	t.Helper()
	var number, keys uint64
	if err := ask(t, m, sigmap.CallSnapshotOpen.Name, func(c *sigmap.Coder) {
		c.RealmID(&realm)
	}, func(c *sigmap.Coder) { c.U64(&number); c.U64(&keys) }); err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for {
		var piece []byte
		offset := uint64(all.Len())
		if err := ask(t, m, sigmap.CallSnapshotRead.Name, func(c *sigmap.Coder) {
			c.U64(&number)
			c.U64(&offset)
		}, func(c *sigmap.Coder) { c.Data(&piece) }); err != nil {
			return nil, err
		}
		if len(piece) == 0 {
			return all.Bytes(), ask(t, m, sigmap.CallSnapshotClose.Name, func(c *sigmap.Coder) { c.U64(&number) }, nil)
		}
		all.Write(piece)
	}
}

// Goal: a whole snapshot keeps fences, limits, shares, and replies to numbered changes, so that a
// restored store refuses who was deposed, and does not make a change again that is sent again.
func TestSnapshotKeeps(t *testing.T) {
	m, stop := alone(t, t.TempDir())
	root := memberRoot(t, m)
	limits := sigma.RealmLimits{Names: 77, Handles: 88}
	if err := m.leadership.server.SetLimits(t.Context(), testRealm, limits); err != nil {
		t.Fatal(err)
	}
	if err := m.leadership.server.SetShares(t.Context(), testRealm, 5); err != nil {
		t.Fatal(err)
	}
	if err := root.Mkdir(fencedAt(t, "/leader", 7), "led", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.Put(numbered(t, 3, 1, false), []string{"log"}, []byte("once"),
		sigma.PutOptions{Append: true}); err != nil {
		t.Fatal(err)
	}
	admin, err := m.Attach(t.Context(), provider, "")
	if err != nil {
		t.Fatal(err)
	}
	text, err := snapshotOf(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	dir := t.TempDir()
	if _, err := Restore(t.Context(), Config{Dir: dir}, bytes.NewReader(text), nil); err != nil {
		t.Fatal(err)
	}
	m, _ = alone(t, dir)
	f, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	root = f.(file)
	wantKind(t, root.Mkdir(fencedAt(t, "/leader", 6), "deposed", 0o755), sigma.KindStale)
	if err := root.Mkdir(fencedAt(t, "/leader", 7), "leads", 0o755); err != nil {
		t.Error(err)
	}
	if _, _, err := root.Put(numbered(t, 3, 1, true), []string{"log"}, []byte("once"),
		sigma.PutOptions{Append: true}); err != nil {
		t.Error(err)
	}
	if got := get(t, root, "log"); got != "once" {
		t.Errorf("what was sent again after the restore makes %q", got)
	}
	infos, err := m.leadership.server.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].Limits.Names != 77 || infos[0].Limits.Handles != 88 ||
		infos[0].Shares != 5 {
		t.Errorf("the realm is %+v, %v", infos, err)
	}
}
