package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// Goal: a file is replaced as a whole, readable for its owner alone, and nothing is left beside it,
// also on an error.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"first", ""} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q is read, %v", got, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := Write(filepath.Join(dir, "no", "f"), nil); err == nil {
		t.Error("a file in no directory was written")
	}
	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "child"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(taken, []byte("x")); err == nil {
		t.Error("a directory was replaced by a file")
	}
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != 2 {
		t.Errorf("%v are there, %v", all, err)
	}
}
