package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/procs"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// pausing makes procs run until they are killed, and gives the ids of one in each of two realms.
func pausing(t *testing.T, f *fake) (first, second string) {
	t.Helper()
	f.behave(func(ctx context.Context, p *fakeProc) sigma.Status {
		<-ctx.Done()
		return sigma.Status{Code: sigma.StatusEvicted, ExitCode: 137}
	})
	want(t, f.sigma("realm", "create", "team-a"), 0, "team-a\n", "")
	program := staticProgram(t, "p")
	first = strings.TrimSpace(f.sigma("run", "-d", "--name", "first", program).out)
	second = strings.TrimSpace(f.sigma("-r", "team-a", "run", "-d", "--name", "second", program).out)
	return first, second
}

// What procs use now is in ps, inspect and top, in words and as JSON; top shows every realm unless
// one is named.
func TestUsageShown(t *testing.T) {
	f := newFake(t)
	first, second := pausing(t, f)
	if got := f.sigma("ps"); got.code != 0 || got.err != "" || !strings.Contains(got.out, "3MiB") ||
		!strings.Contains(got.out, "   7   ") {
		t.Errorf("ps: %+v", got)
	}
	got := f.sigma("inspect", "first")
	for _, line := range []string{"memory now     3MiB\n", "memory peak    5MiB\n", "tasks          7\n",
		"output         11B\n", "profile        sigma\n"} {
		if !strings.Contains(got.out, line) {
			t.Errorf("inspect lacks %q: %+v", line, got)
		}
	}
	var p procs.Picture
	if err := json.Unmarshal([]byte(f.sigma("top", "-i", "100ms", "--json").out), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Procs) != 3 || len(p.Realms) != 3 || p.Realms[2].Memory != 20<<20 || p.Procs[0].CPU <= 0 ||
		p.Procs[0].Usage.Memory != 3<<20 || p.Realms[0].Running != 1 || p.Realms[0].Tasks != 7 ||
		p.Machine.Name != "m1" || p.Machine.Cores == 0 {
		t.Errorf("top: %+v", p)
	}
	if got := f.sigma("top", "-i", "100ms"); got.code != 0 || !strings.Contains(got.out, first) ||
		!strings.Contains(got.out, second) || !strings.Contains(got.out, "team-a") {
		t.Errorf("top: %+v", got)
	}
	if got := f.sigma("-r", "team-a", "top", "-i", "100ms"); got.code != 0 || strings.Contains(got.out, first) ||
		!strings.Contains(got.out, second) {
		t.Errorf("top of one realm: %+v", got)
	}
	if got := f.sigma("top", "-i", "100ms", "-n", "1"); strings.Contains(got.out, first) == strings.Contains(got.out,
		second) {
		t.Errorf("one row: %+v", got)
	}
	for _, args := range [][]string{{"top", "--sort", "age"}, {"top", "-i", "1ms"}, {"top", "-n", "-1"}, {"top", "x"}} {
		if got := f.sigma(args...); got.code != cli.ExitUsage || !strings.Contains(got.err, "sigma: ") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestFreeze(t *testing.T) {
	f := newFake(t)
	first, _ := pausing(t, f)
	want(t, f.sigma("freeze", "first"), 0, first+"\n", "")
	if got := f.sigma("ps"); !strings.Contains(got.out, "frozen") {
		t.Errorf("ps: %+v", got)
	}
	if got := f.sigma("inspect", "first"); !strings.Contains(got.out, "running, frozen") {
		t.Errorf("inspect: %+v", got)
	}
	want(t, f.sigma("thaw", "--json", "first"), 0, "[\n  \""+first+"\"\n]\n", "")
	if got := f.sigma("ps"); strings.Contains(got.out, "frozen") {
		t.Errorf("ps: %+v", got)
	}
	want(t, f.sigma("freeze", "nobody"), 1, "", "no proc has the id or name")
}

// The bars of the phases lie one behind the other and end at the same column; a phase that took no
// time is left out.
func TestTimingShown(t *testing.T) {
	f := newFake(t)
	first, _ := pausing(t, f)
	p := f.proc(sigma.ProcID(first))
	if got := f.sigma("inspect", "--timing", "first"); !strings.Contains(got.out, "has not started") {
		t.Errorf("got %+v", got)
	}
	f.mu.Lock()
	p.info.Timing = sigma.Timing{sigma.PhaseQueue: 100 * time.Microsecond, sigma.PhaseHandOver: 200 * time.Microsecond,
		sigma.PhaseExec: 99 * time.Microsecond, sigma.PhaseFirst: time.Microsecond}
	f.mu.Unlock()
	want(t, f.sigma("inspect", "--timing", "first"), 0, first+` first
  queue          0.100 ms  25%  ##########
  hand-over      0.200 ms  50%            ####################
  exec           0.099 ms  25%                                ##########
  first          0.001 ms   0%                                         #
  total          0.400 ms
`, "")
	var list []report.Proc
	if err := json.Unmarshal([]byte(f.sigma("inspect", "--json", "first").out), &list); err != nil || len(list) != 1 ||
		len(list[0].Timing.Phases) != int(sigma.PhaseCount) || list[0].Timing.Total != 0.0004 {
		t.Errorf("got %+v, %v", list, err)
	}
}

// Files are no terminal, so nothing live is tried on them.
func TestNoScreen(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if s := term.OpenScreen(null, null); s != nil {
		t.Error("/dev/null was taken for a terminal")
	}
}

// On a terminal top draws, obeys keys, ends at q, and leaves the terminal as it was.
func TestTopLive(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100})
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	f := newFake(t)
	first, _ := pausing(t, f)
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	var errs lockedBuffer
	a := &cli.App{Groups: groups, In: tty, Out: tty, Err: &errs, Getenv: func(k string) string {
		return map[string]string{"SIGMA_ADDR": f.addr}[k]
	}}
	code := make(chan int, 1)
	go func() { code <- a.Execute(context.Background(), []string{"top", "-i", "1h"}) }()
	seen, buf := "", make([]byte, 4096)
	until := func(text string) {
		for !strings.Contains(seen, text) {
			n, err := master.Read(buf)
			if err != nil {
				t.Fatalf("%v; before %q there was %q", err, text, seen)
			}
			seen += string(buf[:n])
		}
	}
	until(first)
	until("\x1b[J")
	seen = ""
	master.WriteString("m") // renews the picture at once
	until("\x1b[J")
	master.WriteString("q")
	until("\x1b[?1049l")
	if c := <-code; c != 0 || errs.String() != "" {
		t.Errorf("code %d, %q", c, errs.String())
	}
	after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is %+v, %v, was %+v", after, err, before)
	}
}
