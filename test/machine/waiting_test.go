//go:build system

package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sigma"
)

// TestWaitingLatencyCritical: a realm spawns latency-critical procs with as many labels as it may,
// of which none fits beside the first, until it is refused. What sigmad holds for them stays within
// the realm's bound, lcsched is told of few, and another realm's procs start at once.
func TestWaitingLatencyCritical(t *testing.T) {
	crowd, other := newRealm(t, "lcrowd"), newRealm(t, "lcother")
	other.run("probe.c", "exit", "0")
	d := crowd.descriptor("probe.c", "stay")
	d.Class, d.CPU = sigma.LatencyCritical, sigma.CPUMost/2
	for i := range sigma.WhereMax {
		d.Where = append(d.Where, fmt.Sprintf("%d=", i)+strings.Repeat("x", sigma.LabelMax-4))
	}
	before := memoryOf(t, crowd.s.PID("sigmad"))
	burst := slices.Repeat([]sigma.Descriptor{d}, 8)
	n := 0
	for ; ; n += len(burst) {
		if _, err := crowd.Spawn(crowd.ctx, burst...); sigma.KindOf(err) == sigma.KindBusy {
			break
		} else if err != nil {
			t.Fatalf("after %d: %v", n, err)
		}
	}
	t.Logf("%d procs, sigmad has %d MiB more", n, (memoryOf(t, crowd.s.PID("sigmad"))-before)>>20)
	list, err := crowd.List(crowd.ctx, false) // lcsched has ended some meanwhile: no machine has their labels
	if err != nil {
		t.Fatal(err)
	}
	if len(list) > 30000 {
		t.Errorf("%d procs with 4 KiB of labels each may wait", len(list))
	}
	for _, class := range []sigma.Class{sigma.BestEffort, sigma.LatencyCritical} {
		d := other.descriptor("probe.c", "exit", "0")
		if d.Class = class; class == sigma.LatencyCritical {
			d.CPU = 1
		}
		ids, err := other.Spawn(other.ctx, d)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := other.WaitExit(other.ctx, ids[0]); err != nil || !st.OK() {
			t.Errorf("another realm's %v proc: %+v, %v", class, st, err)
		}
	}
	crowd.Close()
	crowd.s.Must(t, "realm", "rm", "--force", "lcrowd")
}

// TestServicesHaveMemoryLimits: each service of the boot set runs within a limit of memory, which
// its runtime knows.
func TestServicesHaveMemoryLimits(t *testing.T) {
	r := newRealm(t, "limited")
	for _, service := range hostsetup.BootSet()[1:] {
		if service == "dbd" { // its memory is of its realm, and it runs once that uses databases
			continue
		}
		pid := r.s.PID(service)
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(env, []byte("GOMEMLIMIT=")) {
			t.Errorf("%s does not know its limit: %q", service, env)
		}
		if os.Geteuid() != 0 {
			continue
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			t.Fatal(err)
		}
		limit := ""
		for line := range strings.Lines(string(groups)) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			file := filepath.Join("/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes")
			if parts[1] == "" {
				file = filepath.Join("/sys/fs/cgroup", parts[2], "memory.max")
			} else if !slices.Contains(strings.Split(parts[1], ","), "memory") {
				continue
			}
			if b, err := os.ReadFile(file); err == nil {
				limit = strings.TrimSpace(string(b))
			}
		}
		if limit == "" || limit == "max" || len(limit) > 13 { // without one v1 says 2^63 less a page
			t.Errorf("%s has the limit %q", service, limit)
		}
	}
}

// memoryOf is what a process has in memory, in bytes.
func memoryOf(t *testing.T, pid int) (rss int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err == nil {
		_, err = fmt.Sscan(string(bytes.Fields(b)[1]), &rss)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rss * os.Getpagesize()
}
