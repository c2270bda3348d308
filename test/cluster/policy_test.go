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
// all machines within 20 ms, and no dial fails meanwhile. The time is from the answer to the change
// to the first decision of the last client that goes by it. On a host that is busy with other things
// it is no longer than three times what a watch and a read of what was watched take.
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
	var clients, watchers, listers []*decider
	for range 2 {
		for _, m := range cluster.Machines() {
			c, err := m.Client(ctx, sigma.DefaultRealm)
			must(t, err)
			t.Cleanup(c.Close)
			d, last := c.Dialer(dir), new(decider)
			clients = append(clients, last)
			fails := func(err error) bool {
				if err != nil && dialling.Err() == nil {
					t.Error(err)
				}
				return err != nil
			}
			all.Go(func() {
				for dialling.Err() == nil {
					p, err := d.Pin(dialling, "")
					if fails(err) {
						return
					}
					last.decide(p.Member())
					<-time.After(time.Millisecond)
				}
			})
			all.Go(func() {
				for dialling.Err() == nil {
					conn, err := d.Dial(dialling, "")
					if fails(err) {
						return
					}
					conn.Close()
					<-time.After(20 * time.Millisecond)
				}
			})
		}
	}
	defer all.Wait()
	defer stop()
	c := p.clients["m2"]
	first, other := string(members[0]), string(members[1])
	only := func(member string) func() error {
		return func() error {
			return c.SetPolicy(ctx, dir, sdk.Policy{Choice: sdk.ChoiceWeights, Weights: map[string]uint32{member: 1}})
		}
	}
	must(t, only(other)())
	for _, c := range p.clients {
		watcher, lister := new(decider), new(decider)
		watchers, listers = append(watchers, watcher), append(listers, lister)
		all.Go(func() {
			watcher.watch(dialling, c, dir+"/"+sdk.PolicyName, func() string {
				p, _ := c.PolicyOf(dialling, dir)
				for member := range p.Weights {
					return member
				}
				return ""
			})
		})
		all.Go(func() {
			lister.watch(dialling, c, dir, func() string {
				entries, _ := c.ReadDir(dialling, dir)
				for _, e := range entries {
					if e.Name == "new" {
						return e.Name
					}
				}
				return first
			})
		})
	}
	seen := func(what string, change func() error, want string, bare []*decider) (took [2]time.Duration) {
		t.Helper()
		must(t, change())
		done := time.Now()
		for i, all := range [][]*decider{clients, bare} {
			for _, last := range all {
				for is := last.Load(); is == nil || is.member != want; is = last.Load() {
					if ctx.Err() != nil {
						t.Fatalf("%s: not all clients choose %s", what, want)
					}
					<-time.After(100 * time.Microsecond)
				}
				took[i] = max(took[i], last.Load().at.Sub(done))
			}
		}
		return took
	}
	report := func(what string, both [][2]time.Duration) {
		var times, bare []time.Duration
		for _, took := range both {
			times, bare = append(times, took[0]), append(bare, took[1])
		}
		slices.Sort(times)
		slices.Sort(bare)
		t.Logf("%s: seen by %d clients on 3 machines within %v, %v and %v (quartiles), %v at most, "+
			"of %d; a watch and a read take %v (median)", what, len(clients), times[len(times)/4], times[len(times)/2], times[len(times)*3/4],
			times[len(times)-1], len(times), bare[len(bare)/2])
		if limit := max(soon*testenv.Slow(), 3*bare[len(bare)/2]); times[len(times)/2] > limit {
			t.Errorf("that is more than %v", limit)
		}
	}
	var policies, joins, leaves [][2]time.Duration
	for range 20 {
		policies = append(policies, seen("a policy", only(first), first, watchers),
			seen("a policy", only(other), other, watchers))
	}
	text, err := c.ReadLink(ctx, dir+"/"+other)
	must(t, err)
	e, err := sigma.ParseEndpoint(text)
	must(t, err)
	seen("weights", func() error {
		return c.SetPolicy(ctx, dir, sdk.Policy{Choice: sdk.ChoiceWeights,
			Weights: map[string]uint32{first: 1, "new": 1 << 31}})
	}, first, nil)
	for range 20 {
		join := func() error { return c.Publish(ctx, dir+"/new", e, 0) }
		joins = append(joins, seen("a member", join, "new", listers))
		leave := func() error { return c.Remove(ctx, dir+"/new") }
		leaves = append(leaves, seen("its end", leave, first, listers))
	}
	report("policies", policies)
	report("members that come", joins)
	report("members that leave", leaves)
}

// decider is what a client has decided last.
type decider struct{ atomic.Pointer[chosen] }

type chosen struct {
	member string
	at     time.Time // of the first of those that were the same
}

func (d *decider) decide(member string) {
	if was := d.Load(); was == nil || was.member != member {
		d.Store(&chosen{member, time.Now()})
	}
}

// watch decides by what is read after each change of a file.
func (d *decider) watch(ctx context.Context, c *sdk.Client, path string, read func() string) {
	st, err := c.Stat(ctx, path)
	for v := st.ID.Version; err == nil; v, err = c.Watch(ctx, path, v) {
		d.decide(read())
	}
}
