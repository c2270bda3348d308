package traces

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Goal: a file that is written as a whole is the old one until it is complete, then the new one
// with the old one's mode, and the old one if it failed; a link stays one; nothing is left beside
// it.
func TestWhole(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "trace"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o640), os.Symlink("trace", link)); err != nil {
		t.Fatal(err)
	}
	is := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("it has %q, %v; want %q", b, err, want)
		}
	}
	for _, want := range []string{"old", "new"} {
		w, err := newWhole(link)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("new")); err != nil {
			t.Fatal(err)
		}
		is("old")
		if want == "new" {
			if err := w.end(); err != nil {
				t.Error(err)
			}
		}
		w.drop()
		is(want)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is none any more: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v, %v", st.Mode(), err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("left are %v, %v", list, err)
	}
	if _, err := newWhole(filepath.Join(dir, "none", "trace")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	if w, err := newWhole(os.DevNull); err != nil || w.end() != nil {
		t.Errorf("a device: %v", err)
	}
}
