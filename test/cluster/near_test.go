//go:build system

package cluster

import (
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// 001 Table 1, §3.3 (~local): a proc that is to be near data in a machine's scratch storage runs
// there, best-effort or latency-critical, wherever it was spawned; it runs elsewhere if there is no
// room, or no such machine; explain says which.
func TestPaperProcsRunNearTheirData(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 3, Memory: 512 * sigma.MiB,
		Realms: []sigma.RealmID{"a"}})
	client, err := c.Machine(0).Client(ctx, "a")
	must(t, err)
	defer client.Close()
	program := c.Machine(0).Install(ctx, t, client, testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c"))
	for _, m := range c.Machines() {
		_, err := client.Put(ctx, fmt.Sprintf("/ux/%s/data", m.Name), []byte("data"), sigma.PutOptions{})
		must(t, err)
	}
	where := func(id sigma.ProcID) sigma.MachineID {
		must(t, client.WaitStart(ctx, id))
		list, err := client.List(ctx, true)
		must(t, err)
		for _, p := range list {
			if p.ID == id {
				return p.Machine
			}
		}
		t.Fatalf("%s is not listed", id)
		return ""
	}
	explain := func(id sigma.ProcID, want string) {
		t.Helper()
		if out := c.Machine(0).Must(t, "explain", "--realm", "a", string(id)); !strings.Contains(out, want) {
			t.Errorf("explain does not say %q:\n%s", want, out)
		}
	}
	const tooLate = "which has no room; it waits 100ms for it"
	for i := range 3 {
		for _, m := range c.Machines() {
			args := []string{"run", "--realm", "a", "-d", "-m", "16M", "--near", fmt.Sprintf("/ux/%s/data", m.Name)}
			if i == 2 {
				args = append(args, "--lc", "0.01")
			}
			testenv.Eventually(t, "a proc is near "+string(m.Name), func() error {
				id := sigma.ProcID(strings.TrimSpace(c.Machine(i).Must(t, append(args, program, "doze", "200")...)))
				if at := where(id); at != m.Name {
					explain(id, tooLate) // on a busy host a machine may be that late
					must(t, client.Kill(ctx, id))
					exit(ctx, t, client, id)
					return fmt.Errorf("it runs on %s", at)
				}
				explain(id, "it should be near the data on machine "+string(m.Name))
				exit(ctx, t, client, id)
				return nil
			})
		}
	}
	testenv.Eventually(t, "some have room, until the machine is full", func() error {
		var full []sigma.ProcID
		for {
			ids, err := client.Spawn(ctx, sigma.Descriptor{Program: program, Args: []string{"stay"},
				Memory: 64 * sigma.MiB, Near: "m2"})
			must(t, err)
			full = append(full, ids...)
			if where(ids[0]) != "m2" {
				break
			}
		}
		explain(full[len(full)-1], "it should be near machine m2, "+tooLate)
		for _, id := range full {
			must(t, client.Kill(ctx, id))
			exit(ctx, t, client, id)
		}
		if len(full) < 3 {
			return fmt.Errorf("%d procs had room", len(full)-1)
		}
		return nil
	})
	ids, err := client.Spawn(ctx, sigma.Descriptor{Program: program, Args: []string{"doze", "1"}, Near: "none"})
	must(t, err)
	where(ids[0])
}
