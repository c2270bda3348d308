package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/hostsetup"
)

// fakeLauncher is a launcher that starts nothing. What it does is in DATA/behave, as its
// environment is not the test's: "ready", "error: text", "die", "hang" (says nothing), "stubborn"
// (ready, then ignores SIGTERM).
func fakeLauncher() int {
	args := map[string]string{}
	for i := 1; i+1 < len(os.Args); i += 2 {
		args[os.Args[i]] += os.Args[i+1]
	}
	fd, err := strconv.Atoi(args["--ready-fd"])
	if err != nil || args["--lock-fd"] != "3" || !datadir.InstanceForm.MatchString(args["--instance"]) ||
		!strings.Contains(args["--program"], "sigmad=/") {
		fmt.Println("bad command line:", os.Args)
		return 64
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	behave, _ := os.ReadFile(filepath.Join(args["--data"], "behave"))
	os.WriteFile(filepath.Join(args["--data"], "arguments"), []byte(strings.Join(os.Args[1:], " ")), 0o600)
	ready := os.NewFile(uintptr(fd), "ready")
	fmt.Println("this is the launcher's log, machine", args["--machine"])
	switch string(behave) {
	case "die":
		return 3
	case "hang":
		<-signals
		ready.Close()
		return 0
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		io.WriteString(ready, "ready\n")
	default:
		io.WriteString(ready, string(behave)+"\n")
	}
	ready.Close()
	<-signals
	return 0
}

// world is a directory with sigma, a fake launcher and the other programs in it, and a DATA.
type world struct {
	t         *testing.T
	dir, data string
}

func newWorld(t *testing.T, behave string) *world {
	if os.Geteuid() != 0 {
		t.Skip("sigma up needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t, t.TempDir(), filepath.Join(t.TempDir(), "data")}
	for _, name := range append([]string{"sigmaUnderTest", "launcher"}, hostsetup.BootSet()...) {
		if err := os.Link(self, filepath.Join(w.dir, name)); err != nil {
			b, err := os.ReadFile(self) // another file system
			if err == nil {
				err = os.WriteFile(filepath.Join(w.dir, name), b, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Mkdir(w.data, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"behave": behave, datadir.LockName: ""} {
		if err := os.WriteFile(filepath.Join(w.data, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if pid, held, _ := datadir.Running(w.data); held {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return w
}

func (w *world) cmd(args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(w.dir, "sigmaUnderTest"), args...)
	c.Env = []string{"SIGMA_DATA=" + w.data, noRaceSleep}
	return c
}

func (w *world) run(args ...string) result {
	c := w.cmd(args...)
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil && c.ProcessState == nil {
		w.t.Fatal(err)
	}
	return result{c.ProcessState.ExitCode(), out.String(), errs.String()}
}

// A detached system runs until down, one at a time on a DATA, with the same instance each time.
func TestUpDown(t *testing.T) {
	w := newWorld(t, "ready")
	var instances []string
	for range 2 {
		if got := w.run("up", "--detach", "--machine", "m1"); got.code != 0 ||
			!strings.Contains(got.out, "is running as machine m1") {
			t.Fatalf("up: %+v", got)
		}
		if got := w.run("up", "-d"); got.code != 1 ||
			!strings.Contains(got.err, "a sigmaOS is already running on "+w.data+" (pid ") {
			t.Errorf("a second up: %+v", got)
		}
		id, err := os.ReadFile(filepath.Join(w.data, datadir.InstanceName))
		if err != nil {
			t.Error(err)
		}
		instances = append(instances, string(id))
		if got := w.run("down"); got.code != 0 || !strings.Contains(got.err, "through its launcher") ||
			!strings.Contains(got.out, "is stopped") {
			t.Errorf("down: %+v", got)
		}
		if _, held, err := datadir.Running(w.data); held || err != nil {
			t.Errorf("the lock is held after down; %v", err)
		}
	}
	if instances[0] != instances[1] {
		t.Errorf("instances %q", instances)
	}
	if got := w.run("down"); got.code != 1 || !strings.Contains(got.err, "no sigmaOS is running") {
		t.Errorf("a second down: %+v", got)
	}
	if st, err := os.Stat(w.data); err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("DATA: %v %v", st.Mode(), err)
	}
}

// A start that fails says why, shows the log, and leaves nothing running.
func TestUpFails(t *testing.T) {
	for behave, msg := range map[string]string{
		"error: no cgroups": "sigmaOS did not start: no cgroups",
		"die":               "the launcher ended before the system was ready",
	} {
		w := newWorld(t, behave)
		got := w.run("up", "--detach", "--machine", "m1")
		if got.code != 1 || !strings.Contains(got.err, msg) ||
			!strings.Contains(got.err, "this is the launcher's log, machine m1") {
			t.Errorf("%s: %+v", behave, got)
		}
		if _, held, err := datadir.Running(w.data); held || err != nil {
			t.Errorf("%s: the lock is held; %v", behave, err)
		}
	}
}

// What a machine waits for is said as soon as it says so, and does not count as an answer.
func TestUpTellsWaits(t *testing.T) {
	w := newWorld(t, "missing: m2 and m3\nwaits: m3\nwaits: \nready")
	got := w.run("up", "--detach", "--machine", "m1")
	if got.code != 0 || !strings.Contains(got.err, "machine m1 waits for m2 and m3\nmachine m1 waits for m3\n") {
		t.Errorf("%+v", got)
	}
	if got := w.run("down"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

// A start that takes too long says what the machine waits for at its end, and not what it waited
// for before; its hint is about other machines only if these do not answer, and restores nothing at
// a machine that has nothing of that.
func TestUpWaitsInVain(t *testing.T) {
	const late = "\nerror: not ready after 1m0s"
	for _, c := range []struct {
		behave, says, hint string
	}{
		{"missing: m2, m2 does not answer" + late, "machine m1 waited for m2, m2 does not answer",
			"sigma snapshot restore --replace"},
		{"missing: m2, m2 does not answer\nwaits: " + late, "not ready after 1m0s\n", "sigma doctor"},
		{"missing: m2, m2 does not answer\nwaits: one to lead" + late, "machine m1 waited for one to lead",
			"sigma doctor"},
		{"missing: m2, m2 does not answer\nerror: no cgroups", "sigmaOS did not start: no cgroups\n", "sigma doctor"},
	} {
		w := newWorld(t, c.behave)
		got := w.run("up", "--detach", "--machine", "m1")
		_, hint, _ := strings.Cut(got.err, "\nhint: ")
		if got.code != 1 || !strings.Contains(got.err, c.says) || !strings.Contains(hint, c.hint) ||
			c.hint == "sigma doctor" == strings.Contains(hint, "start sigmaOS") ||
			!strings.Contains(got.err, "this is the launcher's log, machine m1") {
			t.Errorf("%q: %+v", c.behave, got)
		}
	}
	w := newWorld(t, "error: the token is used up\tmake another with: sigma token")
	if got := w.run("up", "--detach", "--machine", "m1"); got.code != 1 ||
		got.err != "sigma: sigmaOS did not start: the token is used up\nhint: make another with: sigma token\n" {
		t.Errorf("what sigmad explains: %+v", got)
	}
}

// In the foreground, SIGINT stops the system in an orderly way and the launcher's death is a
// failure.
func TestUpForeground(t *testing.T) {
	w := newWorld(t, "ready")
	for _, c := range []struct {
		signal   syscall.Signal
		launcher bool // signal the launcher instead of sigma
		code     int
	}{{syscall.SIGINT, false, 0}, {syscall.SIGTERM, false, 0}, {syscall.SIGTERM, true, 0}, {syscall.SIGKILL, true, 1}} {
		cmd := w.cmd("up")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 200)
		if n, err := out.Read(line); !strings.Contains(string(line[:n]), "^C stops it") {
			t.Fatalf("said %q, %v", line[:n], err)
		}
		pid := cmd.Process.Pid
		if c.launcher {
			pid, _, _ = datadir.Running(w.data)
		}
		syscall.Kill(pid, c.signal)
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != c.code {
			t.Errorf("%v (launcher: %v): code %d, want %d", c.signal, c.launcher, got, c.code)
		}
		if _, held, _ := datadir.Running(w.data); held {
			t.Errorf("%v: something is left", c.signal)
		}
	}
}

// SIGINT before the system is ready stops the start.
func TestUpInterrupted(t *testing.T) {
	w := newWorld(t, "hang")
	os.Remove(filepath.Join(w.data, datadir.LogName))
	cmd := w.cmd("up")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for { // the launcher has written its log once it listens to signals
		if b, _ := os.ReadFile(filepath.Join(w.data, datadir.LogName)); len(b) > 0 || time.Now().After(deadline) {
			break
		}
		datadir.Pause(t.Context(), 5*time.Millisecond)
	}
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("code %d", code)
	}
	if _, held, _ := datadir.Running(w.data); held {
		t.Error("something is left")
	}
}

// A directory that is not a DATA is not touched.
func TestUpRefusesDirectories(t *testing.T) {
	w := newWorld(t, "ready")
	other := t.TempDir()
	file := write(t, filepath.Join(other, "file"), nil)
	before, _ := os.Stat(other)
	for dir, msg := range map[string]string{
		other: "has files in it that are not sigmaOS's", file: "is a file", file + "/x": "lies below a file",
		"/": "cannot be the data directory", "/proc/x": "",
	} {
		if got := w.run("up", "--detach", "--data", dir); got.code != 1 || !strings.Contains(got.err, msg) ||
			!strings.Contains(got.err, "data directory") && msg != "" {
			t.Errorf("--data %s: %+v", dir, got)
		}
	}
	if after, _ := os.Stat(other); after.Mode() != before.Mode() {
		t.Errorf("mode changed to %v", after.Mode())
	}
	if err := os.WriteFile(filepath.Join(w.data, datadir.InstanceName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := w.run("up", "-d"); got.code != 1 || !strings.Contains(got.err, "8 hex digits") {
		t.Errorf("damaged instance: %+v", got)
	}
}
