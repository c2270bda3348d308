//go:build system

package machine

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: each file verb works in each part of the tree.
func TestFileVerbs(t *testing.T) {
	s := shared.Get(t)
	local := t.TempDir()
	s.Must(t, "mkdir", "/s3/bucket1")
	defer s.Must(t, "rm", "-r", "/s3/bucket1")
	big := bytes.Repeat([]byte("all work and no play "), 50_000) // more than a message
	if err := os.MkdirAll(filepath.Join(local, "tree/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"tree/small": []byte("words\n"), "tree/sub/big": big, "tree/empty": nil} {
		if err := os.WriteFile(filepath.Join(local, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []string{"/verbs", "/s3/bucket1/verbs", "/ux/~local/verbs", "/ux/m1/verbs2"} {
		t.Run(strings.ReplaceAll(at[1:], "/", "_"), func(t *testing.T) {
			sources := filepath.Join(local, "tree")
			if at == "/verbs" { // names are for small files
				os.Rename(filepath.Join(sources, "sub/big"), filepath.Join(local, "big"))
				defer os.Rename(filepath.Join(local, "big"), filepath.Join(sources, "sub/big"))
			}
			s.Must(t, "put", "-r", sources, at)
			if got := s.Must(t, "cat", at+"/small"); got != "words\n" {
				t.Errorf("cat: %q", got)
			}
			if got := s.Must(t, "ls", at); got != "empty\nsmall\nsub\n" && got != "empty\nsmall\nsub/\n" {
				t.Errorf("ls: %q", got)
			}
			s.Must(t, "mkdir", at+"/made")
			s.Must(t, "mv", at+"/small", at+"/made/moved")
			if _, stderr, code := s.CLI(t, "stat", at+"/small"); code != 1 || !strings.Contains(stderr, "not found") {
				t.Errorf("stat of what was moved: %d %q", code, stderr)
			}
			if got := s.Must(t, "stat", at+"/made/moved"); !strings.Contains(got, "6") {
				t.Errorf("stat: %q", got)
			}
			back := filepath.Join(t.TempDir(), "back")
			s.Must(t, "get", "-r", at, back)
			if at != "/verbs" {
				if got, err := os.ReadFile(filepath.Join(back, "sub/big")); err != nil || !bytes.Equal(got, big) {
					t.Errorf("get: %d bytes, %v", len(got), err)
				}
			}
			if _, _, code := s.CLI(t, "rm", at); code == 0 {
				t.Error("rm without -r removed a directory with files")
			}
			s.Must(t, "rm", "-r", at)
			if _, _, code := s.CLI(t, "ls", at); code == 0 {
				t.Error("ls after rm -r succeeded")
			}
		})
	}
}

func TestLinks(t *testing.T) {
	r := connect(t, defaultRealm)
	s := r.s
	s.Must(t, "mkdir", "/links")
	defer s.Must(t, "rm", "-r", "/links")
	s.Must(t, "mkdir", "/s3/linked")
	defer s.Must(t, "rm", "-r", "/s3/linked")
	s.Must(t, "ln", "-s", "/s3/linked", "/links/data")
	if _, err := r.Put(r.ctx, "/links/data/f", []byte("through"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.Must(t, "cat", "/s3/linked/f"); got != "through" {
		t.Errorf("got %q", got)
	}
	s.Must(t, "ln", "-s", "/links/b", "/links/a")
	s.Must(t, "ln", "-s", "/links/a", "/links/b")
	_, _, err := r.Get(r.ctx, "/links/a")
	kindIs(t, "two links in a circle", err, sigma.KindLoop)
	if _, err := r.Put(r.ctx, "/ux/~local/here", nil, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	defer r.Remove(r.ctx, "/ux/m1/here")
	if p, err := r.AbsPath(r.ctx, "/ux/~local/here"); err != nil || p != "/ux/m1/here" {
		t.Errorf("AbsPath: %q, %v", p, err)
	}
}

// The same from inside a proc, in each part of the tree.
func TestNamesOfProcs(t *testing.T) {
	r := connect(t, defaultRealm)
	for _, dir := range []string{"/procnames", "/s3/procnames", "/ux/~local/procnames"} {
		if st, out := r.run("goprobe", "names", dir); !st.OK() || out != "names work\n" {
			t.Errorf("%s: %+v %s", dir, st, out)
		}
	}
}

// A file under a lease lives as long as the proc that made it (000 §3.4), and a watcher hears of
// it.
func TestEphemeral(t *testing.T) {
	r := connect(t, defaultRealm)
	for _, how := range []string{"evict", "kill"} {
		d := r.descriptor("goprobe", "ephemeral", "/ephemeral-"+how, "1m")
		d.Start = sigma.StartedByCall
		id := r.spawn(d)[0]
		r.started(id)
		st, err := r.Stat(r.ctx, "/ephemeral-"+how)
		if err != nil || !st.Ephemeral {
			t.Fatalf("got %+v, %v, want an ephemeral file", st, err)
		}
		gone := make(chan error, 1)
		go func() {
			v := st.ID.Version
			for {
				next, err := r.Watch(r.ctx, "/ephemeral-"+how, v)
				if err != nil {
					gone <- err
					return
				}
				v = next
			}
		}()
		if how == "kill" {
			r.Kill(r.ctx, id)
		} else {
			r.Evict(r.ctx, id, 0)
		}
		kindIs(t, "watch of a file that vanished", <-gone, sigma.KindNotFound)
	}
}

// A watcher sees every change of a file, and no version twice.
func TestWatch(t *testing.T) {
	r := connect(t, defaultRealm)
	for _, path := range []string{"/watched", "/s3/watched-bucket/f", "/ux/~local/watched"} {
		if strings.HasPrefix(path, "/s3") {
			if err := r.MkdirAll(r.ctx, "/s3/watched-bucket", 0o755); err != nil {
				t.Fatal(err)
			}
		}
		id, err := r.Put(r.ctx, path, []byte("0"), sigma.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		writing := make(chan error, 1)
		go func() {
			var err error
			for i := 1; i <= 20 && err == nil; i++ {
				_, err = r.Put(r.ctx, path, fmt.Append(nil, i), sigma.PutOptions{})
			}
			writing <- err
		}()
		last, content := id.Version, ""
		for content != "20" {
			v, err := r.Watch(r.ctx, path, last)
			if err != nil || v <= last {
				t.Fatalf("%s: watch since %d: %d, %v", path, last, v, err)
			}
			b, at, err := r.Get(r.ctx, path)
			if err != nil {
				t.Fatal(err)
			}
			last, content = max(v, at.Version), string(b)
		}
		if err := <-writing; err != nil {
			t.Fatal(err)
		}
		r.Remove(r.ctx, path)
	}
	waiting, cancel := context.WithCancel(r.ctx)
	answer := make(chan error, 1)
	go func() { answer <- r.WaitFor(waiting, "/not/there/yet") }()
	if err := r.MkdirAll(r.ctx, "/not/there", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Put(r.ctx, "/not/there/yet", nil, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Error(err)
	}
	go func() { answer <- r.WaitFor(waiting, "/never") }()
	cancel()
	kindIs(t, "a wait that was given up", <-answer, sigma.KindCanceled)
	r.RemoveAll(r.ctx, "/not")
}

// Realms see nothing of each other, and one that is removed leaves nothing on the disk.
func TestRealms(t *testing.T) {
	shared.Get(t)
	a, b := newRealm(t, "realm-a"), newRealm(t, "realm-b")
	secret := "the-secret-of-realm-a"
	for _, r := range []*realm{a, b} {
		for _, path := range []string{"/file", "/s3/bucket/file", "/ux/~local/file"} {
			if strings.HasPrefix(path, "/s3") {
				if err := r.MkdirAll(r.ctx, "/s3/bucket", 0o755); err != nil {
					t.Fatal(err)
				}
			}
			text := secret
			if r == b {
				text = "of b"
			}
			if _, err := r.Put(r.ctx, path, []byte(text), sigma.PutOptions{}); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
	}
	only := "/only-in-a"
	if _, err := a.Put(a.ctx, only, nil, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := b.Stat(b.ctx, only)
	kindIs(t, "another realm's file", err, sigma.KindNotFound)
	if text, _, err := b.Get(b.ctx, "/file"); err != nil || string(text) != "of b" {
		t.Errorf("b's own file: %q, %v", text, err)
	}
	id := a.spawn(a.descriptor("probe.c", "ignore"))[0]
	a.wrote(id, "ready")
	_, err = b.WaitExit(b.ctx, id)
	kindIs(t, "waiting for another realm's proc", err, sigma.KindNotFound)
	kindIs(t, "killing another realm's proc", b.Kill(b.ctx, id), sigma.KindNotFound)
	_, err = b.Stat(b.ctx, "/proc/"+string(id))
	kindIs(t, "another realm's /proc", err, sigma.KindNotFound)
	if list, err := b.List(b.ctx, true); err != nil || len(list) != 0 {
		t.Errorf("b lists %v, %v", list, err)
	}

	if n := filesWith(t, a.s, "realm-a"); n == 0 {
		t.Fatal("the count of a realm's files on the disk finds none while it exists")
	}
	if _, stderr, code := a.s.CLI(t, "realm", "rm", "realm-a"); code != 1 || !strings.Contains(stderr, "--force") {
		t.Errorf("removing a realm with a proc: %d %q", code, stderr)
	}
	a.s.Must(t, "realm", "rm", "--force", "realm-a")
	testenv.Eventually(t, "the realm's files are gone", func() error {
		if n := filesWith(t, a.s, "realm-a"); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
	_, stderr, code := a.s.CLI(t, "-r", "realm-a", "ls", "/")
	if code != 1 || !strings.Contains(stderr, "no realm") {
		t.Errorf("ls in a removed realm: %d %q", code, stderr)
	}
	// One of the same name that is made again has nothing of the old one.
	a.s.Must(t, "realm", "create", "realm-a")
	if got := a.s.Must(t, "-r", "realm-a", "ls", "/"); strings.Contains(got, "file") {
		t.Errorf("the new realm has the old one's files: %q", got)
	}
	if got := a.s.Must(t, "-r", "realm-a", "ls", "/s3"); strings.Contains(got, "bucket") {
		t.Errorf("the new realm has the old one's buckets: %q", got)
	}
}

// filesWith counts files and directories on the disk that are a realm's, by the directories s3 and
// ux name after it. What named has of it is one deleted prefix in etcd, which keeps no file per
// name; that a realm made again starts empty shows it.
func filesWith(t *testing.T, s *testenv.System, realm string) (n int) {
	for _, daemon := range []string{"s3d", "sigmad"} {
		filepath.WalkDir(filepath.Join(s.DataDir, daemon), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.Contains(path+"/", "/"+realm+"/") {
				n++
			}
			return nil
		})
	}
	return n
}

// Leases that nobody renews end by themselves.
func TestLeaseExpires(t *testing.T) {
	r := connect(t, defaultRealm)
	l, ok := r.Root().(sigma.Leaser)
	if !ok {
		t.Fatal("the root grants no leases")
	}
	var st sigma.FileID
	for ttl := time.Second; ; ttl *= 3 { // on a host that stands still a short one may be over before it is used
		id, err := l.Lease(r.ctx, ttl)
		if err != nil {
			t.Fatal(err)
		}
		if st, err = r.Put(r.ctx, "/leased", nil, sigma.PutOptions{Lease: id}); err == nil {
			break
		} else if ttl > 20*time.Second {
			t.Fatal(err)
		}
	}
	var err error
	for err == nil {
		st.Version, err = r.Watch(r.ctx, "/leased", st.Version)
	}
	kindIs(t, "watch of a file whose lease expired", err, sigma.KindNotFound)
}
