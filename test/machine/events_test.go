//go:build system

package machine

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// told are the events that the command prints, as "event subject".
func told(t *testing.T, s *testenv.System, args ...string) (out []string) {
	t.Helper()
	for line := range strings.Lines(s.Must(t, append([]string{"events", "--json"}, args...)...)) {
		var e report.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		out = append(out, strings.TrimSpace(e.Event+" "+e.Proc+e.Daemon))
	}
	return out
}

// What happens to procs, reservations, realms and daemons is told, in order, once, from any
// position on, and to each realm only what is its own.
func TestEvents(t *testing.T) {
	s := shared.Get(t)
	s.Must(t, "realm", "create", "watched")
	t.Cleanup(func() { s.CLI(t, "realm", "rm", "--force", "watched") })
	r := connect(t, "watched")
	cursor := filepath.Join(t.TempDir(), "cursor")
	told(t, s, "-r", "watched", "--cursor-file", cursor)
	ok, never := r.spawn(r.descriptor("probe.c", "exit", "0"))[0],
		r.spawn(r.reserved(900_000, sigma.MemoryDefault, "leave"))[0]
	r.wait(ok)
	r.wait(never)
	s.Kill9(t, "besched")
	var got []string
	want := []string{"proc.started " + string(ok), "proc.ended " + string(ok), "reservation.refused " + string(never),
		"proc.ended " + string(never), "daemon.ended besched", "daemon.started besched"}
	testenv.Eventually(t, "all is told", func() error {
		got = append(got, told(t, s, "-r", "watched", "--cursor-file", cursor)...)
		for _, w := range want {
			if n := len(slices.DeleteFunc(slices.Clone(got), func(x string) bool { return x != w })); n != 1 {
				return fmt.Errorf("%q is told %d times: %q", w, n, got)
			}
		}
		return nil
	})
	r.restarted("besched")
	if again := told(t, s, "-r", "watched", "--cursor-file", cursor, "--event", "proc"); len(again) != 0 {
		t.Errorf("told again: %q", again)
	}
	if one := told(t, s, "-r", "watched", "--proc", string(ok), "--event", "proc.ended"); len(one) != 1 {
		t.Errorf("of the end of %s: %q", ok, one)
	}
	if other := told(t, s, "--proc", string(ok)); len(other) != 0 {
		t.Errorf("another realm is told: %q", other)
	}
	if all := told(t, s, "--all", "--proc", string(ok)); len(all) != 2 {
		t.Errorf("the provider is told of all realms: %q", all)
	}
	if status, out := r.run("goprobe", "read", "/sys/events"); !status.OK() || !strings.Contains(out, string(ok)) ||
		strings.Contains(out, "daemon.") {
		t.Errorf("a tenant reads %s, %+v", out, status)
	}
}
