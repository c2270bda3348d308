package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/kernel/identity"
)

// Goal: a credential in a file that others can read is warned of; in one that only its user can, it
// is not.
func TestWarnOpen(t *testing.T) {
	for mode, warned := range map[os.FileMode]bool{0o644: true, 0o640: true, 0o604: true, 0o600: false, 0o400: false} {
		path := filepath.Join(t.TempDir(), "credential")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		(&cli.App{Err: &out}).WarnOpen(path, f)
		f.Close()
		if is := strings.Contains(out.String(), "chmod 600"); is != warned {
			t.Errorf("of mode %o: %q", mode, out.String())
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	var out bytes.Buffer
	if (&cli.App{Err: &out}).WarnOpen("pipe", w); out.Len() > 0 {
		t.Errorf("of a pipe: %q", out.String())
	}
}

// Goal: who shows a credential does not stop the system with it, also as root.
func TestDownWithCredential(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "credential")
	if err := os.WriteFile(file, []byte(identity.NewSecret("team-a", "ci").Text()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, f.sigma("--credential", file, "down"), 1, "", "is the provider's")
}

// Goal: revoke names all that went, goes on after a name that went with another or that there is
// not, and fails for the latter.
func TestCredentialRevoke(t *testing.T) {
	f := newFake(t)
	f.makers = map[string]string{"owner-1": "", "ci": "owner-1", "other": ""}
	want(t, f.sigma("realm", "credential", "revoke", "default", "nobody", "owner-1", "ci", "other"), 1,
		"owner-1\nci\nother\n", `no credential "nobody"`)
}
