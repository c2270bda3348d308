package archive

import (
	"bytes"
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/ux"
)

func files(t testing.TB) sigma.Namespace {
	t.Helper()
	tree, err := ux.New(ux.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	root, err := tree.Attach(t.Context(), sigma.Principal{Realm: "r"}, "")
	if err != nil {
		t.Fatal(err)
	}
	return resolve.New(resolve.Config{Root: root})
}

func all(t testing.TB, ns sigma.Namespace, kind string) (got []string, err error) {
	t.Helper()
	err = Read(t.Context(), ns, "/f", kind, func(record []byte) error {
		got = append(got, string(record))
		return nil
	})
	return got, err
}

// A file is there whole or not at all, and each bit of it is checked.
func TestArchive(t *testing.T) {
	ns := files(t)
	w, err := Create(t.Context(), ns, "/f", "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"a", "record", string(make([]byte, 3<<20))} {
		if err := w.Add([]byte(r)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := all(t, ns, "test"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("before Close: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := all(t, ns, "test"); err != nil || len(got) != 3 || got[1] != "record" || len(got[2]) != 3<<20 {
		t.Fatal(len(got), err)
	}
	if _, err := all(t, ns, "other"); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("another kind: %v", err)
	}
	if _, err := Create(t.Context(), ns, "/f", "test"); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("the name is taken: %v", err)
	}
	if w, err = Create(t.Context(), ns, "/g", "test"); err != nil {
		t.Fatal(err)
	}
	w.Discard()
	if _, err := ns.Stat(t.Context(), "/g"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("after Discard: %v", err)
	}
}

func TestDamage(t *testing.T) {
	ns := files(t)
	w, err := Create(t.Context(), ns, "/f", "test")
	if err != nil {
		t.Fatal(err)
	}
	w.Add([]byte("record"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	whole, _, err := ns.Get(t.Context(), "/f")
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, content []byte) {
		if _, err := ns.Put(t.Context(), "/f", content, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, err := all(t, ns, "test"); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: got %q and %v", what, got, err)
		}
	}
	for i := range whole {
		check(fmt.Sprint("cut at ", i), whole[:i])
		b := bytes.Clone(whole)
		b[i] ^= 0x10
		check(fmt.Sprint("a bit of ", i), b)
	}
	check("longer", append(bytes.Clone(whole), 0))
}

// No bytes make Read panic.
func FuzzRead(f *testing.F) {
	f.Add([]byte(magic + "\x04test\x01\x00\x00\x00x"))
	f.Fuzz(func(t *testing.T, content []byte) {
		ns := files(t)
		if _, err := ns.Put(t.Context(), "/f", content, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		all(t, ns, "test")
	})
}
