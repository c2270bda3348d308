package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"sigmaos.dev/cmd/sigma/datadir"
)

// Goal: neither a tenant's modes nor links that another user of this host plants have get, cp or
// put leave the directory that was named. Method: a tree with modes 0777 is fetched; into
// directories with planted links; and stored from one.
func TestHostTreesStayWithin(t *testing.T) {
	f := newFake(t)
	f.ok("mkdir", "-p", "/t/sub/deep")
	for _, p := range []string{"/t/f", "/t/sub/f", "/t/sub/deep/f"} {
		f.with([]byte("theirs"), "put", "-", p)
	}
	f.ok("chmod", "-R", "777", "/t")
	dir, out := t.TempDir(), t.TempDir()
	secret := write(t, filepath.Join(out, "f"), []byte("ours"))
	perm := func(path string, want fs.FileMode) {
		t.Helper()
		if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %v", path, st.Mode(), err, want)
		}
	}
	to := filepath.Join(dir, "new")
	want(t, f.sigma("get", "-r", "/t", to), 0, "", "fetched 3 files")
	for _, p := range []string{"", "f", "sub", "sub/deep", "sub/deep/f"} {
		perm(filepath.Join(to, p), 0o755)
	}
	for i, link := range []string{"sub", "sub/deep"} {
		for _, verb := range []string{"get", "cp"} {
			to := filepath.Join(dir, verb, string(rune('a'+i)), "t")
			if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(to, link)), 0o755),
				os.Symlink(out, filepath.Join(to, link))); err != nil {
				t.Fatal(err)
			}
			args := []string{verb, "-r", "/t", to}
			if verb == "cp" {
				args[3] = "file:" + filepath.Dir(to)
			}
			want(t, f.sigma(args...), 1, "", "leads through a symbolic link on this machine, which is not followed")
			if list, err := os.ReadDir(out); err != nil || len(list) != 1 {
				t.Errorf("%s -r left %v outside, %v", verb, list, err)
			}
		}
	}
	planted := filepath.Join(dir, "planted")
	if err := errors.Join(os.MkdirAll(filepath.Join(planted, "sub"), 0o755),
		os.Symlink(secret, filepath.Join(planted, "sub", "f"))); err != nil {
		t.Fatal(err)
	}
	want(t, f.sigma("get", "-r", "/t", planted), 0, "", "fetched 3 files") // a file replaces the link
	if b, err := os.ReadFile(secret); err != nil || string(b) != "ours" {
		t.Errorf("outside is %q, %v", b, err)
	}

	failed := filepath.Join(dir, "failed") // nothing is opened to others before all is there
	if err := os.MkdirAll(filepath.Join(failed, "f"), 0o755); err != nil {
		t.Fatal(err)
	}
	want(t, f.sigma("get", "-r", "/t", failed), 1, "", "is a directory on this machine")
	perm(filepath.Join(failed, "sub"), 0o700)
	perm(filepath.Join(failed, "sub", "deep"), 0o700)

	if err := os.Symlink(out, filepath.Join(to, "link")); err != nil {
		t.Fatal(err)
	}
	want(t, f.sigma("put", "-r", to, "/back"), 0, "", "skipped 1 symbolic links")
	want(t, f.sigma("ls", "/back/link"), 1, "", "not found")
}

// Goal: files that sigma keeps for its user are not written through a link of a name that others
// can guess.
func TestCursorThroughNoLink(t *testing.T) {
	dir := t.TempDir()
	secret := write(t, filepath.Join(dir, "secret"), []byte("ours"))
	cursor := filepath.Join(dir, "cursor")
	for _, name := range []string{cursor, cursor + ".next"} {
		if err := os.Symlink(secret, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := datadir.Write(cursor, "\n", -1); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "ours" {
		t.Errorf("it was written through the link: %q, %v", b, err)
	}
	if st, err := os.Lstat(cursor); err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o600 {
		t.Errorf("the cursor is %v, %v", st, err)
	}
}
