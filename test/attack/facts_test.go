//go:build system

package attack

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sigma"
)

// status reads what the host says of a process: the lines of /proc/PID/status by key.
func status(t *testing.T, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for l := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(l), ":")
		out[key] = strings.Join(strings.Fields(value), " ")
	}
	return out
}

// Goal: what the host sees of procs and daemons is what the documents promise, whatever they
// themselves find.
func TestContainment(t *testing.T) {
	testenv.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	a := newArena(ctx, t, build(t), testenv.Options{})
	if _, err := a.own.ReadDir(ctx, "/db"); err != nil { // dbd runs once it is used
		t.Fatal(err)
	}
	processes := map[string]int{"a proc": a.hostPID(t, a.sibling), "a proc of another realm": a.hostPID(t, a.stranger)}
	for _, name := range hostsetup.BootSet() {
		processes[name] = a.PID(name)
	}
	uids := map[string]string{}
	for name, pid := range processes {
		st := status(t, pid)
		zero := "0000000000000000"
		for key, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapInh": zero, "CapPrm": zero,
			"CapEff": zero, "CapBnd": zero, "CapAmb": zero, "Groups": ""} {
			if st[key] != want {
				t.Errorf("%s: %s is %q, want %q", name, key, st[key], want)
			}
		}
		ids := strings.Fields(st["Uid"])
		if len(ids) != 4 || len(slices.Compact(slices.Clone(ids))) != 1 || ids[0] == "0" {
			t.Errorf("%s: uids are %q, want one other than 0", name, st["Uid"])
		}
		if who := uids[st["Uid"]]; who != "" {
			t.Errorf("%s and %s have one uid", name, who)
		}
		uids[st["Uid"]] = name
		for _, ns := range []string{"pid", "net", "mnt", "ipc", "uts"} {
			mine, err := os.Readlink("/proc/self/ns/" + ns)
			theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
			if err != nil || err2 != nil || mine == theirs {
				t.Errorf("%s: its %s name space is %s, the host's is %s (%v, %v)", name, ns, theirs, mine, err, err2)
			}
		}
		closed(t, name, pid)
	}
	if a, b := status(t, processes["a proc"])["Gid"], status(t, processes["a proc of another realm"])["Gid"]; a == b {
		t.Errorf("procs of two realms have one gid, %s", a)
	}
	root, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", processes["a proc"]))
	if err != nil || len(root) != 0 {
		t.Errorf("the root of a proc holds %v (%v), want nothing", root, err)
	}
	if s, err := a.own.WaitExit(ctx, spawnOne(ctx, t, a, "nothing")); err != nil || s.Code != sigma.StatusOK {
		t.Errorf("a proc beside them ended with %v, %v", s, err)
	}
}

func spawnOne(ctx context.Context, t *testing.T, a *arena, args ...string) sigma.ProcID {
	t.Helper()
	ids, err := a.own.Spawn(ctx, sigma.Descriptor{Program: a.forge, Args: args})
	if err != nil {
		t.Fatal(err)
	}
	return ids[0]
}

// closed checks that no port is open in the network that a process sees.
func closed(t *testing.T, name string, pid int) {
	t.Helper()
	for _, kind := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "packet"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, kind))
		if err == nil && strings.Count(string(b), "\n") > 1 {
			t.Errorf("%s: its network has %s sockets:\n%s", name, kind, b)
		}
	}
}
