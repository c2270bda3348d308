//go:build system

package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/internal/testenv"
)

// processes of a mount, by the flag that they were started with: --foreground is the keeper's,
// --serve the server's, --spare that of who unmounts after both.
func processes(t *testing.T, dir, flag string) (pids []int) {
	t.Helper()
	all, err := os.ReadDir("/proc")
	must(t, err)
	for _, p := range all {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if args := strings.Split(string(line), "\x00"); len(args) > 3 && args[1] == "mount" && args[2] == flag &&
			strings.Contains(string(line), "\x00"+dir+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// signal sends a signal to the one process of a mount that was started with a flag.
func signal(t *testing.T, dir, flag string, sig syscall.Signal) {
	t.Helper()
	pids := processes(t, dir, flag)
	if len(pids) != 1 {
		t.Fatalf("%d processes have %s of %s", len(pids), flag, dir)
	}
	must(t, syscall.Kill(pids[0], sig))
}

func isMounted(dir string) bool {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	return strings.Contains(string(b), " "+dir+" ")
}

// When the server of a mount is killed, who uses it gets an error at once and the keeper unmounts;
// when both are, the next mount, and doctor, deal with what was left.
func TestKilledMount(t *testing.T) {
	s := shared.Get(t)
	dir := mountAt(t, s, filepath.Join(t.TempDir(), "m"))
	name := filepath.Join(dir, "sys/version")
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	for _, pid := range processes(t, dir, "--serve") {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		must(t, err)
		if _, most, _ := strings.Cut(string(limits), "Max data size"); !strings.HasPrefix(strings.TrimSpace(most),
			"1073741824 ") {
			t.Errorf("the server of a mount may have more than 1 GiB of memory:\n%s", limits)
		}
	}
	signal(t, dir, "--serve", syscall.SIGKILL)
	testenv.Eventually(t, "the keeper unmounts", func() error {
		if isMounted(dir) || len(processes(t, dir, "--foreground")) > 0 {
			return errors.New("it is mounted still")
		}
		return nil
	})
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("a file that was open reads as %v", err)
	}
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Errorf("stat: %v", err)
	}

	s.Must(t, "mount", dir)
	for _, pid := range processes(t, dir, "--spare") { // an ordinary user's mount has none
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	signal(t, dir, "--foreground", syscall.SIGSTOP) // so that it does not unmount before it is killed itself
	signal(t, dir, "--serve", syscall.SIGKILL)
	signal(t, dir, "--foreground", syscall.SIGKILL)
	testenv.Eventually(t, "the dead mount says so", func() error {
		if _, err := os.Stat(name); !errors.Is(err, syscall.ENOTCONN) {
			return fmt.Errorf("stat: %v", err)
		}
		return nil
	})
	if out, _, _ := s.CLI(t, "doctor"); !strings.Contains(out, "sigma unmount "+dir) {
		t.Errorf("doctor does not tell of the dead mount: %s", out)
	}
	s.Must(t, "mount", dir)
	if _, err := os.ReadFile(name); err != nil {
		t.Errorf("mounted again: %v", err)
	}
	signal(t, dir, "--foreground", syscall.SIGKILL)
	testenv.Eventually(t, "without a keeper it is unmounted", func() error {
		if isMounted(dir) {
			return errors.New("it is mounted still")
		}
		return nil
	})
	s.Must(t, "mount", dir)
	s.Must(t, "unmount", dir)
	testenv.Eventually(t, "its processes end", func() error {
		return leftOf(t, dir)
	})
}

// leftOf is an error as long as processes of a mount live.
func leftOf(t *testing.T, dir string) error {
	for _, flag := range []string{"--foreground", "--serve", "--spare"} {
		if left := processes(t, dir, flag); len(left) > 0 {
			return fmt.Errorf("%d processes with %s are left", len(left), flag)
		}
	}
	return nil
}

// argument is what follows a flag on the command line of a process; "" if it has none.
func argument(t *testing.T, pid int, flag string) string {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	must(t, err)
	args := strings.Split(string(line), "\x00")
	at := slices.Index(args, flag)
	if at < 0 || at+1 == len(args) {
		return ""
	}
	return args[at+1]
}

// The server of root's mount has no right of root's, and little memory. It reads, writes and
// unmounts nevertheless, and the kernel reads large files by itself.
func TestServerHasNoRights(t *testing.T) {
	s := shared.Get(t)
	dir, work := mounted(t, s)
	servers, spares := processes(t, dir, "--serve"), processes(t, dir, "--spare")
	if len(servers) != 1 || len(spares) != 1 {
		t.Fatalf("%d servers and %d spares", len(servers), len(spares))
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", servers[0]))
	must(t, err)
	for line := range strings.Lines(string(status)) {
		key, text, _ := strings.Cut(line, ":")
		f := strings.Fields(text)
		bad := false
		switch key {
		case "Uid", "Gid":
			bad = len(f) != 4 || slices.Contains(f, "0")
		case "Groups":
			bad = len(f) > 0
		case "CapInh", "CapPrm", "CapEff", "CapAmb":
			bad = strings.Trim(f[0], "0") != ""
		case "NoNewPrivs":
			bad = f[0] != "1"
		}
		if bad {
			t.Errorf("the server has %s", line)
		}
	}
	cgroup := argument(t, spares[0], "--cgroup")
	if cgroup == "" {
		t.Log("this host lets nobody make a cgroup with a limit of memory")
	} else {
		in, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
		must(t, err)
		if got := strings.TrimSpace(string(in)); got != strconv.Itoa(servers[0]) {
			t.Errorf("in %s are %q, want %d", cgroup, got, servers[0])
		}
		limit, err := os.ReadFile(filepath.Join(cgroup, "memory.max"))
		if os.IsNotExist(err) {
			limit, err = os.ReadFile(filepath.Join(cgroup, "memory.limit_in_bytes"))
		}
		must(t, err)
		if got := strings.TrimSpace(string(limit)); got != strconv.Itoa(1<<30) {
			t.Errorf("the limit of memory is %s", got)
		}
	}
	name, want := filepath.Join(work, "large"), bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	must(t, os.WriteFile(name, want, 0o600))
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("a large file: %d bytes, %v", len(got), err)
	}
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil || st.Uid != 0 || st.Gid != 0 {
		t.Errorf("a file is of %d:%d, %v", st.Uid, st.Gid, err)
	}
	s.Must(t, "unmount", dir)
	testenv.Eventually(t, "nothing is left", func() error {
		if _, err := os.Stat(cgroup); cgroup != "" && err == nil {
			return fmt.Errorf("%s is left", cgroup)
		}
		return leftOf(t, dir)
	})
}

// A mount outlives a sigmad that is killed: files that were open go on, and nothing hangs or is
// lost.
func TestKilledSigmad(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	_, work := mounted(t, s)
	f, err := os.Create(filepath.Join(work, "f"))
	must(t, err)
	defer f.Close()
	for round := range 2 {
		_, err = fmt.Fprintf(f, "before %d\n", round)
		must(t, err)
		s.Kill9(t, "sigmad")
		testenv.Eventually(t, "the open file can be written again", func() error {
			_, err := f.WriteAt([]byte("x"), int64(round))
			return err
		})
	}
	want := "xxfore 0\nbefore 1\n"
	if got, err := os.ReadFile(filepath.Join(work, "f")); err != nil || string(got) != want {
		t.Errorf("the file has %q, %v, want %q", got, err, want)
	}
	must(t, os.Mkdir(filepath.Join(work, "d"), 0o700))
}

// What cannot be mounted on, or unmounted, is refused with a hint.
func TestBadMounts(t *testing.T) {
	s := shared.Get(t)
	dir := t.TempDir()
	full, file, missing := filepath.Join(dir, "full"), filepath.Join(dir, "full/file"), filepath.Join(dir, "missing")
	must(t, os.Mkdir(full, 0o700))
	must(t, os.WriteFile(file, nil, 0o600))
	twice := mountAt(t, s, filepath.Join(dir, "twice"))
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"mount", full}, "not empty"},
		{[]string{"mount", file}, "not a directory"},
		{[]string{"mount", missing}, "mkdir -p"},
		{[]string{"mount", twice}, "sigma unmount"},
		{[]string{"mount", t.TempDir(), "/nothing/there"}, "not found"},
		{[]string{"mount", t.TempDir(), "/sys/version"}, "not a directory"},
		{[]string{"mount", "-r", "no-such-realm", t.TempDir()}, "realm"},
		{[]string{"unmount", full}, "no realm is mounted"},
		{[]string{"serve", "9p"}, "--listen"},
		{[]string{"serve", "9p", "--listen", "nowhere"}, "HOST:PORT"},
		{[]string{"serve", "9p", "--listen", "unix:" + file}, "no socket"},
	} {
		_, stderr, code := s.CLI(t, c.args...)
		if code == 0 || !strings.Contains(stderr, c.says) {
			t.Errorf("sigma %s: code %d, %q, want %q", strings.Join(c.args, " "), code, stderr, c.says)
		}
	}
	busy, err := os.Open(filepath.Join(twice, "sys/version"))
	must(t, err)
	defer busy.Close()
	if _, stderr, code := s.CLI(t, "unmount", twice); code == 0 || !strings.Contains(stderr, "--lazy") {
		t.Errorf("unmount while a file is open: %d, %q", code, stderr)
	}
}
