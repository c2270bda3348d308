package health

import (
	"os"
	"path/filepath"
	"testing"

	"sigmaos.dev/cmd/sigma/datadir"
)

// Goal: doctor names the outermost directory that keeps other users from the realm socket.
func TestClosedTo(t *testing.T) {
	top := t.TempDir()
	inner := filepath.Join(top, "a", "b")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(inner, datadir.RealmSocket)
	if above := closedTo(filepath.Join(top, "x")); above != "" {
		t.Skipf("%s is closed to others itself", above)
	}
	if got := closedTo(path); got != "" {
		t.Errorf("%s is closed", got)
	}
	for _, dir := range []string{inner, filepath.Dir(inner)} {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if got := closedTo(path); got != dir {
			t.Errorf("%q is closed, and not %s", got, dir)
		}
	}
}
