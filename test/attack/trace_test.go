//go:build system

package attack

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
	"sigmaos.dev/test/attack/forge"
)

// traced are the calls by which a process can come by a file, a program or a peer, or another
// process.
const traced = "open,openat,openat2,open_by_handle_at,creat,execve,execveat,socket,socketpair,connect,accept,accept4,bind,pidfd_getfd,recvmsg,clone,clone3,fork,vfork"

// Goal: a mapper gets its input by sigmaP and passed descriptors alone (issue 2, "done when" 3).
// Method: strace follows the launcher and every process waiting to become a proc while procs read
// files of s3 and ux: first a program that only takes descriptors, then a job of MapReduce. Their
// calls are picked out from their execveat on. The counts show that they did read, the recvmsg that
// descriptors came, and the refused calls that the trace would have seen others.
func TestTracedMapper(t *testing.T) {
	testenv.RequireRoot(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("skipped: strace is not installed; run: make setup")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	a := newArena(ctx, t, build(t), testenv.Options{})
	text := strings.Repeat("a word and another ", 1000)
	paths := []string{forge.Bucket + "/in/text", forge.UX + "/text"}
	if err := a.own.MkdirAll(ctx, forge.Bucket+"/in", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if _, err := a.own.Put(ctx, path, []byte(text), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("descriptors", func(t *testing.T) {
		a.run(ctx, t, sigma.Descriptor{Program: a.forge, Args: []string{"nothing"}}) // the program is fetched
		file := a.trace(t, strace, func() {
			out, st := a.run(ctx, t, sigma.Descriptor{Program: a.forge, Args: append([]string{"count"}, paths...)})
			if out != "8000\n" || st.Code != sigma.StatusOK {
				t.Errorf("the program counted %q and ended with %v, want 8000", out, st)
			}
		})
		if passed := onlyPassed(t, file, `["forger", "count"`); passed < 3 {
			t.Errorf("got %d messages with descriptors, want the store's socket and one a file", passed)
		}
	})
	t.Run("mr", func(t *testing.T) {
		file := a.trace(t, strace, func() {
			a.Must(t, "mr", "wordcount", "--input", forge.Bucket+"/in", "--output", forge.Bucket+"/out", "--maps", "2",
				"--reduces", "1")
		})
		entries, err := a.own.ReadDir(ctx, forge.Bucket+"/out")
		if err != nil {
			t.Fatal(err)
		}
		counted := ""
		for _, e := range entries {
			b, _, err := a.own.Get(ctx, forge.Bucket+"/out/"+e.Name)
			if err != nil {
				t.Fatal(err)
			}
			counted += string(b)
		}
		if !strings.Contains(counted, "another\t1000\n") {
			t.Errorf("the job counted %.200q, want another 1000", counted)
		}
		for _, role := range []string{"map", "reduce", "coord"} {
			onlyPassed(t, file, `"`+role+`"`)
		}
	})
}

// trace follows the launcher, and with it all procs, while do runs.
func (a *arena) trace(t *testing.T, strace string, do func()) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "trace")
	args := []string{"-f", "-qq", "-e", "trace=" + traced, "-e", "signal=none", "--pidns-translation", "-o", file}
	for _, pid := range launchers(a.PID("launcher")) {
		args = append(args, "-p", strconv.Itoa(pid))
	}
	cmd := exec.Command(strace, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	testenv.Eventually(t, "strace has attached", func() error {
		for _, pid := range launchers(a.PID("launcher")) {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil &&
				strings.Contains(string(b), "TracerPid:\t0\n") { // one that waited for a START may have been given up
				return fmt.Errorf("process %d is not traced", pid)
			}
		}
		return nil
	})
	do()
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	return file
}

// onlyPassed checks that procs with that argument opened nothing by themselves, and counts the
// messages that brought them descriptors.
func onlyPassed(t *testing.T, file, argument string) (passed int) {
	t.Helper()
	calls := procCalls(t, file, argument)
	for _, c := range calls {
		switch {
		case strings.HasPrefix(c.name, "clone") || strings.HasSuffix(c.name, "fork"):
		case c.name == "recvmsg":
			if strings.Contains(c.text, "SCM_RIGHTS") {
				passed++
			}
		case c.name == "execveat" && strings.HasPrefix(c.text, `execveat(1000, ""`):
		case c.ok:
			t.Errorf("%s: it did: %s", argument, c.text)
		}
	}
	if !slices.ContainsFunc(calls, func(c tracedCall) bool { return strings.HasPrefix(c.name, "open") && !c.ok }) {
		t.Errorf(
			"%s: no open that was refused is in the trace: a Go program always tries some, so the trace is not whole",
			argument)
	}
	t.Logf("%s: %d calls are in the trace, %d of them brought descriptors", argument, len(calls), passed)
	if t.Failed() {
		b, _ := os.ReadFile(file)
		t.Logf("the trace:\n%s", b)
	}
	return passed
}

// launchers are the launcher and its children that are no proc yet.
func launchers(launcher int) []int {
	out := []int{launcher}
	for i := 0; i < len(out); i++ {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", out[i], out[i]))
		for _, w := range strings.Fields(string(b)) {
			name, _ := os.ReadFile("/proc/" + w + "/comm")
			if pid, err := strconv.Atoi(w); err == nil && strings.TrimSpace(string(name)) == "launcher" {
				out = append(out, pid)
			}
		}
	}
	return out
}

type tracedCall struct {
	pid, name, text string
	value           string
	ok              bool
}

var (
	traceLine = regexp.MustCompile(`^(\d+) +(\w+)\((.*)$`)
	resumed   = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>(.*)$`)
	inHost    = regexp.MustCompile(`= \d+ /\* (\d+) in strace's PID NS \*/$`) // what clone returned
	result    = regexp.MustCompile(`\) += (-?\d+)[^)]*(\([^)]*\))?$`)
)

// procCalls picks the calls of processes that executed a program with that argument, from their
// execveat on, and of their threads, whose first calls may stand before the end of the clone that
// made them.
func procCalls(t *testing.T, file, argument string) (out []tracedCall) {
	t.Helper()
	all := readTrace(t, file)
	from := map[string]int{} // by process: the index of its first call
	for i, c := range all {
		if c.name == "execveat" && strings.Contains(c.text, argument) {
			from[c.pid] = i
		}
	}
	if len(from) == 0 {
		t.Fatalf("the trace has no execveat with %s", argument)
	}
	within := func(i int) bool {
		first, ours := from[all[i].pid]
		return ours && i >= first
	}
	for more := true; more; {
		more = false
		for i, c := range all {
			if _, known := from[c.value]; within(i) && c.ok && strings.HasPrefix(c.name, "clone") && !known {
				from[c.value], more = 0, true
			}
		}
	}
	for i, c := range all {
		if within(i) {
			out = append(out, c)
		}
	}
	return out
}

// readTrace reads whole calls, joining those whose end is in a later line, in the order of their
// ends.
func readTrace(t *testing.T, file string) (out []tracedCall) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	begun := map[string]string{} // by process
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		line := s.Text()
		c := tracedCall{}
		if m := resumed.FindStringSubmatch(line); m != nil {
			c.pid, c.name, c.text = m[1], m[2], begun[m[1]]+m[3]
			delete(begun, c.pid)
		} else if m := traceLine.FindStringSubmatch(line); m != nil {
			c.pid, c.name, c.text = m[1], m[2], m[2]+"("+m[3]
		} else {
			continue
		}
		if text, unfinished := strings.CutSuffix(c.text, " <unfinished ...>"); unfinished {
			begun[c.pid] = text
			continue
		}
		if r := inHost.FindStringSubmatch(c.text); r != nil {
			c.value, c.ok = r[1], true
		} else if r := result.FindStringSubmatch(c.text); r != nil {
			c.value, c.ok = r[1], !strings.HasPrefix(r[1], "-")
		}
		out = append(out, c)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}
