package sigma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestKinds: every kind has words and an errno that means it.
func TestKinds(t *testing.T) {
	if len(kindNames) != int(kindEnd) {
		t.Fatalf("%d kinds have %d names", kindEnd, len(kindNames))
	}
	for k := range kindEnd {
		if got := KindOf(k.Errno()); got != k {
			t.Errorf("%v travels to plain clients as %v, which is %v", k, k.Errno(), got)
		}
	}
	if s := Kind(999).String(); s != "kind 999" {
		t.Errorf("a kind of a later version prints %q", s)
	}
}

// TestErrors: kind, hint and words survive wrapping.
func TestErrors(t *testing.T) {
	e := &Error{Op: "a.B", Path: "/p", Kind: KindBusy, Msg: "words", Hint: "hint"}
	for name, err := range map[string]error{"wrapped": Wrap("c.D", "/q", e),
		"with words": Wrap("c.D", "", fmt.Errorf("around: %w", e)), "twice": Wrap("x", "", Wrap("y", "", e))} {
		if KindOf(err) != KindBusy || HintOf(err) != "hint" || !strings.Contains(err.Error(), "words") ||
			!strings.Contains(err.Error(), "/p") {
			t.Errorf("%s: got %v, kind %v, hint %q", name, err, KindOf(err), HintOf(err))
		}
	}
	if err := Wrap("c.D", "", fmt.Errorf("around: %w", e)); !strings.Contains(err.Error(), "around") {
		t.Errorf("words around an error are lost: %v", err)
	}
	if Wrap("x", "", nil) != nil {
		t.Error("no error was wrapped into one")
	}
	for _, c := range []struct {
		err  error
		kind Kind
		is   error
	}{
		{context.DeadlineExceeded, KindTimeout, os.ErrDeadlineExceeded}, {context.Canceled, KindCanceled,
			context.Canceled}, {os.ErrNotExist, KindOther, os.ErrNotExist},
		{&os.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, KindNotFound, os.ErrNotExist},
		{syscall.EPERM, KindPermission, os.ErrPermission},
		{syscall.EEXIST, KindExists, os.ErrExist},
	} {
		err := Wrap("x.Y", "", c.err)
		if KindOf(err) != c.kind || !errors.Is(err, c.is) {
			t.Errorf("%v: got %v, is %v: %t", c.err, KindOf(err), c.is, errors.Is(err, c.is))
		}
	}
}

// TestParsePath: what is a path and what is not, and that the error says why.
func TestParsePath(t *testing.T) {
	for path, want := range map[string]string{"/": "", "/a": "a", "/a/": "a", "/a/b c": "a|b c", "/\xff": "\xff",
		"/...": "..."} {
		if got, err := ParsePath(path); err != nil || strings.Join(got, "|") != want {
			t.Errorf("%q: got %q, %v", path, got, err)
		}
	}
	for path, want := range map[string]string{"": "empty", "a": "start with /", "//": "empty component",
		"/a//b": "empty component", "/a/..": `".."`, "/./a": `"."`, "/a\x00": "NUL",
		"/" + strings.Repeat("x", 256): "255", strings.Repeat("/x", 5<<20): "4096"} {
		_, err := ParsePath(path)
		if KindOf(err) != KindInvalid || !strings.Contains(err.Error(), want) || len(err.Error()) > 400 {
			t.Errorf("%.20q: got %.400v, want %q in it", path, err, want)
		}
	}
}

// TestParseEndpoint refuses what String does not print.
func TestParseEndpoint(t *testing.T) {
	const good = "sigma-endpoint/1 tenant m1 abcdefghijklmnop AAECAwQFBgcICQoLDA0ODw tree"
	e, err := ParseEndpoint(good)
	if err != nil || e.String() != good || e.Form != FormTree {
		t.Errorf("got %+v, %v", e, err)
	}
	for _, bad := range []string{"", good + " x", good + "\n", strings.ToUpper(good), "sigma-endpoint/2" + good[16:],
		strings.Replace(good, "tree", "file", 1), strings.Replace(good, "tenant", "", 1),
		strings.Replace(good, "abcd", "ab d", 1), strings.Replace(good, "abcd", "ab\nd", 1),
		strings.Replace(good, "DA0", "DA\n", 1), strings.Replace(good, "ODw", "ODx", 1),
		strings.Replace(good, "AAEC", "", 1), good[:20], strings.Repeat(good, 100)} {
		if e, err := ParseEndpoint(bad); KindOf(err) != KindInvalid {
			t.Errorf("%.80q: got %+v, %v", bad, e, err)
		}
	}
}

// FuzzParsePath: a path that is accepted is the join of its components, each of which is a name.
func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"/", "/a/b", "/a//b", "/../x", "", "a", "/a/", "/\x00", "/~local/~any"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		names, err := ParsePath(path)
		if err != nil {
			if KindOf(err) != KindInvalid || len(err.Error()) > 1000 {
				t.Errorf("%v: %.1000v", KindOf(err), err)
			}
			return
		}
		for _, n := range names {
			if err := CheckName(n); err != nil {
				t.Errorf("%q: %v", n, err)
			}
		}
		if j := JoinPath(names...); j != path && j+"/" != path {
			t.Errorf("%q became %q", path, j)
		}
	})
}

// FuzzParseEndpoint: a text that is accepted is what its endpoint prints.
func FuzzParseEndpoint(f *testing.F) {
	f.Add("sigma-endpoint/1 tenant m1 abcdefghijklmnop AAECAwQFBgcICQoLDA0ODw tree")
	f.Add("sigma-endpoint/1 a b  AAECAwQFBgcICQoLDA0ODw stream")
	f.Fuzz(func(t *testing.T, text string) {
		if e, err := ParseEndpoint(text); err == nil && e.String() != text {
			t.Errorf("%q became %q", text, e)
		}
	})
}

// FuzzParseRights: what is accepted is what it prints, and good.
func FuzzParseRights(f *testing.F) {
	for _, s := range []string{"ro", "rw", "rc", "none", "wo", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := ParseRights(text); err == nil && (r.String() != text || r.Check() != nil) {
			t.Errorf("%q became %v", text, r)
		}
	})
}

// FuzzParseBytes: an amount is never negative or out of range, and what it prints is accepted.
func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"64", "64k", "1.5GiB", "-1", "NaN", "1e30", "infg", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b, err := ParseBytes(text)
		if err != nil {
			return
		}
		if _, err := ParseBytes(b.String()); b > 1<<60 || err != nil {
			t.Errorf("%q is %d, printed %s, %v", text, uint64(b), b, err)
		}
	})
}

// Goal: nobody but the provider gets another realm by naming it.
func TestRealmNamed(t *testing.T) {
	tenant, provider := Principal{Realm: "own", Proc: "p1"}, Principal{Realm: SystemRealm, System: true}
	for _, c := range []struct {
		by   Principal
		name string
		want RealmID
		kind Kind // of the error, where want is ""
	}{
		{tenant, "", "own", 0},
		{tenant, "own", "own", 0},
		{tenant, "other", "", KindPermission},
		{tenant, string(SystemRealm), "", KindPermission},
		{tenant, "../x", "", KindPermission},
		{Principal{}, "", "", KindInvalid},
		{Principal{}, "other", "", KindPermission},
		{provider, "", SystemRealm, 0},
		{provider, "own", "own", 0},
		{provider, "other", "other", 0},
		{provider, "../x", "", KindInvalid},
		{Principal{System: true}, "", "", KindInvalid},
	} {
		got, err := c.by.RealmNamed("test", c.name)
		if c.want != "" && (got != c.want || err != nil) || c.want == "" && (KindOf(err) != c.kind || err == nil) {
			t.Errorf("%+v names %q: %q, %v", c.by, c.name, got, err)
		}
	}
}
