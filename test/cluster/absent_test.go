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
	"sigmaos.dev/sigma"
)

// Goal: without a majority of the control machines procs run on, whoever waits for them waits on,
// and requests for names fail within their deadline with words that say why; when a majority is
// back everything goes on. Method: four machines, three of them control machines, two of which lose
// their power; then one comes back.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 4, Control: 3})
	c, err := cluster.Machine(0).Client(ctx, sigma.DefaultRealm) // m1 has the object store, too
	must(t, err)
	defer c.Close()
	program := cluster.Machine(0).Install(ctx, t, c, testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c"))
	d := sigma.Descriptor{Program: program, Args: []string{"stay"}, Memory: 8 * sigma.MiB}
	everywhere(ctx, t, c, d, 4)
	ids, err := c.Spawn(ctx, slices.Repeat([]sigma.Descriptor{d}, 16)...)
	must(t, err)
	for _, id := range ids {
		must(t, c.WaitStart(ctx, id))
	}
	on := runs(ctx, t, c, ids)
	stay := slices.Concat(on["m1"], on["m4"])
	if len(stay) == 0 {
		t.Fatalf("the procs are at %v", on)
	}
	_, err = c.Put(ctx, "/before", []byte("acknowledged"), sigma.PutOptions{})
	must(t, err)

	must(t, cluster.Machine(1).PowerOff())
	must(t, cluster.Machine(2).PowerOff())
	testenv.Eventually(t, "names say that quorum is lost", func() error {
		soon, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := c.Put(soon, "/meanwhile", nil, sigma.PutOptions{})
		switch {
		case err == nil:
			t.Fatal("a name was made without quorum")
		case soon.Err() != nil:
			t.Fatalf("no answer within the deadline: %v", err)
		case !strings.Contains(err.Error(), "quorum"):
			return err
		}
		return nil
	})
	for _, id := range stay {
		if on := runs(ctx, t, c, []sigma.ProcID{id}); len(on) != 1 {
			t.Errorf("proc %s does not run on", id)
		}
	}

	lc := sigma.Descriptor{Program: program, Args: []string{"stay"}, Memory: 8 * sigma.MiB,
		Class: sigma.LatencyCritical, CPU: 100}
	placed, err := c.Spawn(ctx, lc)
	must(t, err)
	testenv.Eventually(t, "it is told why a latency-critical proc waits", func() error {
		b, _, err := c.Get(ctx, "/sys/queues")
		if text := string(b); err != nil || !strings.Contains(text, string(placed[0])) ||
			!strings.Contains(text, "no lcsched leads") {
			return fmt.Errorf("%s, %w", text, err)
		}
		return nil
	})

	t.Logf("quorum is gone")
	must(t, cluster.Machine(1).Restart())
	t.Logf("a majority is up again")
	testenv.Eventually(t, "names are made again", func() error {
		soon, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := c.Put(soon, "/after", nil, sigma.PutOptions{})
		return err
	})
	must(t, c.WaitStart(ctx, placed[0]))
	must(t, c.Kill(ctx, placed[0]))
	if got, _, err := c.Get(ctx, "/before"); err != nil || string(got) != "acknowledged" {
		t.Errorf("what was acknowledged before: %q, %v", got, err)
	}
	for _, id := range stay {
		must(t, c.Kill(ctx, id))
		if s := exit(ctx, t, c, id); s.Code != sigma.StatusEvicted {
			t.Errorf("a proc that ran all the time ends as %+v", s)
		}
	}
	must(t, cluster.Machine(2).Restart())
}
