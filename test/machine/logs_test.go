//go:build system

package machine

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"sigmaos.dev/output"
)

// Goal: of a proc that prints much the beginning and the end are told, with a mark between; of several with one name the newest; parts of a log can be asked for, and times.
func TestLogs(t *testing.T) {
	s := shared.Get(t)
	const lines = 500_000
	long := strings.TrimSpace(s.Must(t, "run", "-d", "--name", "long", program(t, "probe.c"), "big", fmt.Sprint(lines)))
	s.Must(t, "wait", long)
	line := func(i int) string { return fmt.Sprintf("%063d\n", i) }
	mark := output.Mark(lines*64 - output.Head - output.Tail)
	for _, args := range [][]string{{"logs", "long"}, {"logs", "-f", "long"}, {"cat", "/proc/" + long + "/stdout"}} {
		out := s.Must(t, args...)
		if len(out) != output.LogMax || !strings.HasPrefix(out, line(0)+line(1)) || strings.Index(out, mark) != output.Head || !strings.HasSuffix(out, line(lines-1)) {
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
	if out := s.Must(t, "logs", "-t", "again"); !regexp.MustCompile(`^(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 0{62}[01]\n){2}$`).MatchString(out) {
		t.Errorf("with times: %q", out)
	}
	if _, stderr, code := s.CLI(t, "logs", "--previous", "long"); code != 1 || !strings.Contains(stderr, "no proc before this one") {
		t.Errorf("where there is none before: %d, %q", code, stderr)
	}
}
