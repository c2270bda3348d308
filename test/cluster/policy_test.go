//go:build system

package cluster

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Goal: a change of a directory's policy, and of who its members are, is followed by all clients on
// all machines within 20 ms, and no dial fails. The time is from before the change is asked for to
// the end of the first dial that goes where it leads, of the last client.
func TestPolicyEverywhere(t *testing.T) {
	const dir, soon = "/chosen", 20 * time.Millisecond
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3})
	local := testenv.BuildGo(t, t.TempDir(), "../../examples/httpserver")
	p := newProbes(ctx, t, cluster, sigma.DefaultRealm, local)
	var members []sigma.ProcID
	for range 2 {
		id, _ := p.serve(dir)
		members = append(members, id)
	}
	dialling, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	var clients []*atomic.Pointer[sigma.ProcID] // whom each has dialled last
	for range 2 {
		for _, m := range cluster.Machines() {
			c, err := m.Client(ctx, sigma.DefaultRealm)
			must(t, err)
			t.Cleanup(c.Close)
			d, last := c.Dialer(dir), new(atomic.Pointer[sigma.ProcID])
			clients = append(clients, last)
			all.Go(func() {
				for dialling.Err() == nil {
					conn, err := d.Dial(dialling, "")
					if err != nil {
						if dialling.Err() == nil {
							t.Error(err)
						}
						return
					}
					to := conn.RemoteAddr().(sdk.EndpointAddr).Proc
					last.Store(&to)
					conn.Close()
					<-time.After(time.Millisecond)
				}
			})
		}
	}
	defer all.Wait()
	defer stop()
	c := p.clients["m2"]
	seen := func(what string, change func() error, want sigma.ProcID) time.Duration {
		t.Helper()
		began := time.Now()
		must(t, change())
		for {
			if !slices.ContainsFunc(clients, func(last *atomic.Pointer[sigma.ProcID]) bool {
				is := last.Load()
				return is == nil || *is != want
			}) {
				return time.Since(began)
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: not all clients dial %s", what, want)
			}
			<-time.After(100 * time.Microsecond)
		}
	}
	report := func(what string, times []time.Duration) {
		slices.Sort(times)
		t.Logf("%s: seen by %d clients on 3 machines within %v at the median, %v at most, of %d", what, len(clients),
			times[len(times)/2], times[len(times)-1], len(times))
		if limit := soon * testenv.Slow(); times[len(times)/2] > limit {
			t.Errorf("that is more than %v", limit)
		}
	}
	only := func(id sigma.ProcID) func() error {
		return func() error {
			return c.SetPolicy(ctx, dir, sdk.Policy{Choice: sdk.ChoiceWeights, Weights: map[string]uint32{string(id): 1}})
		}
	}
	var policies, joins, leaves []time.Duration
	seen("the first policy", only(members[1]), members[1])
	for i := range 40 {
		policies = append(policies, seen("a policy", only(members[i%2]), members[i%2]))
	}
	text, err := c.ReadLink(ctx, dir+"/"+string(members[1]))
	must(t, err)
	e, err := sigma.ParseEndpoint(text)
	must(t, err)
	seen("weights", func() error {
		return c.SetPolicy(ctx, dir, sdk.Policy{Choice: sdk.ChoiceWeights,
			Weights: map[string]uint32{string(members[0]): 1, "other": 1 << 31}})
	}, members[0])
	for range 20 {
		joins = append(joins, seen("a member", func() error { return c.Publish(ctx, dir+"/other", e, 0) }, members[1]))
		leaves = append(leaves, seen("its end", func() error { return c.Remove(ctx, dir+"/other") }, members[0]))
	}
	report("policies", policies)
	report("members that come", joins)
	report("members that leave", leaves)
}
