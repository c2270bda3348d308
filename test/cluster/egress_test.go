//go:build system

package cluster

import (
	"encoding/json"
	"fmt"
	"testing"

	"sigmaos.dev/internal/testenv"
	said "sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// Goal: what a proc sent to another machine is counted to the byte, although it was killed, for
// itself and its realm.
func TestEgress(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 2})
	local := testenv.BuildGo(t, t.TempDir(), "../machine/testdata/goprobe")
	own := newProbes(ctx, t, cluster, sigma.DefaultRealm, local)
	_, at := own.serve("echo", "/echo")
	c, other := own.clients["m1"], sigma.MachineID("m2")
	if at == other {
		other = "m1"
	}
	for range 100 {
		ids, err := own.clients[other].Spawn(ctx, sigma.Descriptor{Program: own.program,
			Args: []string{"pour", "/echo"}, Start: sigma.StartedByCall, Memory: 32 * sigma.MiB})
		must(t, err)
		id := ids[0]
		must(t, own.clients[other].WaitStart(ctx, id))
		on := own.machine(id)
		must(t, c.Kill(ctx, id))
		c.WaitExit(ctx, id)
		if on == at {
			continue
		}
		testenv.Eventually(t, "egress", func() error {
			text, _, err := own.clients[on].Get(ctx, "/proc/"+string(id)+"/usage")
			must(t, err)
			var u said.ProcUsage
			must(t, json.Unmarshal(text, &u))
			if u.Egress < 100_000 || u.Egress > 100_010 || u.Ingress < 100_000 || u.Ingress > 100_100 {
				return fmt.Errorf("%+v", u.Traffic)
			}
			t.Logf("%+v", u.Traffic)
			return nil
		})
		return
	}
	t.Fatal("never on the other machine")
}
