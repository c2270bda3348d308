package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// neighbourBench: what does a flood by one realm cost another? Two procs of one realm (programs/flood) ask for as much of one kind as they can, in 32 loops each, while a client of another realm reads a name and starts procs, one after the
// other. Each flood has a realm of its own, which is removed after it. theirs is the same measured before the flood; ratio is quiet by beside, so that 0.33 is three times as long. Expected: the flood's own programs take processor time, of which the other realm has its
// part; beyond that, requests of one realm do not wait for more than a turn of the other's (ADR 34), so that no p99 is beyond 3 times quiet.
func neighbourBench() Bench {
	b := Bench{Name: "neighbour", Question: "how much longer do a realm's reads and starts take beside a flood by another realm?", Parts: neighbourFloods, run: runNeighbour}
	for _, f := range neighbourFloods {
		b.Metrics = append(b.Metrics, f+"_get_p99_ms", f+"_spawn_p99_ms")
	}
	return b
}

// neighbourFloods are the kinds of programs/flood, and sessions, which the bench makes.
var neighbourFloods = []string{"lc", "be", "dial", "names", "leases", "s3", "sql", "list", "sessions"}

// neighbour is one run of the bench.
type neighbour struct {
	r              *Run
	s              *system
	share, program string        // local files: what is started, and the flood
	start          string        // the former in the realm
	window         time.Duration // of one measurement
}

func runNeighbour(ctx context.Context, r *Run) (err error) {
	n := &neighbour{r: r, window: 10 * time.Second}
	if r.Quick {
		n.window = 1500 * time.Millisecond
	}
	if n.share, err = r.buildShare(ctx); err != nil {
		return err
	}
	n.program = filepath.Join(r.dir, "flood")
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", n.program, "./bench/programs/flood"); err != nil {
		return err
	}
	if n.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer n.s.down()
	group, err := n.s.instanceGroup()
	if err != nil {
		return err
	}
	out, err := enterOwnGroup(group + "/rest/driver") // so that who measures is not kept from it by what floods
	if err != nil {
		return err
	}
	defer out()
	if n.start, err = n.s.install(ctx, n.share, "share"); err != nil {
		return err
	}
	if _, err := n.s.Put(ctx, "/name", []byte("value"), sigma.PutOptions{Perm: 0o644}); err != nil {
		return err
	}
	if _, _, err := n.measure(ctx, "warm"); err != nil {
		return err
	}
	for _, flood := range neighbourFloods {
		if r.Only != "" && r.Only != flood {
			continue
		}
		if err := n.beside(ctx, flood); err != nil {
			return fmt.Errorf("beside %s: %w", flood, err)
		}
	}
	return nil
}

// measure gives the 99th percentiles of a window, in ms.
func (n *neighbour) measure(ctx context.Context, arm string) (get, spawn float64, err error) {
	var gets, spawns []float64
	timed := func(metric string, all *[]float64, f func() error) {
		began := time.Now()
		if err == nil {
			err = f()
		}
		*all = append(*all, n.r.sample(arm, metric, time.Since(began).Seconds()*1e3))
	}
	for end := time.Now().Add(n.window); time.Now().Before(end) && err == nil; {
		for range 20 {
			timed("get_ms", &gets, func() error { _, _, err := n.s.Get(ctx, "/name"); return err })
		}
		var ids []sigma.ProcID
		timed("spawn_ms", &spawns, func() (err error) {
			if ids, err = n.s.Spawn(ctx, sigma.Descriptor{Program: n.start, Args: []string{"work", "0"}, Memory: sigma.MemoryLeast}); err == nil {
				err = n.s.WaitStart(ctx, ids[0])
			}
			return err
		})
		if err == nil {
			_, err = n.s.WaitExit(ctx, ids[0])
		}
	}
	return quantile(gets, 0.99), quantile(spawns, 0.99), err
}

// beside measures quiet, and beside one flood.
func (n *neighbour) beside(ctx context.Context, flood string) error {
	quietGet, quietSpawn, err := n.measure(ctx, "quiet")
	if err != nil {
		return err
	}
	end, err := n.flood(ctx, flood)
	if err == nil {
		var get, spawn float64
		if get, spawn, err = n.measure(ctx, flood); err == nil {
			for _, l := range []Line{{Metric: flood + "_get_p99_ms", Ours: get, Theirs: &quietGet}, {Metric: flood + "_spawn_p99_ms", Ours: spawn, Theirs: &quietSpawn}} {
				l.Unit, l.Peer, l.Ratio, l.N = "ms", "quiet", pointer(*l.Theirs/l.Ours), 1
				if err = n.r.print(l); err != nil {
					break
				}
			}
		}
	}
	if e := end(); err == nil {
		err = e
	}
	return err
}

// flood begins one, and gives it half a second; end ends it, and removes its realm.
func (n *neighbour) flood(ctx context.Context, flood string) (end func() error, err error) {
	name := sigma.RealmID("flood-" + flood)
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	end = func() error {
		stop()
		all.Wait()
		return n.s.command(context.WithoutCancel(ctx), "realm", "rm", "--force", string(name))
	}
	if err := n.s.Realms().Create(ctx, name); err != nil {
		return end, err
	}
	c, err := sdk.Connect(ctx, filepath.Join(n.s.data, "sigmad", "admin.sock"), name)
	if err != nil {
		return end, err
	}
	context.AfterFunc(ctx, c.Close)
	of := &system{r: n.r, Client: c}
	program, err := of.install(ctx, n.share, "share")
	if err != nil {
		return end, err
	}
	switch flood {
	case "sessions":
		for range 16 {
			all.Go(func() {
				for ctx.Err() == nil {
					if c, err := sdk.Connect(ctx, filepath.Join(n.s.data, "sigmad", "admin.sock"), name); err == nil {
						c.Get(ctx, "/nothing")
						c.Close()
					}
				}
			})
		}
	case "sql":
		err = n.s.command(ctx, "--realm", string(name), "sql", "create", "flood")
	case "s3":
		err = c.Mkdir(ctx, "/s3/flood", 0o755)
	}
	if err == nil && flood != "sessions" {
		var local string
		if local, err = of.install(ctx, n.program, "flood"); err == nil {
			d := sigma.Descriptor{Program: local, Args: []string{flood, program}, Memory: 256 * sigma.MiB}
			_, err = c.Spawn(ctx, d, d)
		}
	}
	select {
	case <-time.After(n.window / 3):
	case <-ctx.Done():
	}
	return end, err
}
