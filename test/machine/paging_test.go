//go:build system

package machine

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// unseen is a large program whose bytes no machine has seen.
func unseen(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(program(t, "pages.c"))
	if err != nil {
		t.Fatal(err)
	}
	return append(b, rand.Text()...)
}

// Goal: a program whose bytes are not here is started all the same, goes on when the store dies
// under it, and is a plain file in the end. Whether some page is missing when the store dies is a
// matter of time; what the proc reads is not.
func TestColdStart(t *testing.T) {
	r := connect(t, defaultRealm)
	const path = "/bin/pages"
	if _, err := r.Put(r.ctx, path, unseen(t), sigma.PutOptions{Perm: 0o755}); err != nil {
		t.Fatal(err)
	}
	defer r.Remove(r.ctx, path)
	paged := r.metric("sigma_binfs_starts_paged_total")
	ids := r.spawn(sigma.Descriptor{Program: path, Args: []string{"wait"}}, sigma.Descriptor{Program: path,
		Args: []string{"wait"}})
	for _, id := range ids {
		r.wrote(id, "ready")
	}
	if _, err := os.Stat("/dev/fuse"); err == nil && os.Getenv("SIGMA_TEST_ROOTLESS") == "" &&
		r.metric("sigma_binfs_starts_paged_total") == paged {
		t.Error("nothing was paged")
	}
	r.s.Kill9(t, "s3d")
	for _, id := range ids {
		if err := r.Evict(r.ctx, id, testMax); err != nil {
			t.Fatal(err)
		}
		if st := r.wait(id); st.ExitCode != 3 || !strings.Contains(r.output(id), "read 7\n") {
			t.Errorf("it ended as %+v and wrote %q", st, r.output(id))
		}
	}
	testenv.Eventually(t, "a start by a plain file", func() error {
		plain := r.metric("sigma_binfs_starts_plain_total")
		if st := r.wait(r.spawn(sigma.Descriptor{Program: path})[0]); st.ExitCode != 3 {
			t.Fatalf("it ended as %+v", st)
		}
		if r.metric("sigma_binfs_starts_plain_total") == plain {
			return fmt.Errorf("it is paged")
		}
		return nil
	})
}

// A program that is replaced while a proc pages from it is the old one for that proc as long as its
// server lives, and the new one for the next.
func TestReplacedWhilePaging(t *testing.T) {
	r := connect(t, defaultRealm)
	const path = "/bin/changing-pages"
	if _, err := r.Put(r.ctx, path, unseen(t), sigma.PutOptions{Perm: 0o755}); err != nil {
		t.Fatal(err)
	}
	defer r.Remove(r.ctx, path)
	old := r.spawn(sigma.Descriptor{Program: path, Args: []string{"wait"}})[0]
	r.wrote(old, "ready")
	hello, err := os.ReadFile(program(t, "hello.c"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Put(r.ctx, path, hello, sigma.PutOptions{Perm: 0o755}); err != nil {
		t.Fatal(err)
	}
	next := r.spawn(sigma.Descriptor{Program: path})[0]
	if st := r.wait(next); !st.OK() || r.output(next) != "hello\n" {
		t.Errorf("the new one ended as %+v and wrote %q", st, r.output(next))
	}
	if err := r.Evict(r.ctx, old, testMax); err != nil {
		t.Fatal(err)
	}
	if st := r.wait(old); st.ExitCode != 3 || !strings.Contains(r.output(old), "read 7\n") {
		t.Errorf("the old one ended as %+v and wrote %q", st, r.output(old))
	}
}

// What the cache keeps over a restart is used without being fetched; a bit that changed on disk
// meanwhile is found, before it is executed.
func TestCacheAfterRestart(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	hello := program(t, "hello.c")
	s.Must(t, "run", hello)
	s.Down(t)
	s.Up(t)
	s.Must(t, "run", hello)
	fetched := s.Must(t, "cat", "/sys/metrics")
	if !strings.Contains(fetched, "sigma_binfs_fetched_bytes_total 0\n") ||
		!strings.Contains(fetched, "sigma_binfs_corrupt_stored_chunks_total 0\n") {
		t.Errorf("after a restart:\n%s", fetched)
	}
	s.Down(t)
	size, err := os.Stat(hello)
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	contents, _ := filepath.Glob(filepath.Join(s.DataDir, "sigmad", "bin", "contents", "*"))
	for _, path := range contents {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(b)) == size.Size() {
			b[len(b)/2] ^= 1
			damaged++
		}
		if err := os.WriteFile(path, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if damaged != 1 {
		t.Fatalf("%d files of the cache are the program, of %q", damaged, contents)
	}
	s.Up(t)
	if out := s.Must(t, "run", hello); out != "hello\n" {
		t.Errorf("run: %q", out)
	}
	if text := s.Must(t, "cat", "/sys/metrics"); !strings.Contains(text,
		"sigma_binfs_corrupt_stored_chunks_total 1\n") {
		t.Errorf("after damage:\n%s", text)
	}
}
