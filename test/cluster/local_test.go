//go:build system

package cluster

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sigmaos.dev/internal/testenv"
)

// Goal: the machines of "sigma up --machines" have a network each, which is not the host's and of
// which nothing stays, even after kill -9 of all; they are bounded; those that do not run are
// started again; and commands find a machine that runs. Method: the namespaces' numbers are looked
// for in everything that any process of the host has open.
func TestMachinesOnOneHost(t *testing.T) {
	t.Parallel()
	before := interfaces(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 3})
	all := func(args ...string) string {
		t.Helper()
		return c.Machine(0).Must(t, append([]string{"--data", c.Data()}, args...)...)
	}
	alive := func() error {
		var ms []struct{ Name, State string }
		if err := json.Unmarshal([]byte(all("machine", "ls", "--json")), &ms); err != nil {
			return err
		}
		for _, m := range ms {
			if m.State != "alive" {
				return fmt.Errorf("machines are %+v", ms)
			}
		}
		if len(ms) != 3 {
			return fmt.Errorf("machines are %+v", ms)
		}
		return nil
	}
	testenv.Eventually(t, "all are alive", alive)
	if now := interfaces(t); !slices.Equal(now, before) {
		t.Errorf("the host has interfaces %v, before %v", now, before)
	}
	spaces := map[string]bool{}
	for _, m := range c.Machines() {
		spaces[link(t, m.PID("keeper"), "ns/net")] = true
		if limit := memoryLimit(m.PID("sigmad")); limit == "" || limit == "max" || len(limit) > 15 {
			t.Errorf("the memory limit of %s is %q", m.Name, limit)
		}
	}
	if spaces[link(t, os.Getpid(), "ns/net")] || len(spaces) != 3 {
		t.Errorf("the machines are in %v, the host in %s", spaces, link(t, os.Getpid(), "ns/net"))
	}
	for held := range shared(t, c) {
		spaces[held] = true
	}
	if len(spaces) != 4 {
		t.Errorf("the namespaces of the machines and their hub are %v", spaces)
	}

	// One that died is started by an up for all of them.
	must(t, syscall.Kill(c.Machine(1).PID("keeper"), syscall.SIGKILL))
	c.Machine(1).WaitStopped(t)
	all("up", "--detach")
	testenv.Eventually(t, "all are alive again", alive)

	// Without m1, commands find another.
	c.Machine(0).Must(t, "down")
	if got := all("status"); !strings.Contains(got, "as machine m2 ") {
		t.Errorf("status without m1 says %q", got)
	}
	all("up", "--detach")
	testenv.Eventually(t, "all are alive with m1", alive)

	for _, m := range c.Machines() {
		spaces[link(t, m.PID("keeper"), "ns/net")] = true // some are new
	}
	for _, m := range c.Machines() {
		must(t, syscall.Kill(m.PID("keeper"), syscall.SIGKILL))
	}
	for _, m := range c.Machines() {
		m.WaitStopped(t)
	}
	delete(spaces, "")
	testenv.Eventually(t, "nothing holds the namespaces", func() error { return held(spaces) })

	all("up", "--detach")
	testenv.Eventually(t, "all are alive after all were killed", alive)
	c.Machine(2).Must(t, "down")
	testenv.Eventually(t, "that m3 was stopped is told, and not as a loss", func() error {
		if got := all("events", "--event", "machine", "--json"); !strings.Contains(got,
			`"machine.left","machine":"m3"`) || strings.Contains(got, `"machine.lost","machine":"m3"`) {
			return fmt.Errorf("told is %s", got)
		}
		return nil
	})
	all("down")
	if _, errs, code := c.Machine(0).CLI(t, "--data", c.Data(), "down"); code != 1 ||
		!strings.Contains(errs, "no sigmaOS is running") {
		t.Errorf("a second down: code %d, %s", code, errs)
	}

	// An up that stays does not keep down from stopping one machine after the other.
	up := c.Machine(0).Command(t.Context(), "--data", c.Data(), "up")
	out, err := up.StdoutPipe()
	must(t, err)
	must(t, up.Start())
	for said := bufio.NewScanner(out); said.Scan() && !strings.Contains(said.Text(), "^C stops them"); {
	}
	all("down")
	must(t, up.Wait())
}

func interfaces(t *testing.T) (names []string) {
	t.Helper()
	all, err := net.Interfaces()
	must(t, err)
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

func link(t *testing.T, pid int, what string) string {
	t.Helper()
	to, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(pid), what))
	must(t, err)
	return to
}

// spacesOf are the network namespaces that a process is in or has open.
func spacesOf(pid string) (all []string) {
	links, _ := filepath.Glob(filepath.Join("/proc", pid, "fd", "*"))
	for _, l := range append(links, filepath.Join("/proc", pid, "ns", "net")) {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "net:[") {
			all = append(all, to)
		}
	}
	return all
}

// shared are the network namespaces that all keepers have open.
func shared(t *testing.T, c *testenv.Cluster) map[string]bool {
	t.Helper()
	count := map[string]int{}
	for _, m := range c.Machines() {
		own := spacesOf(fmt.Sprint(m.PID("keeper")))
		slices.Sort(own)
		for _, s := range slices.Compact(own) {
			count[s]++
		}
	}
	out := map[string]bool{}
	for s, n := range count {
		if n == len(c.Machines()) {
			out[s] = true
		}
	}
	return out
}

// held says which process has one of the namespaces.
func held(spaces map[string]bool) error {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range pids {
		for _, s := range spacesOf(filepath.Base(p)) {
			if spaces[s] {
				name, _ := os.ReadFile(filepath.Join(p, "comm"))
				return fmt.Errorf("process %s %s has %s", filepath.Base(p), strings.TrimSpace(string(name)), s)
			}
		}
	}
	return nil
}

// memoryLimit is that of the instance that a process is part of.
func memoryLimit(pid int) string {
	groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	_, rest, ok := strings.Cut(string(groups), "/sigma-")
	if !ok || len(rest) < 8 {
		return ""
	}
	for _, pattern := range []string{"/sys/fs/cgroup/sigma-%s/memory.max", "/sys/fs/cgroup/*/sigma-%s/memory.max",
		"/sys/fs/cgroup/*/sigma-%s/memory.limit_in_bytes"} {
		files, _ := filepath.Glob(fmt.Sprintf(pattern, rest[:8]))
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
	}
	return ""
}
