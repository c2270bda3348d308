package hostdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// world is a directory to work in, with a directory outside that nothing may change.
func world(t *testing.T) (d *Dir, in, out string) {
	t.Helper()
	in, out = t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Open(in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, in, out
}

// Goal: no operation goes through a link, whether it leads outside or not, nor out of the directory
// by its name.
func TestNothingLeadsOut(t *testing.T) {
	d, in, out := world(t)
	must(t, os.Symlink(out, filepath.Join(in, "link")), os.Mkdir(filepath.Join(in, "real"), 0o755),
		os.WriteFile(filepath.Join(in, "real", "f"), nil, 0o644),
		os.Symlink("real", filepath.Join(in, "near")), os.Symlink(filepath.Join(out, "secret"),
			filepath.Join(in, "real", "planted")))
	for _, base := range []string{"link/", "near/", "../" + filepath.Base(out) + "/", out + "/",
		"/proc/self/root" + out + "/"} {
		create := func(name string) error {
			f, err := d.Create(name, 0o600)
			if err == nil {
				f.Drop()
			}
			return err
		}
		_, open := d.OpenFile(base + "secret")
		_, mkdir := d.Mkdir(base + "new")
		_, stat := d.Stat(base + "secret")
		_, dir := d.Dir(base)
		for what, err := range map[string]error{"Open": open, "Mkdir": mkdir, "Stat": stat, "Dir": dir,
			"Create": create(base + "new")} {
			if !errors.Is(err, syscall.ELOOP) && !errors.Is(err, syscall.EXDEV) {
				t.Errorf("%s below %s: %v", what, base, err)
			}
		}
	}
	if _, err := d.OpenFile("real/planted"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link in the place of a file: %v", err)
	}
	if _, err := d.Mkdir("near"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link in the place of a directory: %v", err)
	}
	f, err := d.Create("real/planted", 0o600)
	must(t, err)
	defer f.Drop()
	_, err = f.WriteString("new")
	must(t, err, f.Commit())
	if b, err := os.ReadFile(filepath.Join(out, "secret")); err != nil || string(b) != "secret" {
		t.Errorf("outside is %q, %v", b, err)
	}
	if list, err := os.ReadDir(out); err != nil || len(list) != 1 {
		t.Errorf("outside are %v, %v", list, err)
	}
	if st, err := os.Lstat(filepath.Join(in, "real", "planted")); err != nil || !st.Mode().IsRegular() {
		t.Errorf("the link was not replaced: %v, %v", st, err)
	}
}

// Goal: what is put in the place of a directory while it is filled gets neither a mode nor, once it
// is a link, a file. Method: somebody who may write in the directory above changes it between the
// steps.
func TestReplacedMeanwhile(t *testing.T) {
	d, in, out := world(t)
	created, err := d.Mkdir("tree")
	must(t, err)
	tree := filepath.Join(in, "tree")
	if st, err := os.Stat(tree); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("a directory begins as %v, %v", st.Mode(), err)
	}
	f, err := d.Create("tree/f", 0o600)
	must(t, err)
	defer f.Drop()
	must(t, os.Rename(tree, tree+"2"), os.Symlink(out, tree))
	if _, err := d.Create("tree/g", 0o600); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a file below a link: %v", err)
	}
	must(t, f.Commit()) // in the directory that it was begun in
	if err := d.Finish("tree", created, 0o755); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a mode for a link: %v", err)
	}
	must(t, os.Remove(tree), os.Mkdir(tree, 0o700))
	if err := d.Finish("tree", created, 0o755); err == nil {
		t.Error("another directory got the mode")
	}
	must(t, os.Remove(tree), os.Rename(tree+"2", tree), d.Finish("tree", created, 0o750))
	if st, err := os.Stat(tree); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("it ends as %v, %v", st.Mode(), err)
	}
	if list, _ := os.ReadDir(tree); len(list) != 1 || list[0].Name() != "f" {
		t.Errorf("it has %v", list)
	}
	if again, err := d.Mkdir("tree"); err != nil || again != nil {
		t.Errorf("a directory that is there: %v, %v", again, err)
	}
}

// Goal: a walk tells of links, pipes and devices as what they are and goes through none; nothing
// but regular files is opened, and nobody is waited for.
func TestWalk(t *testing.T) {
	d, in, out := world(t)
	must(t, os.MkdirAll(filepath.Join(in, "b", "c"), 0o755), os.WriteFile(filepath.Join(in, "b", "f"), []byte("f"),
		0o644), os.Symlink(out, filepath.Join(in, "a")), syscall.Mkfifo(filepath.Join(in, "b", "p"), 0o600))
	var got []string
	must(t, d.Walk(".", func(name string, st fs.FileInfo) error {
		got = append(got, name+" "+st.Mode().Type().String())
		return nil
	}))
	if want := []string{". d---------", "a L---------", "b d---------", "b/c d---------", "b/f ----------",
		"b/p p---------"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := d.OpenFile("b/p"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := d.OpenFile("b"); err == nil {
		t.Error("a directory was opened as a file")
	}
	if err := d.Walk("none", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Goal: what was put back as another user is handed over with all below it, also deep down, and
// links lead nowhere; below what is right already as many levels are looked at as were asked for.
func TestOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	d, in, out := world(t)
	const id = 12345
	for _, dir := range []string{"back/a/b/c", "right/realm/x"} {
		must(t, os.MkdirAll(filepath.Join(in, dir), 0o755), os.WriteFile(filepath.Join(in, dir, "f"), nil, 0o600))
	}
	secret := filepath.Join(out, "secret")
	must(t, os.Symlink(secret, filepath.Join(in, "back", "link")), os.Symlink(out, filepath.Join(in, "right", "link")),
		os.Lchown(filepath.Join(in, "right"), id, id), os.Lchown(filepath.Join(in, "right", "realm"), id, id),
		d.Own(id, 2))
	owner := func(path string) uint32 {
		st, err := os.Lstat(path)
		must(t, err)
		return st.Sys().(*syscall.Stat_t).Uid
	}
	for path, want := range map[string]uint32{"back": id, "back/a/b/c/f": id, "back/link": id, "right/link": id,
		"right/realm/x": 0} {
		if got := owner(filepath.Join(in, path)); got != want {
			t.Errorf("%s belongs to %d, not %d", path, got, want)
		}
	}
	if owner(out) != 0 || owner(secret) != 0 {
		t.Error("what a link leads to was handed over")
	}
	must(t, d.Own(id, 3))
}
