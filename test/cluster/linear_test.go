//go:build system

package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/internal/linear"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const linearPairs = 2

// linearClient does one operation on names after the other, through the sigmad of one machine.
type linearClient struct {
	id, round int
	m         *testenv.Machine
	history   *linear.History
	rng       *rand.Rand
	conn      *sdk.Client
	known     atomic.Int64 // operations with an answer
}

func (c *linearClient) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// ask is true if it is known what became of the operation.
func (c *linearClient) ask(ctx context.Context, t *testing.T, in linear.In, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if c.conn == nil {
		var err error
		if c.conn, err = c.m.Client(ctx, "tenant"); err != nil {
			c.conn = nil
			return false
		}
	}
	known, err := c.history.Ask(c.id, in, func() (string, sigma.Version, error) { return c.perform(ctx, in) })
	if err != nil {
		t.Error(err)
	}
	if known {
		c.known.Add(1)
	} else {
		c.close()
	}
	return known
}

func (c *linearClient) perform(ctx context.Context, in linear.In) (data string, version sigma.Version, err error) {
	path := func(name uint8) string { return fmt.Sprintf("/round%d-%d%c", c.round, in.Pair, 'a'+name) }
	switch in.Do {
	case linear.Get:
		b, id, err := c.conn.Get(sigma.WithSync(ctx),
			path(in.Name)) // others may be behind other machines' changes (recall_test.go)
		return string(b), id.Version, err
	case linear.Create:
		f, err := c.conn.Create(ctx, path(in.Name), sigma.OpenExclusive|sigma.OpenWrite, 0o644)
		if err == nil {
			f.Close()
		}
		return "", 0, err
	case linear.Remove:
		return "", 0, c.conn.Remove(ctx, path(in.Name))
	case linear.Rename:
		return "", 0, c.conn.Rename(ctx, path(in.Name), path(1-in.Name))
	}
	o := sigma.PutOptions{MustMake: in.Do == linear.Make, Append: in.Do == linear.Append}
	if in.Do == linear.PutAt {
		o.IfVersion = sigma.Version(in.Version)
	}
	id, err := c.conn.Put(ctx, path(in.Name), []byte(in.Data), o)
	return "", id.Version, err
}

func (c *linearClient) run(ctx context.Context, t *testing.T) {
	defer c.close()
	for ctx.Err() == nil {
		c.ask(ctx, t, c.history.Choose(c.rng, linearPairs), time.Duration(500+c.rng.IntN(2500))*time.Millisecond)
		select {
		case <-ctx.Done():
		case <-time.After(4 * time.Millisecond):
		}
	}
}

// Goal: operations on names have one order also as programs see them, through the sigmads of three
// control machines, while named of one is killed, or a machine is stopped for a while or cut off
// one way or both. Method: two clients on each machine; porcupine looks for the order. All faults
// are shorter than what ends a machine's life.
func TestNamesHaveOneOrder(t *testing.T) {
	t.Parallel()
	rounds, seed := 3, uint64(time.Now().UnixNano()%1e9)
	if n, err := strconv.Atoi(os.Getenv("SIGMA_LINEAR_ROUNDS")); err == nil {
		rounds = n
	}
	if n, err := strconv.ParseUint(os.Getenv("SIGMA_LINEAR_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("SIGMA_LINEAR_SEED=%d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), (time.Minute+time.Duration(rounds)*20*time.Second)*testenv.Slow())
	defer cancel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Control: 3, Realms: []sigma.RealmID{"tenant"}})
	for i := range rounds {
		linearRound(ctx, t, c, seed, i)
		if t.Failed() {
			return
		}
	}
}

func linearRound(ctx context.Context, t *testing.T, c *testenv.Cluster, seed uint64, i int) {
	rng := rand.New(rand.NewPCG(seed, uint64(i)))
	h := &linear.History{}
	loadCtx, end := context.WithCancel(ctx)
	var load sync.WaitGroup
	defer load.Wait()
	defer end()
	var clients []*linearClient
	for k := range 2 * c.Size() {
		x := &linearClient{id: k, round: i, m: c.Machine(k / 2), history: h,
			rng: rand.New(rand.NewPCG(seed+uint64(k)+1, uint64(i)))}
		clients = append(clients, x)
		load.Go(func() { x.run(loadCtx, t) })
	}
	goOn := func() {
		t.Helper()
		for _, x := range clients {
			for want := x.known.Load() + 20; x.known.Load() < want; {
				select {
				case <-ctx.Done():
					t.Fatalf("client %d of machine %d stands still", x.id, x.m.Index())
				case <-time.After(time.Millisecond):
				}
			}
		}
	}
	goOn()
	what := linearFault(ctx, t, c, rng, i+int(seed%5)) // all in turn
	goOn()
	end()
	load.Wait()
	last := &linearClient{id: len(clients), round: i, m: c.Machine(0), history: h}
	defer last.close()
	for k := range 2 * linearPairs {
		for !last.ask(ctx, t, linear.In{Do: linear.Get, Pair: k / 2, Name: uint8(k % 2)}, 5*time.Second) &&
			ctx.Err() == nil {
		}
	}
	total, lost, err := h.Check(fmt.Sprintf("cluster-%d-%d", seed, i))
	if err != nil {
		t.Error(err)
	}
	t.Logf("round %d: %s; %d operations, %d lost", i, what, total, lost)
}

// linearFault does something to a machine and undoes it, and says what.
func linearFault(ctx context.Context, t *testing.T, c *testenv.Cluster, rng *rand.Rand, i int) string {
	m := c.Machine(rng.IntN(c.Size()))
	rest := func() {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(100+rng.IntN(600)) * time.Millisecond):
		}
	}
	switch i % 5 {
	case 0:
		must(t, m.KillDaemon("named"))
		return fmt.Sprintf("named of machine %d is killed", m.Index())
	case 1:
		must(t, m.Pause())
		rest()
		must(t, m.Resume())
		return fmt.Sprintf("machine %d stands still", m.Index())
	case 2:
		c.Partition(m)
		rest()
		c.Heal()
		return fmt.Sprintf("machine %d is cut off", m.Index())
	case 3:
		for _, other := range c.Machines() {
			if other != m {
				c.Cut(m, other)
			}
		}
		rest()
		c.Heal()
		return fmt.Sprintf("machine %d is not heard", m.Index())
	}
	must(t, m.KillDaemon("sigmad"))
	return fmt.Sprintf("sigmad of machine %d is killed", m.Index())
}
