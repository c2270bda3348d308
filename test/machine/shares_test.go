//go:build system

package machine

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Goal: a latency-critical proc weighs what it has reserved, is beside best-effort procs of all
// realms, which have what is left; its memory is limited as any proc's. Realms' best-effort procs
// weigh their realms' shares on the machine (001 §3.1, §4.3).
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
	for pattern, want := range map[string][2]int{"lc": {16384, 1600}, "rest/system": {2048, 200},
		"rest/launcher": {2048, 200}, "lc/*": {512, 50}, "rest/be/" + string(defaultRealm): {256, 25}} {
		if err := weights(pattern, want[0], want[1]); err != nil {
			t.Error(err)
		}
	}
	s.Must(t, "realm", "set", "--shares", "3", string(defaultRealm))
	defer s.Must(t, "realm", "set", "--shares", "1", string(defaultRealm))
	s.Must(t, "realm", "create", "weighs")
	defer s.Must(t, "realm", "rm", "--force", "weighs")
	s.Must(t, "run", "-r", "weighs", program(t, "hello.c")) // while no other realm is here, nobody asks
	testenv.Eventually(t, "the realm weighs its shares", func() error {
		return weights("rest/be/"+string(defaultRealm), 768, 75)
	})
}

// Goal: while a latency-critical proc runs, best-effort ones run only where nobody else wants to,
// the launcher looks at who waits, and what looking takes is told, and little; afterwards they have
// their weight again, and no bound.
func TestBestEffortStandsAside(t *testing.T) {
	s := shared.Get(t)
	s.RequireLimits(t)
	c := s.Connect(t.Context(), t, defaultRealm)
	path := s.Install(t.Context(), t, c, program(t, "probe.c"))
	run := func(does string, d sigma.Descriptor) sigma.ProcID {
		t.Helper()
		d.Program, d.Args, d.Memory = path, []string{does}, 32*sigma.MiB
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
	for range runtime.NumCPU() {
		run("compute", sigma.Descriptor{})
	}
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
	critical := run("stay", sigma.Descriptor{Class: sigma.LatencyCritical, CPU: 500})
	testenv.Eventually(t, "best-effort procs are in the idle class", is("cpu.idle", aside[:1], "1"))
	// Daemons are in it only while the group around gets enough of the machine: with a best-effort
	// proc for each processor it asks for that, and this latency-critical proc takes nothing.
	testenv.Eventually(t, "daemons are in the idle class", is("cpu.idle", aside[1:], "1"))
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
	file, beWeighs, restWeighs, bound, free := "cpu.weight", fmt.Sprint(weight*100/1024), "400", "cpu.max",
		[]string{"max 10000", "max 100000"}
	if len(s.GroupFiles("rest/be", "cpu.shares")) > 0 { // version 1
		file, beWeighs, restWeighs, bound, free = "cpu.shares", fmt.Sprint(weight), "4096", "cpu.cfs_quota_us",
			[]string{"-1"}
	}
	testenv.Eventually(t, "the weight of be", is(file, []string{"rest/be"}, beWeighs))
	testenv.Eventually(t, "the weight of rest", is(file, []string{"rest"}, restWeighs))
	testenv.Eventually(t, bound, is(bound, aside, free...))
}

// groupTime is the processor time that a control group of a system has used.
func groupTime(t *testing.T, s *testenv.System, group string) time.Duration {
	t.Helper()
	for _, text := range append(s.GroupFiles(group, "cpuacct.usage"), s.GroupFiles(group, "cpu.stat")...) {
		var n time.Duration
		if _, err := fmt.Sscanf(text, "usage_usec %d", &n); err == nil {
			return n * time.Microsecond
		} else if _, err := fmt.Sscan(text, &n); err == nil {
			return n
		}
	}
	t.Fatalf("nothing tells the processor time of %s", group)
	return 0
}

// median of what takes turns with something else: half of the times may be bad ones of the host.
func median[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

// took is how long the fastest quarter of n calls of act take at most.
func took(t *testing.T, n int, act func() error) float64 {
	t.Helper()
	all := make([]time.Duration, n)
	for i := range all {
		begun := time.Now()
		if err := act(); err != nil {
			t.Fatal(err)
		}
		all[i] = time.Since(begun)
	}
	slices.Sort(all)
	return all[n/4].Seconds()
}

// guarded are procs that compute, all of one realm.
type guarded struct {
	*sdk.Client
	t   *testing.T
	ids []sigma.ProcID
}

func guard(t *testing.T, s *testenv.System, realm sigma.RealmID, n int, d sigma.Descriptor) *guarded {
	t.Helper()
	g := &guarded{Client: s.Connect(t.Context(), t, realm), t: t}
	d.Program, d.Args, d.Memory = s.Install(t.Context(), t, g.Client, program(t, "probe.c")), []string{"compute"},
		8*sigma.MiB
	var err error
	g.ids, err = g.Spawn(t.Context(), slices.Repeat([]sigma.Descriptor{d}, n)...)
	for _, id := range g.ids {
		if err == nil {
			err = g.WaitStart(t.Context(), id)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// run has them compute, or stand still.
func (g *guarded) run(on bool) {
	g.t.Helper()
	do := g.Freeze
	if on {
		do = g.Thaw
	}
	for _, id := range g.ids {
		if err := do(g.t.Context(), id); err != nil {
			g.t.Fatal(err)
		}
	}
}

// turn lets two realms, and a latency-critical proc, compute for a while, and tells what each used.
func turn(t *testing.T, s *testenv.System, realms []sigma.RealmID) (used [3]float64) {
	t.Helper()
	const (
		settled  = 1200 * time.Millisecond // until shares that were set are in force
		measured = 500 * time.Millisecond  // of all processor time
	)
	all := func() (of [3]time.Duration) {
		for i, realm := range realms {
			of[i] = groupTime(t, s, "rest/be/"+string(realm))
		}
		of[2] = groupTime(t, s, "lc")
		return of
	}
	begun := time.Now()
	testenv.Eventually(t, "time passes", func() error {
		if time.Since(begun) < settled {
			return errors.New("not yet")
		}
		return nil
	})
	before := all()
	testenv.Eventually(t, "they have computed", func() error {
		sum := 0.0
		for i, now := range all() {
			used[i] = (now - before[i]).Seconds()
			sum += used[i]
		}
		if sum < measured.Seconds() {
			return fmt.Errorf("for %v", used)
		}
		return nil
	})
	return used
}

// Goal: realms that want more than there is get processors by their shares, a latency-critical proc
// gets more than a best-effort one, and what a realm asks of the system is answered beside the
// others' load. Method: two realms compute on all processors. By turns each has four times the
// shares of the other, then a latency-critical proc computes too, and then all stand still. A third
// realm, which computes nothing, writes a name and starts procs in each turn. What is judged is a
// ratio of two turns, or of two that compute in one turn. Of parts it is the median of all rounds:
// what else the host does meets both. Of times it is the best turn's best quarter of calls: what
// else the host does only adds to them. The bounds are generous: this guards against a scheduler
// that is wrong, not slow.
func TestSharesAndLatencyBesideLoad(t *testing.T) {
	const (
		rounds       = 3
		puts, spawns = 20, 10
		// how much better one realm does beside the other with four times its shares than with a
		// fourth; 16 is right
		sharesLeast  = 3.0
		sharesMost   = 80.0
		criticalMost = 0.5  // of what the latency-critical proc has, for each best-effort one
		putMost      = 20.0 // beside load, of without; it waits for the disk too, which others use
		spawnMost    = 10.0
	)
	s := shared.Get(t)
	s.RequireLimits(t)
	c := s.Connect(t.Context(), t, defaultRealm)
	hello := s.Install(t.Context(), t, c, program(t, "hello.c"))
	defer c.Remove(t.Context(), "/guard")
	put := func() error {
		_, err := c.Put(t.Context(), "/guard", []byte("word"), sigma.PutOptions{})
		return err
	}
	spawn := func() error {
		ids, err := c.Spawn(t.Context(), sigma.Descriptor{Program: hello, Memory: 8 * sigma.MiB})
		if err == nil {
			err = c.WaitStart(t.Context(), ids[0])
		}
		return err
	}
	realms, each := []sigma.RealmID{"guard-one", "guard-two"}, 2*runtime.NumCPU()
	var load []*guarded
	for _, realm := range realms {
		s.Must(t, "realm", "create", string(realm))
		defer s.Must(t, "realm", "rm", "--force", string(realm))
		load = append(load, guard(t, s, realm, each, sigma.Descriptor{}))
	}
	const lc = "guard-lc"
	s.Must(t, "realm", "create", lc)
	defer s.Must(t, "realm", "rm", "--force", lc)
	critical := guard(t, s, lc, 1, sigma.Descriptor{Class: sigma.LatencyCritical, CPU: 500})
	critical.run(false)
	var better, worse, part, loadedPut, loadedSpawn, quietPut, quietSpawn []float64
	for range rounds {
		for i, shares := range [][2]string{{"1", "4"}, {"4", "1"}} {
			for j, realm := range realms {
				s.Must(t, "realm", "set", "--shares", shares[j], string(realm))
			}
			used := turn(t, s, realms)
			if ratio := used[1] / max(used[0], 0.001); i == 0 {
				better = append(better, ratio)
			} else {
				worse = append(worse, ratio)
			}
			loadedPut, loadedSpawn = append(loadedPut, took(t, puts, put)), append(loadedSpawn, took(t, spawns, spawn))
		}
		critical.run(true)
		used := turn(t, s, realms)
		part = append(part, (used[0]+used[1])/float64(2*each)/max(used[2], 0.001))
		critical.run(false)
		for _, g := range load {
			g.run(false)
		}
		quietPut, quietSpawn = append(quietPut, took(t, puts, put)), append(quietSpawn, took(t, spawns, spawn))
		for _, g := range load {
			g.run(true)
		}
	}
	t.Logf(
		"the second realm's time for 1 of the first, with 4 shares and with a fourth: %.2f, %.2f; a best-effort "+
			"proc's for 1 of the latency-critical: %.2f", better, worse, part)
	t.Logf("s beside load and without: put %.5f, %.5f; spawn %.4f, %.4f", loadedPut, quietPut, loadedSpawn, quietSpawn)
	if factor := median(better) / median(worse); factor < sharesLeast || factor > sharesMost {
		t.Errorf(
			"a realm does %.1f times better beside the other with four times its shares than with a fourth; 16 is "+
				"right, %v to %v are allowed", factor, sharesLeast, sharesMost)
	}
	if part := median(part); part > criticalMost {
		t.Errorf("a best-effort proc has %.2f of the latency-critical proc's processor time, %v are allowed", part,
			criticalMost)
	}
	for what, r := range map[string]struct{ ratio, most float64 }{"put": {slices.Min(loadedPut) / slices.Min(quietPut),
		putMost}, "spawn": {slices.Min(loadedSpawn) / slices.Min(quietSpawn), spawnMost}} {
		t.Logf("a %s takes %.2f times as long beside load", what, r.ratio)
		if r.ratio > r.most {
			t.Errorf("a %s takes %.1f times as long beside best-effort load, %v are allowed", what, r.ratio, r.most)
		}
	}
}
