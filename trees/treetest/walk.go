package treetest

import (
	"strings"

	"sigmaos.dev/sigma"
)

var walkTests = []subtest{
	{name: "walk-and-ids", run: testWalk},
	{name: "walk-partial", run: testWalkPartial},
	{name: "walk-stops-at-links", needs: []Capability{Symlinks}, run: testWalkLinks},
	{name: "walk-through-file", run: testWalkThroughFile},
	{name: "bad-names", run: testBadNames},
	{name: "odd-names", run: testOddNames},
	{name: "close-is-idempotent", run: testClose},
	{name: "identity", needs: []Capability{Identity}, run: testIdentity},
}

func testWalk(e *env) {
	a := e.mkdir(e.dir, "a")
	b := e.mkdir(a, "b")
	e.write(b, "f", "x")
	f, ids, err := e.dir.Walk(e.ctx, []string{"a", "b", "f"})
	e.ok("Walk", err)
	defer f.Close()
	for i, want := range []sigma.FileID{e.stat(a).ID, e.stat(b).ID, e.stat(f).ID} {
		if ids[i].Kind != want.Kind || ids[i].Path != want.Path {
			e.Errorf("id %d of a walk: got %+v, Stat says %+v", i, ids[i], want)
		}
	}
	st := e.stat(f)
	if st.Name != "f" || st.Size != 1 || st.ID.Kind != sigma.KindFile || st.ID.Version == 0 {
		e.Errorf("Stat of a file: got %+v", st)
	}
	clone, ids, err := f.Walk(e.ctx, nil)
	e.ok("Walk without names", err)
	defer clone.Close()
	if len(ids) != 0 || e.stat(clone).ID != st.ID {
		e.Errorf("a clone is %+v with ids %v, want %+v and none", e.stat(clone).ID, ids, st.ID)
	}
	if st := e.stat(e.root); st.Name != "" || st.ID.Kind != sigma.KindDir {
		e.Errorf("Stat of the root: got %+v, want a directory without name", st)
	}
}

// wantStop checks that a walk ends early after n names.
func (e *env) wantStop(from sigma.File, n int, names ...string) []sigma.FileID {
	e.Helper()
	f, ids, err := from.Walk(e.ctx, names)
	if f != nil {
		f.Close()
	}
	if f != nil || err != nil || len(ids) != n {
		e.Fatalf("Walk(%q): got file %t, %d ids, error %v; want no file, %d ids, no error", names, f != nil, len(ids),
			err, n)
	}
	return ids
}

// A name that is missing at once is an error, one that is missing later is told by the number of
// ids.
func testWalkPartial(e *env) {
	a := e.mkdir(e.dir, "a")
	e.mkdir(a, "b")
	e.wantStop(e.dir, 1, "a", "x", "y")
	e.wantStop(e.dir, 2, "a", "b", "x")
	f, ids, err := e.dir.Walk(e.ctx, []string{"x", "a"})
	if f != nil || len(ids) != 0 {
		e.Errorf("Walk to a missing name: got file %t and ids %v", f != nil, ids)
	}
	e.fails("Walk to a missing name", err, sigma.KindNotFound)
}

// A link in the middle ends the walk there; as the last name it is what the handle is of.
func testWalkLinks(e *env) {
	a := e.mkdir(e.dir, "a")
	e.mkdir(a, "real")
	e.ok("Symlink", a.Symlink(e.ctx, "link", "/a/real"))
	ids := e.wantStop(e.dir, 2, "a", "link", "x")
	if ids[1].Kind != sigma.KindSymlink {
		e.Errorf("the walk stopped at a %v, want a symlink", ids[1].Kind)
	}
	link := e.walk(e.dir, "a", "link")
	defer link.Close()
	target, err := link.ReadLink(e.ctx)
	e.ok("ReadLink", err)
	e.wantData("ReadLink", target, "/a/real")
	if st := e.stat(link); st.ID.Kind != sigma.KindSymlink {
		e.Errorf("Stat of a link: got %+v", st)
	}
	e.fails("Open of a link", link.Open(e.ctx, sigma.OpenRead))
	_, err = a.ReadLink(e.ctx)
	e.fails("ReadLink of a directory", err)
}

func testWalkThroughFile(e *env) {
	e.write(e.dir, "f", "x")
	e.wantStop(e.dir, 1, "f", "x")
	f := e.walk(e.dir, "f")
	defer f.Close()
	_, _, err := f.Walk(e.ctx, []string{"x"})
	e.fails("Walk from a file", err, sigma.KindNotDir)
	_, err = f.Create(e.ctx, "x", sigma.OpenWrite, 0o666)
	e.fails("Create in a file", err, sigma.KindNotDir)
	e.fails("Mkdir in a file", f.Mkdir(e.ctx, "x", 0o777), sigma.KindNotDir)
	e.fails("Remove in a file", f.Remove(e.ctx, "x"), sigma.KindNotDir)
	e.fails("Rename out of a file", f.Rename(e.ctx, "x", e.dir, "y"), sigma.KindNotDir)
	e.fails("Rename into a file", e.dir.Rename(e.ctx, "f", f, "y"), sigma.KindNotDir)
}

// Names reach servers from tenants; each of these ended some server once.
func testBadNames(e *env) {
	e.write(e.dir, "f", "x")
	for why, name := range badNames {
		_, _, err := e.dir.Walk(e.ctx, []string{name})
		e.fails("Walk, "+why, err, sigma.KindInvalid, sigma.KindTooBig)
		_, err = e.dir.Create(e.ctx, name, sigma.OpenWrite, 0o666)
		e.fails("Create, "+why, err, sigma.KindInvalid, sigma.KindTooBig)
		e.fails("Mkdir, "+why, e.dir.Mkdir(e.ctx, name, 0o777), sigma.KindInvalid, sigma.KindTooBig)
		e.fails("Symlink, "+why, e.dir.Symlink(e.ctx, name, "/x"), sigma.KindInvalid, sigma.KindTooBig,
			sigma.KindUnsupported)
		e.fails("Remove, "+why, e.dir.Remove(e.ctx, name), sigma.KindInvalid, sigma.KindTooBig)
		e.fails("Rename from, "+why, e.dir.Rename(e.ctx, name, e.dir, "g"), sigma.KindInvalid, sigma.KindTooBig)
		e.fails("Rename to, "+why, e.dir.Rename(e.ctx, "f", e.dir, name), sigma.KindInvalid, sigma.KindTooBig)
		if g, ok := e.dir.(sigma.Getter); ok {
			_, _, err = g.Get(e.ctx, []string{name}, 0, 10)
			e.fails("Get, "+why, err, sigma.KindInvalid, sigma.KindTooBig)
		}
		if p, ok := e.dir.(sigma.Putter); ok {
			_, _, err = p.Put(e.ctx, []string{name}, []byte("x"), sigma.PutOptions{})
			e.fails("Put, "+why, err, sigma.KindInvalid, sigma.KindTooBig)
			_, _, err = p.Put(e.ctx, []string{name, "x"}, []byte("x"), sigma.PutOptions{})
			e.fails("Put below, "+why, err, sigma.KindInvalid, sigma.KindTooBig)
		}
	}
	e.wantNames(e.dir, "f")
}

// What CheckName allows works.
func testOddNames(e *env) {
	names := []string{"a b", "...", "-rf", "~x", "new\nline", "\xff\xfe", "日本", "%00", ".temp",
		strings.Repeat("n", 255)}
	for _, name := range names {
		e.write(e.dir, name, name)
	}
	for _, name := range names {
		e.wantData("content", e.read(e.dir, name), name)
	}
	e.wantNames(e.dir, names...)
}

func testClose(e *env) {
	e.write(e.dir, "f", "x")
	f := e.walk(e.dir, "f")
	e.ok("Open", f.Open(e.ctx, sigma.OpenRead))
	f.Close()
	f.Close()
	_, err := f.Stat(e.ctx)
	e.fails("Stat of a closed handle", err)
	_, err = f.ReadAt(e.ctx, make([]byte, 1), 0)
	e.fails("ReadAt of a closed handle", err)
	e.wantData("another handle", e.read(e.dir, "f"), "x")
}

// FileID.Path is never used again, although file systems use inode numbers again at once.
func testIdentity(e *env) {
	seen := map[uint64]bool{}
	for range 20 {
		e.write(e.dir, "f", "x")
		id := e.statOf(e.dir, "f").ID
		if seen[id.Path] {
			e.Fatalf("a new file has the identity %d of a removed one", id.Path)
		}
		seen[id.Path] = true
		e.ok("Remove", e.dir.Remove(e.ctx, "f"))
	}
	e.write(e.dir, "g", "x")
	before := e.statOf(e.dir, "g").ID
	e.ok("Rename", e.dir.Rename(e.ctx, "g", e.dir, "h"))
	if after := e.statOf(e.dir, "h").ID; after.Path != before.Path {
		e.Errorf("a renamed file has identity %d, had %d", after.Path, before.Path)
	}
}
