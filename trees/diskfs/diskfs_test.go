package diskfs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// fixture is a tree in a directory that the test may look at and spoil.
type fixture struct {
	*testing.T
	dir  string
	tree *Tree
}

func newFixture(t *testing.T, cfg Config) *fixture {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	tree, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	return &fixture{t, cfg.Dir, tree}
}

var inPlace = Policy{Links: true}

func (x *fixture) attach(realm sigma.RealmID) sigma.File {
	x.Helper()
	f, err := x.tree.Attach(x.Context(), sigma.Principal{Realm: realm}, "")
	x.ok(err)
	x.Cleanup(f.Close)
	return f
}

func (x *fixture) ok(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

func (x *fixture) want(err error, kind sigma.Kind) {
	x.Helper()
	if err == nil || sigma.KindOf(err) != kind {
		x.Errorf("got error %v, want %v", err, kind)
	}
}

func (x *fixture) put(root sigma.File, data string, names ...string) (sigma.FileID, error) {
	id, _, err := root.(sigma.Putter).Put(x.Context(), names, []byte(data), sigma.PutOptions{})
	return id, err
}

func (x *fixture) get(root sigma.File, names ...string) (string, error) {
	r, s, err := root.(sigma.Getter).Get(x.Context(), names, 0, 1<<20)
	if s != nil {
		return "", fmt.Errorf("stopped at %+v", *s)
	}
	return string(r.Data), err
}

func (x *fixture) walk(root sigma.File, names ...string) sigma.File {
	x.Helper()
	f, _, err := root.Walk(x.Context(), names)
	x.ok(err)
	if f == nil {
		x.Fatalf("no file at %q", names)
	}
	x.Cleanup(f.Close)
	return f
}

func (x *fixture) path(realm, name string) string {
	return filepath.Join(x.dir, "realms", realm, "tree", name)
}

// TestForeignEntries plants what a tenant cannot make, but a bug or an operator might: nothing of
// it may be followed, read, listed or opened.
func TestForeignEntries(t *testing.T) {
	x := newFixture(t, Config{Policy: inPlace})
	root := x.attach("r")
	secret := filepath.Join(t.TempDir(), "secret")
	x.ok(os.WriteFile(secret, []byte("secret"), 0o600))
	x.ok(os.Symlink(secret, x.path("r", "link")))
	x.ok(os.Symlink(filepath.Dir(secret), x.path("r", "dirlink")))
	x.ok(unix.Mkfifo(x.path("r", "fifo"), 0o600))
	x.ok(os.Symlink("sigma:symlink:"+secret, x.path("r", "tagged")))
	for _, names := range [][]string{{"link"}, {"dirlink"}, {"dirlink", "secret"}, {"fifo"}} {
		_, _, err := root.Walk(t.Context(), names)
		x.want(err, sigma.KindNotFound)
		_, err = x.get(root, names...)
		x.want(err, sigma.KindNotFound)
	}
	_, err := root.Create(t.Context(), "link", sigma.OpenWrite|sigma.OpenTruncate, 0)
	x.want(err, sigma.KindExists)
	// Put replaces the name; it does not write through it.
	_, err = x.put(root, "mine", "link")
	x.ok(err)
	_, s, err := root.(sigma.Getter).Get(t.Context(), []string{"tagged"}, 0, 10)
	if err != nil || s == nil || s.Target != secret {
		t.Errorf("a tagged link: got %+v, %v; want its target as text", s, err)
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" {
		t.Errorf("the file outside has %q, %v", got, err)
	}
	d := x.walk(root)
	x.ok(d.Open(t.Context(), sigma.OpenRead))
	entries, _, _, err := d.ReadDir(t.Context(), 0, 100)
	x.ok(err)
	for _, e := range entries {
		if e.Name != "link" && e.Name != "tagged" {
			t.Errorf("%q is listed", e.Name)
		}
	}
}

// TestRaceWithForeignLink swaps a directory for a link to the outside while walks go through it, as
// somebody with access to the disk could.
func TestRaceWithForeignLink(t *testing.T) {
	x := newFixture(t, Config{Policy: inPlace})
	root := x.attach("r")
	outside := t.TempDir()
	x.ok(os.WriteFile(filepath.Join(outside, "f"), []byte("outside"), 0o600))
	x.ok(root.Mkdir(t.Context(), "d", 0))
	_, err := x.put(root, "inside", "d", "f")
	x.ok(err)
	x.ok(os.Symlink(outside, x.path("r", "l")))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, x.path("r", "d"), unix.AT_FDCWD, x.path("r", "l"), unix.RENAME_EXCHANGE)
			}
		}
	})
	for range 5000 {
		if got, err := x.get(root, "d", "f"); err == nil && got != "inside" {
			t.Errorf("got %q", got)
			break
		}
	}
	close(stop)
	wg.Wait()
}

// TestRealmsAreApart checks that a principal sees its own realm's tree only.
func TestRealmsAreApart(t *testing.T) {
	x := newFixture(t, Config{Policy: inPlace})
	a, b := x.attach("a"), x.attach("b")
	_, err := x.put(a, "x", "f")
	x.ok(err)
	_, err = x.get(b, "f")
	x.want(err, sigma.KindNotFound)
	x.want(a.Rename(t.Context(), "f", b, "f"), sigma.KindInvalid)
	_, err = x.tree.Attach(t.Context(), sigma.Principal{Realm: "b"}, "a")
	x.want(err, sigma.KindPermission)
	for _, bad := range []sigma.RealmID{"", "..", "a/b", "A"} {
		_, err = x.tree.Attach(t.Context(), sigma.Principal{Realm: bad}, "")
		x.want(err, sigma.KindInvalid)
	}
	f, err := x.tree.Attach(t.Context(), sigma.Principal{Realm: sigma.SystemRealm, System: true}, "a")
	x.ok(err)
	defer f.Close()
	if got, err := x.get(f, "f"); got != "x" || err != nil {
		t.Errorf("the provider reads %q, %v", got, err)
	}
}

// TestRestart checks that content and versions stay over a restart, that versions grow on from
// there, and that what was not published is gone.
func TestRestart(t *testing.T) {
	for _, policy := range []Policy{inPlace, {Objects: true}} {
		dir := t.TempDir()
		x := newFixture(t, Config{Dir: dir, Policy: policy})
		root := x.attach("r")
		id, err := x.put(root, "abc", "f")
		x.ok(err)
		before, _ := root.Stat(t.Context())
		lost, err := root.Create(t.Context(), "lost", sigma.OpenWrite, 0)
		x.ok(err)
		_, err = lost.WriteAt(t.Context(), []byte("x"), 0)
		x.ok(err)
		_, err = New(Config{Dir: dir, Policy: policy})
		x.want(err, sigma.KindBusy)
		x.tree.Close() // the handles are still open, as in a crash
		_, err = root.Stat(t.Context())
		x.want(err, sigma.KindStale)

		x = newFixture(t, Config{Dir: dir, Policy: policy})
		root = x.attach("r")
		st, err := x.walk(root, "f").Stat(t.Context())
		x.ok(err)
		if st.ID.Version != id.Version || st.Size != 3 {
			t.Errorf("after a restart: got %+v, want version %d", st, id.Version)
		}
		after, _ := root.Stat(t.Context())
		if policy.Objects && after.ID.Version != before.ID.Version {
			t.Errorf("the root is at version %d, was at %d", after.ID.Version, before.ID.Version)
		}
		next, err := x.put(root, "abc", "f")
		x.ok(err)
		if next.Version <= id.Version {
			t.Errorf("version %d follows %d", next.Version, id.Version)
		}
		_, err = x.get(root, "lost")
		if policy.Objects {
			x.want(err, sigma.KindNotFound)
		} else {
			x.ok(err)
		}
		if left, _ := os.ReadDir(filepath.Join(dir, "realms", "r", "temp")); len(left) != 0 {
			t.Errorf("temporary files are left: %v", left)
		}
	}
}

// TestVersionFromTheFuture checks that versions grow although the clock went back.
func TestVersionFromTheFuture(t *testing.T) {
	x := newFixture(t, Config{Policy: inPlace})
	root := x.attach("r")
	_, err := x.put(root, "abc", "f")
	x.ok(err)
	const future = sigma.Version(4_000_000_000_000_000_000)
	x.ok(stamp(unix.AT_FDCWD, x.path("r", "f"), future))
	id, err := x.put(root, "def", "f")
	x.ok(err)
	if id.Version <= future {
		t.Errorf("replacing a file of version %d gave %d", future, id.Version)
	}
}

// used tells what the realm is charged, and what a new server would charge it.
func (x *fixture) used(realm sigma.RealmID) (charged, counted uint64) {
	x.Helper()
	sp, err := x.tree.space(realm)
	x.ok(err)
	sp.mu.Lock()
	charged = sp.used
	fd := sp.root.fd
	sp.mu.Unlock()
	counted, err = usage(fd, x.tree.entryCost)
	x.ok(err)
	return charged, counted
}

// TestQuota goes through all operations that charge or free, and compares the account with the
// disk.
func TestQuota(t *testing.T) {
	for name, policy := range map[string]Policy{"in place": inPlace, "objects": {Objects: true}} {
		t.Run(name, func(t *testing.T) { testQuota(t, policy) })
	}
}

func testQuota(t *testing.T, policy Policy) {
	const quota = 100 << 10
	x := newFixture(t, Config{Policy: policy, QuotaBytes: quota})
	root, ctx := x.attach("r"), t.Context()
	check := func(step string) {
		t.Helper()
		if charged, counted := x.used("r"); charged != counted {
			t.Errorf("%s: charged %d, on the disk are %d", step, charged, counted)
		}
	}
	big := strings.Repeat("x", 60<<10)
	_, err := x.put(root, big, "a")
	x.ok(err)
	check("put")
	_, err = x.put(root, big, "b")
	x.want(err, sigma.KindNoSpace)
	check("refused put")
	_, err = x.put(root, big[:10], "a")
	x.ok(err)
	check("replace")
	x.ok(root.Mkdir(ctx, "d", 0))
	_, err = x.put(root, big[:1000], "d", "f")
	x.ok(err)
	x.ok(root.Rename(ctx, "a", x.walk(root, "d"), "f"))
	check("rename onto a file")
	f, err := root.Create(ctx, "g", sigma.OpenReadWrite, 0)
	x.ok(err)
	_, err = f.WriteAt(ctx, []byte("x"), 50<<10)
	x.ok(err)
	_, err = f.WriteAt(ctx, []byte("x"), 1<<40)
	x.want(err, sigma.KindNoSpace)
	if policy.Objects {
		// A write that failed must not appear as a truncated object.
		x.want(f.Sync(ctx), sigma.KindOther)
		f.Close()
		check("discarded object")
		f, err = root.Create(ctx, "g", sigma.OpenReadWrite, 0)
		x.ok(err)
		_, err = f.WriteAt(ctx, []byte("x"), 50<<10)
		x.ok(err)
	}
	x.ok(f.Sync(ctx))
	check("sparse file")
	x.ok(root.Remove(ctx, "g"))
	if charged, _ := x.used("r"); charged < 50<<10 {
		t.Errorf("a removed open file is no longer charged: %d", charged)
	}
	f.Close()
	check("closed removed file")
	if !policy.Objects {
		_, err = x.put(root, "abc", "s")
		x.ok(err)
		s := x.walk(root, "s")
		size := uint64(5000)
		x.ok(s.SetStat(ctx, sigma.StatChange{Size: &size}))
		check("grown")
		size = 10
		x.ok(s.SetStat(ctx, sigma.StatChange{Size: &size}))
		check("cut")
		x.ok(root.Symlink(ctx, "l", "/x"))
		_, _, err = root.(sigma.Putter).Put(ctx, []string{"s"}, []byte("/y"), sigma.PutOptions{Kind: sigma.KindSymlink})
		x.ok(err)
		check("links")
	}
	d := x.walk(root)
	x.ok(d.Open(ctx, sigma.OpenRead))
	x.ok(x.walk(root, "d").Remove(ctx, "f"))
	entries, _, _, err := d.ReadDir(ctx, 0, 100)
	x.ok(err)
	for _, e := range entries {
		x.ok(root.Remove(ctx, e.Name))
	}
	if charged, counted := x.used("r"); charged != 0 || counted != 0 {
		t.Errorf("an empty realm is charged %d, on the disk are %d", charged, counted)
	}
	for i := range quota/x.tree.entryCost + 10 {
		if _, err = x.put(root, "", fmt.Sprint(i)); err != nil {
			break
		}
	}
	x.want(err, sigma.KindNoSpace) // empty files are not free
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc to count descriptors")
	}
	return len(d)
}

// TestNothingLeaks checks that descriptors, nodes and shares are given back, by concurrent use and
// by refused use.
func TestNothingLeaks(t *testing.T) {
	for name, policy := range map[string]Policy{"in place": inPlace, "objects": {Objects: true}} {
		t.Run(name, func(t *testing.T) {
			x := newFixture(t, Config{Policy: policy})
			root := x.attach("r")
			before := openFiles(t)
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() { x.churn(root, w) })
			}
			wg.Wait()
			sp, err := x.tree.space("r")
			x.ok(err)
			sp.mu.Lock()
			if len(sp.recent) > recentMax {
				t.Errorf("%d directories are remembered", len(sp.recent))
			}
			sp.forgetLocked()
			sp.mu.Unlock()
			if sp.open != 0 || sp.listing != 0 || len(sp.table) != 1 || sp.root.refs != 2 {
				t.Errorf("left: %d descriptors, %d bytes of listings, %d nodes, %d references of the root", sp.open,
					sp.listing, len(sp.table), sp.root.refs)
			}
			if after := openFiles(t); after != before {
				t.Errorf("%d descriptors are open, %d were", after, before)
			}
			if left, _ := os.ReadDir(filepath.Join(x.dir, "realms", "r", "temp")); len(left) != 0 {
				t.Errorf("temporary files are left: %v", left)
			}
		})
	}
}

// churn does everything, closing what it opens; errors are part of it.
func (x *fixture) churn(root sigma.File, w int) {
	ctx := x.Context()
	for i := range 150 {
		a, b := fmt.Sprintf("d%d", i%3), fmt.Sprintf("n%d", (w+i)%4)
		root.Mkdir(ctx, a, 0)
		x.put(root, b, a, b)
		x.put(root, b, b)
		d, _, err := root.Walk(ctx, []string{a})
		if err != nil || d == nil {
			continue
		}
		if f, err := d.Create(ctx, b, sigma.OpenReadWrite|sigma.OpenTruncate, 0); err == nil {
			f.WriteAt(ctx, []byte("x"), uint64(i))
			if i%2 == 0 {
				f.Sync(ctx)
			}
			if p, err := f.(sigma.FilePasser).PassFile(ctx); err == nil {
				p.Close()
			}
			if g, _, err := f.Walk(ctx, nil); err == nil {
				g.Open(ctx, sigma.OpenRead)
				g.Close()
			}
			f.Close()
		}
		if f, err := d.Create(ctx, b, sigma.OpenExclusive, 0); err == nil {
			f.Close()
		}
		x.get(root, a, b)
		x.get(root, a, b, "x")
		root.Rename(ctx, b, d, "moved")
		d.Rename(ctx, "moved", root, b)
		if d.Open(ctx, sigma.OpenRead) == nil {
			d.ReadDir(ctx, 0, 2)
		}
		d.Remove(ctx, b)
		root.Rename(ctx, a, root, "e")
		root.Remove(ctx, "e")
		d.Close()
	}
}

// TestOpenMax checks that a realm that holds too many descriptors is refused, and no other realm.
func TestOpenMax(t *testing.T) {
	x := newFixture(t, Config{Policy: inPlace, OpenMax: 3})
	a, b := x.attach("a"), x.attach("b")
	var open []sigma.File
	for i := range 4 {
		f, err := a.Create(t.Context(), fmt.Sprint(i), sigma.OpenWrite, 0)
		if i == 3 {
			x.want(err, sigma.KindBusy)
			break
		}
		x.ok(err)
		open = append(open, f)
	}
	_, err := x.put(a, "x", "f")
	x.want(err, sigma.KindBusy)
	_, err = x.put(b, "x", "f")
	x.ok(err)
	for _, f := range open {
		f.Close()
	}
	_, err = x.put(a, "x", "f")
	x.ok(err)
}

// TestRemoveRealm removes a realm with a directory far deeper than a path or a process's
// descriptors reach, while it is used and watched.
func TestRemoveRealm(t *testing.T) {
	const depth = 3000
	x := newFixture(t, Config{Policy: inPlace, QuotaBytes: sigma.GiB, OpenMax: 2 * depth})
	ctx := t.Context()
	root, other := x.attach("r"), x.attach("other")
	_, err := x.put(other, "x", "f")
	x.ok(err)
	cur, _, err := root.Walk(ctx, nil)
	x.ok(err)
	for range depth {
		x.ok(cur.Mkdir(ctx, "d", 0))
		next, _, err := cur.Walk(ctx, []string{"d"})
		x.ok(err)
		cur.Close()
		cur = next
		_, err = x.put(cur, "x", "f")
		x.ok(err)
	}
	if charged, counted := x.used("r"); charged != counted || charged != depth*(2*x.tree.entryCost+1) {
		t.Errorf("charged %d, counted %d, want %d", charged, counted, depth*(2*x.tree.entryCost+1))
	}
	f := x.walk(cur, "f")
	x.ok(f.Open(ctx, sigma.OpenRead))
	st, err := f.Stat(ctx)
	x.ok(err)
	watched := make(chan error, 1)
	go func() {
		_, err := f.(sigma.Watcher).Watch(ctx, st.ID.Version)
		watched <- err
	}()
	x.ok(x.tree.RemoveRealm(ctx, "r"))
	x.want(<-watched, sigma.KindStale)
	_, err = f.ReadAt(ctx, make([]byte, 1), 0)
	x.want(err, sigma.KindStale)
	_, err = x.put(cur, "x", "g")
	x.want(err, sigma.KindStale)
	cur.Close()
	for _, dir := range []string{"realms/r", "trash/*"} {
		if left, _ := filepath.Glob(filepath.Join(x.dir, dir)); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
	again := x.attach("r")
	_, err = x.get(again, "f")
	x.want(err, sigma.KindNotFound)
	x.ok(x.tree.RemoveRealm(ctx, "never"))
	if got, err := x.get(other, "f"); got != "x" || err != nil {
		t.Errorf("the other realm has %q, %v", got, err)
	}
}

// TestRemoveRealmInterrupted leaves the rest to the next start.
func TestRemoveRealmInterrupted(t *testing.T) {
	x := newFixture(t, Config{Policy: inPlace})
	root := x.attach("r")
	x.ok(root.Mkdir(t.Context(), "d", 0))
	_, err := x.put(root, "x", "d", "f")
	x.ok(err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x.want(x.tree.RemoveRealm(ctx, "r"), sigma.KindCanceled)
	x.tree.Close()
	x = newFixture(t, Config{Dir: x.dir, Policy: inPlace})
	if left, _ := filepath.Glob(filepath.Join(x.dir, "trash", "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	_, err = x.get(x.attach("r"), "d", "f")
	x.want(err, sigma.KindNotFound)
}

// FuzzParseLink checks that a link's text is read as it was written, and that nothing else is taken
// for a link.
func FuzzParseLink(f *testing.F) {
	f.Add("sigma:symlink:/a")
	f.Add("sigma:endpoint:sigma-endpoint/1 r m p id stream")
	f.Add("/etc/passwd")
	f.Fuzz(func(t *testing.T, text string) {
		kind, target, err := parseLink(text)
		if err == nil && linkText(kind, target) != text {
			t.Errorf("%q was read as %v %q, which is written %q", text, kind, target, linkText(kind, target))
		}
		for _, kind := range []sigma.FileKind{sigma.KindSymlink, sigma.KindEndpoint} {
			if k, target, err := parseLink(linkText(kind, text)); k != kind || target != text || err != nil {
				t.Errorf("%v %q was read as %v %q, %v", kind, text, k, target, err)
			}
		}
	})
}
