package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// endless is a name space of directories that have two of themselves in them.
type endless struct {
	sigma.Namespace
	asked int
	name  string
}

func (e *endless) Stat(context.Context, string) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir}, Perm: 0o777}, nil
}

func (e *endless) Lstat(ctx context.Context, p string) (sigma.Stat, error) { return e.Stat(ctx, p) }

func (e *endless) ReadDir(context.Context, string) ([]sigma.DirEntry, error) {
	e.asked++
	return []sigma.DirEntry{{Name: e.name, ID: sigma.FileID{Kind: sigma.KindDir}},
		{Name: "b", ID: sigma.FileID{Kind: sigma.KindDir}}}, nil
}

// Goal: what a command remembers of a tree is bounded, and no name of a listing leads elsewhere.
func TestListings(t *testing.T) {
	ctx := t.Context()
	wide := &Realm{Namespace: &endless{name: "a"},
		seen: seenMax - 200} // what is not deep is bounded by what it costs to remember
	if _, err := wide.List(ctx, "/t"); err != nil {
		t.Error(err)
	}
	if _, err := wide.List(ctx, "/t"); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("too much: %v", err)
	}
	if _, err := OfRealm(&endless{name: "../../etc"}).List(ctx, "/t"); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a name that leads elsewhere: %v", err)
	}
}

// Goal: what is removed during a copy is left out, and a name that the target cannot have stops it
// before anything is made.
func TestCopyOfWhatChanges(t *testing.T) {
	ctx := t.Context()
	from, to := t.TempDir(), t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(from, "a", "b"), 0o750), os.WriteFile(filepath.Join(from, "a", "f"),
		[]byte("f"), 0o640), os.Symlink("f", filepath.Join(from, "l"))); err != nil {
		t.Fatal(err)
	}
	source, err := OpenHost(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	target, err := OpenHost(to)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	tree := &vanishing{Tree: source, name: "a/b", remove: func() { os.Remove(filepath.Join(from, "a", "b")) }}
	c := &Copy{To: target}
	dir := sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir}, Perm: 0o755}
	if err := c.Add(ctx, tree, "", dir, "x"); err != nil {
		t.Fatal(err)
	}
	if err := c.Run(ctx, nobody{}); err != nil {
		t.Fatal(err)
	}
	if n, bytes := c.Done(); n != 1 || bytes != 1 || c.Skipped != 1 {
		t.Errorf("copied %d files, %d bytes, skipped %d", n, bytes, c.Skipped)
	}
	if st, err := os.Stat(filepath.Join(to, "x", "a")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("the directory is %v, %v", st, err)
	}
	if _, err := os.Stat(filepath.Join(to, "x", "a", "b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was removed is there: %v", err)
	}
	if err := new(Copy).Add(ctx, source, "", dir, strings.Repeat("n", 256)); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a name that is too long: %v", err)
	}
}

// vanishing is a tree in which a directory is removed after it was listed by the one that has it.
type vanishing struct {
	Tree
	name   string
	remove func()
}

func (v *vanishing) List(ctx context.Context, dir string) ([]sigma.DirEntry, error) {
	if dir == v.name {
		v.remove()
	}
	return v.Tree.List(ctx, dir)
}
