package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/cmd/sigma/health"
	"sigmaos.dev/cmd/sigma/tree"
	"sigmaos.dev/kernel/report"
)

// Write makes a local file and its directories.
func write(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// ok runs a command line that must succeed and say nothing on stderr, and gives its output.
func (f *fake) ok(args ...string) string {
	f.t.Helper()
	got := f.sigma(args...)
	if got.code != 0 || got.err != "" {
		f.t.Fatalf("sigma %.200q: code %d, stderr %q", args, got.code, got.err)
	}
	return got.out
}

// A tree goes into the realm and comes out the same, with small, empty and large files, also when
// done twice.
func TestPutGetTree(t *testing.T) {
	f := newFake(t)
	f.ok("mkdir", "/s3/b")
	dir := t.TempDir()
	src := filepath.Join(dir, "texts")
	files := map[string][]byte{"empty": nil, "a.txt": []byte("a\n"), "sub/deep/b.txt": []byte("b"),
		"big": bytes.Repeat([]byte("0123456789abcdef"), 200_000)}
	for i := range 100 {
		files[fmt.Sprintf("many/%03d", i)] = []byte(fmt.Sprint(i))
	}
	for name, content := range files {
		write(t, filepath.Join(src, name), content)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(src, "link")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		want(t, f.sigma("put", "-r", src, "/s3/b/t"), 0, "", "skipped 1 symbolic")
	}
	want(t, f.sigma("put", "-r", src, "/s3/b/"), 0, "", "stored 104 files")
	if got := f.ok("ls", "/s3/b"); got != "t\ntexts\n" {
		t.Errorf("ls: %q", got)
	}
	if got := f.ok("ls", "/s3/b/t"); got != "a.txt\nbig\nempty\nmany\nsub\n" {
		t.Errorf("ls: %q", got)
	}
	dst := filepath.Join(dir, "out")
	want(t, f.sigma("get", "-r", "/s3/b/t", dst), 0, "", "fetched 104 files")
	want(t, f.sigma("get", "-r", "/s3/b/t", dst), 0, "", "fetched 104 files")
	for name, content := range files {
		if got, err := os.ReadFile(filepath.Join(dst, name)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes came out, %d went in; %v", name, len(got), len(content), err)
		}
	}
	left, _ := filepath.Glob(filepath.Join(dst, "*", ".sigma-get*"))
	if entries, _ := os.ReadDir(dst); len(entries) != 5 || len(left) > 0 {
		t.Errorf("there is more than was fetched: %v %v", entries, left)
	}
}

// Where a file goes: PATH itself, or below it with its name if it ends with / or is a directory.
func TestPutGetNames(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	a, b := write(t, filepath.Join(dir, "a"), []byte("A")), write(t, filepath.Join(dir, "b"), []byte("B"))
	f.ok("mkdir", "-p", "/s3/b/d/e")
	f.ok("put", a, "/s3/b/x")
	f.ok("put", a, "/s3/b/d/")
	f.ok("put", a, b, "//s3/b//d/e/")
	f.ok("put", b, "/s3/b/d")
	if got := f.ok("cat", "/s3/b/x", "/s3/b/d/a", "/s3/b/d/e/a", "/s3/b/d/e/b", "/s3/b/d/b"); got != "AAABB" {
		t.Errorf("got %q", got)
	}
	if got := f.with([]byte("from here"), "put", "-", "/s3/b/in"); got.code != 0 ||
		f.ok("cat", "/s3/b/in") != "from here" {
		t.Errorf("put -: %+v", got)
	}
	want(t, f.sigma("put", a, b, "/s3/b/none"), 1, "", "is not a directory, and there are several")
	want(t, f.sigma("put", a, "/s3/none/x"), 1, "", "hint: make it with: sigma mkdir /s3/none\n")
	want(t, f.sigma("put", a, "/s3/b/none/x"), 1, "", "hint: make the directory with: sigma mkdir -p /s3/b/none\n")
	want(t, f.sigma("put", dir, "/s3/b/x"), 1, "", "put -r")
	want(t, f.sigma("put", filepath.Join(dir, "none"), "/s3/b/x"), 1, "", "no such file")
	want(t, f.sigma("put", "-", "/s3/b/"), 2, "", "whole path")
	want(t, f.sigma("get", "/s3/b/d", dir), 1, "", "get -r")
	want(t, f.sigma("get", "/s3/b/none", dir), 1, "", "not found")
	f.ok("get", "/s3/b/x", dir)
	f.ok("get", "/s3/b/x", filepath.Join(dir, "y"))
	for _, name := range []string{"x", "y"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != "A" {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	want(t, f.sigma("get", "/s3/b/x", filepath.Join(dir, "none")+"/"), 1, "", "no such file or directory")
}

func TestChange(t *testing.T) {
	f := newFake(t)
	f.ok("mkdir", "-p", "/d/e")
	a := write(t, filepath.Join(t.TempDir(), "a"), []byte("A"))
	f.ok("put", a, "/d/")
	f.ok("mv", "/d/a", "/d/b")
	f.ok("mv", "/d/b", "/d/e")
	f.ok("ln", "-s", "e/b", "/d/l")
	if got := f.ok("cat", "/d/l"); got != "A" {
		t.Errorf("through the link: %q", got)
	}
	if got := f.ok("ls", "-l", "/d"); !strings.Contains(got, "symlink") || !strings.Contains(got, "l -> e/b") {
		t.Errorf("ls -l: %q", got)
	}
	var files []tree.FileJSON
	if err := json.Unmarshal([]byte(f.ok("stat", "--json", "/d/l")), &files); err != nil || files[0].Kind != "file" ||
		files[0].Size != 1 {
		t.Errorf("stat: %v %+v", err, files)
	}
	if err := json.Unmarshal([]byte(f.ok("stat", "--link", "--json", "/d/l")), &files); err != nil ||
		files[0].Target != "e/b" {
		t.Errorf("stat --link: %v %+v", err, files)
	}
	want(t, f.sigma("rm", "/d/e"), 1, "", "rm -r /d/e")
	want(t, f.sigma("rm", "/d/none"), 1, "", "not found")
	f.ok("rm", "-f", "/d/none")
	f.ok("rm", "/d/l")
	f.ok("rm", "-r", "/d")
	want(t, f.sigma("ls", "/d"), 1, "", "not found")
	for _, p := range []string{"/", "//", "/s3", "/s3/", "/proc", "/sys", "/ux", "/bin"} {
		want(t, f.sigma("rm", "-rf", p), 1, "", "stays")
		want(t, f.sigma("mv", p, "/x"), 1, "", "stays")
	}
	want(t, f.sigma("mkdir", "/x/y"), 1, "", "mkdir -p /x/y")
	want(t, f.sigma("ln", "/x", "/y"), 2, "", "hard links")
	want(t, f.sigma("cat", "/s3"), 1, "", "is a directory")
}

// What is wrong with a path is said in the vocabulary's words, before any server is asked.
func TestBadPaths(t *testing.T) {
	f := newFake(t)
	local := write(t, filepath.Join(t.TempDir(), "a"), nil)
	for path, msg := range map[string]string{
		"":                                " is empty",
		"a":                               "path does not start with /",
		"/a/../b":                         `contains ".."`,
		"/./a":                            `contains "."`,
		"/a\x00b":                         "NUL",
		"/" + strings.Repeat("n", 256):    "longer than 255",
		"/" + strings.Repeat("n/", 5<<20): "longer than 4096",
		strings.Repeat("/", 10<<20):       "longer than 4096",
	} {
		for _, args := range [][]string{{"ls", path}, {"cat", path}, {"stat", path}, {"rm", "-rf", path},
			{"mkdir", "-p", path}, {"get", path}, {"put", local, path},
			{"mv", path, "/x"}, {"mv", "/x", path}, {"ln", "-s", "/x", path}} {
			got := f.sigma(args...)
			if got.code != 2 || !strings.Contains(got.err, msg) || len(got.err) > 600 {
				t.Errorf("sigma %.60q: code %d, stderr %.200q; want %q", args, got.code, got.err, msg)
			}
		}
	}
}

func TestRealms(t *testing.T) {
	f := newFake(t)
	want(t, f.sigma("realm", "create", "team-a", "team-b"), 0, "team-a\nteam-b\n", "")
	want(t, f.sigma("realm", "create", "team-a"), 1, "", "there is a realm \"team-a\" already")
	want(t, f.sigma("realm", "create", "team-c", "team-c"), 2, "", "hint: name each realm once")
	want(t, f.sigma("realm", "create", "Team"), 2, "", "hint: use 1 to 32 of a-z")
	want(t, f.sigma("realm", "create", "--shares", "0", "x"), 2, "", "a realm has 1 to 10000 shares, not 0")
	want(t, f.sigma("realm", "set", "team-b"), 2, "", "hint: say what: --shares N")
	want(t, f.sigma("realm", "set", "--shares", "4", "team-b"), 0, "team-b\n", "")
	want(t, f.sigma("realm", "ls", "-q"), 0, "default\nteam-a\nteam-b\n", "")
	f.ok("-r", "team-a", "mkdir", "/mine")
	if got := f.ok("ls", "-r", "team-a", "/"); !strings.Contains(got, "mine\n") {
		t.Errorf("ls: %q", got)
	}
	want(t, f.sigma("ls", "--realm=team-b", "/mine"), 1, "", "not found")
	want(t, f.sigma("ls", "--realm", "none", "/"), 1, "", "hint: list realms with")
	want(t, f.sigma("realm", "rm", "none"), 1, "", "there is no realm \"none\"")
	want(t, f.sigma("realm", "rm", "default"), 1, "", "belongs to every system and stays")
	want(t, f.sigma("usage", "none"), 1, "", "there is no realm \"none\"")
	want(t, f.sigma("usage", "-r", "none"), 1, "", "there is no realm \"none\"")
	want(t, f.sigma("realm", "rm", "team-a"), 0, "team-a\n", "")
	var realms []report.Realm
	if err := json.Unmarshal([]byte(f.ok("realm", "ls", "--json")), &realms); err != nil || len(realms) != 2 ||
		realms[1].ID != "team-b" || realms[1].Shares != 4 || realms[0].Shares != 1 {
		t.Errorf("realm ls --json: %v %+v", err, realms)
	}
}

func TestStatus(t *testing.T) {
	f := newFake(t)
	if got := f.ok("status"); !strings.Contains(got, "sigmaOS fake is running as machine m1") ||
		!strings.Contains(got, "named     running   60m     1") {
		t.Errorf("status: %q", got)
	}
	var st health.StatusJSON
	if err := json.Unmarshal([]byte(f.ok("status", "--json")), &st); err != nil || !st.Running ||
		st.Services[0].Name != "named" {
		t.Errorf("status --json: %v %+v", err, st)
	}
	env := map[string]string{"SIGMA_DATA": t.TempDir()}
	want(t, command(nil, env, "status"), 1, "", "no sigmaOS is running on")
	if got := command(nil, env, "status", "--json"); got.code != 1 || !strings.Contains(got.out, `"running": false`) {
		t.Errorf("status --json without a system: %+v", got)
	}
}

// Commands that take several paths go on after one for which they fail, say why for each such, and
// fail as a whole.
func TestGoesOn(t *testing.T) {
	f := newFake(t)
	f.ok("mkdir", "/d")
	for _, p := range []string{"/a", "/b", "/d/c"} {
		f.with([]byte(p), "put", "-", p)
	}
	both := func(r result, out ...string) {
		t.Helper()
		want(t, r, 1, r.out, "/none1: not found")
		want(t, r, 1, r.out, "/none2: not found")
		for _, o := range out {
			if !strings.Contains(r.out, o) {
				t.Errorf("got %q, which has no %q", r.out, o)
			}
		}
	}
	both(f.sigma("cat", "/a", "/none1", "/b", "/none2"), "/a/b")
	both(f.sigma("ls", "/none1", "/d", "/none2", "/a"), "/a", "c")
	both(f.sigma("stat", "/none1", "/a", "/none2"), "path       /a")
	r := f.sigma("stat", "--json", "/none1", "/a")
	if r.code != 1 || !strings.Contains(r.out, `"path": "/a"`) {
		t.Errorf("stat --json: %+v", r)
	}
	both(f.sigma("rm", "/none1", "/a", "/none2", "/b"))
	want(t, f.sigma("rm", "/d", "/none"), 1, "", "rm -r")
	if got := f.ok("ls", "-d", "/?"); got != "/d\n" {
		t.Errorf("rm left %q", got)
	}
	want(t, f.sigma("put", "/dev/null", "/x"), 1, "", "put - PATH")
}
