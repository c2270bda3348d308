package member

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/linear"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

const (
	linearRoundsEnv = "SIGMA_LINEAR_ROUNDS"
	linearSeedEnv   = "SIGMA_LINEAR_SEED"

	// Of twelve faults, from one that the seed chooses. SIGMA_LINEAR_ROUNDS=12 has all of them.
	linearRounds    = 6
	linearClients   = 6
	linearPairs     = 3                     // of names, new ones in each round
	linearPause     = 10 * time.Millisecond // between a client's operations, at most twice as long
	linearLoyal     = 20 * time.Millisecond
	linearLoyalMost = 256
)

// linearTrial records what clients do with three members, and what they are told.
type linearTrial struct {
	*testCluster
	ctx   context.Context
	seed  uint64
	guess atomic.Pointer[sigma.MachineID] // who led last

	history *linear.History // of this round
}

// Operations from several clients on few names, while members are killed, cut off one way and both,
// stopped as they stand, asked to resign, and ended in an orderly way: there is an order of all
// operations in which each has the answer that it got, and stands between its call and its return.
// What was refused as unavailable has not happened. Among the readers are some that stay with a
// leader that is replaced.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs three processes and kills them in turn")
	}
	rounds, seed := linearRounds, uint64(time.Now().UnixNano()%1e9)
	if n, err := strconv.Atoi(os.Getenv(linearRoundsEnv)); err == nil {
		rounds = n
	}
	if n, err := strconv.ParseUint(os.Getenv(linearSeedEnv), 10, 64); err == nil {
		seed = n
	}
	t.Logf("%s=%d", linearSeedEnv, seed)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(rounds)*20*time.Second)
	defer cancel()
	r := &linearTrial{testCluster: newTestCluster(t), ctx: ctx, seed: seed}
	r.testCluster.start("m1")
	x := &testClient{c: r.testCluster}
	defer x.close()
	if err := x.ask(ctx, sigmap.CallCreateRealm.Name, realmArg(testRealm), nil); err != nil {
		t.Fatal(err)
	}
	r.add(ctx, x, "m2")
	r.add(ctx, x, "m3")
	x.until(ctx, t, "three full members", func(ms []sigmap.NamesMember) bool { return voters(ms) == 3 })
	total, lost := 0, 0
	for i := range rounds {
		n, k := r.round(t, i)
		total, lost = total+n, lost+k
		if t.Failed() {
			return
		}
	}
	t.Logf("%d rounds, %d operations, the outcome of %d of which is not known", rounds, total, lost)
}

// linearFault is something that is done to member m, and undone. It takes as long as it takes;
// nothing depends on that.
type linearFault struct {
	name string
	do   func(r *linearTrial, m sigma.MachineID, rng *rand.Rand)
}

var linearFaults = []linearFault{
	{"is killed", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		r.kill(m)
		r.rest(rng, 0, 2500)
		r.testCluster.start(m)
	}},
	{"is ended", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		r.end(m, syscall.SIGTERM)
		r.rest(rng, 0, 1000)
		r.testCluster.start(m)
	}},
	{"stands still for long", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		r.pause(m)
		r.rest(rng, 1800, 3500)
		r.proceed(m)
	}},
	{"stands still and again", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		for range 4 {
			r.pause(m)
			r.rest(rng, 100, 1700)
			r.proceed(m)
			r.rest(rng, 0, 50)
		}
	}},
	{"is cut off", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		r.setCut(m, true)
		r.rest(rng, 500, 4000)
		r.setCut(m, false)
	}},
	{"is not heard", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		r.setCutOthers(m, true, false, true)
		r.rest(rng, 500, 4000)
		r.setCutOthers(m, true, false, false)
	}},
	{"does not hear", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		r.setCutOthers(m, false, true, true)
		r.rest(rng, 500, 4000)
		r.setCutOthers(m, false, true, false)
	}},
	{"is cut off and killed and then another", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		other := linearMachines[rng.IntN(3)]
		r.setCut(m, true)
		r.rest(rng, 0, 1500)
		r.kill(m)
		r.setCut(m, false)
		r.testCluster.start(m)
		r.rest(rng, 0, 500)
		r.kill(other)
		r.testCluster.start(other)
	}},
	{"resigns and then stands still", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		r.resign(m)
		r.rest(rng, 0, 300)
		r.pause(m)
		r.rest(rng, 0, 2000)
		r.proceed(m)
	}},
	{"resigns", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) { r.resign(m) }},
	{"and another stand still in turn", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		other := linearMachines[rng.IntN(3)]
		r.pause(m)
		r.rest(rng, 500, 2500)
		r.pause(other)
		r.proceed(m)
		r.rest(rng, 100, 2500)
		r.proceed(other)
		r.proceed(m)
	}},
	{"loses and finds the others again and again", func(r *linearTrial, m sigma.MachineID, rng *rand.Rand) {
		for range 6 {
			in := rng.IntN(2) == 0
			r.setCutOthers(m, in, !in, true)
			r.rest(rng, 50, 900)
			r.setCutOthers(m, in, !in, false)
			r.rest(rng, 0, 50)
		}
	}},
}

var linearMachines = []sigma.MachineID{"m1", "m2", "m3"}

func (r *linearTrial) rest(rng *rand.Rand, least, most int) {
	select {
	case <-time.After(time.Duration(least+rng.IntN(most-least)) * time.Millisecond):
	case <-r.ctx.Done():
	}
}

// setCutOthers cuts or heals the ways between a member and the others: what it says, or what it
// hears.
func (r *linearTrial) setCutOthers(m sigma.MachineID, says, hears, cut bool) {
	for _, other := range linearMachines {
		if other != m && says {
			r.setCutWay(m, other, cut)
		}
		if other != m && hears {
			r.setCutWay(other, m, cut)
		}
	}
}

// resign has a member hand over if it leads: it is asked to remove itself, and only hands over upon
// that.
func (r *linearTrial) resign(m sigma.MachineID) {
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	s, admin, err := r.attachTo(ctx, m, "")
	if err != nil {
		return // it does not lead
	}
	defer s.Close()
	askFile(ctx, admin, sigmap.CallMemberRemove.Name, machineArg(m), nil)
}

// round is one fault under load, and the check of what was said meanwhile.
func (r *linearTrial) round(t *testing.T, i int) (total, lost int) {
	rng := rand.New(rand.NewPCG(r.seed, uint64(i)))
	fault := linearFaults[(i+int(r.seed%97))%len(linearFaults)] // all in turn
	r.history = &linear.History{}
	began := time.Now()
	loadCtx, end := context.WithCancel(r.ctx)
	defer end()
	var load sync.WaitGroup
	clients := make([]*linearClient, linearClients)
	for k := range clients {
		clients[k] = &linearClient{r: r, id: k, round: i, answered: new(atomic.Int64),
			rng: rand.New(rand.NewPCG(r.seed+uint64(k)+1, uint64(i)))}
		load.Go(func() { clients[k].run(loadCtx, t) })
	}
	load.Go(func() { r.loyal(loadCtx, t, i) })
	r.eachGoesOn(t, clients, 30)
	m := linearMachines[rng.IntN(3)]
	if led := r.guess.Load(); led != nil && rng.IntN(4) != 0 {
		m = *led
	}
	fault.do(r, m, rng)
	for _, x := range linearMachines {
		r.standsBy(r.ctx, x)
	}
	r.eachGoesOn(t, clients, 30)
	end()
	load.Wait()
	last := &linearClient{r: r, id: linearClients, round: i, rng: rng}
	defer last.close()
	for k := range 2 * linearPairs {
		in := linear.In{Do: linear.Get, Pair: k / 2, Name: uint8(k % 2)}
		for done := false; !done && r.ctx.Err() == nil; {
			done = last.connect(r.ctx) == nil && last.ask(r.ctx, t, in, 5*time.Second)
		}
	}
	total, lost, err := r.history.Check(fmt.Sprintf("named-%d-%d", r.seed, i))
	if err != nil {
		t.Errorf("round %d: %v", i, err)
	}
	t.Logf("round %d: %s %s; %d operations, %d lost, %v", i, m, fault.name, total, lost,
		time.Since(began).Round(time.Millisecond))
	return total, lost
}

func (r *linearTrial) eachGoesOn(t *testing.T, clients []*linearClient, by int64) {
	t.Helper()
	for _, c := range clients {
		for want := c.answered.Load() + by; c.answered.Load() < want; {
			select {
			case <-r.ctx.Done():
				t.Fatalf("client %d stands still", c.id)
			case <-time.After(time.Millisecond):
			}
		}
	}
}

// loyal keeps asking the member that leads now, whatever becomes of it, until it ends the session:
// what it answers after it was replaced must not be old.
func (r *linearTrial) loyal(ctx context.Context, t *testing.T, round int) {
	rng := rand.New(rand.NewPCG(r.seed, uint64(round)+1e6))
	c := &linearClient{r: r, id: linear.LoyalID, round: round, rng: rng}
	var asking sync.WaitGroup
	defer asking.Wait()
	defer c.close() // which answers those who wait
	room := make(chan struct{}, linearLoyalMost)
	for ctx.Err() == nil {
		if c.connect(ctx) == nil {
			f, in := *c, linear.In{Do: linear.Get, Pair: rng.IntN(linearPairs), Name: uint8(rng.IntN(2))}
			select {
			case room <- struct{}{}:
				asking.Go(func() { f.ask(ctx, t, in, 8*time.Second); <-room })
			default:
			}
		}
		select {
		case <-time.After(linearLoyal):
		case <-ctx.Done():
		}
	}
}

// linearClient does one operation after the other, over a session with whom it finds leading.
type linearClient struct {
	r         *linearTrial
	id, round int
	rng       *rand.Rand
	answered  *atomic.Int64
	session   *session.Client
	root      sigma.File
}

func (c *linearClient) close() {
	if c.session != nil {
		c.session.Close()
	}
	c.session, c.root = nil, nil
}

// connect looks for who leads, first where it was the last time.
func (c *linearClient) connect(ctx context.Context) (err error) {
	if c.session != nil {
		select {
		case <-c.session.Done():
			c.close()
		default:
			return nil
		}
	}
	order := []sigma.MachineID{}
	if g := c.r.guess.Load(); g != nil {
		order = append(order, *g)
	}
	for _, i := range c.rng.Perm(3) {
		order = append(order, linearMachines[i])
	}
	for _, m := range order {
		soon, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
		c.session, c.root, err = c.r.attachTo(soon, m, string(testRealm))
		cancel()
		if err == nil {
			c.r.guess.Store(&m)
			return nil
		}
		c.session, c.root = nil, nil
	}
	return err
}

func (c *linearClient) run(ctx context.Context, t *testing.T) {
	defer c.close()
	for ctx.Err() == nil {
		if c.connect(ctx) == nil {
			patience := time.Duration(500+c.rng.IntN(2500)) * time.Millisecond
			if c.rng.IntN(200) == 0 {
				patience = time.Duration(c.rng.IntN(3000)) * time.Microsecond // takes it back while it is under way
			}
			if c.ask(ctx, t, c.r.history.Choose(c.rng, linearPairs), patience) {
				c.answered.Add(1)
			} else {
				c.close()
			}
		}
		select {
		case <-time.After(linearPause + time.Duration(c.rng.Int64N(int64(linearPause)))):
		case <-ctx.Done():
		}
	}
}

// ask does one operation and records what became of it. It is true if that is known.
func (c *linearClient) ask(ctx context.Context, t *testing.T, in linear.In, patience time.Duration) bool {
	actx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	known, err := c.r.history.Ask(c.id, in, func() (string, sigma.Version, error) { return c.perform(actx, in) })
	if err != nil {
		t.Error(err)
	}
	return known
}

func (c *linearClient) perform(ctx context.Context, in linear.In) (data string, version sigma.Version, err error) {
	name := c.nameOf(in.Pair, in.Name)
	switch in.Do {
	case linear.Get:
		r, _, err := c.root.(sigma.Getter).Get(ctx, []string{name}, 0, named.FileMax)
		return string(r.Data), r.ID.Version, err
	case linear.Create:
		f, err := c.root.Create(ctx, name, sigma.OpenExclusive|sigma.OpenWrite, 0o644)
		if err == nil {
			f.Close()
		}
		return "", 0, err
	case linear.Remove:
		return "", 0, c.root.Remove(ctx, name)
	case linear.Rename:
		return "", 0, c.root.Rename(ctx, name, c.root, c.nameOf(in.Pair, 1-in.Name))
	}
	o := sigma.PutOptions{MustMake: in.Do == linear.Make, Append: in.Do == linear.Append}
	if in.Do == linear.PutAt {
		o.IfVersion = sigma.Version(in.Version)
	}
	id, _, err := c.root.(sigma.Putter).Put(ctx, []string{name}, []byte(in.Data), o)
	return "", id.Version, err
}

func (c *linearClient) nameOf(pair int, name uint8) string {
	return fmt.Sprintf("round%d-%d%c", c.round, pair, 'a'+name)
}
