//go:build system

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	system "sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// kept is the instance of the registered proc web that runs, as a machine sees it, if it is another
// than before. More than one at any time is an error.
func kept(ctx context.Context, t *testing.T, m *testenv.Machine, before sigma.ProcID) (sigma.ProcID, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := m.Client(ctx, sigma.DefaultRealm)
	if err != nil {
		return "", err
	}
	defer c.Close()
	ps, err := c.List(ctx, false)
	if err != nil {
		return "", err
	}
	var live []sigma.ProcInfo
	for _, p := range ps {
		if p.Name == "web" {
			live = append(live, p)
		}
	}
	if len(live) > 1 {
		t.Fatalf("%d instances at once: %+v", len(live), live)
	}
	r, err := registration(ctx, c)
	if err != nil {
		return "", err
	}
	if len(live) == 0 || live[0].ID == before || live[0].State != sigma.ProcRunning || r.Proc != string(live[0].ID) {
		return "", fmt.Errorf("not yet: %+v, registered %+v", live, r)
	}
	return live[0].ID, nil
}

func registration(ctx context.Context, c *sdk.Client) (r system.Registration, err error) {
	b, _, err := c.Get(ctx, "/sys/init")
	if err == nil {
		err = json.Unmarshal([]byte(strings.TrimSpace(string(b))), &r)
	}
	return r, err
}

// 001 §3.4: whichever control machine is lost, with who leads initd or with the instance that runs,
// one instance of a registered proc runs afterwards, and never two. Two of three are lost, one
// after the other: m1 led at first. The program is at the third, because m1 has the object store.
func TestPaperInitdSurvivesAnyControlMachine(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Control: 3})
	first := cluster.Machine(0)
	c, err := first.Client(ctx, sigma.DefaultRealm)
	must(t, err)
	binary, err := os.ReadFile(testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c"))
	must(t, err)
	d := sigma.Descriptor{Program: "/ux/" + string(cluster.Machine(2).Name) + "/probe", Args: []string{"stay"},
		Memory: 8 * sigma.MiB}
	_, err = c.Put(ctx, d.Program, binary, sigma.PutOptions{Perm: 0o755})
	must(t, err)
	d.Name = "web"
	must(t, c.Register(ctx, sigma.Registration{Name: "web", Descriptor: d}))
	c.Close()
	var now sigma.ProcID
	settle := func(from *testenv.Machine, before sigma.ProcID) {
		t.Helper()
		testenv.Eventually(t, "one instance runs", func() (err error) {
			now, err = kept(ctx, t, from, before)
			return err
		})
	}
	settle(first, "")
	for i := range 2 {
		off, on := cluster.Machine(i), cluster.Machine((i+1)%3)
		before := now
		must(t, off.PowerOff())
		testenv.Eventually(t, "the instance is ended, if it was not lost", func() error { return end(ctx, on, before) })
		settle(on, before) // which needs a leader
		t.Logf("without %s: %s, before %s", off.Name, now, before)
		must(t, off.Restart())
		settle(on, before)
	}
}

// end kills a proc by a machine; that it is gone is no error.
func end(ctx context.Context, m *testenv.Machine, id sigma.ProcID) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := m.Client(ctx, sigma.DefaultRealm)
	if err != nil {
		return err
	}
	defer c.Close()
	if err = c.Kill(ctx, id); sigma.KindOf(err) == sigma.KindNotFound {
		return nil
	}
	return err
}
