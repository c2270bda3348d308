package testenv

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Tests run in rootless mode if the environment has SIGMA_TEST_ROOTLESS=FIRST:COUNT, the uids that
// the user of the test program may map: systems are then started with sigma up --rootless.
// SIGMA_TEST_BUILT is a directory of programs that need not be compiled.
const (
	rootlessEnv = "SIGMA_TEST_ROOTLESS"
	builtEnv    = "SIGMA_TEST_BUILT"
)

// The ordinary user as whom Rootless runs tests: nobody, since newuidmap wants one that has a name.
// The range of uids that is lent to it is one that neither root's systems have (0x40000000 and
// above, docs/internals/launcher-protocol.md) nor users of a host.
const (
	rootlessUser  = 65534
	rootlessFirst = 0x30000000
	rootlessCount = 65536
)

// RootlessUIDs are the uids, as the host sees them, of what runs in rootless mode; ok tells whether
// this test program runs in it.
func RootlessUIDs() (first, count uint32, ok bool) {
	_, err := fmt.Sscanf(os.Getenv(rootlessEnv), "%d:%d", &first, &count)
	return first, count, err == nil
}

// RequireLimits skips the test where no cgroup holds procs to their limits, as in rootless mode
// without a subtree of one's own.
func (s *System) RequireLimits(tb testing.TB) {
	tb.Helper()
	if _, _, ok := RootlessUIDs(); ok && len(s.cgroups()) == 0 {
		tb.Skip("skipped: in rootless mode, and no cgroup belongs to this user")
	}
}

// rootlessScript gives a command a mount namespace in which /etc/subuid and /etc/subgid lend uids
// to the ordinary user, as which it runs then, and everybody may open /dev/fuse, as udev sees to on
// hosts that have it. Nothing of the host is changed.
const rootlessScript = `
mount --bind "$1" /etc/subuid && mount --bind "$1" /etc/subgid || exit 99
mknod -m 666 "$1.fuse" c 10 229 && mount --bind "$1.fuse" /dev/fuse
setpriv --reuid "$2" --regid "$2" --clear-groups unshare --user true || exit 97
[ -z "$3" ] || echo $$ >"$3/tests/cgroup.procs" || exit 98
user=$2
shift 3
exec setpriv --reuid "$user" --regid "$user" --clear-groups -- "$@"
`

var passedLine = regexp.MustCompile(`(?m)^ *--- PASS: `)

// Rootless runs those tests of the calling test program that run names, less those that skip names,
// once more, as an ordinary user on a system in rootless mode. sources are the programs that they
// need, which are compiled before, since that user has no compilers' caches.
func Rootless(t *testing.T, run, skip string, sources ...string) {
	RequireRoot(t)
	for _, tool := range []string{"newuidmap", "newgidmap", "unshare", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: rootless mode needs %s (Debian: apt-get install uidmap util-linux)", tool)
		}
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("skipped: there is no %s to lend uids in", file)
		}
	}
	dir, env := rootlessDir(t, sources)
	subordinates := filepath.Join(dir, "subordinates")
	if err := os.WriteFile(subordinates, fmt.Appendf(nil, "%d:%d:%d\n", rootlessUser, rootlessFirst, rootlessCount),
		0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"--mount", "--propagation", "private", "sh", "-c", rootlessScript, "sh", subordinates,
		strconv.Itoa(rootlessUser), delegate(t),
		filepath.Join(dir, "tests"), "-test.v", "-test.count=1", "-test.run=" + run, "-test.skip=" + skip,
		fmt.Sprintf("-test.timeout=%v", min(4*time.Minute*Slow(), 20*time.Minute))}
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	switch cmd.ProcessState.ExitCode() {
	case 99:
		t.Skipf("skipped: not even root may mount here: %s", out)
	case 97:
		t.Skipf("skipped: ordinary users may not make user namespaces here: %s", out)
	}
	n := len(passedLine.FindAll(out, -1))
	if err != nil || n == 0 {
		t.Fatalf("%v, %d passed\n%s", err, n, out)
	}
	t.Logf("%d tests passed as an ordinary user", n)
}

// delegate makes a cgroup whose subtree is the ordinary user's, as systemd does for a user's
// session; "" where there is none of version 2 with all controllers.
func delegate(t *testing.T) string {
	const top = "/sys/fs/cgroup"
	controllers, _ := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
	for _, need := range []string{"memory", "pids", "cpu"} {
		if !slices.Contains(strings.Fields(string(controllers)), need) {
			return ""
		}
	}
	dir := filepath.Join(top, fmt.Sprintf("delegated-%d", os.Getpid()))
	err := os.WriteFile(filepath.Join(top, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0)
	for _, d := range []string{dir, filepath.Join(dir, "tests")} { // processes may be in leaves only
		if err == nil {
			err = os.Mkdir(d, 0o755)
		}
		t.Cleanup(func() { // the last first
			if err := poll(func() error { return os.Remove(d) }); err != nil && !os.IsNotExist(err) {
				t.Errorf("a cgroup is left: %v", err)
			}
		})
		for _, f := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
			if err == nil {
				err = os.Chown(filepath.Join(d, f), rootlessUser, rootlessUser)
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// rootlessDir makes a directory that the ordinary user can reach, with all that it runs, and the
// environment to find it.
func rootlessDir(t *testing.T, sources []string) (dir string, env []string) {
	dir, err := os.MkdirTemp("", "sigma-rootless-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(dir, 0o755))
	bin, err := binDir()
	must(err)
	for _, sub := range []string{"bin", "built", "home"} {
		must(os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	must(os.Chown(filepath.Join(dir, "home"), rootlessUser, rootlessUser))
	for _, name := range systemPrograms() {
		must(copyProgram(filepath.Join(bin, name), filepath.Join(dir, "bin", name)))
	}
	must(copyProgram("/proc/self/exe", filepath.Join(dir, "tests")))
	for _, source := range sources {
		if filepath.Ext(source) == ".c" {
			BuildC(t, filepath.Join(dir, "built"), source)
		} else {
			BuildGo(t, filepath.Join(dir, "built"), source)
		}
	}
	must(os.Chmod(filepath.Join(dir, "built"), 0o755))
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SUDO_") {
			env = append(env, v)
		}
	}
	home := filepath.Join(dir, "home")
	return dir, append(env, "HOME="+home, "TMPDIR="+home, "SIGMA_TEST_BIN="+filepath.Join(dir, "bin"),
		builtEnv+"="+filepath.Join(dir, "built"),
		fmt.Sprintf("%s=%d:%d", rootlessEnv, rootlessFirst, rootlessCount))
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

// prebuilt copies a program that need not be compiled; false if there is none.
func prebuilt(tb testing.TB, out string) bool {
	dir := os.Getenv(builtEnv)
	if dir == "" {
		return false
	}
	from := filepath.Join(dir, filepath.Base(out))
	if _, err := os.Stat(from); err != nil {
		return false
	}
	if err := copyProgram(from, out); err != nil {
		tb.Fatal(err)
	}
	return true
}
