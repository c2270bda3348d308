package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/cmd/sigma/tree"
	"sigmaos.dev/sigma"
)

// Goal: a pattern means what it would mean in a shell, on the realm's tree, and a backslash takes
// its meaning away.
func TestPatterns(t *testing.T) {
	f := newFake(t)
	f.ok("mkdir", "-p", "/d/e1", "/d/e2", "/d/x")
	for _, p := range []string{"/d/a", "/d/b", "/d/.hidden", `/d/a\*b`, "/d/e1/f", "/d/e2/f", "/d/e2/g", "/d/w[1"} {
		f.with([]byte(p), "put", "-", p)
	}
	for pattern, want := range map[string]string{
		"/d/?":         "/d/a /d/b /d/x",
		"/d/[!a]":      "/d/b /d/x",
		"/d/[ab]*":     "/d/a /d/a*b /d/b",
		`/d/a\*b`:      "/d/a*b",
		`/d/?\*?`:      "/d/a*b",
		"/d/.h*":       "/d/.hidden",
		"/d/e*/f":      "/d/e1/f /d/e2/f",
		"/*/e?/g":      "/d/e2/g",
		"/d/w[1":       "/d/w[1", // no pattern
		"/d/[a":        "",
		"/d/*/nothing": "",
		"/d/a/*":       "",
		"/nothing/*":   "",
	} {
		got := f.sigma("ls", "-d", pattern)
		if want == "" {
			if got.code != 1 || !strings.Contains(got.err, "no file") && !strings.Contains(got.err, "not found") {
				t.Errorf("%s: %+v", pattern, got)
			}
		} else if strings.Join(strings.Fields(got.out), " ") != want || got.code != 0 {
			t.Errorf("%s: got %q (%s), want %q", pattern, got.out, got.err, want)
		}
	}
	if got := f.ok("cat", "/d/e?/f"); got != "/d/e1/f/d/e2/f" {
		t.Errorf("cat: %q", got)
	}
	want(t, f.sigma("rm", "/d/*.none"), 1, "", "no file of the realm matches")
	f.ok("rm", "-f", "/d/*.none")
	want(t, f.sigma("rm", "-rf", "/s*"), 1, "", "stays")
	f.ok("rm", "/d/e2/*")
	if got := f.ok("ls", "/d/e2"); got != "" {
		t.Errorf("rm left %q", got)
	}
}

// What is printed cannot play tricks on a terminal, and a shell reads quoted names back.
func TestShellQuoted(t *testing.T) {
	for name, want := range map[string]string{
		"a b": `'a b'`, "it's": `"it's"`, `it's "$x"`: `'it'\''s "$x"'`, "a\nb": `'a'$'\n''b'`,
		"\x1b[31m": `$'\033''[31m'`, "\xff": `$'\377'`, "é": `'é'`, "-rf": `'-rf'`, "": `''`,
	} {
		if got := term.ShellQuoted(name); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
	for _, plain := range []string{"a.txt", "é", "-rf", "x~", "a,b=c"} {
		if quoted := term.NeedsQuotes(plain); quoted != strings.Contains(plain, "=") {
			t.Errorf("%q: %v", plain, quoted)
		}
	}
	f := newFake(t)
	f.with(nil, "put", "-", "/\x1b[2Jx")
	if got := f.ok("ls", "/"); !strings.Contains(got, `$'\033''[2Jx'`) {
		t.Errorf("ls: %q", got)
	}
	if got := f.sigma("cat", "/\x1b[2Jnone"); strings.Contains(got.err, "\x1b") {
		t.Errorf("an error: %q", got.err)
	}
}

func TestChmod(t *testing.T) {
	f := newFake(t)
	f.ok("mkdir", "-p", "/d/e")
	f.with(nil, "put", "-", "/d/e/f")
	f.ok("chmod", "-R", "go-rwx", "/d")
	if got := f.ok("ls", "-Rl", "/d"); strings.Count(got, "0700") != 1 || strings.Count(got, "0600") != 1 {
		t.Errorf("ls -Rl: %s", got)
	}
	want(t, f.sigma("chmod", "rw", "/d"), 2, "", "is not a mode")
}

// Goal: cp tells the realm's paths from this host's, keeps modes and links, and does not copy a
// directory into itself.
func TestCopy(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	t.Chdir(dir)
	write(t, "a", []byte("A"))
	write(t, "sub/b", []byte("B"))
	if err := os.Chmod("sub/b", 0o750); err != nil {
		t.Fatal(err)
	}
	f.ok("mkdir", "/d")
	f.ok("cp", "a", "/d/")
	f.ok("cp", "./a", "/x")
	f.ok("cp", "file:"+filepath.Join(dir, "a"), "/d/abs")
	want(t, f.sigma("cp", "-r", "sub", "/d"), 0, "", "stored 1 file,")
	f.ok("ln", "-s", "b", "/d/sub/l")
	want(t, f.sigma("cp", "-r", "/d", "/copy"), 0, "", "copied 3 files")
	if got := f.ok("ls", "-lR", "/copy"); !strings.Contains(got, "l -> b") || !strings.Contains(got, "0750") {
		t.Errorf("the copy: %s", got)
	}
	want(t, f.sigma("cp", "-r", "/copy/sub", "/d"), 0, "", "copied 1 file,") // over the one that is there
	want(t, f.sigma("cp", "-r", "/copy", "./out"), 0, "", "fetched 3 files")
	if st, err := os.Stat("out/sub/b"); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("%v %v", st, err)
	}
	f.ok("cp", "/d/a", "/x", "out/")
	if got := f.ok("cp", "/d/a", "/d/sub/b", "-"); got != "AB" {
		t.Errorf("cp to standard output: %q", got)
	}
	f.with([]byte("in"), "cp", "-", "/d/in")
	if got := f.ok("cat", "/d/in"); got != "in" {
		t.Errorf("cp of standard input: %q", got)
	}
	want(t, f.sigma("cp", "/d", "/e"), 1, "", "cp -r /d /e")
	want(t, f.sigma("cp", "-r", "/d", "/d/sub/again"), 1, "", "lies in the directory")
	want(t, f.sigma("cp", "/d/a", "/d"), 1, "", "is the file")
	want(t, f.sigma("cp", "a", "b"), 2, "", "files of this host")
	want(t, f.sigma("cp", "a", "/d/a", "/x"), 2, "", "some")
	want(t, f.sigma("cp", filepath.Join(dir, "a"), "/x"), 1, "", "this host's is written file:")
	want(t, f.sigma("cp", "/d/a", "/x", "/d/in"), 1, "", "is not a directory")
	var moved tree.MovedJSON
	if err := json.Unmarshal([]byte(f.ok("cp", "--json", "/d/a", "/y")), &moved); err != nil || moved.Files != 1 ||
		moved.Bytes != 1 {
		t.Errorf("%v %+v", err, moved)
	}
	f.ok("ln", "-sf", "/x", "/y")
	if got := f.ok("cat", "/y"); got != "A" {
		t.Errorf("through the link: %q", got)
	}
}

// Goal: a watcher tells what others do, in order. Method: what it tells makes each next change, so
// that nothing need be waited for.
func TestWatcher(t *testing.T) {
	f := newFake(t)
	f.ok("mkdir", "-p", "/p/d")
	f.with([]byte("1"), "put", "-", "/p/d/f")
	a := &cli.App{Addr: f.addr, Realm: string(sigma.DefaultRealm), Getenv: func(string) string { return "" }}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := a.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for path, steps := range map[string][]struct {
		act  []string
		want string
	}{
		"/p/d": {{[]string{"put", "-", "/p/d/new"}, "created /p/d/new"}, {[]string{"mv", "/p/d/f", "/p/d/g"},
			"renamed /p/d/g"}, {[]string{"put", "-", "/p/d/g"}, "changed /p/d/g"},
			{[]string{"rm", "/p/d/g"}, "removed /p/d/g"}, {[]string{"mv", "/p/d", "/p/e"}, "removed /p/d"},
			{[]string{"mv", "/p/e", "/p/d"}, "created /p/d"}},
		"/p/later": {{[]string{"put", "-", "/p/later"}, "created /p/later"}, {[]string{"put", "-", "/p/later"},
			"changed /p/later"}, {[]string{"mv", "/p/later", "/p/gone"}, "removed /p/later"}},
	} {
		w := tree.Watcher{Tree: c, Path: path}
		if err := w.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		step := 0
		w.Emit = func(e tree.Event) error {
			if e.Event == tree.Created && e.Path == "/p/d/new" && step > 4 {
				return nil // is told again, with its directory
			}
			if got := e.Event + " " + e.Path; step == len(steps) || got != steps[step].want {
				t.Errorf("step %d: got %s", step, got)
				return tree.ErrEnough
			}
			if step++; step == len(steps) {
				return tree.ErrEnough
			}
			want(t, f.with([]byte("x"), steps[step].act...), 0, "", "")
			return nil
		}
		want(t, f.with([]byte("x"), steps[0].act...), 0, "", "")
		if err := w.Run(ctx); err != tree.ErrEnough {
			t.Errorf("%s: %v", path, err)
		}
		w.Close()
	}
}

// A watch ends after as many changes as it was told, as JSON or as what a command makes of them.
func TestWatchCommand(t *testing.T) {
	f := newFake(t)
	ended := make(chan result)
	for _, c := range []struct{ args, line string }{{"watch --json -n 3 /f", `"path":"/f"`},
		{"watch -n 3 /f -- sh -c echo:$SIGMA_WATCH_PATH", ":/f"}, {"watch -n 3 /f", "/f"}} {
		args := strings.Fields(c.args)
		args[len(args)-1] = strings.Replace(args[len(args)-1], "echo:", "echo :", 1)
		go func() { ended <- f.sigma(args...) }()
		got := f.actUntil(t, ended, [][]string{{"put", "-", "/f"}, {"rm", "/f"}})
		if got.code != 0 || strings.Count(got.out, c.line) != 3 {
			t.Errorf("%s: %+v", c.args, got)
		}
	}
	want(t, f.sigma("watch", "-n", "-1", "/d"), 2, "", "number of changes")
	want(t, f.sigma("ls", "-wR", "/d"), 2, "", "-w does not go with -R")
}

// actUntil repeats acts, which may fail, until a command has ended.
func (f *fake) actUntil(t *testing.T, ended <-chan result, acts [][]string) result {
	for deadline := time.Now().Add(time.Minute); ; {
		for _, act := range acts {
			select {
			case r := <-ended:
				return r
			default:
			}
			if time.Now().After(deadline) {
				t.Fatal("the command does not end")
			}
			f.with([]byte("x"), act...)
		}
	}
}

// Goal: a lock has one holder, its command's code is sigma's, and who finds it taken is told,
// waits, or gets it.
func TestLeaseHold(t *testing.T) {
	f := newFake(t)
	want(t, f.sigma("lease", "hold", "/lock", "--", "sh", "-c", "exit 7"), 7, "", "")
	want(t, f.sigma("ls", "/lock"), 1, "", "not found") // it went with its holder
	want(t, f.sigma("lease", "hold", "/lock", "--", "sh", "-c", "kill -TERM $$"), 143, "", "")
	want(t, f.sigma("lease", "hold", "/lock", "--", "no-such-command"), 127, "", "cannot be run")
	want(t, f.sigma("lease", "hold", "/lock", "true"), 2, "", "write -- before the command")
	want(t, f.sigma("lease", "hold", "--ttl", "1ms", "/lock"), 2, "", "--ttl is 1s to 1h")
	f.with([]byte("somebody"), "put", "-", "/lock")
	want(t, f.sigma("lease", "hold", "-n", "/lock", "--", "true"), 1, "", "another holds it")
	want(t, f.sigma("lease", "hold", "--timeout", "10ms", "/lock", "--", "true"), 1, "", "another holds it")
	ended := make(chan result)
	go func() { ended <- f.sigma("lease", "hold", "/lock", "--", "echo", "mine") }()
	f.ok("rm", "/lock")
	want(t, <-ended, 0, "mine\n", "")
	// A command whose lock is gone is ended.
	go func() { ended <- f.sigma("lease", "hold", "/lock", "--", "sleep", "1000") }()
	want(t, f.actUntil(t, ended, [][]string{{"rm", "/lock"}}), 1, "", "the lease was lost")
}

// A shell is given the names of a directory that begin as the word does.
func TestCompletion(t *testing.T) {
	f := newFake(t)
	f.ok("mkdir", "-p", "/dir/sub")
	f.with(nil, "put", "-", "/dir/file")
	if got := f.sigma("__complete", "cat", "/dir/"); !strings.HasPrefix(got.out, "/dir/file\n/dir/sub/\n:") {
		t.Errorf("%+v", got)
	}
	if got := f.sigma("__complete", "ls", "/di"); !strings.HasPrefix(got.out, "/dir/\n:6\n") {
		t.Errorf("%+v", got)
	}
}
