//go:build system

package machine

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: a latency-critical proc weighs what it has reserved, has short turns, and is beside best-effort procs of all realms, which have what is left; its memory is limited as any proc's. Realms' best-effort procs weigh their realms'
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
	for pattern, want := range map[string][2]int{"lc": {16384, 1600}, "be": {2, 1}, "system": {2048, 200}, "launcher": {2048, 200}, "lc/*": {512, 50}, "be/" + string(defaultRealm): {256, 25}} {
		if err := weights(pattern, want[0], want[1]); err != nil {
			t.Error(err)
		}
	}
	s.Must(t, "realm", "set", "--shares", "3", string(defaultRealm))
	defer s.Must(t, "realm", "set", "--shares", "1", string(defaultRealm))
	s.Must(t, "realm", "create", "weighs")
	defer s.Must(t, "realm", "rm", "--force", "weighs")
	s.Must(t, "run", "-r", "weighs", program(t, "hello.c")) // while no other realm is here, nobody asks
	testenv.Eventually(t, "the realm weighs its shares", func() error { return weights("be/"+string(defaultRealm), 768, 75) })
	for _, members := range s.GroupFiles("lc/*", "cgroup.procs") {
		for _, pid := range strings.Fields(members) {
			text, err := os.ReadFile("/proc/" + pid + "/sched")
			if err != nil || !strings.Contains(string(text), "se.slice") {
				t.Skipf("this kernel does not tell of slices: %v", err)
			}
			for line := range strings.Lines(string(text)) {
				if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "se.slice" && strings.TrimSpace(value) != "100000" {
					t.Errorf("process %s of an LC proc has slices of %s ns", pid, strings.TrimSpace(value))
				}
			}
		}
	}
}
