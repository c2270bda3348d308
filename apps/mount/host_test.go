package mount

import (
	"os"
	"path/filepath"
	"testing"

	"sigmaos.dev/sigma"
)

// The kernel would open for writing what a server could only read, so nothing that it may have
// opened by itself becomes a backing file.
func TestBackRefusesWhatOthersMayOpen(t *testing.T) {
	device := &Device{os.Stdin} // is not asked
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	for _, perm := range []os.FileMode{0o644, 0o604, 0o640, 0o601} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, perm); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := device.Back(f); sigma.KindOf(err) != sigma.KindPermission || err == nil {
			t.Errorf("%v: %v", perm, err)
		}
		f.Close()
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := device.Back(d); sigma.KindOf(err) != sigma.KindPermission || err == nil {
		t.Errorf("a directory: %v", err)
	}
}
