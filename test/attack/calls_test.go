//go:build system

package attack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// What attack.c says of controls beside the bits.
const (
	outside   = 1 << 16 // as root, outside, with a directory of the host left open
	noControl = 1 << 17
)

// table is what attack.c lists: acts by name, and names by what is to be taken off for their
// controls.
func table(t *testing.T, p programs) (acts map[string]act, controls map[int][]string) {
	acts, controls = map[string]act{}, map[int][]string{}
	for l := range strings.Lines(testenv.Output(t, p.attack, "list")) {
		w := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		if len(w) != 4 || acts[w[0]].name != "" {
			t.Fatalf("line %q of the list", l)
		}
		bits, err := strconv.Atoi(w[1])
		if err != nil {
			t.Fatal(err)
		}
		acts[w[0]] = act{w[0], w[2], w[3]}
		controls[bits] = append(controls[bits], w[0])
	}
	return acts, controls
}

// attackByCalls runs the table of testdata/attempts in each profile that a tenant can choose.
func attackByCalls(ctx context.Context, t *testing.T, s *score, p programs, plain, weak *arena) {
	attackAs(ctx, t, s, p, plain, weak, sigma.ProfileSigma)
	attackAs(ctx, t, s, p, plain, weak, sigma.ProfileLinux)
}

// linuxGrants are the acts that the profile linux permits and the profile sigma does not: they
// reach nothing but what the proc has itself, and unmodified programs make them
// (docs/reference/isolation.md).
var linuxGrants = map[string]bool{
	"getcwd": true, "chdir ..": true, "fstatfs of a passed descriptor": true, "inotify_init": true, "renameat2": true,
	"linkat of a passed descriptor": true, "unlinkat": true, "rmdir": true, "truncate": true, "chmod": true,
	"utimensat":                        true,
	"ftruncate of a passed descriptor": true, "umask": true, "memfd_create": true, "set its own affinity": true,
	"lock its memory": true, "prctl PR_SET_NO_NEW_PRIVS": true, "prctl PR_SET_CHILD_SUBREAPER": true,
	"execve of nothing":       true,
	"execve of an empty path": true, "readahead": true, "prctl PR_SET_TIMERSLACK": true, "personality query": true,
	"sendfile": true, "copy_file_range": true, "signalfd": true, "timerfd_create": true, "membarrier": true,
	"fcntl F_SETPIPE_SZ": true, "fcntl F_ADD_SEALS": true,
}

// attackAs runs the table of testdata/attempts in one profile: all of it as an ordinary proc, then
// each with what its line says taken off.
func attackAs(ctx context.Context, t *testing.T, s *score, p programs, plain, weak *arena, profile sigma.Profile) {
	acts, controls := table(t, p)
	named := func(name string) act {
		a := acts[name]
		if profile == sigma.ProfileLinux {
			a.name += " (profile linux)"
		}
		return a
	}
	out, _ := plain.run(ctx, t, sigma.Descriptor{Program: plain.attack, Args: []string{"run"},
		Env: plain.env(t, everything), Profile: profile})
	results := lines(t, out)
	if len(results) != len(acts) {
		t.Errorf("got %d results of %d acts; the last is %v", len(results), len(acts), results[max(0, len(results)-1):])
	}
	for _, l := range results {
		if profile == sigma.ProfileLinux && linuxGrants[l.name] {
			if l.result != "SUCCEEDED" {
				t.Errorf("the profile linux is said to grant %q, which was %s %s", l.name, l.result, l.detail)
			}
			continue
		}
		s.tried(t, named(l.name), l.result != "blocked", l.result+" "+l.detail)
	}
	for bits, names := range controls {
		if profile == sigma.ProfileLinux {
			names = slices.DeleteFunc(names, func(name string) bool { return linuxGrants[name] })
		}
		if len(names) == 0 {
			continue
		}
		args := append([]string{"run"}, names...)
		switch bits {
		case noControl:
			continue
		case outside:
			out = runOutside(t, p, args...)
		default:
			out, _ = weak.run(ctx, t, sigma.Descriptor{Program: weak.attack, Args: args, Env: weak.env(t, bits),
				Profile: profile})
		}
		results := lines(t, out)
		if len(results) != len(names) {
			t.Errorf("got %d results of the %d controls with %d taken off", len(results), len(names), bits)
		}
		for _, l := range results {
			s.control(t, named(l.name), l.result == "SUCCEEDED", fmt.Sprintf("%s %s, with %d taken off", l.result,
				l.detail, bits))
		}
	}
}

// runOutside runs the program of attempts on the host, with the root directory as descriptor 4.
func runOutside(t *testing.T, p programs, args ...string) string {
	root, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	cmd := exec.Command(p.attack, args...)
	cmd.ExtraFiles = []*os.File{nil, root}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// attackInDepth leaves one protection of several and shows that it is enough: what the controls
// take off together are walls one behind the other.
func attackInDepth(ctx context.Context, t *testing.T, s *score, p programs, weak *arena) {
	acts, _ := table(t, p)
	const seccomp, landlock, mounts, pids, root, caps = 1, 2, 4, 16, 32 + 64, 64
	files := []string{"open /etc/passwd", "open(2) /etc/passwd", "open /proc/self/status", "open /sys",
		"open above the root", "create a file in /tmp", "mkdir", "symlink", "mknod of a file", "execve /bin/true",
		"execveat by path"}
	seen := []string{"stat /etc/passwd", "access /etc/passwd", "readlink /proc/self/exe", "chdir /etc"}
	signals := []string{"signal a sibling", "signal another realm's proc", "signal sigmad", "tkill a sibling"}
	others := []string{"ptrace a sibling", "read a sibling's memory", "write a sibling's memory",
		"read another realm's memory", "ptrace sigmad"}
	limits := []string{"set a sibling's limits", "set a sibling's affinity", "set a sibling's priority",
		"set a sibling's scheduler"}
	privileged := []string{"setuid", "setgroups", "unshare mounts", "unshare network", "clone with processes", "chroot",
		"bpf", "perf_event_open of the machine", "socket INET raw", "sethostname", "syslog", "reboot"}
	for _, x := range []struct {
		left  string
		off   int
		names []string
	}{
		{"the filter", landlock | mounts | pids | root, slices.Concat(files, seen, others, limits, privileged)},
		{"Landlock", seccomp | mounts, files},
		{"the empty root", seccomp | landlock, slices.Concat(files, seen)},
		{"the PID namespace", seccomp | landlock | root, slices.Concat(signals, others, limits)},
		{"the uid", seccomp | landlock | pids, slices.Concat(signals, others, limits)},
		{"NO_NEW_PRIVS", seccomp | landlock | mounts, []string{"execve a set-uid program of root"}},
		{"the lack of capabilities", seccomp | landlock | mounts, privileged},
	} {
		out, _ := weak.run(ctx, t, sigma.Descriptor{Program: weak.attack, Args: append([]string{"run"}, x.names...),
			Env: weak.env(t, x.off)})
		results := lines(t, out)
		if len(results) != len(x.names) {
			t.Errorf("got %d results of the %d attempts that only %s stops", len(results), len(x.names), x.left)
		}
		for _, l := range results {
			s.again(t, acts[l.name], l.result != "blocked", fmt.Sprintf("%s %s, where only %s was left", l.result,
				l.detail, x.left))
		}
	}
}
