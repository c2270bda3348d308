package treetest

import (
	"fmt"
	"strings"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
)

var pathTests = []subtest{
	{name: "every-byte", run: testEveryByte},
	{name: "long-paths", needs: []Capability{LongPaths}, run: testLongPaths},
	{name: "deep-path", run: testDeepPath},
	{name: "link-loops", needs: []Capability{Symlinks}, run: testLinkLoops},
	{name: "remove-full", run: testRemoveFull},
}

// A name may have every byte but NUL and the slash; . and .. are no names
// (docs/reference/names.md).
func testEveryByte(e *env) {
	var names []string
	for b := range 256 {
		for _, name := range []string{string([]byte{byte(b)}), string([]byte{'x', byte(b), 'y'})} {
			if b == 0 || b == '/' || name == "." {
				_, err := e.dir.Create(e.ctx, name, sigma.OpenWrite, 0o666)
				e.fails(fmt.Sprintf("Create of %q", name), err, sigma.KindInvalid)
				continue
			}
			e.quickly(e.dir, name, name)
			names = append(names, name)
		}
	}
	e.wantNames(e.dir, names...)
	to := e.mkdir(e.dir, "to")
	for _, name := range names {
		e.wantData("content", e.read(e.dir, name), name)
		e.ok(fmt.Sprintf("Rename of %q", name), e.dir.Rename(e.ctx, name, to, name))
	}
	e.wantNames(to, names...)
	for _, name := range names {
		e.ok(fmt.Sprintf("Remove of %q", name), to.Remove(e.ctx, name))
	}
	e.wantNames(to)
}

// tree is what is below the subtest's directory, by paths.
func (e *env) tree() *resolve.Tree { return resolve.New(resolve.Config{Root: e.dir}) }

// Components of 255 bytes and paths of 4096 work; a byte more is refused.
func testLongPaths(e *env) {
	t := e.tree()
	dir := strings.Repeat("/"+strings.Repeat("n", sigma.NameMax), sigma.PathMax/(sigma.NameMax+1)-1)
	e.ok("MkdirAll", t.MkdirAll(e.ctx, dir, 0o777))
	path := dir + "/" + strings.Repeat("f", sigma.PathMax-len(dir)-1)
	_, err := t.Put(e.ctx, path, []byte("x"), sigma.PutOptions{})
	e.ok("Put", err)
	got, _, err := t.Get(e.ctx, path)
	e.ok("Get", err)
	e.wantData("Get", string(got), "x")
	if st, err := t.Stat(e.ctx, path); err != nil || len(st.Name) != sigma.NameMax {
		e.Errorf("Stat: got %+v, %v", st, err)
	}
	_, err = t.Put(e.ctx, path+"f", nil, sigma.PutOptions{})
	e.fails("Put to 4097 bytes", err, sigma.KindInvalid)
	_, err = t.Put(e.ctx, "/"+strings.Repeat("n", sigma.NameMax+1), nil, sigma.PutOptions{})
	e.fails("Put to a name of 256 bytes", err, sigma.KindInvalid)
	e.ok("Rename", t.Rename(e.ctx, path, "/short"))
	e.ok("Rename", t.Rename(e.ctx, "/short", path))
	e.ok("RemoveAll", t.RemoveAll(e.ctx, dir[:sigma.NameMax+1]))
	e.wantNames(e.dir)
}

// The deepest path there can be: as many directories as have names in 4096 bytes.
func testDeepPath(e *env) {
	f := e.walk(e.dir)
	for i := range e.cfg.Depth {
		if err := f.Mkdir(e.ctx, "d", 0o777); err != nil {
			e.Fatalf("Mkdir at depth %d: %v (%v)", i, err, sigma.KindOf(err))
		}
		next := e.walk(f, "d")
		f.Close()
		f = next
	}
	e.write(f, "f", "bottom")
	f.Close()
	t, path := e.tree(), strings.Repeat("/d", e.cfg.Depth)+"/f"
	got, _, err := t.Get(e.ctx, path)
	e.ok("Get", err)
	e.wantData("Get", string(got), "bottom")
	e.ok("RemoveAll", t.RemoveAll(e.ctx, "/d"))
	e.wantNames(e.dir)
}

// Forty links on a path are followed, loops end.
func testLinkLoops(e *env) {
	t := e.tree()
	link := func(target, name string) { e.Helper(); e.ok("Symlink", e.dir.Symlink(e.ctx, name, target)) }
	e.write(e.dir, "f", "x")
	d := e.mkdir(e.dir, "d")
	e.ok("Symlink", d.Symlink(e.ctx, "up", "/d"))
	link("f", "l1")
	for i := 2; i <= 41; i++ {
		link(fmt.Sprintf("/l%d", i-1), fmt.Sprintf("l%d", i))
	}
	link("self", "self")
	link("self/x", "longer")
	link("/b", "a")
	link("a", "b")
	for path, want := range map[string]sigma.Kind{"/l1": 0, "/l40": 0, "/l41": sigma.KindLoop, "/self": sigma.KindLoop,
		"/self/x": sigma.KindLoop, "/longer": sigma.KindLoop, "/a": sigma.KindLoop, "/b/x": sigma.KindLoop,
		"/d" + strings.Repeat("/up", 40): sigma.KindIsDir, "/d" + strings.Repeat("/up", 41): sigma.KindLoop} {
		got, _, err := t.Get(e.ctx, path)
		if want != 0 {
			e.fails("Get "+brief(path), err, want)
			continue
		}
		e.ok("Get "+path, err)
		e.wantData("Get", string(got), "x")
	}
	_, err := t.Put(e.ctx, "/a", nil, sigma.PutOptions{})
	e.fails("Put to a loop", err, sigma.KindLoop)
	e.ok("Remove of a link of a loop", t.Remove(e.ctx, "/a"))
	_, err = t.Stat(e.ctx, "/b")
	e.fails("Stat of what was a loop", err, sigma.KindNotFound)
}

// A directory with entries of any sort is not removed, and nothing of it is.
func testRemoveFull(e *env) {
	d := e.mkdir(e.dir, "d")
	fill := map[string]func(){
		"file":      func() { e.write(d, "x", "kept") },
		"directory": func() { e.mkdir(d, "x") },
	}
	if !e.lacks(Symlinks) {
		fill["link"] = func() { e.ok("Symlink", d.Symlink(e.ctx, "x", "/nowhere")) }
	}
	for what, put := range fill {
		put()
		e.fails("Remove of a directory with a "+what, e.dir.Remove(e.ctx, "d"), sigma.KindNotEmpty)
		e.wantNames(d, "x")
		e.ok("Remove of the "+what, d.Remove(e.ctx, "x"))
	}
	e.ok("Remove", e.dir.Remove(e.ctx, "d"))
}
