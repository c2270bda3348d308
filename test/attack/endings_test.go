//go:build system

package attack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// attackByEndings does not end when told to, leaves processes behind, or wants the host to look at
// its remains.
func attackByEndings(ctx context.Context, t *testing.T, s *score, p programs, plain *arena) {
	for _, bomb := range []string{"stubborn", "stopped"} {
		outlastEvict(ctx, t, s, p, plain, bomb)
	}
	for _, bomb := range []string{"orphans", "flee"} {
		outlive(ctx, t, s, p, plain, bomb)
	}
	dumpToHandler(ctx, t, s, p, plain)
}

// outlastEvict ignores and blocks all signals, or stops so that none is delivered. The control is
// the same program on the host, which a SIGTERM does not end either.
func outlastEvict(ctx context.Context, t *testing.T, s *score, p programs, plain *arena, bomb string) {
	a := act{bomb, "outlast an eviction", "what a proc was given"}
	ids, err := plain.own.Spawn(ctx, sigma.Descriptor{Program: plain.attack, Args: []string{bomb}})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the stubborn proc is ready", func() error {
		b, _, err := plain.own.Get(ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
		if err == nil && len(b) == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	if err := plain.own.Evict(ctx, ids[0], 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	st, err := plain.own.WaitExit(within, ids[0])
	left := hostPIDs(ids[0])
	s.tried(t, a, err != nil || st.Code != sigma.StatusEvicted || len(left) > 0, fmt.Sprint(st, err, left))

	const mark = "outlasts"
	cmd, _ := markedRun(t, p, mark, bomb)
	cmd.Process.Signal(syscall.SIGTERM)
	s.control(t, a, len(hostPIDs(mark)) > 0, "a SIGTERM ended it")
	endMarked(t, mark)
	cmd.Wait()
}

// outlive leaves processes in other sessions, and zombies, or ones that flee. On the host they stay
// when their parent has gone.
func outlive(ctx context.Context, t *testing.T, s *score, p programs, plain *arena, bomb string) {
	const many = 10
	a := act{bomb, "outlive its proc", "processes of the machine"}
	ids, err := plain.own.Spawn(ctx, sigma.Descriptor{Program: plain.attack, Args: []string{bomb, strconv.Itoa(many)}})
	if err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	st, err := plain.own.WaitExit(within, ids[0])
	var left []int
	for range 10 { // those that flee are hard to see
		left = append(left, hostPIDs(ids[0])...)
	}
	s.tried(t, a, err != nil || !st.OK() || len(left) > 0, fmt.Sprintf("it ended as %+v, %v; left are %v", st, err,
		left))
	const mark = "outlives"
	cmd, said := markedRun(t, p, mark, bomb, strconv.Itoa(many))
	cmd.Process.Wait()
	if bomb == "flee" { // they hold the pipe as long as they live, and say that they have
		rest, _ := io.ReadAll(said)
		s.control(t, a, strings.Count(string(rest), "fled\n") == many, string(rest))
		return
	}
	s.control(t, a, len(hostPIDs(mark)) >= many, "they are gone")
	endMarked(t, mark)
}

// markedRun runs a bomb on the host that hostPIDs finds by the mark, until it has said that it is
// ready, and gives what it says besides.
func markedRun(t *testing.T, p programs, mark sigma.ProcID, args ...string) (*exec.Cmd, io.Reader) {
	cmd := exec.Command(p.attack, args...)
	cmd.Env = []string{"SIGMA_PROC_ID=" + string(mark), "FLEE_SECONDS=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	cmd.Stdout = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(r)
	var before strings.Builder // its children may say more before that
	for {
		line, err := said.ReadString('\n')
		if err != nil {
			t.Fatalf("%q is not ready: %v", args, err)
		}
		if line == "ready\n" {
			return cmd, io.MultiReader(strings.NewReader(before.String()), said)
		}
		before.WriteString(line)
	}
}

func endMarked(t *testing.T, mark sigma.ProcID) {
	testenv.Eventually(t, "the control's processes are gone", func() error {
		left := hostPIDs(mark)
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

// dumpToHandler crashes where the host gives core dumps to a program, which runs as root with what
// the crashed process chose in its input. The limit of core dumps does not bound such dumps, but
// for the value 1. The control crashes on the host.
func dumpToHandler(ctx context.Context, t *testing.T, s *score, p programs, plain *arena) {
	const setting = "/proc/sys/kernel/core_pattern"
	old, err := os.ReadFile(setting)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	handler, seen := filepath.Join(dir, "handler"), filepath.Join(dir, "seen")
	// Each dump adds a line with the uid of the process, after it has read the dump.
	script := "#!/bin/sh\ncat >/dev/null\necho $1 >>" + seen + "\n"
	if err := os.WriteFile(handler, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(setting, []byte("|"+handler+" %u"), 0o644); err != nil {
		t.Skipf("skipped: the host does not let its core dump handler be set: %v", err)
	}
	defer os.WriteFile(setting, old, 0o644)
	a := act{"crash", "have the host's core dump handler run", "the host's programs"}
	_, st := plain.run(ctx, t, sigma.Descriptor{Program: plain.attack, Args: []string{"crash"}})
	if st.Code != sigma.StatusCrashed {
		t.Errorf("the crash ended with %+v", st)
	}
	cmd := exec.Command(p.attack, "crash")
	cmd.Run()
	var got string
	testenv.Eventually(t, "the handler has run for the control", func() error {
		b, err := os.ReadFile(seen)
		got = string(b)
		if err == nil && !strings.Contains(got, "0\n") {
			err = errors.New("not yet")
		}
		return err
	})
	s.control(t, a, strings.Contains("\n"+got, "\n0\n"), got)
	victim, err := strconv.Atoi(strings.Fields(status(t, plain.hostPID(t, plain.sibling))["Uid"])[0])
	if err != nil {
		t.Fatal(err)
	}
	ran := false
	for l := range strings.Lines(got) { // those of this system; on a busy host others may crash
		uid, err := strconv.Atoi(strings.TrimSpace(l))
		ran = ran || err == nil && uid>>20 == victim>>20
	}
	s.tried(t, a, ran, "it ran for uids "+got)
}

// attackEverybody signals all that it can reach. The control does so where others have its uid, in
// a PID namespace that was made for it.
func attackEverybody(ctx context.Context, t *testing.T, s *score, p programs, plain *arena) {
	a := act{"killall", "kill everybody", "other processes"}
	victims := []int{plain.hostPID(t, plain.sibling), plain.hostPID(t, plain.stranger)}
	plain.run(ctx, t, sigma.Descriptor{Program: plain.attack, Args: []string{"killall"}})
	for _, pid := range victims {
		s.tried(t, a, syscall.Kill(pid, 0) != nil, "a victim is gone")
	}
	cmd := exec.Command("sh", "-c", `sleep 100 & "$0" killall; wait $!; echo $?`, p.attack)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	s.control(t, a, err == nil && strings.HasSuffix(string(out), "137\n"), fmt.Sprintf("%s %v", out, err))
}
