//go:build system

package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// serveForged has a proc serve trees of an attacker's making in the default realm until the test
// ends: PATH=KIND:TEXT each, of testdata/forger.
func serveForged(t *testing.T, s *testenv.System, trees ...string) {
	t.Helper()
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	path := s.Install(ctx, t, c, testenv.BuildGo(t, t.TempDir(), "testdata/forger"))
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: path, Args: trees, Start: sigma.StartedByCall})
	if err == nil {
		err = c.WaitStart(ctx, ids[0])
	}
	must(t, err)
	t.Cleanup(func() { s.CLI(t, "kill", string(ids[0])) })
}

// Goal: no link of a tenant's tree leads to a file of the host, though one FileID stands at two
// depths, and the kernel and the mount may each mean another. Control: with the same FileIDs a link
// to a file of the tree is followed at both, and where links are trusted the same target does lead
// to the host's file.
func TestForgedLinks(t *testing.T) {
	s := shared.Get(t)
	base := t.TempDir()
	must(t, os.WriteFile(filepath.Join(base, "secret"), []byte("the host's"), 0o644))
	top := mountAt(t, s, filepath.Join(base, "m"))
	trusting := mountAt(t, s, filepath.Join(base, "trusting"), "--trust-links")
	// follow reads the link at both places, after the other has been looked up, and gives what was
	// read at the shallow one.
	follow := func(root string) (shallow, below string, err error) {
		up, down := filepath.Join(root, "link"), filepath.Join(root, "1/2/3/4/5/6/7/8/9/10/11/link")
		for range 2 {
			for _, at := range []string{up, down, up} {
				if _, lerr := os.Lstat(at); lerr != nil {
					t.Fatal(lerr)
				}
			}
			b, berr := os.ReadFile(down)
			below = string(b)
			os.Lstat(down)
			b, err = os.ReadFile(up)
			shallow = string(b)
			if shallow == "the host's" || below == "the host's" {
				return shallow, below, errors.Join(err, berr)
			}
		}
		return shallow, below, err
	}
	secret := strings.TrimPrefix(filepath.Join(base, "secret"), "/")
	cases := []struct {
		target  string
		inside  bool // a control
		trusted bool // leads to the host's file where links are trusted
	}{
		{target: "file", inside: true},
		{target: "./file", inside: true},
		{target: "/forged2/file", inside: true},
		{target: "../../secret", trusted: true},
		{target: "1/../../../secret", trusted: true},
		{target: "../forged5/../../secret"},
		{target: strings.Repeat("../", 40) + secret, trusted: true},
		{target: "/" + secret, trusted: true},
		{target: "/../../" + secret, trusted: true},
		{target: "../../secret\x00"},
		{target: "/" + secret + "\x00/file"},
	}
	trees := []string{`/forged-root=links:"..\x00"`}
	for i, c := range cases {
		trees = append(trees, fmt.Sprintf("/forged%d=links:%q", i, c.target))
	}
	serveForged(t, s, trees...)
	for i, c := range cases {
		path := fmt.Sprintf("/forged%d", i)
		shallow, below, err := follow(filepath.Join(top, path))
		if c.inside && (shallow != "the realm's" || below != "the realm's") {
			t.Errorf("control: %q gave %q and %q, %v", c.target, shallow, below, err)
		}
		if shallow == "the host's" || below == "the host's" {
			t.Errorf("%q led to the host's file", c.target)
		}
		if !c.inside && err == nil && shallow != "the realm's" {
			t.Errorf("%q gave %q", c.target, shallow)
		}
		if shallow, _, err = follow(filepath.Join(trusting, path)); c.trusted && shallow != "the host's" {
			t.Errorf("control: where links are trusted %q gave %q, %v", c.target, shallow, err)
		}
		target, err := os.Readlink(filepath.Join(trusting, path, "link"))
		if c.trusted && (err != nil || target != c.target) {
			t.Errorf("where links are trusted %q reads as %q, %v", c.target, target, err)
		}
	}
	// A link in the root of what is mounted, which the end of the text would make climb.
	root := mountPath(t, s, filepath.Join(base, "root"), "/forged-root")
	if b, err := os.ReadFile(filepath.Join(root, "link/secret")); err == nil {
		t.Errorf("a target that a NUL byte ends gave %q", b)
	}
}

// Goal: programs that walk a tree without end, or one within itself, end with a word, and the
// mount's server stays small. Control: as deep as a tree of sources is, the same tree is walked and
// read.
func TestEndlessTrees(t *testing.T) {
	s := shared.Get(t)
	top := mountAt(t, s, filepath.Join(t.TempDir(), "m"))
	serveForged(t, s, "/within-itself=turns:1", "/in-turns=turns:3", "/without-end=turns:0")
	for _, name := range []string{"within-itself", "in-turns", "without-end"} {
		dir := filepath.Join(top, name)
		if b, err := os.ReadFile(filepath.Join(dir, strings.Repeat("d/", 100), "file")); string(b) != "text" {
			t.Errorf("control: %s 100 directories deep: %q, %v", name, b, err)
		}
		walkers := [][]string{{"find", dir}}
		if name == "without-end" {
			walkers = append(walkers, []string{"ls", "-R", dir}, []string{"cp", "-r", dir, t.TempDir()},
				[]string{"du", dir})
		}
		for _, args := range walkers {
			start := time.Now()
			out, err := exec.CommandContext(testContext(t), args[0], args[1:]...).CombinedOutput()
			if said := string(out); err == nil || !strings.Contains(said, "File name too long") {
				t.Errorf("%v: %v: %.300s", args, err, said[max(0, len(said)-300):])
			}
			t.Logf("%s of %s: %.2f s", args[0], name, time.Since(start).Seconds())
		}
		if err := os.Mkdir(filepath.Join(dir, strings.Repeat("d/", 300), "made"), 0o700); !errors.Is(err,
			syscall.ENAMETOOLONG) {
			t.Errorf("mkdir below the bound: %v", err)
		}
	}
	pids := processes(t, top, "--serve")
	if len(pids) != 1 {
		t.Fatalf("%d servers", len(pids))
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[0]))
	must(t, err)
	peak := 0
	for line := range strings.Lines(string(status)) {
		fmt.Sscanf(line, "VmHWM: %d kB", &peak)
	}
	t.Logf("the server had %d MiB at most", peak>>10)
	if peak == 0 || peak > 256<<10 {
		t.Errorf("the server of the mount had %d KiB", peak)
	}
	if _, err := os.ReadFile(filepath.Join(top, "sys/version")); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// Modes that the server of a tree gives let no other user of the host write, and make nothing
// set-user-ID. Control: modes in scratch storage are what chmod made them.
func TestForgedModes(t *testing.T) {
	s := shared.Get(t)
	top, work := mounted(t, s)
	serveForged(t, s, "/modes=modes:")
	inside := mountPath(t, s, filepath.Join(t.TempDir(), "inside"), "/modes")
	mode := func(name string) os.FileMode {
		st, err := os.Stat(name)
		must(t, err)
		return st.Mode()
	}
	for _, dir := range []string{filepath.Join(top, "modes"), inside} {
		if got, file := mode(dir), mode(filepath.Join(dir, "file")); got != os.ModeDir|0o755 || file != 0o755 {
			t.Errorf("%s is %v, and its file %v", dir, got, file)
		}
	}
	own := filepath.Join(work, "own")
	must(t, os.WriteFile(own, nil, 0o600))
	must(t, os.Chmod(own, 0o666))
	if got := mode(own); got != 0o666 {
		t.Errorf("control: in scratch storage the mode is %v", got)
	}
}
