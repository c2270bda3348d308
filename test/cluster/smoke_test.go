//go:build system

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: three machines are one system. All list each other; procs spawned at any run on all, and
// are waited for, listed and killed from any; names and files are the same everywhere; a machine
// that is drained gets no procs and loses those it has; one that goes down is missed by nobody.
func TestThreeMachines(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Realms: []sigma.RealmID{"tenant"},
		Memory: 4 * sigma.GiB})
	ls := c.Machine(2).Must(t, "machine", "ls")
	for _, m := range c.Machines() {
		members, err := m.Members(ctx)
		if err != nil || len(members) != 3 {
			t.Fatalf("%s knows %v, %v", m.Name, members, err)
		}
		if !strings.Contains(ls, string(m.Name)) {
			t.Errorf("machine ls: no %s in\n%s", m.Name, ls)
		}
	}
	first, err := c.Machine(0).Client(ctx, "tenant")
	must(t, err)
	defer first.Close()
	program := c.Machine(0).Install(ctx, t, first, testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c"))
	for i, m := range c.Machines() {
		client, err := m.Client(ctx, "tenant")
		must(t, err)
		defer client.Close()
		path, other := fmt.Sprint("/from-", m.Name), c.Machine((i+1)%3)
		_, err = client.Put(ctx, path, []byte(m.Name), sigma.PutOptions{})
		must(t, err)
		far, err := other.Client(ctx, "tenant")
		must(t, err)
		defer far.Close()
		if text, _, err := far.Get(ctx, path); err != nil || string(text) != string(m.Name) {
			t.Errorf("%s at %s: %q, %v", path, other.Name, text, err)
		}
		ds := make([]sigma.Descriptor, 12)
		for j := range ds {
			ds[j] = sigma.Descriptor{Program: program, Args: []string{"stay"}, Memory: 16 * sigma.MiB}
		}
		on := spread(ctx, t, client, client, far, ds, func(on placed) bool { return len(on) == 3 })
		ids := slices.Concat(on["m1"], on["m2"], on["m3"])
		testenv.Eventually(t, "all are listed elsewhere", func() error {
			if list, err := far.List(ctx, false); err != nil || len(list) != len(ds) || len(ids) != len(ds) {
				return fmt.Errorf("%d procs were spawned at %s; at %s, %d and %d are listed, %w", len(ds), m.Name,
					other.Name, len(ids), len(list), err)
			}
			return nil
		})
		for j, id := range ids {
			if j%2 == 0 {
				err = client.Kill(ctx, id)
			} else {
				err = far.Kill(ctx, id)
			}
			if err != nil {
				t.Errorf("kill: %v", err)
			}
			if st, err := far.WaitExit(ctx, id); err != nil || st.Code != sigma.StatusEvicted {
				t.Errorf("wait at %s: %+v, %v", other.Name, st, err)
			}
		}
	}
	drain(t, c, program)
}

func drain(t *testing.T, c *testenv.Cluster, program string) {
	ctx := testContext(t)
	m, v := c.Machine(0), c.Machine(2)
	client, err := m.Client(ctx, "tenant")
	must(t, err)
	defer client.Close()
	spawn := func() {
		ds := make([]sigma.Descriptor, 12)
		for j := range ds {
			ds[j] = sigma.Descriptor{Program: program, Args: []string{"leave"}, Memory: 16 * sigma.MiB}
		}
		ids, err := client.Spawn(ctx, ds...)
		must(t, err)
		for _, id := range ids {
			must(t, client.WaitStart(ctx, id))
		}
	}
	there := func() error {
		list, err := client.List(ctx, false)
		for _, p := range list {
			if p.Machine == v.Name {
				return fmt.Errorf("%s is at %s", p.ID, v.Name)
			}
		}
		return err
	}
	testenv.Eventually(t, "procs are placed on "+string(v.Name), func() error {
		if spawn(); there() == nil {
			return errors.New("none is")
		}
		return nil
	})
	m.Must(t, "machine", "drain", string(v.Name))
	testenv.Eventually(t, "the procs have gone", there)
	spawn()
	if err := there(); err != nil {
		t.Errorf("a machine that is drained gets procs: %v", err)
	}
	v.Down(t)
	testenv.Eventually(t, "it is lost", func() error {
		members, err := m.Members(ctx)
		if err == nil && members[v.Name].State != sigma.MachineLost {
			err = errors.New(members[v.Name].State.String())
		}
		return err
	})
	spawn()
}
