package view

import (
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// entries reads words of the form PATH=TARGET:RIGHTS.
func entries(t *testing.T, words string) (out []sigma.ViewEntry) {
	t.Helper()
	for _, w := range strings.Fields(words) {
		path, rest, _ := strings.Cut(w, "=")
		target, rights, _ := strings.Cut(rest, ":")
		r, err := sigma.ParseRights(rights)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, sigma.ViewEntry{Path: path, Target: target, Rights: r})
	}
	return out
}

func created(t *testing.T, words string, by *Table) *Table {
	t.Helper()
	v, err := Make(entries(t, words), by)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func text(v *Table) string {
	var out []string
	for _, e := range v.Entries() {
		out = append(out, e.Path+"="+e.Target+":"+e.Rights.String())
	}
	return strings.Join(out, " ")
}

// What a child is given is what its spawner has, by the realm's names.
func TestMake(t *testing.T) {
	parent := created(t,
		"/in=/s3/data/7:ro /workdir=/jobs/7:rw /workdir/log=/logs/7:ro /workdir/.key=/:none /svc=/services:rc", nil)
	for _, c := range []struct{ asks, gets string }{
		{"", ""},
		{"/a=/in:ro", "/a=/s3/data/7:ro"},
		{"/a=/in/x/y:ro", "/a=/s3/data/7/x/y:ro"},
		{"/a=/workdir/tmp:ro", "/a=/jobs/7/tmp:ro"},
		{"/a=/workdir:rw", "/a=/jobs/7:rw /a/.key=/:none /a/log=/logs/7:ro"},
		{"/a=/workdir:ro /a/log=/in:ro", "/a=/jobs/7:ro /a/.key=/:none /a/log=/s3/data/7:ro"},
		{"/=/:rw",
			"/in=/s3/data/7:ro /svc=/services:rc /workdir=/jobs/7:rw /workdir/.key=/:none /workdir/log=/logs/7:ro"},
		{"/=/:ro",
			"/in=/s3/data/7:ro /svc=/services:ro /workdir=/jobs/7:ro /workdir/.key=/:none /workdir/log=/logs/7:ro"},
		{"/s=/svc/x:rc", "/s=/services/x:rc"},
	} {
		if got := text(created(t, c.asks, parent)); got != c.gets {
			t.Errorf("%s gives %s, want %s", c.asks, got, c.gets)
		}
	}
	for _, c := range []string{"/a=/in:rw", "/a=/in:rc", "/a=/in/x:rw", "/a=/s3:ro", "/a=/s3/data/7:ro", "/a=/jobs:ro",
		"/a=/workdir/log:rw", "/a=/workdir/.key:ro", "/a=/workdir/.key/x:ro", "/a=/proc:ro", "/proc=/proc:ro",
		"/ok=/in:ro /a=/wor:ro"} {
		v, err := Make(entries(t, c), parent)
		if sigma.KindOf(err) != sigma.KindPermission || !strings.Contains(err.Error(), "/a=") &&
			!strings.Contains(err.Error(), "/proc=") {
			t.Errorf("%s: %v, %v", c, v, err)
		}
	}
	if _, err := Make(entries(t, "/a=/in:ro /a/=/in:ro"), parent); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("two entries at one path: %v", err)
	}
	wide := "/w=/:rw"
	for i := range sigma.ViewMax - 1 {
		wide += " /w/" + strings.Repeat("x", i+1) + "=/x:ro"
	}
	if _, err := Make(entries(t, "/a=/w:rw /b=/w:rw"), created(t, wide, nil)); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("a view that grows beyond its limit: %v", err)
	}
	all := created(t, "/all=/:rw", nil)
	if _, err := Make(entries(t, "/a=/all/sys/procs:rw"), all); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("the system's files as a target: %v", err)
	}
}

// A descendant never has more than an ancestor, whatever they ask for: of every place, the rights
// of each generation include those of the next.
func TestGenerations(t *testing.T) {
	places := []string{"/a", "/a/b", "/a/b/c", "/d", "/d/e", "/f"}
	rights := []sigma.Rights{sigma.RightsNone, sigma.RightsRead, sigma.RightsCall, sigma.RightsAll}
	seen :=
		func(v *Table) map[string]sigma.Rights {
			// what is reached by all paths that the table has, in the realm's names
			out := map[string]sigma.Rights{}
			for _, p := range append(slices.Clone(places), "/a/b/c/d", "/d/e/f/g", "/x", "/x/b", "/x/b/c", "/x/e") {
				n, _ := sigma.ParsePath(p)
				if e, rest, ok := v.Lookup(n); ok {
					out[sigma.JoinPath(slices.Concat(e.Target, rest)...)] |= e.Rights
				}
			}
			return out
		}
	next := uint64(1)
	random := func(n int) int {
		next = next*6364136223846793005 + 1442695040888963407
		return int(next>>33) % n
	}
	for range 3000 {
		v := created(t, "/a=/a:rw /a/b=/secret:ro /d=/a/b:rc /f=/a/b/c:none", nil)
		for range 3 {
			var ask []sigma.ViewEntry
			for range 1 + random(3) {
				paths := append(slices.Clone(places), "/x")
				ask = append(ask, sigma.ViewEntry{Path: paths[random(len(paths))], Target: places[random(len(places))],
					Rights: rights[random(4)]})
			}
			child, err := Make(ask, v)
			if err != nil {
				continue
			}
			for _, e := range child.Entries() {
				if e.Rights == sigma.RightsNone {
					continue
				}
				n, _ := sigma.ParsePath(e.Target)
				if e.Rights&^v.Grants(n) != 0 {
					t.Fatalf("%s was given of %s by %v", text(child), text(v), ask)
				}
			}
			for place, r := range seen(child) {
				n, _ := sigma.ParsePath(place)
				if r != sigma.RightsNone && r&^v.Grants(n) != 0 {
					t.Fatalf("%s gives %v at %s, of %s", text(child), r, place, text(v))
				}
			}
			v = child
		}
	}
}

func TestLookup(t *testing.T) {
	v := created(t, "/a=/x:ro /a/b/c=/y:rw", nil)
	for _, c := range []struct{ path, target, rest string }{
		{"/a", "/x", "/"}, {"/a/q/r", "/x", "/q/r"}, {"/a/b", "/x", "/b"}, {"/a/b/c", "/y", "/"},
		{"/a/b/c/d", "/y", "/d"}, {"/", "", ""}, {"/ab", "", ""},
	} {
		n, _ := sigma.ParsePath(c.path)
		e, rest, ok := v.Lookup(n)
		if ok != (c.target != "") || ok && (sigma.JoinPath(e.Target...) != c.target ||
			sigma.JoinPath(rest...) != c.rest) {
			t.Errorf("Lookup(%s) = %v, %v, %v", c.path, e, rest, ok)
		}
	}
	for path, want := range map[string]string{"/": "a", "/a": "b", "/a/b": "c", "/a/b/c": "", "/q": ""} {
		n, _ := sigma.ParsePath(path)
		if got := strings.Join(v.Below(n), " "); got != want {
			t.Errorf("Below(%s) = %s, want %s", path, got, want)
		}
	}
	if !v.Writes() || created(t, "/a=/x:rc", nil).Writes() {
		t.Error("Writes is wrong")
	}
}

func TestCode(t *testing.T) {
	for _, v := range []*Table{nil, created(t, "", nil), created(t, "/=/:ro /a=/x:rw /a-b=/y:ro /a/b=/q:none /proc=/proc:ro",
		nil)} {
		b, err := sigmap.Payload(func(c *sigmap.Coder) { Code(c, &v) })
		if err != nil {
			t.Fatal(err)
		}
		var got *Table
		if err := sigmap.Parse(b, func(c *sigmap.Coder) {
			Code(c, &got)
		}); err != nil || (got == nil) != (v == nil) || v != nil && text(got) != text(v) {
			t.Errorf("%v became %v, %v", v, got, err)
		}
	}
	for _, bad := range []string{"/sys=/a:ro", "/a=/sys/procs:rw", "/proc/x=/a:ro", "/proc=/a:ro",
		"/a=/x:ro /a=/y:ro"} {
		e := entries(t, bad)
		has := true
		b, _ := sigmap.Payload(func(c *sigmap.Coder) { c.Bool(&has); c.View(&e) })
		var got *Table
		if err := sigmap.Parse(b, func(c *sigmap.Coder) { Code(c, &got) }); err == nil {
			t.Errorf("%s is taken for a view", bad)
		}
	}
}
