//go:build system

package machine

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// doctorSays checks what sigma doctor says of a realm's store, and that it fails unless the store
// answers.
func doctorSays(t *testing.T, s *testenv.System, realm, says string) {
	t.Helper()
	out, _, code := s.CLI(t, "doctor")
	if down := says != "answers"; down && code != 1 {
		t.Errorf("sigma doctor ends with %d while a store is down", code)
	}
	for l := range strings.Lines(out) {
		if strings.Contains(l, "object store") && strings.Contains(l, realm) && strings.Contains(l, says) {
			return
		}
	}
	t.Errorf("sigma doctor does not say %q of the store:\n%s", says, out)
}

// Goal: a realm's objects can be in a store of S3's kind, its programs too; nobody is told the
// keys, another realm has none of it, and a store that is down is its realm's trouble alone.
func TestObjectStore(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	srv := s3server.Start(t)
	const realm = "with-store"
	in := func(args ...string) string {
		t.Helper()
		return s.Must(t, append([]string{"--realm", realm}, args...)...)
	}
	fails := func(says string, args ...string) {
		t.Helper()
		_, stderr, code := s.CLI(t, append([]string{"--realm", realm}, args...)...)
		if code == 0 || !strings.Contains(stderr, says) || strings.Contains(stderr, s3server.SecretKey) {
			t.Errorf("sigma %q: exit code %d: %s", args, code, stderr)
		}
	}
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(name, mode)
	}
	text :=
		fmt.Sprintf(
			"# of the tests\n[other]\naws_access_key_id = "+
				"x\n\n[default]\naws_access_key_id=%s\naws_secret_access_key = %s\n", s3server.AccessKey,
			s3server.SecretKey)
	write(keys, text, 0o644)
	s.Must(t, "realm", "create", realm)
	defer s.CLI(t, "realm", "rm", realm)

	fails("others may read the keys", "s3", "store", "set", "--credentials", keys, srv.URL())
	os.Chmod(keys, 0o600)
	fails("no aws_access_key_id and aws_secret_access_key in the section [other]", "s3", "store", "set",
		"--credentials", keys, "--profile", "other", srv.URL())
	fails("does not exist", "s3", "store", "set", "--credentials", keys, "http://"+srv.Address+"/none")
	in("s3", "store", "set", "--credentials", keys, srv.URL()+"/of/it")
	if got := in("s3", "store", "ls", "--check"); !strings.Contains(got, realm) || !strings.Contains(got, "ok") ||
		strings.Contains(got, s3server.SecretKey) {
		t.Errorf("the stores:\n%s", got)
	}

	write(filepath.Join(dir, "a.txt"), "one fish", 0o600)
	in("s3", "bucket", "create", "photos")
	in("s3", "cp", filepath.Join(dir, "a.txt"), "s3://photos/")
	if got := srv.Object(t, "of/it/photos/a.txt"); got != "one fish" {
		t.Errorf("the store has %q", got)
	}
	if got := in("s3", "cp", "s3://photos/*.txt", "-"); got != "one fish" {
		t.Errorf("it comes back as %q", got)
	}
	if got := in("s3", "ls", "s3://photos"); got != "a.txt\n" {
		t.Errorf("the bucket has %q", got)
	}
	c := s.Connect(ctx, t, realm)
	path := s.Install(ctx, t, c, program(t, "hello.c"))
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: path})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitExit(ctx, ids[0]); err != nil || st.Code != sigma.StatusOK {
		t.Errorf("a program out of the store: %+v, %v", st, err)
	}
	if _, _, code := s.CLI(t, "cat", "/s3/photos/a.txt"); code == 0 {
		t.Error("another realm reads the object")
	}

	s.Kill9(t, "s3d")
	if got := in("cat", "/s3/photos/a.txt"); got != "one fish" {
		t.Errorf("after s3d was killed: %q", got)
	}
	whereSecret(t, s.DataDir)

	doctor := func(says string) { t.Helper(); doctorSays(t, s, realm, says) }
	doctor("answers")
	srv.Freeze()
	if got := in("s3", "store", "ls", "--check"); !strings.Contains(got, "did not answer") {
		t.Errorf("of a store that hangs:\n%s", got)
	}
	doctor("did not answer")
	srv.Thaw()
	srv.Stop()
	doctor("cannot be reached")
	if got := in("s3", "store", "ls", "--check", "--json"); !strings.Contains(got, "cannot be reached") ||
		strings.Contains(got, s3server.AccessKey) {
		t.Errorf("of a store that is gone:\n%s", got)
	}
	if out := s.Must(t, "s3", "bucket", "ls"); !strings.Contains(out, "bin") {
		t.Errorf("the default realm has the buckets %q", out)
	}
	in("s3", "store", "rm") // so that the realm can be removed
	if got := in("s3", "bucket", "ls"); strings.Contains(got, "photos") {
		t.Errorf("back on the local disk there is %q", got)
	}
}

// Goal: a system whose objects are all in a store comes up while that is away, and uses it again
// when it is back.
func TestStoreAwayAtStart(t *testing.T) {
	s := testenv.New(t, testenv.Options{})
	s.Up(t)
	srv := s3server.Start(t)
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, fmt.Appendf(nil, "aws_access_key_id=%s\naws_secret_access_key=%s\n",
		s3server.AccessKey, s3server.SecretKey), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Must(t, "s3", "store", "set", "--all", "--credentials", keys, srv.URL())
	s.Must(t, "s3", "bucket", "create", "in")
	if srv.Object(t, "default/in/") != "" || !strings.Contains(s.Must(t, "s3", "bucket", "ls"), "bin\nin\n") {
		t.Error("the buckets are not in the store")
	}
	srv.Freeze()
	s.Down(t)
	s.Up(t)
	if out := s.Must(t, "ls", "/"); !strings.Contains(out, "s3") {
		t.Errorf("the realm has %q", out)
	}
	srv.Thaw()
	if out := s.Must(t, "s3", "bucket", "ls"); out != "bin\nin\n" {
		t.Errorf("the store is back, and its buckets are %q", out)
	}
}

// whereSecret looks for the store's key in all that others might see: command lines, environments,
// and every file of the system but s3d's own.
func whereSecret(t *testing.T, data string) {
	t.Helper()
	secret := []byte(s3server.SecretKey)
	own := 0
	filepath.WalkDir(data, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(text, secret) {
			return nil
		}
		st, err := e.Info()
		if strings.Contains(name, "/s3d/elsewhere/stores/") && err == nil && st.Mode().Perm() == 0o600 {
			own++
			return nil
		}
		t.Errorf("the key is in %s", name)
		return nil
	})
	if own != 1 {
		t.Errorf("the key is in %d files of s3d", own)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		for _, f := range []string{"cmdline", "environ"} {
			if text, _ := os.ReadFile(filepath.Join(p, f)); bytes.Contains(text, secret) {
				t.Errorf("the key is in %s of %s", f, p)
			}
		}
	}
}
