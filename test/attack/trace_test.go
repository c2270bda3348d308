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

// traced are the calls by which a process can come by a file, a program or a peer, or another process.
const traced = "open,openat,openat2,open_by_handle_at,creat,execve,execveat,socket,socketpair,connect,accept,accept4,bind,pidfd_getfd,recvmsg,clone,clone3,fork,vfork"

// Goal: a mapper gets its input by sigmaP and passed descriptors alone (issue 2, "done when" 3). Method: strace follows the launcher and every process waiting to become a proc
// while a proc counts the words of files in s3 and ux; the calls of that proc are picked out from its execveat on. The count shows that it did read, the recvmsg that descriptors
// came, and the refused calls that the trace would have seen others.
func TestTracedMapper(t *testing.T) {
	testenv.RequireRoot(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("skipped: strace is not installed; run: make setup")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testMax)
	defer cancel()
	a := newArena(ctx, t, build(t), testenv.Options{})
	text := strings.Repeat("a word and another ", 1000)
	for _, path := range []string{forge.Bucket + "/text", forge.UX + "/text"} {
		if _, err := a.own.Put(ctx, path, []byte(text), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	a.run(ctx, t, sigma.Descriptor{Program: a.forge, Args: []string{"nothing"}}) // the program is fetched

	file := filepath.Join(t.TempDir(), "trace")
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
			if tracer := status(t, pid)["TracerPid"]; tracer == "0" {
				return fmt.Errorf("process %d is not traced", pid)
			}
		}
		return nil
	})
	out, st := a.run(ctx, t, sigma.Descriptor{Program: a.forge, Args: []string{"map", forge.Bucket + "/text", forge.UX + "/text"}})
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	if out != "8000\n" || st.Code != sigma.StatusOK {
		t.Fatalf("the mapper counted %q and ended with %v, want 8000", out, st)
	}
	calls := procCalls(t, file, `"map"`)
	passed := 0
	for _, c := range calls {
		switch {
		case c.name == "clone" || strings.HasSuffix(c.name, "fork"):
		case c.name == "recvmsg":
			if strings.Contains(c.text, "SCM_RIGHTS") {
				passed++
			}
		case c.name == "execveat" && strings.HasPrefix(c.text, `execveat(1000, ""`):
		case c.ok:
			t.Errorf("the mapper did: %s", c.text)
		}
	}
	if passed < 3 {
		t.Errorf("got %d messages with descriptors, want the store's socket and one a file", passed)
	}
	if !slices.ContainsFunc(calls, func(c tracedCall) bool { return strings.HasPrefix(c.name, "open") && !c.ok }) {
		t.Error("no open that was refused is in the trace: a Go program always tries some, so the trace is not whole")
	}
	if t.Failed() {
		b, _ := os.ReadFile(file)
		t.Logf("the trace:\n%s", b)
	}
	t.Logf("%d calls of the mapper are in the trace, %d of them brought descriptors", len(calls), passed)
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

// procCalls picks the calls of the process that executed a program with that argument, from its execveat on, and of its threads, whose first calls may stand before the end of
// the clone that made them.
func procCalls(t *testing.T, file, argument string) (out []tracedCall) {
	all := readTrace(t, file)
	from := slices.IndexFunc(all, func(c tracedCall) bool { return c.name == "execveat" && strings.Contains(c.text, argument) })
	if from < 0 {
		t.Fatal("the trace has no execveat of the mapper")
	}
	main := all[from].pid
	ours := map[string]bool{main: true}
	for more := true; more; {
		more = false
		for i, c := range all {
			if made := c.value; ours[c.pid] && c.ok && (c.pid != main || i > from) && strings.HasPrefix(c.name, "clone") && !ours[made] {
				ours[made], more = true, true
			}
		}
	}
	for i, c := range all {
		if ours[c.pid] && (c.pid != main || i >= from) {
			out = append(out, c)
		}
	}
	return out
}

// readTrace reads whole calls, joining those whose end is in a later line, in the order of their ends.
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
