package treetest

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"sigmaos.dev/sigma"
)

var wholeTests = []subtest{
	{name: "put-and-get", run: testPutGet},
	{name: "put-conditions", run: testPutConditions},
	{name: "put-refused", run: testPutRefused},
	{name: "put-append", needs: []Capability{Rewrite}, run: testPutAppend},
	{name: "put-is-atomic", run: testPutAtomic},
	{name: "put-if-version-race", run: testPutRace},
	{name: "stopped-at-links", needs: []Capability{Symlinks}, run: testStopped},
	{name: "endpoints", needs: []Capability{Endpoints}, run: testEndpoints},
}

func testPutGet(e *env) {
	d := e.mkdir(e.dir, "d")
	for _, want := range []string{"", "abc", pattern(10000), "x"} {
		id, stopped, err := e.putter(e.dir).Put(e.ctx, []string{"d", "f"}, []byte(want), sigma.PutOptions{Perm: 0o600})
		e.ok("Put", err)
		if stopped != nil {
			e.Fatalf("Put: stopped at %+v", stopped)
		}
		r := e.get(e.dir, "d", "f")
		e.wantData("Get", string(r.Data), want)
		if r.ID != id || r.Size != uint64(len(want)) {
			e.Errorf("Get: got id %+v, size %d; Put said %+v of %d bytes", r.ID, r.Size, id, len(want))
		}
		if st := e.statOf(d, "f"); st.ID != id || st.Size != r.Size {
			e.Errorf("Stat: got %+v, Put said %+v", st, id)
		}
		e.wantData("plain calls", e.read(d, "f"), want)
	}
	e.wantNames(d, "f")
	e.put(d, "f", "abcdef", sigma.PutOptions{})
	for _, c := range []struct {
		offset uint64
		count  int
		want   string
	}{{2, 2, "cd"}, {4, 100, "ef"}, {6, 1, ""}, {100, 1, ""}, {0, 0, ""}} {
		r, _, err := e.getter(d).Get(e.ctx, []string{"f"}, c.offset, c.count)
		e.ok("Get", err)
		e.wantData(fmt.Sprintf("Get(%d, %d)", c.offset, c.count), string(r.Data), c.want)
		if r.Size != 6 {
			e.Errorf("Get(%d, %d): size %d, want 6", c.offset, c.count, r.Size)
		}
	}
	f := e.walk(d, "f")
	defer f.Close()
	e.wantData("Get of the handle's own file", string(e.get(f).Data), "abcdef")
}

func testPutConditions(e *env) {
	p := e.putter(e.dir)
	try := func(data string, o sigma.PutOptions) (sigma.FileID, error) {
		id, _, err := p.Put(e.ctx, []string{"f"}, []byte(data), o)
		return id, err
	}
	_, err := try("a", sigma.PutOptions{MustExist: true})
	e.fails("MustExist of what is missing", err, sigma.KindNotFound)
	_, err = try("a", sigma.PutOptions{IfVersion: 7})
	e.fails("IfVersion of what is missing", err, sigma.KindVersion, sigma.KindNotFound)
	e.missing(e.dir, "f")
	first, err := try("b", sigma.PutOptions{MustMake: true})
	e.ok("MustMake", err)
	_, err = try("c", sigma.PutOptions{MustMake: true})
	e.fails("MustMake of what exists", err, sigma.KindExists)
	e.wantData("content", string(e.get(e.dir, "f").Data), "b")
	second, err := try("d", sigma.PutOptions{MustExist: true, IfVersion: first.Version})
	e.ok("IfVersion", err)
	if second.Version <= first.Version {
		e.Errorf("version: got %d after %d", second.Version, first.Version)
	}
	for _, v := range []sigma.Version{first.Version, second.Version + 1, 1} {
		_, err = try("e", sigma.PutOptions{IfVersion: v})
		e.fails("IfVersion of another version", err, sigma.KindVersion)
	}
	e.wantData("content", string(e.get(e.dir, "f").Data), "d")
	if got := e.get(e.dir, "f").ID; got != second {
		e.Errorf("a refused Put changed the id: got %+v, want %+v", got, second)
	}
	_, err = try("f", sigma.PutOptions{MustMake: true, MustExist: true})
	e.fails("MustMake and MustExist", err)
}

func testPutRefused(e *env) {
	p, g := e.putter(e.dir), e.getter(e.dir)
	e.mkdir(e.dir, "d")
	e.write(e.dir, "f", "x")
	put := func(kind sigma.FileKind, names ...string) error {
		_, _, err := p.Put(e.ctx, names, []byte("data"), sigma.PutOptions{Kind: kind})
		return err
	}
	e.fails("Put onto a directory", put(sigma.KindFile, "d"), sigma.KindIsDir)
	e.fails("Put below a file", put(sigma.KindFile, "f", "g"), sigma.KindNotDir)
	e.fails("Put below what is missing", put(sigma.KindFile, "x", "g"), sigma.KindNotFound)
	e.fails("Put without a name", put(sigma.KindFile), sigma.KindInvalid)
	e.fails("Put of a directory", put(sigma.KindDir, "g"), sigma.KindInvalid, sigma.KindUnsupported)
	e.fails("Put of an unknown kind", put(99, "g"), sigma.KindInvalid, sigma.KindUnsupported)
	get := func(count int, names ...string) error {
		_, _, err := g.Get(e.ctx, names, 0, count)
		return err
	}
	e.fails("Get of a directory", get(10, "d"), sigma.KindIsDir)
	e.fails("Get of the handle's directory", get(10), sigma.KindIsDir)
	e.fails("Get below a file", get(10, "f", "g"), sigma.KindNotDir)
	e.fails("Get of what is missing", get(10, "x"), sigma.KindNotFound)
	e.fails("Get below what is missing", get(10, "x", "y"), sigma.KindNotFound)
	e.fails("Get of -1 bytes", get(-1, "f"), sigma.KindInvalid)
	e.wantNames(e.dir, "d", "f")
}

func testPutAppend(e *env) {
	e.put(e.dir, "f", "a", sigma.PutOptions{Append: true})
	id := e.put(e.dir, "f", "b", sigma.PutOptions{Append: true})
	e.wantData("content", string(e.get(e.dir, "f").Data), "ab")
	e.put(e.dir, "f", "c", sigma.PutOptions{Append: true, IfVersion: id.Version})
	_, _, err := e.putter(e.dir).Put(e.ctx, []string{"f"}, []byte("d"), sigma.PutOptions{Append: true,
		IfVersion: id.Version})
	e.fails("Append at another version", err, sigma.KindVersion)
	e.wantData("content", string(e.get(e.dir, "f").Data), "abc")
}

// A reader sees the old or the new content, never a part of either.
func testPutAtomic(e *env) {
	p, g := e.putter(e.dir), e.getter(e.dir)
	content := func(i int) []byte { return []byte(strings.Repeat(string(rune('a'+i%26)), 1000+i%7*1000)) }
	e.put(e.dir, "f", string(content(0)), sigma.PutOptions{})
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := range 100 {
				if _, _, err := p.Put(e.ctx, []string{"f"}, content(w+2*i), sigma.PutOptions{}); err != nil {
					e.Errorf("Put: %v", err)
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for range 200 {
				r, _, err := g.Get(e.ctx, []string{"f"}, 0, 1<<20)
				if err != nil {
					e.Errorf("Get: %v", err)
					return
				}
				if len(r.Data) == 0 || len(r.Data)%1000 != 0 ||
					strings.Trim(string(r.Data), string(r.Data[:1])) != "" || r.Size != uint64(len(r.Data)) {
					e.Errorf("Get: a mixture of %d bytes, size %d", len(r.Data), r.Size)
				}
			}
		})
	}
	wg.Wait()
	e.wantNames(e.dir, "f")
}

// Counting with IfVersion loses nothing.
func testPutRace(e *env) {
	const workers, each = 4, 25
	p, g := e.putter(e.dir), e.getter(e.dir)
	e.put(e.dir, "n", "0", sigma.PutOptions{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for done := 0; done < each; {
				r, _, err := g.Get(e.ctx, []string{"n"}, 0, 100)
				if err != nil {
					e.Errorf("Get: %v", err)
					return
				}
				n, _ := strconv.Atoi(string(r.Data))
				_, _, err = p.Put(e.ctx, []string{"n"}, []byte(strconv.Itoa(n+1)),
					sigma.PutOptions{IfVersion: r.ID.Version})
				switch {
				case err == nil:
					done++
				case sigma.KindOf(err) != sigma.KindVersion:
					e.Errorf("Put: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	e.wantData("count", string(e.get(e.dir, "n").Data), fmt.Sprint(workers*each))
}

func testStopped(e *env) {
	p, g := e.putter(e.dir), e.getter(e.dir)
	d := e.mkdir(e.dir, "d")
	e.ok("Symlink", d.Symlink(e.ctx, "link", "/to/there"))
	want := func(what string, s *sigma.Stopped, err error, walked int) {
		e.Helper()
		e.ok(what, err)
		if s == nil || *s != (sigma.Stopped{Walked: walked, Kind: sigma.KindSymlink, Target: "/to/there"}) {
			e.Errorf("%s: got %+v, want a stop after %d at a symlink to /to/there", what, s, walked)
		}
	}
	_, s, err := g.Get(e.ctx, []string{"d", "link", "x"}, 0, 10)
	want("Get on the way", s, err, 2)
	_, s, err = g.Get(e.ctx, []string{"d", "link"}, 0, 10)
	want("Get at the end", s, err, 2)
	_, s, err = p.Put(e.ctx, []string{"d", "link", "x"}, []byte("y"), sigma.PutOptions{})
	want("Put on the way", s, err, 2)
	_, s, err = p.Put(e.ctx, []string{"d", "link"}, []byte("y"), sigma.PutOptions{})
	want("Put at the end", s, err, 2)
	link := e.walk(d, "link")
	defer link.Close()
	if lg, ok := link.(sigma.Getter); ok {
		_, s, err = lg.Get(e.ctx, nil, 0, 10)
		want("Get of the handle", s, err, 0)
	}
	e.put(d, "link", "/elsewhere", sigma.PutOptions{Kind: sigma.KindSymlink})
	target, err := link.ReadLink(e.ctx)
	e.ok("ReadLink", err)
	e.wantData("a replaced link", target, "/elsewhere")
	e.put(d, "made", "/made", sigma.PutOptions{Kind: sigma.KindSymlink, MustMake: true})
	if st := e.statOf(d, "made"); st.ID.Kind != sigma.KindSymlink {
		e.Errorf("a symlink that was put is a %v", st.ID.Kind)
	}
}

// lessons: whether a file is a symlink or an endpoint was guessed by trial decoding.
func testEndpoints(e *env) {
	text := "sigma-endpoint/1 r m p AAAAAAAAAAAAAAAAAAAAAA stream"
	e.put(e.dir, "ep", text, sigma.PutOptions{Kind: sigma.KindEndpoint})
	e.write(e.dir, "file", text)
	if !e.lacks(Symlinks) {
		e.put(e.dir, "link", text, sigma.PutOptions{Kind: sigma.KindSymlink})
		if st := e.statOf(e.dir, "link"); st.ID.Kind != sigma.KindSymlink {
			e.Errorf("a symlink with an endpoint's text is a %v", st.ID.Kind)
		}
	}
	if st := e.statOf(e.dir, "file"); st.ID.Kind != sigma.KindFile {
		e.Errorf("a file with an endpoint's text is a %v", st.ID.Kind)
	}
	f := e.walk(e.dir, "ep")
	defer f.Close()
	if st := e.stat(f); st.ID.Kind != sigma.KindEndpoint {
		e.Errorf("an endpoint is a %v", st.ID.Kind)
	}
	got, err := f.ReadLink(e.ctx)
	e.ok("ReadLink", err)
	e.wantData("ReadLink", got, text)
	ids := e.wantStop(e.dir, 1, "ep", "x")
	if ids[0].Kind != sigma.KindEndpoint {
		e.Errorf("the walk stopped at a %v, want an endpoint", ids[0].Kind)
	}
	_, s, err := e.getter(e.dir).Get(e.ctx, []string{"ep", "x"}, 0, 10)
	e.ok("Get", err)
	if s == nil || *s != (sigma.Stopped{Walked: 1, Kind: sigma.KindEndpoint, Target: text}) {
		e.Errorf("Get: stopped at %+v", s)
	}
	e.put(e.dir, "ep", text+"x", sigma.PutOptions{Kind: sigma.KindEndpoint})
	e.ok("Remove", e.dir.Remove(e.ctx, "ep"))
	e.missing(e.dir, "ep")
}
