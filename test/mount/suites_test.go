//go:build system

package mount

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// suitesEnv names the program pjdfstest, which `make test-mount` builds. Without it the suites do
// not run.
const suitesEnv = "SIGMA_TEST_PJDFSTEST"

// expectedFailures has the tests of the suites that fail, each below its reason, and where they do.
const expectedFailures = "testdata/expected-failures"

// places are where the suites run: paths of the realm, and the tests of Python's library. Mailboxes
// are changed in place, which objects are not.
var places = map[string]struct {
	path   string
	python []string
}{
	"ux":    {"/ux/~local/suites", []string{"test.test_tempfile", "test.test_shutil", "test.test_mailbox"}},
	"names": {"/suites", []string{"test.test_tempfile", "test.test_shutil", "test.test_mailbox"}},
	"s3":    {"/s3/suites", []string{"test.test_tempfile", "test.test_shutil"}},
}

// verdicts says of each test of a suite whether it failed.
type verdicts map[string]bool

var (
	pjdLine    = regexp.MustCompile(`(?m)^(\S+::\S+)\s+(ok|FAILED|skipped)\s*$`)
	pythonLine = regexp.MustCompile(`(?m)^(test\w*|setUpClass) \((\S+)\)(?:\n.*)?? \.\.\. (?:.*\n)??.*?(ok|FAIL|ERROR|skipped)`)
)

// Goal: what programs expect of a file system holds on the mount, but for what
// docs/reference/mount.md says with its reason. Method: pjdfstest and Python's own tests on scratch
// storage, names and objects; what fails is exactly what the list says.
func TestSuites(t *testing.T) {
	pjdfstest := os.Getenv(suitesEnv)
	if pjdfstest == "" {
		t.Skip("make test-mount runs it")
	}
	need(t, "python3")
	s := shared.Get(t)
	parent := t.TempDir()
	for dir := parent; dir != os.TempDir(); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755)) // the suites try what other users may
	}
	top := mountAt(t, s, filepath.Join(parent, "m"), "--allow-other")
	for place, at := range places {
		t.Run(place, func(t *testing.T) {
			s.Must(t, "mkdir", at.path)
			t.Cleanup(func() { s.CLI(t, "rm", "-r", at.path) })
			got := verdicts{}
			got.pjdfstest(t, pjdfstest, filepath.Join(top, at.path))
			for _, suite := range at.python {
				got.python(t, suite, filepath.Join(top, at.path))
			}
			got.compare(t, place)
		})
	}
}

// pjdfstest runs that suite in dir.
func (v verdicts) pjdfstest(t *testing.T, program, dir string) {
	config := filepath.Join(t.TempDir(), "config.toml")
	must(t, os.WriteFile(config, []byte(`[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
`), 0o644))
	v.collect(t, pjdLine, exec.CommandContext(testContext(t), program, "-c", config, "-p", dir), dir)
}

// python runs tests of Python's library in dir.
func (v verdicts) python(t *testing.T, suite, dir string) {
	v.collect(t, pythonLine, exec.CommandContext(testContext(t), "/usr/bin/python3", "-m", "unittest", "-v", suite),
		dir)
}

// collect notes what a suite that runs in dir says of each of its tests.
func (v verdicts) collect(t *testing.T, line *regexp.Regexp, cmd *exec.Cmd, dir string) {
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "NO_COLOR=1")
	out, _ := cmd.CombinedOutput() // its exit code says no more than the lines
	found := line.FindAllStringSubmatch(string(out), -1)
	if len(found) < 20 {
		t.Fatalf("%v ran %d tests:\n%.4000s", cmd.Args, len(found), out)
	}
	for _, f := range found {
		name, what := f[1], f[len(f)-1]
		if len(f) > 3 {
			name = f[2]
		}
		if what != "skipped" {
			v[name] = v[name] || what != "ok"
		}
	}
}

// compare tells what failed and is not on the list, and what is on it and did not fail.
func (v verdicts) compare(t *testing.T, place string) {
	expected := readExpected(t, place)
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if v[name] && !expected[name] {
			t.Errorf("%s fails on %s", name, place)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		if failed, ran := v[name]; !ran || !failed {
			t.Errorf("%s passes on %s, or is no more: take it off %s", name, place, expectedFailures)
		}
	}
}

// readExpected gives the tests that are to fail at a place.
func readExpected(t *testing.T, place string) map[string]bool {
	b, err := os.ReadFile(expectedFailures)
	must(t, err)
	names := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] != "#" && slices.Contains(f[1:], place) {
			names[f[0]] = true
		}
	}
	return names
}
