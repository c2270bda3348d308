//go:build system

package attack

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sigmaos.dev/sigma"
)

// What a proc may have at most: kernel's pidsMax and noFileMax, output's LogMax, and here memory.
const (
	forksMax  = 512
	filesMax  = 4096
	logMax    = 16 << 20
	memoryMax = 32 * sigma.MiB
)

// attackByExhaustion takes processes, memory, descriptors and disk until something gives, which
// must be the attacker. The controls are made outside, with higher limits.
func attackByExhaustion(ctx context.Context, t *testing.T, s *score, p programs, plain *arena) {
	proc := func(memory sigma.Bytes, args ...string) (string, sigma.Status) {
		return plain.run(ctx, t, sigma.Descriptor{Program: plain.attack, Args: args, Env: plain.env(t, everything),
			Memory: memory})
	}
	number := func(out string) int { n, _ := strconv.Atoi(strings.TrimSpace(out)); return n }
	const whole = "all of it\n"
	much := strconv.Itoa(100 << 20)

	for _, x := range []struct{ bomb, attempt string }{{"forks", "make processes without end"},
		{"threads", "make threads without end"}, {"zombies", "make zombies without end"}} {
		a := act{x.bomb, x.attempt, "processes of the machine"}
		out, _ := proc(128*sigma.MiB, x.bomb)
		s.tried(t, a, number(out) <= 0 || number(out) >= forksMax, out)
		out = hostRun(t, p, x.bomb, "600")
		s.control(t, a, number(out) == 600, out)
	}
	for _, x := range []struct{ bomb, attempt string }{{"memory", "take memory without end"},
		{"shared", "take shared memory without end"}, {"tables", "take page tables without end"}} {
		a := act{x.bomb, x.attempt, "memory of the machine"}
		out, st := proc(memoryMax, x.bomb)
		s.tried(t, a, st.Code != sigma.StatusOOM, fmt.Sprint(st, out))
		out = hostRun(t, p, x.bomb, much)
		s.control(t, a, out == whole, out)
	}
	a := act{"mapped", "take memory by a passed file", "memory of the machine"}
	out, st := plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"mapped"}, Memory: memoryMax})
	s.tried(t, a, st.Code != sigma.StatusOOM, fmt.Sprint(st, out))
	out, st = plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"mapped", "5"},
		Memory: 256 * sigma.MiB}) // with a higher limit
	s.control(t, a, out == whole, fmt.Sprint(st, out))

	a = act{"pipes", "take memory by filling pipes", "memory of the machine"}
	out, st = proc(memoryMax, "pipes")
	s.tried(t, a, number(out) > int(memoryMax), fmt.Sprint(st, out))
	out = hostRun(t, p, "pipes", much)
	s.control(t, a, number(out) >= 100<<20, out)

	a = act{"files", "take descriptors without end", "descriptors of the machine"}
	out, _ = proc(memoryMax, "files")
	s.tried(t, a, number(out) <= 0 || number(out) >= filesMax, out)
	out = hostRun(t, p, "files")
	s.control(t, a, number(out) > filesMax, out)

	for _, name := range []string{"stdout", "stderr"} {
		a = act{name, "fill the disk by what it prints", "the disks of the host"}
		d := sigma.Descriptor{Program: plain.attack,
			Args: []string{map[string]string{"stdout": "output", "stderr": "errors"}[name]}, Memory: memoryMax}
		ids, err := plain.own.Spawn(ctx, d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = plain.own.WaitExit(ctx, ids[0]); err != nil {
			t.Fatal(err)
		}
		kept, err := plain.own.Stat(ctx, sigma.JoinPath("proc", string(ids[0]), name))
		s.tried(t, a, err != nil || kept.Size > logMax, fmt.Sprint(kept.Size, err))
		s.control(t, a, len(hostRun(t, p, d.Args...)) == 48<<20, "")
	}
}

// hostRun runs a bomb on the host in a session of its own, with a limit of descriptors beyond that
// of procs, and gives what it printed, to whichever stream.
func hostRun(t *testing.T, p programs, args ...string) string {
	cmd := exec.Command("sh", append([]string{"-c", "ulimit -n 10000; exec \"$@\"", "sh", p.attack}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out)
}
