//go:build system

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	states "sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// Goal: sigma down of several machines lets all of them work while the procs of one have their
// grace, and starts nothing meanwhile; the machines come up again as they did first.
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

// Goal: a part of the control plane can be taken from the machine that decides about membership, in
// the way that the refusal says.
func TestControlOffOfTheDecidingMachine(t *testing.T) {
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 3, Control: 3})
	m1, m2 := c.Machine(0), c.Machine(1)
	_, errs, code := m2.CLI(t, "machine", "control", "m1", "off")
	if code == 0 || !strings.Contains(errs, "machine m1 decides about membership") ||
		!strings.Contains(errs, "hint: stop sigmaOS there (sigma down)") {
		t.Errorf("refused with code %d, %q", code, errs)
	}
	m1.Must(t, "down")
	testenv.Eventually(t, "another decides, and takes it", func() error {
		if _, errs, code := m2.CLI(t, "machine", "control", "m1", "off"); code != 0 {
			return errors.New(errs)
		}
		return nil
	})
	m1.Must(t, "--data", c.Data(), "up", "--detach")
	testenv.Eventually(t, "it is an ordinary machine", func() error {
		var ms []struct {
			Name, State string
			Control     bool
		}
		if err := json.Unmarshal([]byte(m2.Must(t, "machine", "ls", "--json")), &ms); err != nil {
			return err
		}
		for _, m := range ms {
			if m.State != "alive" || m.Control != (m.Name != "m1") {
				return fmt.Errorf("machines are %+v", ms)
			}
		}
		return nil
	})
	if got := m1.Must(t, "ls", "/"); got == "" {
		t.Error("nothing is seen there")
	}
}
