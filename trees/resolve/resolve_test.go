package resolve_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// TestLinks follows links of all sorts, and says what is wrong with others by the path that was
// asked for.
func TestLinks(t *testing.T) {
	w := newWorld(t, nil)
	w.mkdir("/a/b", "/z")
	w.put("/a/b/f", "f")
	w.link("/a/b/f", "/abs")
	w.link("b/f", "/a/rel")
	w.link("a/rel", "/twice")
	w.link("/a", "/dir")
	w.link("b", "/a/c")
	w.link("/loop2", "/loop1")
	w.link("loop1", "/loop2")
	w.link("self/x", "/self")
	w.link("/nowhere", "/dangling")
	w.link("../a/b/f", "/z/up")
	for _, p := range []string{"/abs", "/a/rel", "/twice", "/dir/b/f", "/dir/c/f", "/dir/rel"} {
		w.holds(p, "f")
		st, err := w.Stat(t.Context(), p)
		if err != nil || st.ID.Kind != sigma.KindFile || st.Name != p[strings.LastIndexByte(p, '/')+1:] {
			t.Errorf("Stat %s: %+v, %v", p, st, err)
		}
		h, err := w.Open(t.Context(), p, sigma.OpenRead)
		w.ok("Open "+p, err)
		if data, err := io.ReadAll(h); err != nil || string(data) != "f" {
			t.Errorf("read %s: %q, %v", p, data, err)
		}
		w.ok("Close", h.Close())
	}
	for p, kind := range map[string]sigma.Kind{"/loop1": sigma.KindLoop, "/loop2/x": sigma.KindLoop,
		"/self": sigma.KindLoop, "/dangling": sigma.KindNotFound, "/a/b/f/x": sigma.KindNotDir,
		"/abs/x": sigma.KindNotDir, "/none/x": sigma.KindNotFound, "/z/up": sigma.KindInvalid} {
		_, _, err := w.Get(t.Context(), p)
		w.fails("Get", err, kind, p)
		_, err = w.Stat(t.Context(), p)
		w.fails("Stat", err, kind, p)
		if kind == sigma.KindLoop && sigma.HintOf(err) == "" {
			t.Errorf("%s: no hint", p)
		}
	}
	st, err := w.Lstat(t.Context(), "/dir/rel")
	if err != nil || st.ID.Kind != sigma.KindSymlink {
		t.Errorf("Lstat: %+v, %v", st, err)
	}
	if target, err := w.ReadLink(t.Context(), "/loop1"); err != nil || target != "/loop2" {
		t.Errorf("ReadLink: %q, %v", target, err)
	}
	if p, err := w.AbsPath(t.Context(), "/dir/c/f"); err != nil || p != "/a/b/f" {
		t.Errorf("AbsPath: %q, %v", p, err)
	}
	w.put("/abs", "through a link")
	w.holds("/a/b/f", "through a link")
	if st, err := w.Lstat(t.Context(), "/abs"); err != nil || st.ID.Kind != sigma.KindSymlink {
		t.Errorf("Put replaced the link: %+v, %v", st, err)
	}
	for _, p := range []string{"", "a", "//", "/a/../b", "/a\x00", strings.Repeat("/x", 5000)} {
		if _, _, err := w.Get(t.Context(), p); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%.20q: got %v", p, err)
		}
	}
}

// TestLongPath: a path has more components than one message, and so has a link's way.
func TestLongPath(t *testing.T) {
	w := newWorld(t, nil)
	deep := strings.Repeat("/d", 300)
	w.mkdir(deep)
	w.put(deep+"/f", "f")
	w.holds(deep+"/f", "f")
	w.link(strings.Repeat("d/", 100)+"d", "/d/d/link")
	w.mkdir(strings.Repeat("/d", 103) + "/x")
	w.put("/d/d/link/x/g", "g")
	w.holds(strings.Repeat("/d", 103)+"/x/g", "g")
	_, _, err := w.Get(t.Context(), deep+deep)
	w.fails("Get", err, sigma.KindNotFound, deep+deep)
	w.ok("RemoveAll", w.RemoveAll(t.Context(), "/d"))
}

// TestLarge puts and gets files of more than one message.
func TestLarge(t *testing.T) {
	w := newWorld(t, nil)
	for _, size := range []int{0, 1, sigmap.DataMax - 1, sigmap.DataMax, sigmap.DataMax + 1, 1 << 20} {
		data := bytes.Repeat([]byte{byte(size), 2, 3}, size/3+1)[:size]
		id, err := w.Put(t.Context(), "/f", data, sigma.PutOptions{})
		w.ok("Put", err)
		got, id2, err := w.Get(t.Context(), "/f")
		if err != nil || !bytes.Equal(got, data) || id != id2 {
			t.Errorf("%d bytes: got %d, ids %v and %v, %v", size, len(got), id, id2, err)
		}
	}
	if es, err := w.ReadDir(t.Context(), "/"); err != nil || len(es) != 1 {
		t.Errorf("left behind: %v, %v", es, err)
	}
	long := "/" + strings.Repeat("n", 255) + strings.Repeat("/"+strings.Repeat("m", 255),
		14) // a path and data that do not fit one message together
	w.mkdir(long)
	_, err := w.Put(t.Context(), long+"/f", make([]byte, sigmap.DataMax), sigma.PutOptions{})
	w.ok("Put with a long path", err)
	_, err = w.Put(t.Context(), "/f", make([]byte, sigmap.DataMax+1), sigma.PutOptions{MustMake: true})
	w.fails("Put", err, sigma.KindTooBig, "/f")

	small := newWorld(t, memfs.New(memfs.Config{SizeMax: 200 << 10}))
	small.put("/f", "old")
	_, err = small.Put(t.Context(), "/f", make([]byte, 300<<10), sigma.PutOptions{})
	small.fails("Put into a full tree", err, sigma.KindNoSpace, "/f")
	small.holds("/f", "old")
	if es, err := small.ReadDir(t.Context(), "/"); err != nil || len(es) != 1 {
		t.Errorf("a failed put left %v, %v", es, err)
	}
}

// TestLargeAtomic: while large contents replace each other, each reader sees one of them whole.
func TestLargeAtomic(t *testing.T) {
	w := newWorld(t, nil)
	const size = 300 << 10
	content := func(b byte) []byte { return bytes.Repeat([]byte{b}, size+int(b)*100) }
	_, err := w.Put(t.Context(), "/f", content(0), sigma.PutOptions{})
	w.ok("Put", err)
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for i := range 2 {
		writers.Go(func() {
			for b := byte(i); ; b += 2 {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := w.Put(t.Context(), "/f", content(b%50), sigma.PutOptions{}); err != nil {
					t.Errorf("Put: %v", err)
				}
			}
		})
	}
	for range 50 {
		data, _, err := w.Get(t.Context(), "/f")
		if err != nil || len(data) < size || !bytes.Equal(data, content(data[0])) {
			t.Errorf("got %d bytes, %v", len(data), err)
		}
	}
	close(stop)
	writers.Wait()
}

// TestEndpoints walks through servers, to and fro.
func TestEndpoints(t *testing.T) {
	w := newWorld(t, nil)
	w.mkdir("/srv", "/data")
	w.put("/data/f", "root's")
	s := w.serve("/srv/one", "m2", treeWith(t, "f", "one's"))
	w.serve("/srv/two", "m2", treeWith(t, "f", "two's"))
	w.holds("/srv/one/f", "one's")
	w.mkdir("/srv/one/a/b")
	w.put("/srv/one/a/b/g", "g")
	w.link("a/b", "/srv/one/rel")       // within the server, by the path of the realm
	w.link("/data/f", "/srv/one/out")   // back to the realm's root
	w.link("/srv/two", "/srv/one/over") // to another server
	w.link("/srv/one/a", "/in")
	w.holds("/srv/one/rel/g", "g")
	w.holds("/srv/one/out", "root's")
	w.holds("/srv/one/over/f", "two's")
	w.holds("/in/b/g", "g")
	if p, err := w.AbsPath(t.Context(), "/in/b/g"); err != nil || p != "/srv/one/a/b/g" {
		t.Errorf("AbsPath: %q, %v", p, err)
	}
	if n := w.dials.Load(); n != 2 {
		t.Errorf("dialled %d times, want 2", n)
	}
	st, err := w.Lstat(t.Context(), "/srv/one")
	if err != nil || st.ID.Kind != sigma.KindEndpoint {
		t.Errorf("Lstat: %+v, %v", st, err)
	}
	if st, err := w.Stat(t.Context(), "/srv/one"); err != nil || st.ID.Kind != sigma.KindDir {
		t.Errorf("Stat: %+v, %v", st, err)
	}
	if text, err := w.ReadLink(t.Context(), "/srv/one"); err != nil || text != s.endpoint.String() {
		t.Errorf("ReadLink: %q, %v", text, err)
	}
	if es, err := w.ReadDir(t.Context(), "/srv/one"); err != nil || len(es) != 5 {
		t.Errorf("ReadDir: %v, %v", es, err)
	}
	w.fails("Rename to another server", w.Rename(t.Context(), "/srv/one/f", "/srv/two/g"), sigma.KindUnsupported,
		"/srv/one/f")
	w.ok("Rename", w.Rename(t.Context(), "/srv/one/f", "/srv/one/a/f"))
	w.holds("/in/f", "one's")
	w.ok("RemoveAll", w.RemoveAll(t.Context(), "/srv/one")) // the name, not what is behind it
	w.publish("/srv/again", s.endpoint)
	w.holds("/srv/again/a/f", "one's")
}

// TestDeadServer: a path to a dead server says so; once it lives again, or another is published,
// the path works.
func TestDeadServer(t *testing.T) {
	w := newWorld(t, nil)
	s := w.serve("/one", "m2", treeWith(t, "f", "first"))
	w.holds("/one/f", "first")
	s.kill()
	_, _, err := w.Get(t.Context(), "/one/f")
	w.fails("Get from a dead server", err, sigma.KindUnavailable, "/one/f")
	s.revive()
	w.holds("/one/f", "first")
	s.kill()
	w.serve("/one", "m2", treeWith(t, "f", "second"))
	w.holds("/one/f", "second")
	w.publish("/nobody", sigma.Endpoint{Realm: "r", Machine: "m", Proc: "p", ID: "AAAAAAAAAAAAAAAAAAAAAA",
		Form: sigma.FormTree})
	_, _, err = w.Get(t.Context(), "/nobody/f")
	w.fails("Get", err, sigma.KindUnavailable, "/nobody/f")
	w.publish("/stream", sigma.Endpoint{Realm: "r", Machine: "m", Proc: "p", ID: "AAAAAAAAAAAAAAAAAAAAAA",
		Form: sigma.FormStream})
	_, _, err = w.Get(t.Context(), "/stream/f")
	w.fails("Get through a stream", err, sigma.KindUnsupported, "/stream/f")
}

// TestUnions resolves ~local and ~any among endpoints and directories of machines.
func TestUnions(t *testing.T) {
	w := newWorld(t, nil)
	w.mkdir("/svc", "/ux/m1", "/ux/m2", "/empty")
	w.put("/ux/m1/f", "local")
	w.put("/ux/m2/f", "other")
	w.holds("/ux/~local/f", "local")
	w.put("/ux/~local/g", "new")
	w.holds("/ux/m1/g", "new")
	if p, err := w.AbsPath(t.Context(), "/ux/~local/g"); err != nil || p != "/ux/m1/g" {
		t.Errorf("AbsPath: %q, %v", p, err)
	}
	far := w.serve("/svc/a", "m2", treeWith(t, "f", "far"))
	near := w.serve("/svc/b", here, treeWith(t, "f", "near"))
	w.put("/svc/c", "a file is no endpoint")
	w.holds("/svc/~local/f", "near")
	w.holds("/svc/~any/f", "far")
	far.kill()
	w.holds("/svc/~any/f", "near")
	far.revive()
	near.kill()
	w.holds("/svc/~any/f", "far")
	_, _, err := w.Get(t.Context(), "/svc/~local/f")
	w.fails("Get", err, sigma.KindNotFound, "/svc/~local/f")
	_, err = w.ReadDir(t.Context(), "/svc/~local")
	w.fails("ReadDir", err, sigma.KindNotFound, "/svc/~local")
	for _, p := range []string{"/empty/~any/f", "/none/~any", "/svc/~any/none", "/svc/c/~any"} {
		if _, _, err := w.Get(t.Context(), p); sigma.KindOf(err) != sigma.KindNotFound &&
			sigma.KindOf(err) != sigma.KindNotDir {
			t.Errorf("%s: got %v", p, err)
		}
	}
	if text, err := w.ReadLink(t.Context(), "/svc/~any"); err != nil || text != far.endpoint.String() {
		t.Errorf("ReadLink: %q, %v", text, err)
	}
	w.mkdir("/both")
	w.serve("/both/x", here, w.servers[far.endpoint.ID].tree)
	w.link("/both/~local", "/alias")
	w.holds("/alias/f", "far")
}

// TestDialOnce: many first users of an endpoint dial once; if the one that dials gives up, the
// others do not fail for it.
func TestDialOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.serve("/one", "m2", treeWith(t, "f", "data"))
	w.gate = make(chan struct{})
	first, giveUp := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, _, err := w.Get(first, "/one/f")
		failed <- err
	}()
	for w.dials.Load() == 0 {
	}
	var users sync.WaitGroup
	for range 20 {
		users.Go(func() { w.holds("/one/f", "data") })
	}
	giveUp()
	w.fails("Get given up", <-failed, sigma.KindCanceled, "/one/f")
	close(w.gate)
	users.Wait()
	if n := w.dials.Load(); n != 2 {
		t.Errorf("dialled %d times, want 2", n)
	}
}

// hostile is a tree whose links lie.
type hostile struct {
	treeserver.Base
	stop sigma.Stopped
}

func (h hostile) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return h, nil }
func (h hostile) Stat(context.Context) (sigma.Stat, error)                            { return sigma.Stat{}, nil }
func (h hostile) Get(context.Context, []string, uint64, int) (sigma.GetResult, *sigma.Stopped, error) {
	s := h.stop
	return sigma.GetResult{}, &s, nil
}
func (h hostile) Walk(context.Context, []string) (sigma.File, []sigma.FileID, error) {
	return nil, []sigma.FileID{{Kind: h.stop.Kind}}, nil
}
func (h hostile) ReadLink(context.Context) (string, error) { return h.stop.Target, nil }

// TestHostileServer: a server that stops walks where no link can be ends them with an error.
func TestHostileServer(t *testing.T) {
	grow := strings.Repeat("/x", 2000)
	for _, s := range []sigma.Stopped{{Walked: 0, Kind: sigma.KindSymlink, Target: "x"},
		{Walked: 0, Kind: sigma.KindSymlink, Target: "/"}, {Walked: 1, Kind: sigma.KindSymlink, Target: ""},
		{Walked: 1, Kind: sigma.KindSymlink, Target: grow}, {Walked: 1, Kind: sigma.KindEndpoint, Target: "nonsense"},
		{Walked: 1, Kind: sigma.KindSymlink, Target: "../.."}} {
		w := newWorld(t, hostile{stop: s})
		for _, p := range []string{"/", "/a", "/a/b/c"} {
			if _, _, err := w.Get(t.Context(), p); err == nil {
				t.Errorf("%+v: got %s", s, p)
			}
			if p != "/" {
				if _, err := w.Stat(t.Context(), p); err == nil {
					t.Errorf("%+v: stat of %s", s, p)
				}
			}
		}
		behind := newWorld(t, nil)
		behind.serve("/e", "m2", hostile{stop: s})
		if _, _, err := behind.Get(t.Context(), "/e/a"); err == nil {
			t.Errorf("%+v: got it behind an endpoint", s)
		}
	}
}

// TestTree makes, lists, moves and removes.
func TestTree(t *testing.T) {
	w := newWorld(t, nil)
	w.mkdir("/d/e/f")
	w.mkdir("/d/e/f")
	for i := range 1200 {
		w.put(fmt.Sprintf("/d/%d", i), "")
	}
	es, err := w.ReadDir(t.Context(), "/d")
	if err != nil || len(es) != 1201 || !slices.IsSortedFunc(es, func(a, b sigma.DirEntry) int {
		return strings.Compare(a.Name, b.Name)
	}) {
		t.Errorf("listed %d, %v", len(es), err)
	}
	w.fails("Mkdir", w.Mkdir(t.Context(), "/d/e", 0o777), sigma.KindExists, "/d/e")
	w.fails("MkdirAll", w.MkdirAll(t.Context(), "/d/7/x", 0o777), sigma.KindNotDir, "/d/7/x")
	w.fails("Mkdir", w.Mkdir(t.Context(), "/", 0o777), sigma.KindInvalid, "/")
	w.fails("Remove", w.Remove(t.Context(), "/d"), sigma.KindNotEmpty, "/d")
	w.fails("Remove", w.Remove(t.Context(), "/none"), sigma.KindNotFound, "/none")
	w.fails("Rename", w.Rename(t.Context(), "/none", "/x"), sigma.KindNotFound, "/none")
	w.put("/kept", "kept")
	w.link("/kept", "/d/link")
	w.ok("Rename", w.Rename(t.Context(), "/d", "/moved"))
	w.ok("RemoveAll", w.RemoveAll(t.Context(), "/moved"))
	w.ok("RemoveAll of nothing", w.RemoveAll(t.Context(), "/moved/x"))
	w.holds("/kept", "kept")
	perm := uint32(0o600)
	w.ok("SetStat", w.SetStat(t.Context(), "/kept", sigma.StatChange{Perm: &perm}))
	if st, err := w.Stat(t.Context(), "/kept"); err != nil || st.Perm != perm {
		t.Errorf("%+v, %v", st, err)
	}
	_, err = w.Call(t.Context(), "/kept", "m", nil)
	w.fails("Call", err, sigma.KindUnsupported, "/kept")
}

// TestHandle reads and writes at positions.
func TestHandle(t *testing.T) {
	w := newWorld(t, nil)
	h, err := w.Create(t.Context(), "/f", 0, 0o644)
	w.ok("Create", err)
	if _, err := io.WriteString(h, "hello world"); err != nil {
		t.Error(err)
	}
	w.ok("Close", h.Close())
	h, err = w.Open(t.Context(), "/f", sigma.OpenReadWrite)
	w.ok("Open", err)
	if pos, err := h.Seek(-5, io.SeekEnd); pos != 6 || err != nil {
		t.Errorf("Seek: %d, %v", pos, err)
	}
	if data, err := io.ReadAll(h); string(data) != "world" || err != nil {
		t.Errorf("read %q, %v", data, err)
	}
	for _, whence := range []int{io.SeekStart, io.SeekCurrent, io.SeekEnd, 7} {
		if _, err := h.Seek(-100, whence); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("Seek to -100 of %d: %v", whence, err)
		}
	}
	_, err = h.ReadAt(nil, -1)
	w.fails("ReadAt", err, sigma.KindInvalid, "")
	if n, err := h.ReadAt(make([]byte, 20), 3); n != 8 || err != io.EOF {
		t.Errorf("ReadAt: %d, %v", n, err)
	}
	_, err = h.File()
	w.fails("File", err, sigma.KindUnsupported, "/f")
	w.ok("Close", h.Close())
	if _, err := h.Read(make([]byte, 1)); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("read of a closed handle: %v", err)
	}
	a, err := w.Open(t.Context(), "/f", sigma.OpenAppend|sigma.OpenWrite)
	w.ok("Open", err)
	io.WriteString(a, "!")
	w.ok("Close", a.Close())
	w.holds("/f", "hello world!")
}

// TestWaitFor waits for a path several directories deep.
func TestWaitFor(t *testing.T) {
	w := newWorld(t, nil)
	found := make(chan error)
	go func() { found <- w.WaitFor(t.Context(), "/a/b/c") }()
	w.mkdir("/a")
	w.ok("RemoveAll", w.RemoveAll(t.Context(), "/a"))
	w.mkdir("/a/b")
	select {
	case err := <-found:
		t.Fatalf("found it: %v", err)
	default:
	}
	w.put("/a/b/c", "")
	w.ok("WaitFor", <-found)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { found <- w.WaitFor(ctx, "/never") }()
	cancel()
	if err := <-found; sigma.KindOf(err) != sigma.KindCanceled {
		t.Errorf("got %v", err)
	}
	st, err := w.Stat(t.Context(), "/a/b/c")
	w.ok("Stat", err)
	watched := make(chan sigma.Version)
	go func() {
		v, err := w.Watch(t.Context(), "/a/b/c", st.ID.Version)
		if err != nil {
			t.Error(err)
		}
		watched <- v
	}()
	w.put("/a/b/c", "changed")
	if v := <-watched; v <= st.ID.Version {
		t.Errorf("version %d after %d", v, st.ID.Version)
	}
}

// TestLease: a lease is renewed until it is revoked, or until the session is over.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memfs.New(memfs.Config{})
		defer mem.Close()
		root, err := mem.Attach(t.Context(), sigma.Principal{}, "")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		n := resolve.New(resolve.Config{Root: root, Done: done})
		id, revoke, err := n.Lease(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/e1", "/e2"} {
			if _, err := n.Put(t.Context(), path, nil, sigma.PutOptions{Lease: id}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		if st, err := n.Stat(t.Context(), "/e1"); err != nil || !st.Ephemeral {
			t.Errorf("%+v, %v", st, err)
		}
		if err := revoke(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := n.Stat(t.Context(), "/e1"); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("after the lease: %v", err)
		}
		if _, _, err := n.Lease(t.Context(), 1); err != nil { // as short as can be: the ticker must not panic
			t.Error(err)
		}
		if _, _, err := n.Lease(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
		close(done) // ends the goroutines, else the bubble fails
	})
}
