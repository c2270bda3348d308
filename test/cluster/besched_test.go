//go:build system

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// 001 §3.4: a part of the scheduling that is cut off by the network, and lives. Three machines with
// a besched each are full, so that procs wait at all three; then one is cut off. What waited there
// is placed through the others, each proc starts once, and all who wait are answered; when the
// network is whole again, the third takes part.
func TestPaperBeschedCutOff(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Control: 3})
	c, err := cluster.Machine(0).Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer c.Close()
	program := cluster.Machine(0).Install(ctx, t, c, testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c"))
	everywhere(ctx, t, c, sigma.Descriptor{Program: program, Args: []string{"stay"}, Memory: 8 * sigma.MiB}, 3)

	full := sigma.Descriptor{Program: program, Args: []string{"stay"},
		Memory: sigma.Bytes(figure(ctx, t, c, "sigma_schedd_memory_capacity_bytes")) &^ 0xffff}
	fillers, err := c.Spawn(ctx, full, full, full)
	must(t, err)
	for _, id := range fillers {
		must(t, c.WaitStart(ctx, id))
	}
	on := runs(ctx, t, c, fillers)
	if len(on) != 3 {
		t.Fatalf("the machines are not full: %v", on)
	}
	const jobs = 60
	ids, err := c.Spawn(ctx, slices.Repeat([]sigma.Descriptor{{Program: program, Args: []string{"exit", "5"},
		Memory: 8 * sigma.MiB}}, jobs)...)
	must(t, err)
	var here []*sdk.Client
	before := 0
	for _, m := range cluster.Machines()[:2] {
		at, err := m.Client(ctx, sigma.DefaultRealm)
		must(t, err)
		defer at.Close()
		here = append(here, at)
		before += figure(ctx, t, at, "sigma_schedd_procs_started_total")
	}

	cluster.Partition(cluster.Machine(2))
	cut := time.Now()
	for _, m := range []sigma.MachineID{"m1", "m2"} {
		must(t, c.Kill(ctx, on[m][0]))
	}
	for _, id := range ids {
		if s := exit(ctx, t, c, id); s.ExitCode != 5 {
			t.Errorf("%s: %+v", id, s)
		}
	}
	t.Logf("%d procs had ended %v after one of three bescheds was cut off", jobs,
		time.Since(cut).Round(time.Millisecond))
	if s := exit(ctx, t, c, on["m3"][0]); s.Code != sigma.StatusLost {
		t.Errorf("what ran on the machine that was cut off ended as %+v", s)
	}
	after := 0
	for _, at := range here {
		after += figure(ctx, t, at, "sigma_schedd_procs_started_total")
	}
	if after-before != jobs {
		t.Errorf("%d procs were started for %d jobs", after-before, jobs)
	}

	cluster.Heal()
	everywhere(ctx, t, c, sigma.Descriptor{Program: program, Args: []string{"stay"}, Memory: 8 * sigma.MiB}, 3)
	infos, err := c.List(ctx, true)
	must(t, err)
	for _, id := range ids {
		if n := len(slices.DeleteFunc(slices.Clone(infos), func(p sigma.ProcInfo) bool { return p.ID != id })); n != 1 {
			t.Errorf("%s is listed %d times", id, n)
		}
	}
}

// figure reads one metric of a client's machine.
func figure(ctx context.Context, t *testing.T, c *sdk.Client, name string) (n int) {
	t.Helper()
	text, _, err := c.Get(ctx, "/sys/metrics")
	must(t, err)
	_, after, _ := strings.Cut(string(text), "\n"+name+" ")
	if _, err := fmt.Sscan(after, &n); err != nil {
		t.Fatalf("metric %s: %v", name, err)
	}
	return n
}
