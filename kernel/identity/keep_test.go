package identity

import (
	"os"
	"path/filepath"
	"testing"

	"sigmaos.dev/sigma"
)

// TestOpenAuthority: it is made once, found again, and neither made for a system that has one nor
// taken from a file that others can read.
func TestOpenAuthority(t *testing.T) {
	path := filepath.Join(t.TempDir(), "authority")
	if _, err := OpenAuthority(path, false, start); sigma.KindOf(err) != sigma.KindNotFound || sigma.HintOf(err) == "" {
		t.Errorf("of an old system without its file: %v", err)
	}
	a, err := OpenAuthority(path, true, start)
	if err != nil {
		t.Fatal(err)
	}
	for _, fresh := range []bool{true, false} {
		if b, err := OpenAuthority(path, fresh, start); err != nil || b.Fingerprint() != a.Fingerprint() {
			t.Errorf("again: %v", err)
		}
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(path, true, start); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("readable by others: %v", err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil || os.Chmod(path, 0o600) != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(path, true, start); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("garbage: %v", err)
	}
}
