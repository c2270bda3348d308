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

// everywhere is what clients on all machines make of one directory.
type everywhere struct {
	t                          *testing.T
	ctx                        context.Context // ends with the clients
	stop                       context.CancelFunc
	dir                        string
	all                        sync.WaitGroup
	clients, watchers, listers []*decider
}

// choose has a client choose members all the time, and dial some.
func (e *everywhere) choose(c *sdk.Client) {
	d, last := c.Dialer(e.dir), new(decider)
	e.clients = append(e.clients, last)
	fails := func(err error) bool {
		if err != nil && e.ctx.Err() == nil {
			e.t.Error(err)
		}
		return err != nil
	}
	e.all.Go(func() {
		for e.ctx.Err() == nil {
			p, err := d.Pin(e.ctx, "")
			if fails(err) {
				return
			}
			last.decide(p.Member())
			<-time.After(time.Millisecond)
		}
	})
	e.all.Go(func() {
		for e.ctx.Err() == nil {
			conn, err := d.Dial(e.ctx, "")
			if fails(err) {
				return
			}
			conn.Close()
			<-time.After(20 * time.Millisecond)
		}
	})
}

// bare has a client only watch and read.
func (e *everywhere) bare(c *sdk.Client, first string) {
	watcher, lister := new(decider), new(decider)
	e.watchers, e.listers = append(e.watchers, watcher), append(e.listers, lister)
	e.all.Go(func() {
		watcher.watch(e.ctx, c, e.dir+"/"+sdk.PolicyName, func() string {
			p, _ := c.PolicyOf(e.ctx, e.dir)
			for member := range p.Weights {
				return member
			}
			return ""
		})
	})
	e.all.Go(func() {
		lister.watch(e.ctx, c, e.dir, func() string {
			entries, _ := c.ReadDir(e.ctx, e.dir)
			for _, e := range entries {
				if e.Name == "new" {
					return e.Name
				}
			}
			return first
		})
	})
}

// seen tells how long after a change clients, and bare ones, have decided by it.
func (e *everywhere) seen(change func() error, want string, bare []*decider) (took [2]time.Duration) {
	e.t.Helper()
	must(e.t, change())
	done := time.Now()
	for i, all := range [][]*decider{e.clients, bare} {
		for _, last := range all {
			for is := last.Load(); is == nil || is.member != want; is = last.Load() {
				if e.ctx.Err() != nil {
					e.t.Fatalf("not all clients choose %s", want)
				}
				<-time.After(100 * time.Microsecond)
			}
			took[i] = max(took[i], last.Load().at.Sub(done))
		}
	}
	return took
}

func (e *everywhere) report(what string, both [][2]time.Duration) {
	const soon = 20 * time.Millisecond
	var times, bare []time.Duration
	for _, took := range both {
		times, bare = append(times, took[0]), append(bare, took[1])
	}
	slices.Sort(times)
	slices.Sort(bare)
	n, usual := len(times), bare[len(bare)/2]
	e.t.Logf("%s: seen by %d clients on 3 machines within %v, %v and %v (quartiles), %v at most, of %d", what,
		len(e.clients), times[n/4], times[n/2], times[n*3/4], times[n-1], n)
	e.t.Logf("%s: a watch and a read take %v (median)", what, usual)
	if limit := max(soon*testenv.Slow(), 3*usual); times[n/2] > limit {
		e.t.Errorf("%s: the median is more than %v", what, limit)
	}
}

// Goal: a change of a directory's policy, and of who its members are, is followed by all clients on
// all machines within 20 ms, and no dial fails meanwhile. The time is from the answer to the change
// to the first decision of the last client that goes by it. On a host that is busy with other
// things it is no longer than three times what a watch and a read of what was watched take.
func TestPolicyEverywhere(t *testing.T) {
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3})
	local := testenv.BuildGo(t, t.TempDir(), "../../examples/httpserver")
	p := newProbes(ctx, t, cluster, sigma.DefaultRealm, local)
	e := &everywhere{t: t, dir: "/chosen"}
	e.ctx, e.stop = context.WithCancel(ctx)
	defer e.all.Wait()
	defer e.stop()
	var members [2]string
	for i := range members {
		id, _ := p.serve(e.dir)
		members[i] = string(id)
	}
	first, other := members[0], members[1]
	c := p.clients["m2"]
	only := func(member string) func() error {
		return func() error {
			return c.SetPolicy(ctx, e.dir, sdk.Policy{Choice: sdk.ChoiceWeights, Weights: map[string]uint32{member: 1}})
		}
	}
	must(t, only(other)())
	for range 2 {
		for _, m := range cluster.Machines() {
			c, err := m.Client(ctx, sigma.DefaultRealm)
			must(t, err)
			t.Cleanup(c.Close)
			e.choose(c)
		}
	}
	for _, c := range p.clients {
		e.bare(c, first)
	}
	var policies, joins, leaves [][2]time.Duration
	for range 20 {
		policies = append(policies, e.seen(only(first), first, e.watchers), e.seen(only(other), other, e.watchers))
	}
	text, err := c.ReadLink(ctx, e.dir+"/"+other)
	must(t, err)
	endpoint, err := sigma.ParseEndpoint(text)
	must(t, err)
	e.seen(func() error {
		return c.SetPolicy(ctx, e.dir, sdk.Policy{Choice: sdk.ChoiceWeights,
			Weights: map[string]uint32{first: 1, "new": 1 << 31}})
	}, first, nil)
	join := func() error { return c.Publish(ctx, e.dir+"/new", endpoint, 0) }
	leave := func() error { return c.Remove(ctx, e.dir+"/new") }
	for range 20 {
		joins = append(joins, e.seen(join, "new", e.listers))
		leaves = append(leaves, e.seen(leave, first, e.listers))
	}
	e.report("policies", policies)
	e.report("members that come", joins)
	e.report("members that leave", leaves)
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
