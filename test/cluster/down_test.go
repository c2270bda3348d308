//go:build system

package cluster

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
	states "sigmaos.dev/state"
)

// Goal: sigma down of several machines lets all of them work while the procs of one have their grace, and starts nothing meanwhile; the machines come up again as they did first.
func TestDownOfSeveral(t *testing.T) {
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 3, Control: 3})
	all := func(args ...string) string {
		t.Helper()
		return c.Machine(0).Must(t, append([]string{"--data", c.Data()}, args...)...)
	}
	ctx := testContext(t)
	client, err := c.Machine(1).Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer client.Close()
	binary, err := os.ReadFile(testenv.BuildGo(t, t.TempDir(), "../machine/testdata/goprobe"))
	must(t, err)
	d := sigma.Descriptor{Program: "/ux/m1/goprobe", Args: []string{"farewell", "/written"}, Start: sigma.StartedByCall}
	_, err = client.Put(ctx, d.Program, binary, sigma.PutOptions{Perm: 0o755})
	must(t, err)
	ids, err := client.Spawn(ctx, d)
	must(t, err)
	must(t, client.WaitStart(ctx, ids[0]))
	web := d
	web.Name, web.Args = "web", []string{"notice"}
	must(t, client.Register(ctx, sigma.Registration{Name: "web", Descriptor: web}))
	var now sigma.ProcID
	runs := func() (err error) {
		now, err = kept(ctx, t, c.Machine(0), now)
		return err
	}
	testenv.Eventually(t, "the registered one runs", runs)
	begun := time.Now()
	all("down")
	down := time.Since(begun)
	begun = time.Now()
	all("up", "--detach")
	t.Logf("down took %v, up %v", down, time.Since(begun))
	if got := all("cat", "/written"); got != "farewell" {
		t.Errorf("written in the grace is %q", got)
	}
	testenv.Eventually(t, "the registered one runs again", runs)
	var log []states.Instance
	if err := json.Unmarshal([]byte(all("init", "log", "--json", "web")), &log); err != nil || len(log) != 2 {
		t.Errorf("log of the registered one: %+v, %v", log, err)
	}
}
