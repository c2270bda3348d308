// Package testenv boots real sigmaOS systems for the system tests (test/..., build tag system):
// each on a data directory of its own, with the programs that were built, as root.
//
// It promises that what a test leaves, also when it fails or is killed, is removed: a guardian
// process outlives the test program and sweeps the instance when the pipe between them closes. And
// that a system that is down has left nothing on the host: Boot's cleanup counts and fails the test
// otherwise (see Census).
//
// The programs are taken from the directory that the environment names in SIGMA_TEST_BIN, else from
// bin in the repository. Users: tests of test/... only.
package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// How long parts may take before a test gives up, times Slow: on a host that is much slower than
// usual, or stands still for some seconds. What is right waits for none of it.
const (
	cliMax  = 3 * time.Minute
	pollMax = time.Minute
)

// Slow is how many times longer than usual a test should wait before it gives up: SIGMA_TEST_SLOW,
// which scripts/test-vm sets where it emulates the processor; 1 without it. It changes no check.
func Slow() time.Duration {
	n, err := strconv.Atoi(os.Getenv("SIGMA_TEST_SLOW"))
	if err != nil {
		return 1
	}
	return time.Duration(min(max(n, 1), 100))
}

// Options say what to boot.
type Options struct {
	Weaken  bool   // protections can be taken off procs with SIGMA_WEAKEN=bits in their environment
	Machine string // default "m1"

	Bescheds int // 0 = 1

	args []string // more of sigma up
}

// System is one booted sigmaOS. Its methods are for the goroutine of the test that is given, except
// that CLI and Connect may be used concurrently.
type System struct {
	DataDir string

	home     string // what is removed at the end
	bin      string
	options  Options
	start    func(*exec.Cmd) error // starts commands where the machine is; nil = here
	instance string                // 8 hex digits; "" before the first boot
	nsfs     int                   // bind-mounted namespaces on the host before
	guardian *guardian
}

// RequireRoot skips the test, saying why, where procs cannot be made.
func RequireRoot(tb testing.TB) {
	tb.Helper()
	if _, _, rootless := RootlessUIDs(); os.Geteuid() != 0 && !rootless {
		tb.Skip("skipped: making procs needs root; run: sudo env PATH=$PATH go test -tags system ./test/...")
	}
}

// Boot starts a system for one test, which is taken down and checked for leaks at the test's end.
func Boot(tb testing.TB, o Options) *System {
	tb.Helper()
	s := New(tb, o)
	s.Up(tb)
	return s
}

// New is Boot for tests that start the system themselves, with Command, and then call Booted.
func New(tb testing.TB, o Options) *System {
	tb.Helper()
	RequireRoot(tb)
	s, err := newSystem(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("end of %s:\n%s", filepath.Join(s.DataDir, "sigma.log"), s.LogTail(40))
		}
		if err := s.close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func newSystem(o Options) (*System, error) {
	bin, err := binDir()
	if err != nil {
		return nil, err
	}
	if o.Machine == "" {
		o.Machine = "m1"
	}
	dir, err := os.MkdirTemp("", "sigma-test-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // programs are built below it, maybe as another user
		return nil, err
	}
	s := &System{DataDir: filepath.Join(dir, "data"), home: dir, bin: bin, options: o, nsfs: nsfsMounts()}
	err = takeNumbers(1, func(number uint32) error { return giveNumber(s.DataDir, number) })
	if err == nil {
		s.guardian, err = newGuardian(s, dir)
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// Root is the directory of the repository.
func Root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, serr := os.Stat(filepath.Join(dir, "go.mod")); serr == nil && !strings.Contains(dir, "testdata") {
			return dir, nil
		}
		if dir == "/" {
			err = errors.New("the tests do not run inside the repository: no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// systemPrograms are what a system consists of.
// Daemons are the processes of a machine that run from its start on. A dbd runs once its realm uses
// databases.
func Daemons() []string {
	all := append([]string{"keeper", "launcher"}, hostsetup.BootSet()...)
	return slices.DeleteFunc(all, func(name string) bool { return name == "dbd" })
}

func systemPrograms() []string { return append([]string{"sigma", "launcher"}, hostsetup.BootSet()...) }

func binDir() (string, error) {
	dir := os.Getenv("SIGMA_TEST_BIN")
	if dir == "" {
		root, err := Root()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, "bin")
	}
	for _, name := range systemPrograms() {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "",
				fmt.Errorf(
					"the program %s is not in %s: build it with make build, or set SIGMA_TEST_BIN to where the "+
						"programs are", name, dir)
		}
	}
	return filepath.Abs(dir)
}

// Command prepares the sigma command for this system; the caller runs it.
func (s *System) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "sigma"), args...)
	cmd.Env = append(os.Environ(), "SIGMA_DATA="+s.DataDir, "SIGMA_ADDR=", "SIGMA_REALM=")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// CLI runs the sigma command and returns what it printed and its exit code.
func (s *System) CLI(tb testing.TB, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	stdout, stderr, code, err := s.cli(args...)
	if err != nil {
		tb.Fatalf("sigma %.200q: %v\n%s%s", args, err, stdout, stderr)
	}
	return stdout, stderr, code
}

func (s *System) cli(args ...string) (stdout, stderr string, code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), cliMax*Slow())
	defer cancel()
	cmd := s.Command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = s.run(cmd)
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		err = nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("did not end within %v", cliMax*Slow())
	}
	if cmd.ProcessState != nil {
		code = cmd.ProcessState.ExitCode()
	}
	return out.String(), errs.String(), code, err
}

// Must is CLI for commands that have to succeed; it returns standard output.
func (s *System) Must(tb testing.TB, args ...string) string {
	tb.Helper()
	stdout, stderr, code := s.CLI(tb, args...)
	if code != 0 {
		tb.Fatalf("sigma %.200q: exit code %d\n%s%s", args, code, stdout, stderr)
	}
	return stdout
}

// Up starts the system on its data directory, which may have been used before.
func (s *System) Up(tb testing.TB) {
	tb.Helper()
	if err := s.up(); err != nil {
		tb.Fatal(err)
	}
}

func (s *System) up() error {
	args := []string{"up", "--detach", "--machine", s.options.Machine}
	if _, _, rootless := RootlessUIDs(); rootless {
		args = append(args, "--rootless")
	}
	if s.options.Weaken {
		args = append(args, "--weaken")
	}
	if s.options.Bescheds > 0 {
		args = append(args, "--bescheds", strconv.Itoa(s.options.Bescheds))
	}
	args = append(args, s.options.args...)
	stdout, stderr, code, err := s.cli(args...)
	if err != nil || code != 0 {
		return fmt.Errorf("sigma up: exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	return s.booted()
}

// Booted takes note of the instance, which a system has once it is up.
func (s *System) Booted(tb testing.TB) {
	tb.Helper()
	if err := s.booted(); err != nil {
		tb.Fatal(err)
	}
}

func (s *System) booted() error {
	b, err := os.ReadFile(filepath.Join(s.DataDir, "instance"))
	s.instance = strings.TrimSpace(string(b))
	return err
}

// Restart waits until the system, which was killed or taken down, is gone, and starts it again.
func (s *System) Restart(tb testing.TB) {
	tb.Helper()
	s.WaitStopped(tb)
	s.Up(tb)
}

// Down stops the system in the orderly way.
func (s *System) Down(tb testing.TB) {
	tb.Helper()
	s.Must(tb, "down")
}

// Running reports whether a launcher holds the data directory.
func (s *System) Running() bool {
	f, err := os.Open(filepath.Join(s.DataDir, "lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// WaitStopped waits until nobody holds the data directory.
func (s *System) WaitStopped(tb testing.TB) {
	tb.Helper()
	Eventually(tb, "the system is gone", func() error {
		if s.Running() {
			return errors.New("a process holds " + filepath.Join(s.DataDir, "lock"))
		}
		return nil
	})
}

// Socket is the path of the admin socket; its neighbour 9p.sock speaks plain 9P2000.L.
func (s *System) Socket() string { return filepath.Join(s.DataDir, "sigmad", "admin.sock") }

// Connect opens a realm; the client is closed at the test's end.
func (s *System) Connect(ctx context.Context, tb testing.TB, realm sigma.RealmID) *sdk.Client {
	tb.Helper()
	c, err := sdk.Connect(ctx, s.Socket(), realm)
	if err != nil {
		tb.Fatalf("connect to realm %s: %v", realm, err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Install puts a local program into a realm's /bin and returns its path there.
func (s *System) Install(ctx context.Context, tb testing.TB, c *sdk.Client, local string) string {
	tb.Helper()
	from, err := os.Open(local)
	if err != nil {
		tb.Fatal(err)
	}
	defer from.Close()
	path := "/bin/" + filepath.Base(local)
	to, err := c.Create(ctx, path, sigma.OpenWrite|sigma.OpenTruncate, 0o755)
	if err != nil {
		tb.Fatalf("create %s: %v", path, err)
	}
	if _, err = io.Copy(to, from); err == nil {
		err = to.Close()
	}
	if err != nil {
		tb.Fatalf("write %s: %v", path, err)
	}
	return path
}

// PID finds a daemon of the system ("keeper", "launcher", "sigmad", "named", "besched",
// "besched-2", "s3d", "machined", "lcsched"); 0 if it does not run.
func (s *System) PID(name string) int {
	switch name {
	case "launcher":
		return launcherOf(s.PID("keeper"))
	case "keeper":
		if !s.Running() {
			return 0
		}
		b, _ := os.ReadFile(filepath.Join(s.DataDir, "lock"))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return pid
	}
	_, _, rootless := RootlessUIDs()
	program := name[:strings.IndexAny(name+"-", "-/")] // besched-2 runs besched, dbd/r dbd
	for _, p := range s.processes() {
		if (p.name == name || p.name == program) && (p.cgroup == "rest/launcher/sigmad" ||
			strings.HasPrefix(p.cgroup+"/", "rest/system/"+name+"/") || p.cgroup == "" && rootless) {
			return p.pid
		}
	}
	return 0
}

// launcherOf finds the launcher proper among a keeper's children, which are otherwise sigmad's.
func launcherOf(keeper int) int {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", keeper, keeper))
	for _, child := range strings.Fields(string(children)) {
		name, _ := os.ReadFile("/proc/" + child + "/comm")
		if pid, err := strconv.Atoi(child); err == nil && strings.TrimSpace(string(name)) == "launcher" {
			return pid
		}
	}
	return 0
}

// Kill9 kills a daemon, once it runs if it is being started, and returns when it is gone. What dies
// with it may take a moment longer.
func (s *System) Kill9(tb testing.TB, name string) {
	tb.Helper()
	if err := s.kill9(name); err != nil {
		tb.Fatal(err)
	}
}

func (s *System) kill9(name string) error {
	pid := 0
	if err := poll(func() error {
		if pid = s.PID(name); pid == 0 {
			return fmt.Errorf("%s does not run", name)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill -9 %s (%d): %w", name, pid, err)
	}
	return poll(func() error {
		if p, ok := readProcess(pid); ok && !p.zombie {
			return fmt.Errorf("%s was killed, and process %d lives", name, pid)
		}
		return nil
	})
}

// LogTail gives the last n lines of what the system printed.
func (s *System) LogTail(n int) string {
	b, err := os.ReadFile(filepath.Join(s.DataDir, "sigma.log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Eventually polls check until it returns nil, and fails the test with its last error after a
// deadline.
func Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	if err := poll(check); err != nil {
		tb.Fatalf("not within %v: %s: %v", pollMax*Slow(), what, err)
	}
}

// pollTick is the time between two checks of poll, and pollRest how many times as long as a check
// took the next one waits. A census reads all of /proc and of the control groups, which may take
// longer than a tick: repeated at once, it keeps a processor from what the test waits for.
const (
	pollTick = 10 * time.Millisecond
	pollRest = 4

	pollRestMax = time.Second // so that a check during which the host stood still is not waited for
)

func poll(check func() error) error {
	for deadline := time.Now().Add(pollMax * Slow()); ; {
		began := time.Now()
		err := check()
		took := time.Since(began)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-time.After(min(max(pollTick, pollRest*took), pollRestMax))
	}
}
