//go:build system

package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: the first thing a user does works, for three languages.
func TestRunHello(t *testing.T) {
	s := shared.Get(t)
	for _, source := range []string{"hello.c", "hello.rs", "hello"} {
		t.Run(source, func(t *testing.T) {
			stdout, stderr, code := s.CLI(t, "run", program(t, source))
			if code != 0 || stdout != "hello\n" || stderr != "" {
				t.Errorf("got code %d, stdout %q, stderr %q, want 0, hello and nothing", code, stdout, stderr)
			}
		})
	}
}

// run ends with the program's code, or one that says why there was none.
func TestRunExitCodes(t *testing.T) {
	s := shared.Get(t)
	probe := program(t, "probe.c")
	dir := t.TempDir()
	notExecutable := filepath.Join(dir, "notexecutable")
	if err := os.WriteFile(notExecutable, []byte("\x7fELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string // in stderr
	}{
		{[]string{probe, "exit", "0"}, 0, ""},
		{[]string{probe, "exit", "7"}, 7, ""},
		{[]string{probe, "abort"}, 134, "aborted"},
		{[]string{probe, "raise", "9"}, 137, "killed"},
		{[]string{probe, "crash"}, 139, "segmentation fault"},
		{[]string{probe, "eat"}, 137, "memory"},
		{[]string{"-m", "1e30", probe}, 2, "size"},
		{[]string{"-m", "1G1", probe}, 2, "size"},
		{[]string{"-m", "512G", probe}, 125, "memory"},
		{[]string{notExecutable}, 126, "not executable"},
		{[]string{"./no-such-file"}, 127, "no such file"},
		{[]string{"/bin/no-such-program"}, 127, "no such"},
		{[]string{"no-such-program"}, 127, "no such"},
	} {
		t.Run(strings.ReplaceAll(strings.Join(c.args, " "), "/", "_"), func(t *testing.T) {
			_, stderr, code := s.CLI(t, append([]string{"run"}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.says) {
				t.Errorf("got code %d, %q, want %d and %q", code, stderr, c.code, c.says)
			}
		})
	}
}

func TestRunStreams(t *testing.T) {
	s := shared.Get(t)
	stdout, stderr, _ := s.CLI(t, "run", program(t, "probe.c"), "streams")
	if stdout != "to stdout\n" || stderr != "to stderr\n" {
		t.Errorf("got %q and %q", stdout, stderr)
	}
	stdout, _, _ = s.CLI(t, "run", "-e", "LEVEL=debug", program(t, "probe.c"), "show", "--help", "", "two words")
	for _, want := range []string{"arg --help\narg \narg two words\n", "env LEVEL=debug\n", "env SIGMA_REALM=default\n",
		"stdin 0\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the proc was not given %q but %q", want, stdout)
		}
	}
	if strings.Contains(stdout, "HOME=") {
		t.Errorf("the caller's environment reached the proc: %q", stdout)
	}
}

// A proc is told which trace it belongs to, and what is none is refused.
func TestTraceParent(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	show := s.Install(ctx, t, c, program(t, "probe.c"))
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: show, Args: []string{"show"}, TraceParent: trace})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitExit(ctx, ids[0]); err != nil || !st.OK() {
		t.Fatalf("got %+v, %v", st, err)
	}
	if out, _, err := c.Get(ctx, "/proc/"+string(ids[0])+"/stdout"); err != nil || !strings.Contains(string(out),
		"env TRACEPARENT="+trace+"\n") {
		t.Errorf("the proc was given %q, %v", out, err)
	}
	for _, bad := range []string{"x", trace + "0", strings.ToUpper(trace), strings.Replace(trace, "0", "\x00", 1)} {
		if _, err := c.Spawn(ctx, sigma.Descriptor{Program: show,
			TraceParent: bad}); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// All that a proc wrote before its end is shown, however close to the end that was.
func TestRunLosesNoOutput(t *testing.T) {
	s := shared.Get(t)
	const lines = 20000
	for range 5 {
		stdout, _, code := s.CLI(t, "run", program(t, "probe.c"), "big", fmt.Sprint(lines))
		if code != 0 || len(stdout) != lines*64 || !strings.HasSuffix(stdout, fmt.Sprintf("%063d\n", lines-1)) {
			t.Fatalf("code %d, %d bytes, want %d", code, len(stdout), lines*64)
		}
	}
}

// What a proc wrote can be read when it has long ended, with the other verbs for procs.
func TestProcVerbs(t *testing.T) {
	s := shared.Get(t)
	id := strings.TrimSpace(s.Must(t, "run", "-d", "--name", "job", program(t, "probe.c"), "streams"))
	s.Must(t, "wait", id)
	stdout, stderr, code := s.CLI(t, "logs", id)
	if code != 0 || stdout != "to stdout\n" || stderr != "to stderr\n" {
		t.Errorf("logs: %d %q %q", code, stdout, stderr)
	}
	var list []struct {
		ID, Name, State string
		Status          struct {
			Code     string
			ExitCode int `json:"exit_code"`
		}
	}
	id = strings.TrimSpace(s.Must(t, "run", "-d", "--name", "job2", program(t, "probe.c"), "leave"))
	if err := json.Unmarshal([]byte(s.Must(t, "ps", "--json")), &list); err != nil || len(list) != 1 ||
		list[0].ID != id || list[0].Name != "job2" {
		t.Errorf("ps: %+v, %v", list, err)
	}
	s.Must(t, "kill", id)
	if _, _, code := s.CLI(t, "wait", id); code != 137 {
		t.Errorf("wait for a killed proc: code %d, want 137", code)
	}
	if err := json.Unmarshal([]byte(s.Must(t, "ps", "-a", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	last := list[len(list)-1]
	if last.ID != id || last.State != "ended" || last.Status.Code != "evicted" {
		t.Errorf("ps -a: %+v", last)
	}
}

// ^C at a run ends its proc, and the run with 128 + the signal's number.
func TestRunInterrupted(t *testing.T) {
	s := shared.Get(t)
	program(t, "probe.c")
	s.CLI(t, "run", program(t, "probe.c"), "exit")
	before := s.Census()
	for _, c := range []struct {
		name, word string
		signal     syscall.Signal
		code       int
		output     string
	}{
		{"INT", "leave", syscall.SIGINT, 130, "ready\ntold to go\n"},
		{"TERM", "leave", syscall.SIGTERM, 143, "ready\ntold to go\n"},
		{"INT, ignored", "ignore", syscall.SIGINT, 130, "ready\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := s.Command(testContext(t), "run", program(t, "probe.c"), c.word)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ready := make([]byte, len("ready\n"))
			if _, err := io.ReadFull(out, ready); err != nil {
				t.Fatal(err)
			}
			cmd.Process.Signal(c.signal)
			rest, _ := io.ReadAll(out)
			cmd.Wait()
			if got := string(ready) + string(rest); cmd.ProcessState.ExitCode() != c.code || got != c.output {
				t.Errorf("got code %d, %q, want %d, %q", cmd.ProcessState.ExitCode(), got, c.code, c.output)
			}
		})
	}
	testenv.Eventually(t, "the procs are gone", func() error {
		if out := s.Must(t, "ps", "-q"); out != "" {
			return fmt.Errorf("still there: %s", out)
		}
		return nil
	})
	s.NoLeaks(t, before)
}

// A run whose client is killed leaves its proc, which is the realm's.
func TestRunClientKilled(t *testing.T) {
	s := shared.Get(t)
	cmd := s.Command(testContext(t), "run", program(t, "probe.c"), "leave")
	var out bytes.Buffer
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.CopyN(&out, pipe, int64(len("ready\n")))
	cmd.Process.Kill()
	cmd.Wait()
	id := strings.TrimSpace(s.Must(t, "ps", "-q"))
	if strings.Contains(id, "\n") || id == "" {
		t.Fatalf("procs after the client was killed: %q, want one", id)
	}
	s.Must(t, "evict", "--grace", time.Minute.String(), id)
	if _, _, code := s.CLI(t, "wait", id); code != 3 {
		t.Errorf("wait: code %d, want 3", code)
	}
}
