//go:build system

// Package mount tests the realm's tree as Linux sees it: with the programs of Debian on a FUSE
// mount of a real system, and with 9P2000.L clients of other projects.
package mount

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
)

var shared testenv.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// testMax bounds what one test runs.
const testMax = 5 * time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	t.Cleanup(cancel)
	return ctx
}

// mounted mounts the default realm and gives the directory of its scratch storage for this test.
func mounted(t *testing.T, s *testenv.System) (top, work string) {
	t.Helper()
	top = mountAt(t, s, filepath.Join(t.TempDir(), "m"))
	work = filepath.Join(top, "ux/~local", t.Name())
	must(t, os.MkdirAll(work, 0o755))
	t.Cleanup(func() { s.CLI(t, "rm", "-r", "/ux/~local/"+t.Name()) })
	return top, work
}

// mountAt mounts the default realm on a directory that it makes, until the test ends.
func mountAt(t *testing.T, s *testenv.System, dir string, args ...string) string {
	t.Helper()
	return mountPath(t, s, dir, "/", args...)
}

// mountPath mounts a path of the default realm so.
func mountPath(t *testing.T, s *testenv.System, dir, path string, args ...string) string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	s.Must(t, append(append([]string{"mount"}, args...), dir, path)...)
	t.Cleanup(func() { s.CLI(t, "unmount", "--lazy", dir) })
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a program of the host in dir and gives what it printed.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(testContext(t), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a",
		"GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// need skips nothing: what scripts/setup installs is there.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%v: run scripts/setup", err)
		}
	}
}
