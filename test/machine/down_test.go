//go:build system

package machine

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// attended is a sigma run of which the proc has said "ready".
type attended struct {
	cmd       *exec.Cmd
	out       *lines
	said, err bytes.Buffer
}

func attend(t *testing.T, s *testenv.System, args ...string) *attended {
	t.Helper()
	a := &attended{cmd: s.Command(testContext(t), append([]string{"run"}, args...)...),
		out: &lines{seen: make(chan string, 10)}}
	a.cmd.Stdout, a.cmd.Stderr = a.out, &a.err
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line := <-a.out.seen; line != "ready\n" {
		t.Fatalf("run %v says %q", args, line)
	}
	return a
}

// end waits for the end of the run, and returns its exit code and what it printed since.
func (a *attended) end() (code int, out, errs string) {
	a.cmd.Wait()
	close(a.out.seen)
	for line := range a.out.seen {
		out += line
	}
	return a.cmd.ProcessState.ExitCode(), out, a.err.String()
}

// Goal: sigma down gives procs their grace, in which the system works; who waits for them is told;
// who ignores it is killed; that is no failure of registered procs, and they are not started again
// before the next up.
func TestDownGivesGrace(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	c := s.Connect(testContext(t), t, sigma.DefaultRealm)
	path := s.Install(testContext(t), t, c, program(t, "probe.c"))
	s.Must(t, "init", "add", "--restart", "on-failure", "web", path, "leave")
	registered(t, s, "web", "")
	good := attend(t, s, program(t, "goprobe"), "farewell", "/written")
	bad := attend(t, s, "--name", "stubborn", program(t, "probe.c"), "ignore")
	_, errs, code := s.CLI(t, "down")
	if code != 0 || !strings.Contains(errs, "waiting for") || !strings.Contains(errs, "stubborn (") {
		t.Errorf("down: code %d, %q", code, errs)
	}
	if code, out, errs := good.end(); code != 137 || out != "gone in good order\n" ||
		!strings.Contains(errs, "evicted: machine m1 is being stopped") {
		t.Errorf("run of one that goes: code %d, %q, %q", code, out, errs)
	}
	if code, out, errs := bad.end(); code != 137 || out != "" ||
		!strings.Contains(errs, "evicted (killed): machine m1 is being stopped") {
		t.Errorf("run of one that does not: code %d, %q, %q", code, out, errs)
	}
	s.Up(t)
	if got := s.Must(t, "cat", "/written"); got != "farewell" {
		t.Errorf("written in the grace is %q", got)
	}
	registered(t, s, "web", "")
	var log []report.Instance
	if err := json.Unmarshal([]byte(s.Must(t, "init", "log", "--json", "web")), &log); err != nil || len(log) != 2 ||
		log[0].Status == nil || log[0].Status.Code != "evicted" {
		t.Errorf("log of the registered one: %v, %v", s.Must(t, "init", "log", "--json", "web"), err)
	}

	hasty := attend(t, s, program(t, "probe.c"), "ignore")
	if _, errs, code := s.CLI(t, "down", "--now"); code != 0 || errs != "" {
		t.Errorf("down --now: code %d, %q", code, errs)
	}
	if code, _, errs := hasty.end(); code != 125 || !strings.Contains(errs, "lost sight of proc") {
		t.Errorf("run of one that is killed at once: code %d, %q", code, errs)
	}
}
