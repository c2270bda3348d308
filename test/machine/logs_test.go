//go:build system

package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/proclog"
)

// Goal: of a proc that prints much the beginning and the end are told, with a mark between; of
// several with one name the newest; parts of a log can be asked for, and times.
func TestLogs(t *testing.T) {
	s := shared.Get(t)
	const lines = 500_000
	long := strings.TrimSpace(s.Must(t, "run", "-d", "--name", "long", program(t, "probe.c"), "big", fmt.Sprint(lines)))
	s.Must(t, "wait", long)
	line := func(i int) string { return fmt.Sprintf("%063d\n", i) }
	mark := proclog.Mark(lines*64 - proclog.Head - proclog.Tail)
	for _, args := range [][]string{{"logs", "long"}, {"logs", "-f", "long"}, {"cat", "/proc/" + long + "/stdout"}} {
		out := s.Must(t, args...)
		if len(out) != proclog.LogMax || !strings.HasPrefix(out, line(0)+line(1)) ||
			strings.Index(out, mark) != proclog.Head || !strings.HasSuffix(out, line(lines-1)) {
			t.Errorf("%v: %d bytes, the mark at %d", args, len(out), strings.Index(out, mark))
		}
	}
	if out := s.Must(t, "logs", "--tail", "3", "long"); out != line(lines-3)+line(lines-2)+line(lines-1) {
		t.Errorf("the last lines are %q", out)
	}
	for _, text := range []string{"1", "2"} {
		s.Must(t, "run", "--name", "again", program(t, "probe.c"), "big", text)
	}
	for want, args := range map[string][]string{
		line(0) + line(1): {"logs", "again"},
		line(0):           {"logs", "--previous", "again"},
		line(1):           {"logs", "--tail", "1", "--since", "1h", "again"},
		"":                {"logs", "--since", "1ns", "again"},
	} {
		if out := s.Must(t, args...); out != want {
			t.Errorf("%v: %q", args, out)
		}
	}
	if out := s.Must(t, "logs", "-t",
		"again"); !regexp.MustCompile(`^(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 0{62}[01]\n){2}$`).MatchString(out) {
		t.Errorf("with times: %q", out)
	}
	if _, stderr, code := s.CLI(t, "logs", "--previous", "long"); code != 1 ||
		!strings.Contains(stderr, "no proc before this one") {
		t.Errorf("where there is none before: %d, %q", code, stderr)
	}
}

// Goal: what procs printed that had ended outlives sigmad, and down and up: short logs, long ones,
// both of a program that crashes again and again; so does what is known of their ends. When their
// realm is removed nothing of it stays on the disk. Method: procs print and end; sigmad is killed,
// and the system taken down, and each time everything is as it was told before.
func TestLogsOutliveSigmad(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	probe := program(t, "probe.c")
	s.Must(t, "realm", "create", "tenant")
	long := strings.TrimSpace(s.Must(t, "run", "-d", "-r", "tenant", "--name", "long", probe, "big", "500000"))
	s.Must(t, "wait", "-r", "tenant", long)
	for _, lines := range []string{"1", "2"} {
		s.Must(t, "run", "-r", "tenant", "--name", "loop", probe, "big", lines)
	}
	if _, _, code := s.CLI(t, "run", "-r", "tenant", "--name", "fails", probe, "exit", "3"); code != 3 {
		t.Fatalf("it ended with %d", code)
	}
	tell := func() (all []string) {
		t.Helper()
		for _, args := range [][]string{{"logs", "loop"}, {"logs", "--previous", "loop"}, {"logs", "-t", "loop"},
			{"logs", "long"}, {"logs", "--tail", "2", "long"}, {"cat", "/proc/" + long + "/log"},
			{"cat", "/proc/" + long + "/times"}, {"cat", "/proc/" + long + "/status"}, {"ps", "-a", "--json"}} {
			all = append(all, s.Must(t, append([]string{args[0], "-r", "tenant"}, args[1:]...)...))
		}
		return all
	}
	const text = "00000000000000000001\n" // the end of a line of the probe's
	want := tell()
	if !strings.HasSuffix(want[0], text) || strings.Contains(want[1], text) || len(want[3]) != proclog.LogMax ||
		!strings.Contains(want[8], `"fails"`) {
		t.Fatalf("before: %.2000q", want)
	}
	archive := filepath.Join(s.DataDir, "sigmad", "ended")
	testenv.Eventually(t, "all is written down", func() error {
		b, err := os.ReadFile(archive)
		if err == nil && !bytes.Contains(b, []byte("fails")) {
			err = fmt.Errorf("the last is missing in %d bytes", len(b))
		}
		return err
	})
	check := func(when string) {
		t.Helper()
		for i, got := range tell() {
			if got != want[i] {
				t.Errorf("%s, %d: %.1000q, want %.1000q", when, i, got, want[i])
			}
		}
	}
	for range 2 {
		old := s.PID("sigmad")
		s.Kill9(t, "sigmad")
		again(t.Context(), t, s, old)
		check("after sigmad's death")
	}
	s.Down(t)
	s.Restart(t)
	check("after down and up")

	s.Must(t, "realm", "rm", "--force", "tenant")
	if b, err := os.ReadFile(archive); err != nil || bytes.Contains(b, []byte(text)) {
		t.Errorf("what a realm that is gone printed is still among %d bytes: %v", len(b), err)
	}
	if left, err := os.ReadDir(filepath.Join(s.DataDir, "sigmad", "logs")); err != nil || len(left) > 0 {
		t.Errorf("logs of a realm that is gone: %v, %v", left, err)
	}
	s.Must(t, "realm", "create", "tenant")
	if out := s.Must(t, "ps", "-a", "-r", "tenant", "--json"); strings.Contains(out, "loop") {
		t.Errorf("another realm of that name has %s", out)
	}
}
