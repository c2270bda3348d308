//go:build system

package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/lib/history"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

const (
	orderKeys    = 4
	orderClients = 6
	// orderPatience is how long a client waits for an answer. Then the result is unknown.
	orderPatience = 3 * time.Second
	// orderPause is between a client's operations, at most twice as long.
	orderPause = 2 * time.Millisecond
	// groupsMost is how many groups the store gets.
	groupsMost = 3
	// balancerPause is longer than a balancer's lease, so that another one leads.
	balancerPause = 4 * time.Second
	// checkMax is how long the history of a round may be checked.
	checkMax = time.Minute
)

// number is a variable of the environment, or a default.
func number(name string, or uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return or
}

// trial is a store that is disturbed while clients use it.
type trial struct {
	t    *testing.T
	s    *testenv.System
	c    *sdk.Client
	k    *kv.Clerk
	rng  *rand.Rand
	name string

	faults []history.Fault
}

// Goal: operations on a key have one order, in which each stands between its call and its answer,
// while members and balancers are killed and stand still, groups are added, removed and replaced,
// and shards move, also when their mover dies or stands still. Method: clients get,
// put, delete, and compare and swap a few keys; after each fault the groups get whole again;
// lib/history looks for the order. SIGMA_KV_ROUNDS rounds of SIGMA_KV_SECONDS.
func TestOneOrder(t *testing.T) {
	s := shared.Get(t)
	seed, rounds := number("SIGMA_KV_SEED", uint64(time.Now().UnixNano())%1e9), number("SIGMA_KV_ROUNDS", 1)
	span := time.Duration(number("SIGMA_KV_SECONDS", 5)) * time.Second
	t.Logf("SIGMA_KV_SEED=%d", seed)
	ctx, cancel := context.WithTimeout(t.Context(),
		(time.Minute+time.Duration(rounds)*(span+time.Minute))*testenv.Slow())
	defer cancel()
	x := &trial{t: t, s: s, c: s.Connect(ctx, t, sigma.DefaultRealm), name: "order"}
	x.k = store(t, s, x.c, x.name, "--replicas", "3", "--shards", "4", "-m", "64MiB")
	for i := range rounds {
		x.rng = rand.New(rand.NewPCG(seed, i))
		if x.round(ctx, i, span); t.Failed() {
			return
		}
	}
}

// round has clients at work and faults done for a while, and checks what the clients were told. Its
// keys are new ones.
func (x *trial) round(ctx context.Context, round uint64, span time.Duration) {
	x.t.Helper()
	x.faults = nil
	rec := history.NewRecorder(nil)
	key := func(i int) history.Text { return history.Text(fmt.Sprintf("%d-%d", round, i)) }
	working, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for id := range orderClients {
		rng := rand.New(rand.NewPCG(x.rng.Uint64(), 0))
		clients.Go(func() {
			var version uint64 // of some key, as was told last
			for n := 0; working.Err() == nil; n++ {
				op := history.Op{Client: id, Key: key(rng.IntN(orderKeys)), Kind: history.Get}
				switch rng.IntN(10) {
				case 0, 1, 2:
					op.Kind = history.Put
				case 3, 4:
					op.Kind, op.IfVersion = history.CAS, version
				case 5:
					op.Kind = history.Delete
				}
				if op.Kind == history.Put || op.Kind == history.CAS {
					op.In = history.Text(fmt.Sprintf("%d-%d", id, n))
				}
				version = x.do(ctx, rec, op)
				retry.Pause(working, time.Duration(1+rng.IntN(2))*orderPause)
			}
		})
	}
	for until := time.Now().Add(span); time.Now().Before(until) && !x.t.Failed(); {
		retry.Pause(ctx, time.Duration(x.rng.IntN(400))*time.Millisecond)
		x.fault(ctx)
	}
	stop()
	clients.Wait()
	for i := range orderKeys { // what is there in the end
		x.do(ctx, rec, history.Op{Client: orderClients, Kind: history.Get, Key: key(i)})
	}
	ops, err := rec.Close()
	if err != nil {
		x.t.Fatal(err)
	}
	x.check(round, &history.History{Ops: ops, Faults: x.faults})
}

// do performs an operation and gives the version that was told, 0 = none.
func (x *trial) do(ctx context.Context, rec *history.Recorder, op history.Op) (version uint64) {
	ctx, cancel := context.WithTimeout(ctx, orderPatience)
	defer cancel()
	key := string(op.Key)
	err := rec.Do(op, func(op *history.Op) (err error) {
		switch op.Kind {
		case history.Put:
			op.Version, err = x.k.Put(ctx, key, []byte(op.In), kv.Options{})
		case history.CAS:
			op.Version, err = x.k.PutIf(ctx, key, op.IfVersion, []byte(op.In), kv.Options{})
		case history.Delete:
			err = x.k.Delete(ctx, key)
		default:
			var value []byte
			value, op.Version, err = x.k.Get(ctx, key)
			op.Out = history.Text(value)
		}
		if version = op.Version; err != nil {
			op.Version = 0
		}
		return err
	})
	switch kind := sigma.KindOf(err); {
	case err == nil, kind == sigma.KindNotFound, kind == sigma.KindVersion, kind == sigma.KindTimeout,
		kind == sigma.KindCanceled: // the test has failed
	default:
		x.t.Errorf("%v: %v", op.Kind, err)
	}
	return version
}

// fault does something to the store, and waits until all groups are whole again.
func (x *trial) fault(ctx context.Context) {
	x.t.Helper()
	f := history.Fault{At: time.Now().UnixNano()}
	switch x.rng.IntN(9) {
	case 0, 1:
		f.Fault, f.Proc = "kill", x.member(ctx)
		must(x.t, x.c.Kill(ctx, sigma.ProcID(f.Proc)))
		_, err := x.c.WaitExit(ctx, sigma.ProcID(f.Proc)) // until then it may be listed as one that runs
		must(x.t, err)
	case 2, 3:
		f.Fault, f.Proc = "pause", x.member(ctx)
		x.pause(ctx, f.Proc, time.Duration(100+x.rng.IntN(2000))*time.Millisecond)
	case 4:
		f.Fault = "kill of the balancer"
		killLeader(x.t, x.c, x.name)
	case 5: // another one leads meanwhile, and both are at work when it goes on
		f.Fault, f.Proc = "pause of the balancer while groups change", x.balancer(ctx)
		x.during(func() { x.scale(ctx) }, func() { x.pause(ctx, f.Proc, balancerPause) })
	case 6: // wherever the mover is
		f.Fault = "kill of the balancer while groups change"
		after := time.Duration(x.rng.IntN(1500)) * time.Millisecond
		x.during(func() { x.scale(ctx) }, func() {
			retry.Pause(ctx, after)
			killLeader(x.t, x.c, x.name)
		})
	case 7:
		f.Fault = "roll"
		x.s.Must(x.t, "kv", "roll", x.name)
	default:
		f.Fault = "scale"
		x.scale(ctx)
	}
	if now := time.Now(); now.Sub(time.Unix(0, f.At)) > time.Millisecond {
		f.Until = now.UnixNano()
	}
	f.Target = x.name
	x.faults = append(x.faults, f)
	began := time.Now()
	testenv.Eventually(x.t, "all groups are whole", func() error { return x.whole(ctx) })
	x.t.Logf("%s %s; whole again %v later", f.Fault, f.Proc, time.Since(began).Round(time.Millisecond))
}

// during does two things at a time.
func (x *trial) during(a, b func()) {
	var both sync.WaitGroup
	both.Go(a)
	b()
	both.Wait()
}

// scale gives the store another number of groups.
func (x *trial) scale(ctx context.Context) {
	cfg, err := x.k.Config(ctx)
	if err != nil {
		x.t.Error(err)
		return
	}
	x.s.Must(x.t, "kv", "scale", x.name, strconv.Itoa(1+(cfg.Want+int(cfg.Epoch)%(groupsMost-1))%groupsMost))
}

// pause has a proc stand still for a while.
func (x *trial) pause(ctx context.Context, proc string, span time.Duration) {
	x.t.Helper()
	if err := x.c.Freeze(ctx, sigma.ProcID(proc)); sigma.KindOf(err) != sigma.KindNotFound {
		must(x.t, err)
	}
	retry.Pause(ctx, span)
	if err := x.c.Thaw(ctx, sigma.ProcID(proc)); sigma.KindOf(err) != sigma.KindNotFound {
		must(x.t, err)
	}
}

// balancer gives the balancer that leads.
func (x *trial) balancer(ctx context.Context) (proc string) {
	x.t.Helper()
	testenv.Eventually(x.t, "a balancer leads", func() error {
		text, _, err := x.c.Get(ctx, layout.Dir(x.name)+"/leader")
		proc = string(text)
		return err
	})
	return proc
}

// member draws a member of a group.
func (x *trial) member(ctx context.Context) string {
	x.t.Helper()
	var all []string
	testenv.Eventually(x.t, "members are known", func() error {
		cfg, err := x.k.Config(ctx)
		if err != nil {
			return err
		}
		all = nil
		for g := range cfg.Groups {
			st, err := x.k.Group(ctx, g)
			if err != nil {
				return err
			}
			all = append(all, st.Members...)
		}
		slices.Sort(all)
		return nil
	})
	return all[x.rng.IntN(len(all))]
}

// whole says what groups lack.
func (x *trial) whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	cfg, err := x.k.Config(ctx)
	if err != nil {
		return err
	}
	running := map[string]bool{}
	procs, err := x.c.List(ctx, false)
	for _, p := range procs {
		running[string(p.ID)] = p.State == sigma.ProcRunning
	}
	for g := range cfg.Groups {
		st, gerr := x.k.Group(ctx, g)
		live := 0
		for _, m := range st.Members {
			if running[m] {
				live++
			}
		}
		if gerr == nil && (live != cfg.Replicas || len(st.Members) != live) {
			gerr = fmt.Errorf("group %d has the members %v, of which %d run", g, st.Members, live)
		}
		err = errors.Join(err, gerr)
	}
	return err
}

// check looks for an order. A history that has none is kept.
func (x *trial) check(round uint64, h *history.History) {
	x.t.Helper()
	r, err := history.Check(h, history.KV, checkMax)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Logf("round %d: %d faults; %s", round, len(h.Faults), r.Text())
	if r.Verdict == history.Linearizable {
		if r.Ops-r.Unknown-r.Failed < 100 {
			x.t.Error("hardly anything was done")
		}
		return
	}
	x.t.Errorf("round %d is %s", round, r.Verdict)
	var lines []byte
	for i := range h.Ops {
		line, err := h.Ops[i].Encode()
		must(x.t, err)
		lines = append(lines, line...)
	}
	file := filepath.Join(os.TempDir(), fmt.Sprintf("kv-order-%d.jsonl", os.Getpid()))
	must(x.t, os.WriteFile(file, lines, 0o600))
	x.t.Logf("the history is in %s: sigma verify --html FILE %s", file, file)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// running reports whether all of some procs run.
func running(ctx context.Context, c *sdk.Client, procs []string) bool {
	live := map[string]bool{}
	all, err := c.List(ctx, false)
	for _, p := range all {
		live[string(p.ID)] = p.State == sigma.ProcRunning
	}
	return err == nil && !slices.ContainsFunc(procs, func(p string) bool { return !live[p] })
}
