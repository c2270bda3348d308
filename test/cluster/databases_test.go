//go:build system

package cluster

import (
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: to remove a realm does not start the databases' service as long as nobody used a database,
// wherever it is asked for; afterwards, a restart of sigmad included, a realm's databases go with
// it.
func TestRemovedRealmsDatabases(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 2})
	m1, m2 := c.Machine(0), c.Machine(1)
	again := func(m *testenv.Machine) {
		m.Must(t, "realm", "create", "tenant")
		m.Must(t, "realm", "rm", "tenant")
	}
	again(m1)
	again(m2)
	if pid := m1.PID("dbd"); pid != 0 {
		t.Errorf("dbd is process %d though nobody used a database", pid)
	}
	m1.Must(t, "realm", "create", "tenant")
	client, err := m2.Client(ctx, "tenant")
	must(t, err)
	must(t, client.Mkdir(ctx, "/db/shop", 0o777))
	client.Close()
	must(t, m1.KillDaemon("sigmad"))
	testenv.Eventually(t, "sigmad is there again", func() error {
		client, err := m1.Client(ctx, sigma.SystemRealm)
		if err == nil {
			client.Close()
		}
		return err
	})
	testenv.Eventually(t, "the realm is removed", func() error {
		client, err := m2.Client(ctx, sigma.SystemRealm)
		if err != nil {
			return err
		}
		defer client.Close()
		if err := client.Realms().Remove(ctx, "tenant"); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		return nil
	})
	m1.Must(t, "realm", "create", "tenant")
	client, err = m1.Client(ctx, "tenant")
	must(t, err)
	defer client.Close()
	if list, err := client.ReadDir(ctx, "/db"); err != nil || len(list) != 0 {
		t.Errorf("a realm that was made anew has databases: %v, %v", list, err)
	}
}
