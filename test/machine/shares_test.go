//go:build system

package machine

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: a latency-critical proc weighs what it has reserved, is beside best-effort procs of all realms, which have what is left; its memory is limited as any proc's. Realms' best-effort procs weigh their realms'
// shares on the machine (001 §3.1, §4.3).
func TestLatencyCriticalWeighsItsReservation(t *testing.T) {
	s := shared.Get(t)
	s.RequireLimits(t)
	c := s.Connect(t.Context(), t, defaultRealm)
	path := s.Install(t.Context(), t, c, program(t, "probe.c"))
	spawn := func(d sigma.Descriptor) (id sigma.ProcID) {
		t.Helper()
		d.Program, d.Args = path, []string{"leave"}
		ids, err := c.Spawn(t.Context(), d)
		if err == nil {
			err = c.WaitStart(t.Context(), ids[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.CLI(t, "kill", string(ids[0])) })
		return ids[0]
	}
	spawn(sigma.Descriptor{Class: sigma.LatencyCritical, CPU: 500, Memory: 32 * sigma.MiB})
	spawn(sigma.Descriptor{Memory: 32 * sigma.MiB})
	weights := func(pattern string, v1, v2 int) error { // v2 calls 100 what v1 calls 1024
		got := append(s.GroupFiles(pattern, "cpu.shares"), s.GroupFiles(pattern, "cpu.weight")...)
		if !slices.Contains(got, fmt.Sprint(v1)) && !slices.Contains(got, fmt.Sprint(v2)) {
			return fmt.Errorf("%s weighs %v, want %d or %d", pattern, got, v1, v2)
		}
		return nil
	}
	for pattern, want := range map[string][2]int{"lc": {16384, 1600}, "rest/system": {2048, 200}, "rest/launcher": {2048, 200}, "lc/*": {512, 50}, "rest/be/" + string(defaultRealm): {256, 25}} {
		if err := weights(pattern, want[0], want[1]); err != nil {
			t.Error(err)
		}
	}
	s.Must(t, "realm", "set", "--shares", "3", string(defaultRealm))
	defer s.Must(t, "realm", "set", "--shares", "1", string(defaultRealm))
	s.Must(t, "realm", "create", "weighs")
	defer s.Must(t, "realm", "rm", "--force", "weighs")
	s.Must(t, "run", "-r", "weighs", program(t, "hello.c")) // while no other realm is here, nobody asks
	testenv.Eventually(t, "the realm weighs its shares", func() error { return weights("rest/be/"+string(defaultRealm), 768, 75) })
}

// Goal: while a latency-critical proc runs, best-effort ones run only where nobody else wants to, the launcher looks at who waits, and what looking takes is told, and little; afterwards they have their weight again, and no bound.
func TestBestEffortStandsAside(t *testing.T) {
	s := shared.Get(t)
	s.RequireLimits(t)
	c := s.Connect(t.Context(), t, defaultRealm)
	path := s.Install(t.Context(), t, c, program(t, "probe.c"))
	run := func(d sigma.Descriptor) sigma.ProcID {
		t.Helper()
		d.Program, d.Args, d.Memory = path, []string{"compute"}, 32*sigma.MiB
		ids, err := c.Spawn(t.Context(), d)
		if err == nil {
			err = c.WaitStart(t.Context(), ids[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.CLI(t, "kill", string(ids[0])) })
		return ids[0]
	}
	run(sigma.Descriptor{})
	if len(s.GroupFiles("rest/be", "cpu.idle")) == 0 {
		t.Skip("this kernel has no idle class for control groups: it came with Linux 5.15")
	}
	is := func(file string, groups []string, want ...string) func() error {
		return func() error {
			for _, group := range groups {
				all := s.GroupFiles(group, file)
				if len(all) == 0 {
					return fmt.Errorf("%s has no %s", group, file)
				}
				for _, got := range all {
					if !slices.Contains(want, got) {
						return fmt.Errorf("%s of %s is %q, want one of %q", file, group, got, want)
					}
				}
			}
			return nil
		}
	}
	aside := []string{"rest/be", "rest"}
	critical := run(sigma.Descriptor{Class: sigma.LatencyCritical, CPU: 500})
	testenv.Eventually(t, "best-effort procs are in the idle class", is("cpu.idle", aside[:1], "1"))
	// Daemons are in it only while the group around gets enough of the machine, which others of the host may take, or this proc if there is one processor.
	used := func() time.Duration {
		for _, text := range append(s.GroupFiles("rest", "cpuacct.usage"), s.GroupFiles("rest", "cpu.stat")...) {
			var n time.Duration
			if _, err := fmt.Sscanf(text, "usage_usec %d", &n); err == nil {
				return n * time.Microsecond
			} else if _, err := fmt.Sscan(text, &n); err == nil {
				return n
			}
		}
		return 0
	}
	began, before := time.Now(), used()
	testenv.Eventually(t, "daemons are in the idle class, or it is known why not", func() error {
		over := time.Since(began)
		err := is("cpu.idle", aside[1:], "1")()
		if err == nil || over < 5*time.Second {
			return err
		}
		had := float64(used()-before) / float64(over) / float64(runtime.NumCPU())
		if had > 0.3 || had == 0 { // a quarter over 100 ms is enough
			t.Errorf("daemons had %.2f of the machine for %v, with best-effort procs, and did not stand aside", had, over)
		}
		t.Logf("NOT TESTED that daemons stand aside: with best-effort procs they had only %.2f of this machine, others of the host the rest", had)
		return nil
	})
	figure := func(name string) (v float64) {
		text, _, err := c.Get(t.Context(), "/sys/metrics")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(text), "\n"+name+" ")
		fmt.Sscan(after, &v)
		return v
	}
	testenv.Eventually(t, "the launcher looks", func() error {
		if n := figure("sigma_yield_looks_total"); n < 100 {
			return fmt.Errorf("%v looks", n)
		}
		return nil
	})
	looks, cpu := figure("sigma_yield_looks_total"), figure("sigma_yield_cpu_seconds_total")
	t.Logf("%.0f looks took %.1f us each", looks, cpu/looks*1e6)
	s.Must(t, "kill", string(critical))
	testenv.Eventually(t, "they have their weight again", is("cpu.idle", aside, "0"))
	weight := min(1024, 512*runtime.NumCPU()) // half a core for each, up to one
	file, beWeighs, restWeighs, bound, free := "cpu.weight", fmt.Sprint(weight*100/1024), "400", "cpu.max", []string{"max 10000", "max 100000"}
	if len(s.GroupFiles("rest/be", "cpu.shares")) > 0 { // version 1
		file, beWeighs, restWeighs, bound, free = "cpu.shares", fmt.Sprint(weight), "4096", "cpu.cfs_quota_us", []string{"-1"}
	}
	testenv.Eventually(t, "the weight of be", is(file, []string{"rest/be"}, beWeighs))
	testenv.Eventually(t, "the weight of rest", is(file, []string{"rest"}, restWeighs))
	testenv.Eventually(t, bound, is(bound, aside, free...))
}
